"""The flags of `experiments.combination`."""

import dataclasses

import flax.linen as nn

from experiments.engine.config import Common
from experiments.engine.datasets import dataset_field
from experiments.engine.fields import (
    DATA,
    RESULTS,
    TRAINING,
    choice,
    integer,
    integers,
    names,
    number,
    switch,
)
from p2pjax.datasets.loaders import hospital

ACTIVATIONS = {"relu": nn.relu, "sigmoid": nn.sigmoid}
FEDAVG_EPOCHS = {"fedavg_1": 1, "fedavg_5": 5}  # schemes with a fixed number of passes
COMBINED = ("mean", "size_weighted", "additive", "exponential")
SCHEMES = (*COMBINED, *FEDAVG_EPOCHS, "local", "centralized")


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """What is combined, and on which data."""

    study: str = choice("hospital", ("hospital", "digits"), "What is learned.")
    dataset: str | None = dataset_field(
        ("synthetic", "hospital", "digits", "mnist"),
        "Of the study hospital: made-up patients (synthetic, the default), or the "
        "table in --data_dir (hospital); other data of two classes. Of the study "
        "digits: scikit-learn's small digits (digits, the default), or MNIST in "
        "--data_dir (mnist).",
    )
    splits: tuple[str, ...] = names(
        ("balanced", "unbalanced", "skewed"),
        "Of the study hospital.",
        among=list(hospital.SPLITS),
        topic=DATA,
    )
    hosts: tuple[int, ...] = integers(
        (2, 5, 10, 20, 40, 80), "Hosts of the study digits.", at_least=1, topic=DATA
    )
    test_size: int = integer(
        10_000, "Test images at most, dealt to the hosts.", at_least=1, topic=DATA
    )
    schemes: tuple[str, ...] = names(
        ("mean", "additive", "exponential", "centralized"),
        "Schemes: mean, size_weighted, additive (1 + r), exponential (exp(c r)), "
        "fedavg_1 and fedavg_5 (FedAvg with so many passes), local (never combined) "
        "and centralized (one host with all data).",
        among=SCHEMES,
    )
    factor_rate: float | None = number(
        None,
        "Factor c of the scheme exponential; 0.001 on the hospital and 1 on digits if "
        "not given.",
        at_least=0,
    )
    init: tuple[str, ...] = names(
        ("shared",),
        "Initial weights of hosts: the same (shared), or each its own; those of FedAvg "
        "are shared. As of the next two, several are a factor of a design.",
        among=("shared", "own"),
    )
    activation: tuple[str, ...] = names(
        ("relu",), "Of hidden cells.", among=list(ACTIVATIONS)
    )
    optimizer: tuple[str, ...] = names(
        ("adam",),
        "Of hosts, which start it afresh in each round.",
        among=("adam", "sgd"),
    )
    network: str = choice(
        "mlp", ("mlp", "cnn"), "Of the study digits; cnn needs 28 x 28 images."
    )
    max_epochs: int = integer(
        500,
        "Most passes of a host in a round, study hospital.",
        at_least=1,
        topic=TRAINING,
    )
    patience: int = integer(
        20,
        "Passes without a gain after which a host stops.",
        at_least=1,
        topic=TRAINING,
    )
    sgd_rate: float = number(
        0.1, "Step size of the optimizer sgd.", above=0, topic=TRAINING
    )
    stop_after: int | None = integer(
        None,
        "Rounds without a gain after which the coordinator stops; never if not given.",
        at_least=1,
        topic=TRAINING,
    )
    score_before: bool = switch(
        True,
        "Also score the models of FedAvg before they are averaged.",
        topic=TRAINING,
    )
    target: float | None = number(
        None,
        "Accuracy for which the bytes sent until then are printed.",
        above=0,
        at_most=1,
        topic=RESULTS,
    )
