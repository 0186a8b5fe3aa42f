"""What `experiments.connections` compares: methods, on one study's data."""

from pathlib import Path

import jax

from experiments.analysis import figures
from experiments.connections import (
    networks,
    overview,
    pictures,
    results,
    sources,
    thesis,
)
from experiments.connections.config import Config
from experiments.connections.data import image_data_of_runs, text_data_of_runs
from experiments.connections.limits import limits_of
from experiments.connections.methods import METHODS, NOT_DEFAULT, OF_A_RUN
from experiments.connections.options import Options
from experiments.connections.subject import Run, Subject
from experiments.engine import reading
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.config import agent_loop
from experiments.engine.jobs import Job, Program, jobs_of_runs, own_examples
from experiments.engine.summary import SPEED
from p2pjax.datasets.loaders import text
from p2pjax.datasets.loaders.text import Documents
from p2pjax.evaluation.models import worst_decile
from p2pjax.evaluation.test_sets import Evaluate, before_and_after
from p2pjax.tasks.task import Task
from p2pjax.types import Array, FederatedData, InputError, Models


def make_data_and_subject(config: Config) -> tuple[dict[int, FederatedData], Subject]:
    """The data of all runs, by their numbers, and what is learned from it."""
    if config.study == "text":
        return _of_texts(config, sources.load_documents(config))
    examples = sources.load_examples(config)
    subject = networks.image_subject(config, examples)
    return image_data_of_runs(config, examples), subject


def _of_texts(
    config: Config, documents: Documents
) -> tuple[dict[int, FederatedData], Subject]:
    corpus = text.encode(documents, config.num_words)
    subject = networks.text_subject(config, corpus.vocabulary.num_ids)
    return text_data_of_runs(config, corpus), subject


def make_jobs(config: Config) -> list[Job]:
    """All runs of all methods, for each pair of groups where there are pairs."""
    if not config.pairs:
        return _jobs_of(config, {}, *make_data_and_subject(config))
    if config.study != "text" or config.num_clusters != "2":
        raise InputError(
            "Need --study=text and --num_clusters=2 for --pairs, got "
            f"--study={config.study} and --num_clusters={config.num_clusters}."
        )
    pairs = sources.pairs_of_groups(sources.load_documents(config))
    return [
        job
        for name, documents in pairs.items()
        for job in _jobs_of(config, {results.PAIR: name}, *_of_texts(config, documents))
    ]


def _jobs_of(
    config: Config,
    pair: dict[str, str],
    of_runs: dict[int, FederatedData],
    subject: Subject,
) -> list[Job]:
    programs = [
        (method, setting, build_programs(method, subject._replace(limits=own), of_runs))
        for method in config.methods or default_methods(subject)
        for setting, own in limits_of(config, method)
    ]
    held = {run: own_examples(config, found) for run, found in of_runs.items()}
    facts = {"parameters": parameters_of(subject.task)}
    return [
        job
        for method, setting, of_run in programs
        for job in jobs_of_runs(
            config,
            method,
            pair | setting,
            of_run.__getitem__,
            held.__getitem__,
            facts=facts,
        )
    ]


def default_methods(subject: Subject) -> list[str]:
    """What is compared where the config does not say."""
    left_out = {*NOT_DEFAULT, "aucccr"} if subject.is_text else set(NOT_DEFAULT)
    return [name for name in METHODS if name not in left_out]


def build_programs(
    method: str, subject: Subject, of_runs: dict[int, FederatedData]
) -> dict[int, Program]:
    """A method, ready to run: one program per run, the same where it can be."""
    evaluate = evaluation(subject.config, subject.task)
    runs = [Run(number, found) for number, found in of_runs.items()]
    if method in OF_A_RUN:
        algorithms = [METHODS[method](subject, run) for run in runs]
    else:
        algorithms = [METHODS[method](subject, runs[0])] * len(runs)
    return {
        run.number: Program(algorithm, evaluate)
        for run, algorithm in zip(runs, algorithms, strict=True)
    }


def evaluation(config: Options, task: Task) -> Evaluate:
    """Accuracy and loss of every agent on its own test set, and the worst tenth."""
    on_own_tests = before_and_after(task, agent_loop(config, task))

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        values = dict(on_own_tests(models, data))
        return values | {"worst_decile": worst_decile(values["accuracy"])}

    return evaluate


def parameters_of(task: Task) -> int:
    """Numbers that a whole model is made of, statistics included."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    stats = {k: v for k, v in shapes.stats.items() if k != "momentum"}
    return sum(leaf.size for leaf in jax.tree.leaves((shapes.params, stats)))


def report(config: Config, folder: Path) -> None:
    """Figures, and a table beside what the thesis printed."""
    del config
    figures.accuracy_by_round(folder, "rounds", results.named_rows(folder))
    pictures.draw(folder)
    overview.print_table(folder, thesis.column_of(reading.flags(folder)))
    print(f"Results are in {folder}")


EXPERIMENT = Experiment(
    "connections",
    Config,
    make_jobs,
    report,
    summary=(
        *SUMMARY,
        "worst_decile",
        "messages_thesis",
        "gini",
        "in_cluster",
        "merged_in_cluster",
        SPEED,
    ),
)
