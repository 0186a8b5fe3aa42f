"""Next-word prediction by peers, one user per agent (Sajina 2025, first study).

    python -m experiments.next_word --flagfile=experiments/flags/next_word.quick.flags

Every agent has the texts of one user, and a round is a network epoch. Studies:
`methods` compares methods on one graph, `ablation`, `ring`, `sparse`, `scaling` and
`references` are those of the thesis.
"""

import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from experiments import common, figures, protocol_study, runner
from experiments.jobs import own_examples
from experiments.protocol_study import Setting
from p2pjax.datasets import stacking
from p2pjax.datasets.loaders import (
    chat,
    reddit,
    shakespeare,
    speakers,
    stackoverflow,
    text,
)
from p2pjax.datasets.loaders.text import Corpus, Documents
from p2pjax.types import FederatedData

flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(protocol_study)

LOADERS: dict[str, Callable[[str], Documents]] = {
    "shakespeare": shakespeare.load,
    "chat": chat.load,
    "reddit": reddit.load,
    "stackoverflow": stackoverflow.load,
}
_STUDY = flags.DEFINE_enum(
    "study",
    "methods",
    ["methods", "ablation", "ring", "sparse", "scaling", "references"],
    "What is compared; see above.",
)
_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    ["speakers", *LOADERS],
    "Generated texts of speakers (the default), or a data set in --data_dir.",
)
_NUM_AGENTS = flags.DEFINE_integer("num_agents", 100, "Users, one per agent.")
_NUM_WORDS = flags.DEFINE_integer(
    "num_words", 10_000, "Words of the vocabulary, the most frequent ones.", 1
)
_MIN_TRAIN = flags.DEFINE_integer(
    "min_train", 1, "Fewest training samples of a user.", 1
)
_MAX_TRAIN = flags.DEFINE_integer(
    "max_train", None, "Most training samples of a user; no limit if not given."
)
_METHODS = flags.DEFINE_list(
    "methods",
    list(protocol_study.METHODS),
    f"What the study `methods` compares: {', '.join(protocol_study.METHODS)}.",
)
_DIRECTED = flags.DEFINE_bool(
    "directed", True, "Whether links of the study `methods` go one way only."
)
_SIZES = flags.DEFINE_list("sizes", ["100", "500"], "Agents of the study `scaling`.")


class Case(NamedTuple):
    """One line of a study."""

    name: str
    setting: dict[str, Any]
    protocol: Setting


def load_documents() -> Documents:
    """The texts that the flags name."""

    def written() -> Documents:
        most = max(case.protocol.num_agents for case in make_cases())
        num_speakers = most * common.NUM_RUNS.value
        return speakers.speakers(num_speakers, seed=common.SEED.value)

    return common.load_dataset(
        _DATASET.value, written, "generated texts of speakers are used", LOADERS
    )


def make_cases() -> list[Case]:
    """What the study compares."""
    plain = Setting(method="p2p_bn", num_agents=_NUM_AGENTS.value)
    compared = ("d2", "gosgd", "sgp", "p2p_bn")
    cases: list[tuple[Setting, dict[str, Any]]] = []
    if _STUDY.value == "methods":
        for method in _METHODS.value:
            setting = plain._replace(method=method, directed=_DIRECTED.value)
            cases.append((setting, {}))
    elif _STUDY.value == "ablation":  # E1
        for directed, method in itertools.product(
            (True, False), ("p2p_bn", "p2p_bn_no_tuning")
        ):
            setting = plain._replace(method=method, directed=directed)
            cases.append((setting, {"directed": directed}))
    elif _STUDY.value == "ring":  # E2
        for batch_norm, directed, method in itertools.product(
            (True, False), (True, False), compared
        ):
            if method == "p2p_bn" and not batch_norm:
                method = "p2p_bn_no_tuning"
            setting = plain._replace(
                method=method, ring=True, directed=directed, batch_norm=batch_norm
            )
            cases.append((setting, {"directed": directed, "batch_norm": batch_norm}))
    elif _STUDY.value == "sparse":  # E3
        for directed, rewire_every, method in itertools.product(
            (True, False), (None, 5), compared
        ):
            setting = plain._replace(
                method=method, directed=directed, rewire_every=rewire_every
            )
            varied = {"directed": directed, "varying": rewire_every is not None}
            cases.append((setting, varied))
    elif _STUDY.value == "scaling":  # E4
        for size, method in itertools.product(
            common.integers("sizes", _SIZES.value), compared
        ):
            setting = plain._replace(
                method=method, num_agents=size, growing_momentum=True
            )
            cases.append((setting, {"num_agents": size}))
    else:  # E5
        for method in ("local_only", "central"):
            cases.append((plain._replace(method=method), {}))
    return [Case(setting.method, varied, setting) for setting, varied in cases]


def make_worlds(corpus: Corpus, num_agents: int) -> list[FederatedData]:
    """Other users in every run, all worlds with the same shapes."""
    worlds = []
    for run in range(common.NUM_RUNS.value):
        users = text.select(
            corpus,
            num_agents=num_agents,
            run=run,
            seed=common.SEED.value,
            min_train=_MIN_TRAIN.value,
            max_train=_MAX_TRAIN.value,
        )
        rng = np.random.default_rng([common.SEED.value, run])
        worlds.append(text.world_of_users(corpus, users, rng))
    return list(map(own_examples, stacking.pad_to_same_size(worlds)))


def make_jobs() -> list[runner.Job]:
    """All runs of all cases."""
    cases = make_cases()
    corpus = text.encode(load_documents(), _NUM_WORDS.value)
    worlds = cache(partial(make_worlds, corpus))
    jobs = []
    for case in cases:
        program = protocol_study.build_program(
            case.protocol, corpus.vocabulary.num_ids, text.WINDOW
        )
        for run, world in enumerate(worlds(case.protocol.num_agents)):
            jobs.append(
                runner.Job(
                    scheme=case.name,
                    setting=case.setting,
                    run=run,
                    algorithm=program.algorithm,
                    evaluate=program.evaluate,
                    make_world=partial(_given, world),
                )
            )
    return jobs


def _given(world: FederatedData) -> FederatedData:
    return world


def main() -> None:
    """Runs the study that the flags name."""
    summary = ("accuracy", "loss", "messages", "bytes", "worst_decile")
    folder = runner.run_jobs("next_word", make_jobs(), summary)
    figures.accuracy_by_round(folder, "network epochs")
    figures.accuracy_by_messages(folder)
    figures.print_summary(folder)
    protocol_study.print_tops(folder)
    protocol_study.print_graphs(folder)


if __name__ == "__main__":
    common.run(main)
