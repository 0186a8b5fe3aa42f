r"""Whom agents connect with, where some are alike (Sajina 2025, third study).

    python -m experiments.connections \
        --flagfile=experiments/flags/connections.quick.flags

Agents are in clusters of which they know nothing (`connection_worlds`), and methods
choose peers in their own ways (`connection_methods`). A round is a local epoch of
each agent. What counts is the accuracy of trained models before they are averaged (of
D-Cliques, which averages after each step, after that), and what was sent for it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import optax
from absl import flags

from experiments import (
    common,
    connection_methods,
    connection_results,
    connection_thesis,
    connection_worlds,
    figures,
    jobs,
    run_folder,
    runner,
)
from experiments.connection_methods import METHODS, NOT_DEFAULT, Subject
from experiments.connection_worlds import Setup
from p2pjax.datasets.loaders import (
    cifar10,
    digits,
    glyphs,
    mnist,
    npz,
    reddit,
    shakespeare,
    speakers,
    text,
)
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.nn import cnn, mlp
from p2pjax.nn.gru import NextWord
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks._next_token import next_token
from p2pjax.types import FederatedData, InputError

flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(connection_methods)

SUBREDDITS = ["politics", "leagueoflegends", "nba", "Bitcoin"]
SMALLEST_CONVOLVED = 24  # pixels of a side
GLYPHS_EACH = 200  # images per agent
_STUDY = flags.DEFINE_enum(
    "study",
    "rotation",
    list(connection_worlds.STUDIES),
    "How clusters of agents differ: rotated images, swapped labels, other classes, "
    "other texts.",
)
_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    [
        "digits",
        "glyphs",
        "cifar10",
        "mnist",
        "npz",
        "speakers",
        "shakespeare",
        "reddit",
    ],
    "Small digits of scikit-learn (the default), generated handwriting, or images in "
    "--data_dir; for the study text, generated texts of speakers (the default), or "
    "texts in --data_dir.",
)
_NUM_CLUSTERS = flags.DEFINE_enum(
    "num_clusters", "2", ["2", "4"], "Clusters of the studies rotation, swap and text."
)
_NUM_AGENTS = flags.DEFINE_integer("num_agents", 40, "Agents of a run.", lower_bound=4)
_TRAIN_SIZE = flags.DEFINE_integer(
    "train_size",
    None,
    "Training examples per agent, class-balanced; all if not given.",
    lower_bound=1,
)
_PROPORTIONAL = flags.DEFINE_bool(
    "proportional",
    False,
    "Classes keep their shares where --train_size leaves some out.",
)
_TEST_SHARE = flags.DEFINE_float(
    "test_share", 1 / 3, "Share of images to test on where the data has no test part."
)
_NETWORK = flags.DEFINE_enum(
    "network",
    None,
    ["cnn", "cnn_table", "mlp"],
    "Network for images: that of the thesis' code, of its table, or one hidden layer; "
    "if not given, the first for images of 24 pixels or more, else the last.",
)
_HIDDEN = flags.DEFINE_integer("hidden", 32, "Hidden cells of the network mlp.", 1)
_GRU_UNITS = flags.DEFINE_integer(
    "gru_units", 100, "Size of the embedding, the GRU and the dense layer.", 1
)
_NUM_WORDS = flags.DEFINE_integer(
    "num_words", 10_000, "Words of the vocabulary, the most frequent ones.", 1
)
_MIN_TRAIN = flags.DEFINE_integer(
    "min_train", 1, "Fewest training samples of a user of the study text.", 1
)
_MAX_TRAIN = flags.DEFINE_integer(
    "max_train", None, "Most training samples of a user; no limit if not given."
)
_SUBREDDITS = flags.DEFINE_list(
    "subreddits",
    SUBREDDITS,
    "Clusters of --dataset=reddit, of which the first --num_clusters count. The thesis "
    "has the mean over all pairs of these four where it has two.",
)
_METHODS = flags.DEFINE_list(
    "methods",
    None,
    f"What is compared, among {', '.join(METHODS)}; if not given, all but "
    f"{', '.join(NOT_DEFAULT)} and, for texts, aucccr.",
)


def make_setup() -> Setup:
    """What the flags say about agents and data."""
    if not 0 < _TEST_SHARE.value < 1:
        raise InputError(
            f"Need a test share above 0 and below 1, got {_TEST_SHARE.value}."
        )
    return Setup(
        study=_STUDY.value,
        num_clusters=int(_NUM_CLUSTERS.value),
        num_agents=_NUM_AGENTS.value,
        train_size=_TRAIN_SIZE.value,
        proportional=_PROPORTIONAL.value,
        valid_share=0.2,
        test_share=_TEST_SHARE.value,
    )


def load_examples() -> Examples:
    """The images that the flags name."""
    size = _NUM_AGENTS.value
    if _DATASET.value == "glyphs":
        return glyphs.glyphs(size, GLYPHS_EACH, seed=common.SEED.value, num_classes=10)
    loaders = {"cifar10": cifar10.load, "mnist": mnist.load, "npz": npz.load}
    _check_dataset(["digits", *loaders])
    note = "scikit-learn's small digits are used"
    return common.load_dataset(_DATASET.value, digits.load, note, loaders)


def load_documents() -> Documents:
    """The texts that the flags name, of as many groups as there are clusters."""
    num_clusters = int(_NUM_CLUSTERS.value)

    def written() -> Documents:
        return speakers.speakers(
            _NUM_AGENTS.value * common.NUM_RUNS.value,
            seed=common.SEED.value,
            num_topics=num_clusters,
        )

    loaders: dict[str, Callable[[str], Documents]] = {
        "shakespeare": lambda path: shakespeare.by_play(shakespeare.load(path)),
        "reddit": partial(
            reddit.load, subreddits=tuple(_SUBREDDITS.value[:num_clusters])
        ),
    }
    _check_dataset(["speakers", *loaders])
    note = "generated texts of speakers are used"
    found = common.load_dataset(_DATASET.value, written, note, loaders)
    return connection_worlds.in_largest_groups(found, num_clusters)


def _check_dataset(possible: list[str]) -> None:
    if _DATASET.value is not None and _DATASET.value not in possible:
        raise InputError(
            f"Need --dataset among {', '.join(possible)} for --study={_STUDY.value}, "
            f"got {_DATASET.value}."
        )


def image_task(examples: Examples) -> Subject:
    """The network of every agent for images."""
    shape, num_classes = examples.x.shape[1:], examples.num_classes
    name = _NETWORK.value
    if name is None:
        is_large = len(shape) > 1 and min(shape[:2]) >= SMALLEST_CONVOLVED
        name = "cnn" if is_large else "mlp"
    module: Any = mlp.MLP((_HIDDEN.value, num_classes))
    if name == "cnn":
        module = cnn.CNN((6, 16), (120,), num_classes, kernel_size=5, pool=2)
    elif name == "cnn_table":
        module = cnn.CNN((6, 16), (128,), num_classes, kernel_size=5, pool=3)
    return Subject(
        classification(module, shape, losses.softmax_cross_entropy),
        optax.adam(common.learning_rate(1e-3), eps=1e-7),  # as in Keras
        connection_worlds.cluster_of(make_setup(), num_classes),
        num_classes,
        is_text=False,
    )


def text_task(num_ids: int) -> Subject:
    """The network of every agent for texts."""
    units = _GRU_UNITS.value
    module = NextWord(num_ids, units, units, units, batch_norm=True)
    return Subject(
        next_token(module, text.WINDOW, ignore_token=text.UNKNOWN, momentum=0.9),
        optax.adam(common.learning_rate(5e-3), eps=1e-7),
        connection_worlds.cluster_of(make_setup(), num_ids),
        num_ids,
        is_text=True,
    )


def make_world_and_task() -> tuple[list[FederatedData], Subject]:
    """The data of all runs and what is learned from it."""
    setup, seed, num_runs = make_setup(), common.SEED.value, common.NUM_RUNS.value
    if setup.study == "text":
        corpus = text.encode(load_documents(), _NUM_WORDS.value)
        subject = text_task(corpus.vocabulary.num_ids)
        limits = _MIN_TRAIN.value, _MAX_TRAIN.value
        worlds = connection_worlds.text_worlds(corpus, setup, seed, num_runs, *limits)
        return worlds, subject
    examples = load_examples()
    subject = image_task(examples)
    return connection_worlds.image_worlds(examples, setup, seed, num_runs), subject


def make_jobs() -> list[runner.Job]:
    """All runs of all methods."""
    worlds, subject = make_world_and_task()
    methods = _METHODS.value
    if methods is None:
        left_out = {*NOT_DEFAULT, "aucccr"} if subject.is_text else set(NOT_DEFAULT)
        methods = [name for name in METHODS if name not in left_out]
    facts = {"parameters": connection_methods.parameters_of(subject.task)}
    programs = {
        method: connection_methods.build_programs(method, subject, worlds)
        for method in methods
    }
    held = [jobs.own_examples(world) for world in worlds]
    return [
        runner.Job(
            scheme=method,
            setting={},
            run=run,
            algorithm=program.algorithm,
            evaluate=program.evaluate,
            make_world=partial(_given, held[run]),
            facts=facts,
        )
        for method in methods
        for run, program in enumerate(programs[method])
    ]


def _given(world: FederatedData) -> FederatedData:
    return world


def main() -> None:
    """Runs the study that the flags name."""
    summary = (
        "accuracy",
        "loss",
        "worst_decile",
        "messages",
        "bytes",
        "gini",
        "in_cluster",
        "merged_in_cluster",
    )
    folder = runner.run_jobs("connections", make_jobs(), summary)
    figures.accuracy_by_round(folder, "rounds")
    connection_results.draw(folder)
    column = connection_thesis.column_of(run_folder.settings(folder))
    connection_results.print_table(folder, column)
    print(f"Results are in {folder}")


if __name__ == "__main__":
    common.run(main)
