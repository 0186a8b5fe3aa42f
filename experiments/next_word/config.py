"""The flags of `experiments.next_word`."""

import dataclasses

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
    switch,
)
from experiments.engine.texts import LOADERS
from p2pjax.exchange import shared

METHODS = (
    "local_only",
    "dpsgd",
    "d2",
    "sgp",
    "gosgd",
    "p2p_bn_no_tuning",
    "p2p_bn",
    "fedavg",
    "central",
)
GRAPHS = ("sparse", "ring", "irregular")
SHARING: dict[str, shared.Local] = {
    "full": shared.FULL,
    "fed_bn": shared.FED_BN,
    "silo_bn": shared.SILO_BN,
}


NORMS = ("plain", "affine")


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """What is compared, on which users and how they learn."""

    study: str = choice(
        "methods",
        (
            "methods",
            "ablation",
            "ring",
            "sparse",
            "scaling",
            "epochs",
            "loss",
            "references",
        ),
        "What is compared; see above.",
    )
    methods: tuple[str, ...] = names(
        METHODS, "What the study `methods` compares.", among=METHODS
    )
    graph: str = choice(
        "sparse",
        GRAPHS,
        "Of the studies methods, epochs and loss. In irregular ones, directed and "
        "strongly connected, agents hear and reach --degree others on average.",
    )
    directed: bool = switch(
        True, "Whether links of the studies methods, epochs and loss go one way only."
    )
    sizes: tuple[int, ...] = integers(
        (100, 500), "Agents of the study `scaling`.", at_least=1
    )
    dataset: str | None = choice(
        None,
        ("speakers", *LOADERS),
        "Generated texts of speakers (the default), or a data set in --data_dir.",
        topic=DATA,
    )
    num_agents: int = integer(100, "Users, one per agent.", at_least=1, topic=DATA)
    num_words: int = integer(
        10_000,
        "Words of the vocabulary, the most frequent ones.",
        at_least=1,
        topic=DATA,
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
    units: int = integer(
        100,
        "Size of the embedding, the GRU and the dense layer.",
        at_least=1,
        topic=TRAINING,
    )
    sharing: str = choice(
        "full",
        list(SHARING),
        "What is sent: everything, all but batch norm, or all but its statistics.",
        topic=TRAINING,
    )
    clients: int | None = integer(
        None,
        "Agents that take part in a round of FedAvg; 10, or all of fewer, if not "
        "given.",
        at_least=1,
        topic=TRAINING,
    )
    poisson: bool = switch(
        False, "Asynchronous agents wake by clocks of their own.", topic=TRAINING
    )
    mean_delay: float = number(
        0.0,
        "Mean delay of asynchronous messages, in units of N wake-up events.",
        at_least=0,
        topic=TRAINING,
    )
    local_epochs: tuple[int, ...] = integers(
        (1,),
        "Passes over own data of an awake agent of P2P-BN and of a client of FedAvg; "
        "several are compared.",
        at_least=1,
        topic=TRAINING,
    )
    local_steps: tuple[int, ...] = integers(
        (1,),
        "Mini-batches between two exchanges of step-wise methods; several are "
        "compared.",
        at_least=1,
        topic=TRAINING,
    )
    loss_probability: tuple[float, ...] = numbers(
        (0.0,),
        "Probability that a message is lost; several are compared.",
        at_least=0,
        below=1,
        topic=TRAINING,
    )
    norm: tuple[str, ...] = names(
        NORMS[:1],
        "Batch norm of the network, with nothing that is trained as in the thesis, or "
        "with a scale and a bias; several are compared.",
        among=NORMS,
        topic=TRAINING,
    )
    gosgd_per_edge: bool = switch(
        False,
        "Whether an agent of GoSGD decides for each receiver whether it sends, not "
        "for all at once.",
        topic=TRAINING,
    )
    score_before: bool = switch(
        True,
        "Also score the models before they are averaged, of step-wise methods and "
        "FedAvg.",
        topic=TRAINING,
    )
