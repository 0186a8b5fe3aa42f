"""The flags of `experiments.connections`."""

import dataclasses

from experiments.connections.methods import METHODS, NOT_DEFAULT
from experiments.connections.options import Options
from experiments.engine.datasets import dataset_field
from experiments.engine.fields import DATA, choice, integer, names, number, switch

IMAGE_STUDIES = (
    "rotation",
    "swap",
    "vehicles_animals",
    "superclasses",
    "pathological",
    "practical",
)


@dataclasses.dataclass(frozen=True)
class Config(Options):
    """How clusters differ, on which data, and which methods are compared."""

    study: str = choice(
        "rotation", (*IMAGE_STUDIES, "text"), "How clusters of agents differ."
    )
    methods: tuple[str, ...] | None = names(
        None,
        f"What is compared; if not given, all but {', '.join(NOT_DEFAULT)} and, for "
        "texts, aucccr.",
        among=tuple(METHODS),
    )
    num_clusters: str = choice(
        "2", ("2", "4"), "Clusters of the studies rotation, swap and text."
    )
    superclasses: tuple[str, ...] | None = names(
        None,
        "Names of the superclasses that the classes belong to, one for each class in "
        "the order of the classes: agents of --study=superclasses have the classes of "
        "one of them.",
        distinct=False,
    )
    network: str | None = choice(
        None,
        ("cnn", "cnn_table", "mlp"),
        "Network for images: that of the thesis' code, of its table, or one hidden "
        "layer; if not given, the first for images of 24 pixels or more, else the "
        "last.",
    )
    hidden: int = integer(32, "Hidden cells of the network mlp.", at_least=1)
    gru_units: int = integer(
        100, "Size of the embedding, the GRU and the dense layer.", at_least=1
    )
    dataset: str | None = dataset_field(
        ("digits", "glyphs", "cifar10", "mnist", "speakers", "shakespeare", "reddit"),
        "Small digits of scikit-learn (digits, the default), generated handwriting "
        "(glyphs), or CIFAR-10 or MNIST in --data_dir; for the study text, generated "
        "texts of speakers (the default), or those of Shakespeare's plays or Reddit in "
        "--data_dir. Users of other data are agents for rotation and swap.",
    )
    num_agents: int = integer(40, "Agents of a run.", at_least=4, topic=DATA)
    train_size: int | None = integer(
        None,
        "Training examples per agent, class-balanced; all if not given.",
        at_least=1,
        topic=DATA,
    )
    proportional: bool = switch(
        False,
        "Classes keep their shares where --train_size leaves some out.",
        topic=DATA,
    )
    test_share: float = number(
        1 / 3,
        "Share of images to test on where the data has no test part.",
        above=0,
        below=1,
        topic=DATA,
    )
    num_words: int = integer(
        10_000,
        "Words of the vocabulary, the most frequent ones.",
        at_least=1,
        topic=DATA,
    )
    min_train: int = integer(
        1,
        "Fewest training samples of a user of the study text.",
        at_least=1,
        topic=DATA,
    )
    max_train: int | None = integer(
        None,
        "Most training samples of a user; no limit if not given.",
        at_least=1,
        topic=DATA,
    )
    pairs: bool = switch(
        False,
        "The study text for each pair of the four clusters with most users, one after "
        "the other, whose mean is that of two clusters.",
        topic=DATA,
    )
    subreddits: tuple[str, ...] = names(
        ("politics", "leagueoflegends", "nba", "Bitcoin"),
        "Clusters of --dataset=reddit, of which the first --num_clusters count, or the "
        "first four with --pairs: the thesis has the mean over all pairs of these four "
        "where it has two.",
        topic=DATA,
    )
