"""What `experiments.next_word` compares: methods, graphs, numbers of agents."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.analysis import figures
from experiments.engine import design, texts
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.jobs import Job, jobs_of_runs
from experiments.next_word import tables
from experiments.next_word.config import Config
from experiments.next_word.methods import (
    Contender,
    build_program,
    make_optimizer,
    make_task,
)
from p2pjax.datasets.loaders import text

PUSHED = ("p2p_bn_no_tuning", "p2p_bn")
COMPARED = ("d2", "gosgd", "sgp", "p2p_bn")  # in the thesis
Compared = list[tuple[Contender, dict[str, Any]]]  # with what rows say about it


def methods(config: Config) -> Compared:
    """Any methods on one graph."""
    return _on_one_graph(config, config.methods)


def _on_one_graph(config: Config, names: Sequence[str]) -> Compared:
    size, graph, directed = config.num_agents, config.graph, config.directed
    return [(Contender(name, size, graph, directed), {}) for name in names]


def ablation(config: Config) -> Compared:
    """P2P-BN with and without fine-tuning of batch norm (2.1.1.3)."""
    return [
        (
            Contender(name, config.num_agents, directed=directed),
            {"directed": directed},
        )
        for directed in (True, False)
        for name in ("p2p_bn", "p2p_bn_no_tuning")
    ]


def ring(config: Config) -> Compared:
    """Networks with and without batch norm on rings (Tables 1 and 2)."""
    found: Compared = []
    for batch_norm, directed, name in itertools.product(
        (True, False), (True, False), COMPARED
    ):
        if name == "p2p_bn" and not batch_norm:
            name = "p2p_bn_no_tuning"
        contender = Contender(
            name,
            config.num_agents,
            graph="ring",
            directed=directed,
            batch_norm=batch_norm,
        )
        found.append((contender, {"directed": directed, "batch_norm": batch_norm}))
    return found


def sparse(config: Config) -> Compared:
    """Fixed sparse graphs, and others every five network epochs (Table 3)."""
    return [
        (
            Contender(
                name,
                config.num_agents,
                directed=directed,
                rewire_every=rewire_every,
            ),
            {"directed": directed, "varying": rewire_every is not None},
        )
        for directed in (True, False)
        for rewire_every in (None, 5)
        for name in COMPARED
    ]


def scaling(config: Config) -> Compared:
    """More agents on a sparse directed graph (Table 6 of the first article)."""
    return [
        (Contender(name, size, growing_momentum=True), {"num_agents": size})
        for size in config.sizes
        for name in COMPARED
    ]


def epochs(config: Config) -> Compared:
    """How long agents learn by themselves, --local_epochs and --local_steps."""
    return _on_one_graph(config, ("dpsgd", "gosgd", *PUSHED))


def loss(config: Config) -> Compared:
    """Protocols that take losses, with --loss_probability."""
    return _on_one_graph(config, ("dpsgd", "gosgd", "sgp", *PUSHED))


def references(config: Config) -> Compared:
    """Each agent alone, and all data pooled."""
    return [
        (Contender(name, config.num_agents), {}) for name in ("local_only", "central")
    ]


STUDIES: dict[str, Callable[[Config], Compared]] = {
    "methods": methods,
    "ablation": ablation,
    "ring": ring,
    "sparse": sparse,
    "scaling": scaling,
    "epochs": epochs,
    "loss": loss,
    "references": references,
}


def contenders(config: Config) -> Compared:
    """What the study compares, with each value of the flags that have several."""
    found: Compared = []
    for contender, setting in STUDIES[config.study](config):
        for varied, values in design.combinations(
            {
                "norm": config.norm,
                "local_epochs": config.local_epochs,
                "local_steps": config.local_steps,
                "loss_probability": config.loss_probability,
            },
            contender.factors,
        ):
            found.append((contender._replace(**values), setting | varied))
    return found


def check_room(config: Config, num_ids: int) -> None:
    """Refuses agents that cannot fit, before their texts are made.

    Args:
      config: of the experiment.
      num_ids: of the vocabulary, at least.
    """
    for contender, _ in contenders(config):
        texts.check_room(
            config,
            1 if contender.method == "central" else contender.num_agents,
            make_task(config, contender, num_ids),
            units=config.units,
            num_ids=num_ids,
            optimizer=make_optimizer(config),
        )


def make_jobs(config: Config) -> list[Job]:
    """All runs of what the study compares."""
    compared = contenders(config)
    sizes = sorted({contender.num_agents for contender, _ in compared})
    documents = texts.load_documents(
        config,
        config.dataset,
        sizes[-1],
        config.num_words,
        lambda num_ids: check_room(config, num_ids),
    )
    corpus = text.encode(documents, config.num_words)
    check_room(config, corpus.vocabulary.num_ids)
    data = {
        size: texts.worlds(
            config,
            corpus,
            size,
            min_train=config.min_train,
            max_train=config.max_train,
        )
        for size in sizes
    }
    jobs = []
    for contender, setting in compared:
        jobs += jobs_of_runs(
            config,
            contender.method,
            setting,
            build_program(config, contender, corpus.vocabulary.num_ids),
            data[contender.num_agents].__getitem__,
        )
    return jobs


def report(config: Config, folder: Path) -> None:
    """Accuracy by epochs and by messages, and tables for a person."""
    del config
    figures.accuracy_by_round(folder, "network epochs")
    figures.accuracy_by_messages(folder)
    figures.print_summary(folder)
    tables.print_tops(folder)
    tables.print_graphs(folder)


EXPERIMENT = Experiment(
    "next_word",
    Config,
    make_jobs,
    report,
    summary=(*SUMMARY, "worst_decile"),
)
