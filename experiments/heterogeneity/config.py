"""The flags of `experiments.heterogeneity`."""

import dataclasses

from experiments.engine.config import Common
from experiments.engine.datasets import FORMATS, is_format
from experiments.engine.fields import DATA, integer, names, numbers
from experiments.engine.texts import LOADERS
from experiments.heterogeneity.practical import PARTS

IMAGES = ("digits", "mnist")  # each in several splits


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """Which agents are compared with each other."""

    dataset: tuple[str, ...] = names(
        ("digits", "speakers"),
        "Populations: images in three splits or users' texts; all but digits and "
        "speakers are read from --data_dir. Labelled examples of your own (an npz file "
        "with x, y and, if it has users, user), in other formats or of TensorFlow "
        "Datasets are by user, or in these splits where they have no users: practical "
        "where five clusters divide agents and classes.",
        among=(*IMAGES, "speakers", *LOADERS, *FORMATS),
        also=is_format,
        topic=DATA,
    )
    num_agents: int = integer(100, "Agents of a run.", at_least=2, topic=DATA)
    other_share: tuple[float, ...] = numbers(
        (0.04,),
        "Share of a class that goes to each cluster that it does not belong to, in the "
        "practical split of images.",
        above=0,
        topic=DATA,
    )
    parts: tuple[str, ...] = names(
        ("near",),
        "Rows of a class for agents of a cluster in the practical split of images: all "
        "of them, so that some agents have one more than others (near), or the same "
        "number each, and what is left over is not used (same).",
        among=PARTS,
        topic=DATA,
    )
    num_words: int = integer(
        10_000,
        "Words of the vocabulary, the most frequent ones.",
        at_least=1,
        topic=DATA,
    )
    min_train: int = integer(
        50, "Fewest training samples of a user.", at_least=1, topic=DATA
    )
