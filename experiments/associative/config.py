"""The flags of `experiments.associative`."""

import dataclasses

from experiments.averaging.config import SHARED_INIT, AveragingConfig
from experiments.engine.fields import (
    DATA,
    TRAINING,
    choice,
    integer,
    integers,
    names,
    number,
)
from p2pjax.datasets.loaders.binary_vectors import OVERFLOWS


@dataclasses.dataclass(frozen=True)
class Config(AveragingConfig):
    """What is compared, and on which vectors."""

    init: tuple[str, ...] = names(
        ("own",),
        "Whether all agents start from the same weights (shared) or each from its own.",
        among=("shared", "own"),
        former=SHARED_INIT,
        topic=TRAINING,
    )
    num_agents: int = integer(15, "Agents of a run.", at_least=1, topic=DATA)
    num_modified: int = integer(
        2, "Agents for which one vector ends differently.", at_least=0, topic=DATA
    )
    modified: tuple[int, ...] = integers(
        (0, 1, 2), "Which vector ends differently; each is tried."
    )
    num_bits: int = integer(50, "Length of a vector.", at_least=1, topic=DATA)
    block_size: int = integer(
        4,
        "Ones that are given, and as many to be found. The paper prints 8, which does "
        "not fit its vectors; 4 makes its '8 non-zero bits' true.",
        at_least=1,
        topic=DATA,
    )
    overflow: str = choice(
        "refuse",
        OVERFLOWS,
        "What becomes of ones beyond the end of a vector.",
        topic=DATA,
    )
    num_hidden: int = integer(400, "Hidden cells of every network.", at_least=1)
    shared_hidden: tuple[int, ...] = integers(
        (0, 100, 200, 300, 350, 400),
        "Hidden cells that all agents share; each number is tried.",
    )
    threshold: float = number(
        0.5, "Sum at which a cell is active.", above=0, topic=TRAINING
    )
