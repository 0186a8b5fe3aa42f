"""The flags of `experiments.levels`."""

import dataclasses

from experiments.compare.entrants import OPTIMIZERS
from experiments.engine import texts
from experiments.engine.config import Common
from experiments.engine.datasets import dataset_field
from experiments.engine.fields import (
    DATA,
    TRAINING,
    choice,
    integer,
    integers,
    names,
    number,
    numbers,
    switch,
)
from p2pjax.datasets.loaders import femnist

OTHERS = ("local_only", "fedavg", "fedper", "ditto")
IMAGES, TEXTS = ("glyphs", "femnist"), ("speakers", *texts.LOADERS)
NETWORKS = {"cnn": IMAGES, "gru": TEXTS, "lstm": TEXTS}  # for which data


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """What is compared, on whose data, and how agents learn."""

    levels: tuple[int, ...] = integers(
        (0, 30, 60, 80, 100),
        "Averaging levels, percent of every hidden layer; at 0 nothing is averaged.",
        at_most=100,
    )
    methods: tuple[str, ...] = names(
        OTHERS, "What levels are compared with.", among=OTHERS
    )
    learning_rates: tuple[float, ...] | None = numbers(
        None,
        "Step sizes that every method is run with, in one program; --learning_rate, or "
        "0.1, if not given.",
        above=0,
    )
    budget_amount: float | None = number(
        None,
        "Bytes that an agent and its servers have sent where accuracies are compared; "
        "if not given, what the thriftiest method that sends anything has used in the "
        "end.",
        above=0,
    )
    dataset: str | None = dataset_field(
        (*IMAGES, *TEXTS),
        "Embedded procedural handwriting (glyphs, the default) or generated texts of "
        "speakers, or a data set in --data_dir.",
    )
    num_agents: int = integer(
        16, "Writers or users, one per agent.", at_least=2, topic=DATA
    )
    variant: str = choice(
        "a",
        list(femnist.VARIANTS),
        "Classes of glyphs and femnist: a all 62, m 47 with similar cases merged, d "
        "digits.",
        topic=DATA,
    )
    samples: int = integer(
        200, "Images of each writer of glyphs.", at_least=3, topic=DATA
    )
    test_fraction: float = number(
        0.2, "Of each writer's images.", above=0, below=1, topic=DATA
    )
    valid_fraction: float = number(
        0.1,
        "Of each writer's images, held out to choose learning rates; texts have a "
        "fifth.",
        above=0,
        below=1,
        topic=DATA,
    )
    num_words: int = integer(
        1000, "Words of the vocabulary of texts.", at_least=1, topic=DATA
    )
    min_train: int = integer(
        1, "Fewest training samples of a user of texts.", at_least=1, topic=DATA
    )
    max_train: int | None = integer(
        None,
        "Most training samples of a user of texts; no limit if not given.",
        at_least=1,
        topic=DATA,
    )
    network: str | None = choice(
        None,
        list(NETWORKS),
        "Of every agent; cnn for images and gru for texts, if not given.",
        topic=TRAINING,
    )
    channels: tuple[int, ...] = integers(
        (8, 16),
        "Channels of the convolutions of --network=cnn.",
        at_least=1,
        distinct=False,
        topic=TRAINING,
    )
    hidden: tuple[int, ...] = integers(
        (64,),
        "Cells of the hidden dense layers of --network=cnn.",
        at_least=1,
        distinct=False,
        topic=TRAINING,
    )
    units: int = integer(
        64,
        "Size of the embedding, of the GRU and its dense layer, or of the LSTM.",
        at_least=1,
        topic=TRAINING,
    )
    optimizer: str = choice(
        "sgd", list(OPTIMIZERS), "Optimizer of every agent.", topic=TRAINING
    )
    local_epochs: int = integer(
        1,
        "Passes over own data between two exchanges.",
        at_least=1,
        topic=TRAINING,
    )
    penalty_weight: float = number(
        0.1, "Of ditto, how much models are drawn to it.", at_least=0, topic=TRAINING
    )
    score_before: bool = switch(
        False, "Also score the models before they are averaged.", topic=TRAINING
    )
