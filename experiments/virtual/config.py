"""The flags of `experiments.virtual`."""

import dataclasses

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
from experiments.engine.layouts import network_field
from experiments.virtual.paper import DATASETS
from p2pjax.algorithms._virtual import ONCE, PAPER, RELEASE
from p2pjax.nn.cavity import LARGEST_START
from p2pjax.nn.variational import GATES
from p2pjax.tasks import bayesian

METHODS = ("global", "local", "fedavg", "virtual", "virtual_sync")
CONTROLS = ("local_columns", "frozen_server")
RELATIVES = ("fedprox", "fedper", "ditto", "scaffold", "ewc", "mean_regularized")
TEXTS = "shakespeare"  # the study of next words
PRIOR_MODES = {
    "once": ONCE,
    "paper": PAPER,
    "release": RELEASE,
}
OBJECTIVES = {
    "expected": bayesian.expected,
    "mean_probability": bayesian.of_mean_probability,
}


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """Which methods are compared, how they learn, and on which clients."""

    study: str = choice(
        "vsn",
        (*DATASETS, TEXTS),
        f"On which data; {TEXTS}, the next word of a role, is not of the paper.",
    )
    dataset: str | None = dataset_field(
        ("embedded", "public"),
        "What stands in for the study's data set without a download (embedded, the "
        "default), or the data set itself in --data_dir (public).",
    )
    num_agents: int = integer(10, "Clients of the server.", at_least=1, topic=DATA)
    size: int = integer(
        300,
        "Examples of a client, training and test, of studies that deal them out and of "
        "embedded data; the fewest that a client may have elsewhere.",
        at_least=2,
        topic=DATA,
    )
    max_size: int | None = integer(
        None,
        f"Most training examples of a client of the study {TEXTS}; no limit if not "
        "given.",
        at_least=1,
        topic=DATA,
    )
    num_words: int = integer(
        500, f"Words of the vocabulary of the study {TEXTS}.", at_least=1, topic=DATA
    )
    test_share: float = number(
        0.25,
        "Share of a client's examples for its test.",
        above=0,
        below=1,
        topic=DATA,
    )
    methods: tuple[str, ...] = names(
        METHODS,
        "Methods; virtual takes clients in turn, virtual_sync all at once. Controls: "
        "local_columns has both columns for each client alone, frozen_server a server "
        "that stays as it was drawn. Relatives are ordinary networks as that of "
        "fedavg; ewc holds each client to its own last model, mean_regularized has "
        "models of their own held to their mean.",
        among=(*METHODS, *CONTROLS, *RELATIVES),
    )
    network: str | None = network_field(
        None,
        "Layout of every client's network, as in 784=100=100=10; if not given, two "
        "hidden layers of 100 between what the data needs.",
    )
    kind: str = choice(
        "mlp",
        ("mlp", "cnn", "gru"),
        "Networks of dense layers; of convolutions, for images; an embedding and a "
        "GRU, for texts.",
    )
    channels: tuple[int, ...] = integers(
        (8, 16), "Channels of the convolutions of --kind=cnn.", at_least=1
    )
    units: int = integer(
        64,
        "Cells of the dense layer of --kind=cnn; of the embedding, the GRU and the "
        "dense layer of --kind=gru.",
        at_least=1,
    )
    same_depth: bool = switch(
        False, "Clients read the server's layer at the same height."
    )
    objective: str = choice(
        "expected",
        list(OBJECTIVES),
        "Mean loss of the draws, or loss of their mean probability.",
    )
    prior_mode: tuple[str, ...] = names(
        ("once",),
        "How the prior of the shared weights is counted: once, in every factor as the "
        "paper prints it, or as in the authors' code. As of all that follow in this "
        "list, several are a factor of a design.",
        among=list(PRIOR_MODES),
    )
    prior_stddev: tuple[float, ...] = numbers(
        (1.0,), "Deviation of the prior of all weights.", above=0
    )
    initial_stddev: tuple[float, ...] = numbers(
        (bayesian.INITIAL_STDDEV,), "Deviation of all weights at the start.", above=0
    )
    divergence_weight: tuple[float, ...] = numbers(
        (1.0,), "Weight of the divergences in the free energy.", above=0
    )
    deviation_rate: tuple[float, ...] = numbers(
        (1.0,), "Steps of deviations, relative to those of means.", above=0
    )
    gate: tuple[float, ...] = numbers(
        (GATES[1],),
        "Gates of what clients read of the server start between 0 and this.",
        at_least=0,
    )
    largest_start: tuple[float, ...] = numbers(
        (LARGEST_START,),
        "Largest deviation, relative to that of the other clients' product, with which "
        "a refinement begins; below 1.",
        above=0,
    )
    order: tuple[str, ...] = names(
        ("fixed",),
        "Order of clients in a pass: fixed, or random in each pass.",
        among=("fixed", "random"),
    )
    damping: float | None = number(
        None,
        "Part of a new factor that replaces the old; 1 in turn and 1 / N at once if "
        "not given.",
        above=0,
        at_most=1,
        topic=TRAINING,
    )
    epochs: tuple[int, ...] = integers(
        (20,),
        "Passes of a client over its data in a refinement; several are a factor of a "
        "design, as are those of --rates.",
        at_least=1,
        topic=TRAINING,
    )
    rates: tuple[float, ...] | None = numbers(
        None,
        "Learning rates of the Bayesian networks, in the place of --learning_rate.",
        above=0,
        topic=TRAINING,
    )
    num_samples: int = integer(
        20, "Networks drawn per batch.", at_least=1, topic=TRAINING
    )
    num_test_samples: int = integer(
        20, "Networks drawn to predict.", at_least=1, topic=TRAINING
    )
    dropout: float = number(
        0.3,
        "Rate of dropout before dense layers.",
        at_least=0,
        below=1,
        topic=TRAINING,
    )
    flipout: bool = switch(
        True,
        "Perturb the examples of a batch with signs of their own.",
        topic=TRAINING,
    )
    fedavg_rate: tuple[float, ...] = numbers(
        (0.1,),
        "Learning rate of FedAvg and its relatives; several are a factor of a design.",
        above=0,
        topic=TRAINING,
    )
    penalty: float = number(
        0.1,
        "Weight of the penalty of FedProx, Ditto, ewc and mean_regularized.",
        at_least=0,
        topic=TRAINING,
    )
    fedavg_share: float = number(
        0.2,
        "Of the clients, those in a round of FedAvg and its relatives.",
        above=0,
        at_most=1,
        topic=TRAINING,
    )
    score_before: bool = switch(
        True,
        "Also score the models of FedAvg before they are averaged, and clients of "
        "VIRTUAL as they were right after their last refinement.",
        topic=TRAINING,
    )
