"""Settings that all studies of partial averaging have."""

import dataclasses

from experiments.engine.config import Common
from experiments.engine.fields import (
    TRAINING,
    FormerSwitch,
    integer,
    integers,
    names,
    number,
    numbers,
    switch,
)
from p2pjax.tasks import losses

LOSSES = {
    "squared_error": losses.squared_error,
    "cross_entropy": losses.binary_cross_entropy,
}
SHARED_INIT = FormerSwitch("shared_init", on="shared", off="own")


@dataclasses.dataclass(frozen=True)
class AveragingConfig(Common):
    """How agents learn and average."""

    loss: tuple[str, ...] = names(
        ("squared_error",),
        "Losses of the sigmoid outputs; of this and the next three flags all "
        "combinations are compared.",
        among=list(LOSSES),
        topic=TRAINING,
    )
    init: tuple[str, ...] = names(
        ("shared",),
        "Whether all agents start from the same weights (shared) or each from its own.",
        among=("shared", "own"),
        former=SHARED_INIT,
        topic=TRAINING,
    )
    weights: tuple[str, ...] = names(
        ("glorot",),
        "Laws of initial weights: Glorot's with biases of zero, or uniform from -1 to "
        "1 for both.",
        among=("glorot", "uniform"),
        topic=TRAINING,
    )
    update: tuple[str, ...] = names(
        ("per_sample",),
        "An update after every example of a mini-batch, as in the paper, or one for "
        "the mini-batch.",
        among=("per_sample", "mini_batch"),
        former=FormerSwitch("per_sample", on="per_sample", off="mini_batch"),
        topic=TRAINING,
    )
    squared_error_rate: float | None = number(
        None,
        "Step size where a mini-batch is one update, with --loss=squared_error; "
        "--learning_rate if not given.",
        above=0,
        topic=TRAINING,
    )
    cross_entropy_rate: float | None = number(
        None,
        "Step size where a mini-batch is one update, with --loss=cross_entropy; "
        "--learning_rate if not given.",
        above=0,
        topic=TRAINING,
    )
    rate_grid: tuple[float, ...] | None = numbers(
        None,
        "Step sizes that are all tried instead, as a setting of rows: to choose one on "
        "a seed that judges nothing.",
        above=0,
        topic=TRAINING,
    )
    design: bool = switch(
        False,
        "Rows say loss, init, weights, update and averaging also where each has one "
        "value, so that a design can be run in parts.",
        topic=TRAINING,
    )
    average_every: int = integer(
        1, "Mini-batches between two averagings.", at_least=1, topic=TRAINING
    )
    drift: float | None = number(
        None,
        "Squared distance from its last averaged weights beyond which an agent asks "
        "for an averaging (dynamic averaging); if not given, agents always average.",
        at_least=0,
        topic=TRAINING,
    )
    averaging: tuple[str, ...] = names(
        ("server",),
        "Exact mean of each model, one Metropolis step on a graph, random matchings, "
        "cycles of gossip of every model by itself, or these after exchanges of random "
        "values; each is compared.",
        among=("server", "gossip", "pairs", "per_model", "private"),
        topic=TRAINING,
    )
    cycles: tuple[int, ...] | None = integers(
        None,
        "Cycles of gossip of an averaging, with --averaging=per_model or private; 10 "
        "if not given, each is compared.",
        at_least=1,
        topic=TRAINING,
    )
    tolerance: float | None = number(
        None,
        "Distance of members from their mean, root mean square over parameters, at "
        "which a gossip per model ends; all cycles if not given.",
        above=0,
        topic=TRAINING,
    )
    view_size: int | None = integer(
        None,
        "Agents that each knows, found by peer sampling, in a gossip per model; all "
        "members know each other if not given.",
        at_least=2,
        topic=TRAINING,
    )
    privacy_level: tuple[int, ...] | None = integers(
        None,
        "Exchanges of random values of a private averaging; 3 if not given, each is "
        "compared.",
        at_least=1,
        topic=TRAINING,
    )
    corrupt: float = number(
        0.1,
        "Share of the members that work together against an agent, for the bounds that "
        "rows report of a private averaging.",
        at_least=0,
        below=0.5,
        topic=TRAINING,
    )
    rewire_every: int | None = integer(
        None,
        "Rounds between two gossip graphs; one graph if not given.",
        at_least=1,
        topic=TRAINING,
    )
    score_before: bool = switch(
        True, "Also score the models before they are averaged.", topic=TRAINING
    )
