"""Settings that all studies of partial averaging have."""

import dataclasses

from experiments.engine.config import Common
from experiments.engine.fields import TRAINING, choice, integer, number, switch
from p2pjax.tasks import losses

LOSSES = {
    "squared_error": losses.squared_error,
    "cross_entropy": losses.binary_cross_entropy,
}


@dataclasses.dataclass(frozen=True)
class AveragingConfig(Common):
    """How agents learn and average."""

    per_sample: bool = switch(
        True,
        "Update after every example of a mini-batch, as in the paper.",
        topic=TRAINING,
    )
    loss: str = choice(
        "squared_error", list(LOSSES), "Loss of the sigmoid outputs.", topic=TRAINING
    )
    shared_init: bool | None = switch(
        None,
        "Start all agents from the same weights: the default but for associative "
        "networks.",
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
    averaging: str = choice(
        "server",
        ("server", "gossip", "pairs", "per_model", "private"),
        "Exact mean of each model, one Metropolis step on a graph, random matchings, "
        "cycles of gossip of every model by itself, or these after exchanges of random "
        "values.",
        topic=TRAINING,
    )
    cycles: int | None = integer(
        None,
        "Cycles of gossip of an averaging, with --averaging=per_model or private; 10 "
        "if not given.",
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
    privacy_level: int | None = integer(
        None,
        "Exchanges of random values of a private averaging; 3 if not given.",
        at_least=1,
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
