"""The flags of `experiments.multi_task`."""

import dataclasses
from collections.abc import Callable
from functools import partial

from experiments.engine.config import Common
from experiments.engine.fields import (
    DATA,
    TRAINING,
    choice,
    integer,
    integers,
    names,
    number,
    numbers,
    text,
)
from p2pjax.datasets.loaders import chat, ner, reddit, shakespeare, stackoverflow
from p2pjax.datasets.loaders.ner import Tagged
from p2pjax.datasets.loaders.text import Documents

EMBEDDED = ("speakers", "tags", "speakers_2", "tags_2")  # the latter of other habits
TEXTS: dict[str, Callable[[str], Documents]] = {
    "shakespeare": shakespeare.load,
    "chat": chat.load,
    "reddit": reddit.load,
    "stackoverflow": stackoverflow.load,
}
TAGGED: dict[str, Callable[[str], Tagged]] = {
    name: partial(ner.load, name=name) for name in ner.FILES
}
IMAGES_DRAWN = ("glyphs_digits", "glyphs_letters")
IMAGES_READ = ("femnist_digits", "femnist_letters")
IMAGES = (*IMAGES_DRAWN, *IMAGES_READ)
DATASETS = (*EMBEDDED, *TEXTS, *TAGGED, *IMAGES)
METHODS = ("cts", "mono", "mt", "mt_ef")
GRAPHS = ("random", "clustered")


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """Which tasks run together, how, and what encoder they share."""

    study: str = choice(
        "pairs", ("pairs", "all"), "Which tasks run together: two, or all."
    )
    methods: tuple[str, ...] = names(METHODS, "Methods; see above.", among=METHODS)
    graphs: tuple[str, ...] = names(
        GRAPHS, "Graphs of tasks that run together.", among=GRAPHS
    )
    foreign_share: tuple[float, ...] | None = numbers(
        None,
        "Share of edges between tasks in clustered graphs, 0 to 1, to the nearest "
        "whole number of edges of an agent; several are compared. One edge if not "
        "given.",
        at_least=0,
        at_most=1,
    )
    dataset: tuple[str, ...] = names(
        EMBEDDED[:2],
        "Data sets, a task each: texts or images, generated "
        f"({', '.join((*EMBEDDED, *IMAGES_DRAWN))}), or read from --data_dir.",
        among=DATASETS,
        topic=DATA,
    )
    vocabulary: str | None = text(
        None,
        "File with a word piece per line, such as BERT's vocab.txt; if not given, one "
        "is trained on the training texts and kept in --workdir.",
        topic=DATA,
    )
    num_pieces: int = integer(
        30_522, "Word pieces of a vocabulary that is trained.", at_least=6, topic=DATA
    )
    min_train: int = integer(
        1, "Fewest training samples of a user.", at_least=1, topic=DATA
    )
    max_train: int | None = integer(
        None,
        "Most training samples of a user; no limit if not given.",
        at_least=1,
        topic=DATA,
    )
    max_examples: int | None = integer(
        None,
        "Most examples of an agent to train, to validate and to test; the others are "
        "left out. No limit if not given.",
        at_least=1,
        topic=DATA,
    )
    num_agents: int = integer(20, "Agents of each task.", at_least=4, topic=DATA)
    length: int = integer(128, "Tokens of a sequence.", at_least=4, topic=DATA)
    layers: int = integer(
        2, "Layers of the encoder.", at_least=1, at_most=100, topic=TRAINING
    )
    stream: int = integer(128, "Width of the encoder.", at_least=1, topic=TRAINING)
    heads: int = integer(
        2, "Heads of attention in a layer.", at_least=1, topic=TRAINING
    )
    feed_forward: int = integer(512, "Units of a layer.", at_least=1, topic=TRAINING)
    channels: tuple[int, ...] = integers(
        (8, 16),
        "Channels of each convolution of the encoder of images.",
        at_least=1,
        distinct=False,
        topic=TRAINING,
    )
    features: int = integer(
        64, "What the encoder says of an image.", at_least=1, topic=TRAINING
    )
    local_epochs: tuple[int, ...] = integers(
        (1,),
        "Passes over own data of an agent that is awake; several are compared.",
        at_least=1,
        topic=TRAINING,
    )
    dropout: float = number(
        0.1, "Rate of dropout.", at_least=0, at_most=0.9, topic=TRAINING
    )
