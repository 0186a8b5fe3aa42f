"""The flags of `experiments.fedcurv`."""

import dataclasses

from experiments.engine.config import Common
from experiments.engine.datasets import dataset_field
from experiments.engine.fields import (
    DATA,
    TRAINING,
    choice,
    integer,
    names,
    numbers,
    switch,
)
from p2pjax.datasets.loaders import points, senteval
from p2pjax.tasks import losses
from p2pjax.training import curvature

LOSSES = {
    "squared_error": losses.squared_error,
    "cross_entropy": losses.softmax_cross_entropy,
}
CURVATURES = {"fisher": curvature.fisher, "hessian": curvature.hessian}
POINTS, TEXTS = ("points",), ("topics", "senteval")  # data sets of the studies
WITHOUT_PENALTY = ("local_only", "fedavg", "fedper", "scaffold", "majority")
PENALISED = (
    "fedcurv",
    "fedcurv_hessian",
    "fedcurv_ring",
    "fedprox",
    "ditto",
    "ewc",
    "mean_regularized",
)


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """Which methods are compared, and on what."""

    study: str = choice(
        "points",
        ("points", "texts", "examples"),
        "What is learned; examples are labelled ones of your own, by user.",
    )
    methods: tuple[str, ...] = names(
        ("fedavg", "fedcurv"),
        "What is compared. majority always says an agent's commonest label; "
        "fedcurv_hessian takes the diagonal of the Hessian whatever --curvature says; "
        "of fedcurv_ring agents have neighbours on a ring and no server, of fedper the "
        "last layer stays local; ewc holds each client to its own last model, "
        "mean_regularized has models of their own held to their mean.",
        among=(*WITHOUT_PENALTY, *PENALISED),
    )
    strengths: tuple[float, ...] = numbers(
        (0.01, 0.1, 1.0), f"Of the penalties of {', '.join(PENALISED)}.", at_least=0
    )
    curvature: str = choice("fisher", list(CURVATURES), "Diagonal that FedCurv uses.")
    before_averaging: bool = switch(
        False,
        "Evaluate the machines' own models, as the slides do; of fedavg, fedcurv and "
        "fedcurv_ring only.",
    )
    dataset: str | None = dataset_field(
        (*POINTS, *TEXTS),
        "Generated points (study points), generated texts about topics (the default of "
        "the study texts), or the texts of SentEval in --data_dir.",
    )
    tasks: tuple[str, ...] = names(
        senteval.TASKS, "Of SentEval.", among=senteval.TASKS, topic=DATA
    )
    geometry: tuple[str, ...] = names(
        ("square",),
        "Where the categories of points lie and who has them; several are all tried.",
        among=list(points.GEOMETRIES),
        topic=DATA,
    )
    train_size: int = integer(300, "Points of every machine.", at_least=1, topic=DATA)
    test_size: int = integer(400, "Points of the test.", at_least=1, topic=DATA)
    num_dims: int = integer(300, "Length of a text's vector.", at_least=1, topic=DATA)
    axes: str = choice(
        "principal",
        ("principal", "random"),
        "On which the counts of words are projected to make vectors of texts.",
        topic=DATA,
    )
    objective: str | None = choice(
        None,
        list(LOSSES),
        "Loss: squared_error for points, else cross_entropy if not given.",
        topic=TRAINING,
    )
    hidden: int | None = integer(
        None,
        "Hidden cells; 16 for points, else 64 if not given.",
        at_least=1,
        topic=TRAINING,
    )
    num_epochs: int = integer(
        5, "Passes over own data a round.", at_least=1, topic=TRAINING
    )
    score_before: bool = switch(
        True,
        "Also score the models of fedavg, fedprox and fedper before they are averaged; "
        "those of fedcurv and fedcurv_ring have both scores anyway.",
        topic=TRAINING,
    )
