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
    numbers,
    switch,
)
from experiments.engine.texts import LOADERS as TEXTS
from p2pjax.datasets.loaders import hospital

ACTIVATIONS = {"relu": nn.relu, "sigmoid": nn.sigmoid}
FEDAVG_EPOCHS = {"fedavg_1": 1, "fedavg_5": 5}  # schemes with a fixed number of passes
COMBINED = ("mean", "size_weighted", "additive", "exponential")
SERVED = ("fedavg_tuned", "scaffold", "ewc", "mean_regularized")  # by SGD
SCHEMES = (*COMBINED, *FEDAVG_EPOCHS, *SERVED, "local", "centralized")


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """What is combined, and on which data."""

    study: str = choice(
        "hospital",
        ("hospital", "digits", "texts"),
        "What is learned; texts is the next word, by a GRU.",
    )
    dataset: str | None = dataset_field(
        (
            *("synthetic", "breast_cancer", "hospital"),
            *("digits", "mnist", "speakers", *TEXTS),
        ),
        "Of the study hospital: made-up patients (synthetic, the default), "
        "scikit-learn's tumours (breast_cancer), or the table in --data_dir "
        "(hospital); other data of two classes. Of the study digits: scikit-learn's "
        "small digits (digits, the default), or MNIST in --data_dir (mnist). Of the "
        "study texts: generated texts of speakers (the default), or a data set in "
        f"--data_dir ({', '.join(TEXTS)}).",
    )
    splits: tuple[str, ...] = names(
        ("balanced", "unbalanced", "skewed"),
        "Of the study hospital; scaled to a table that is too small for them.",
        among=list(hospital.SPLITS),
        topic=DATA,
    )
    hosts: tuple[int, ...] = integers(
        (2, 5, 10, 20, 40, 80),
        "Hosts of the studies digits and texts, where each has a user's texts.",
        at_least=1,
        topic=DATA,
    )
    train_size: int | None = integer(
        None,
        "Training images of all hosts together, drawn anew in every run; all if not "
        "given.",
        at_least=1,
        topic=DATA,
    )
    num_words: int = integer(
        1000, "Words of the vocabulary, study texts.", at_least=1, topic=DATA
    )
    min_train: int = integer(
        100, "Fewest training samples of a host, study texts.", at_least=1, topic=DATA
    )
    max_train: int | None = integer(
        None,
        "Most training samples of a host, study texts; no limit if not given.",
        at_least=1,
        topic=DATA,
    )
    test_size: int = integer(
        10_000, "Test images at most, dealt to the hosts.", at_least=1, topic=DATA
    )
    schemes: tuple[str, ...] = names(
        ("mean", "additive", "exponential", "centralized"),
        "Schemes: mean, size_weighted, additive (1 + r), exponential (exp(c r)), "
        "fedavg_1 and fedavg_5 (FedAvg with so many passes), fedavg_tuned, scaffold, "
        "ewc (each host held to its own last model) and mean_regularized (own models "
        "held to their mean), all four by SGD at --fedavg_rate, local (never combined) "
        "and centralized (one host with all data).",
        among=SCHEMES,
    )
    factor_rate: float | None = number(
        None,
        "Factor c of the scheme exponential; 0.001 of hosts that train until they have "
        "converged (hospital, texts) and 1 on digits if not given.",
        at_least=0,
    )
    init: tuple[str, ...] = names(
        ("shared",),
        "Initial weights of hosts: the same (shared), or each its own; those of FedAvg "
        "are shared. As of the next two, several are a factor of a design.",
        among=("shared", "own"),
    )
    activation: tuple[str, ...] = names(
        ("relu",),
        "Of hidden cells; those of the study texts are a GRU's.",
        among=list(ACTIVATIONS),
    )
    optimizer: tuple[str, ...] = names(
        ("adam",),
        "Of hosts, which start it afresh in each round.",
        among=("adam", "sgd"),
    )
    network: str = choice(
        "mlp", ("mlp", "cnn"), "Of the study digits; cnn needs 28 x 28 images."
    )
    units: int = integer(
        64,
        "Size of the embedding, the GRU and the dense layer of the study texts.",
        at_least=1,
        topic=TRAINING,
    )
    max_epochs: int = integer(
        500,
        "Most passes of a host in a round, studies hospital and texts.",
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
    fedavg_rate: tuple[float, ...] = numbers(
        (0.1,),
        f"Step size of {', '.join(SERVED)}; several are a factor of a design.",
        above=0,
        topic=TRAINING,
    )
    fedavg_epochs: int = integer(
        5, f"Passes of {', '.join(SERVED)} in a round.", at_least=1, topic=TRAINING
    )
    penalty: float = number(
        0.1,
        "Weight of the penalty of ewc and mean_regularized.",
        at_least=0,
        topic=TRAINING,
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
