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
    names,
    number,
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
DATASETS = (*EMBEDDED, *TEXTS, *TAGGED)
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
    dataset: tuple[str, ...] = names(
        EMBEDDED[:2],
        f"Data sets, a task each: generated ({', '.join(EMBEDDED)}), or read from "
        "--data_dir.",
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
    num_agents: int = integer(20, "Agents of every task.", at_least=4, topic=DATA)
    length: int = integer(128, "Tokens of a sequence.", at_least=4, topic=DATA)
    layers: int = integer(
        2, "Layers of the encoder.", at_least=1, at_most=100, topic=TRAINING
    )
    stream: int = integer(128, "Width of the encoder.", at_least=1, topic=TRAINING)
    heads: int = integer(
        2, "Heads of attention in a layer.", at_least=1, topic=TRAINING
    )
    feed_forward: int = integer(512, "Units of a layer.", at_least=1, topic=TRAINING)
    dropout: float = number(
        0.1, "Rate of dropout.", at_least=0, at_most=0.9, topic=TRAINING
    )
