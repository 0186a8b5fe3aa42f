"""The flags of `experiments.compare`."""

import dataclasses

from experiments.compare.graphs import GRAPHS
from experiments.compare.methods import METHODS, REFUSED
from experiments.compare.problem import SPLITS
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
    text,
)


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The problem, the methods and how they are compared."""

    methods: tuple[str, ...] = names(
        ("local_only", "dpsgd", "fedavg", "pens"),
        f"What is compared. Not here: {'; '.join(REFUSED.values())}.",
        among=list(METHODS),
        refused=REFUSED,
    )
    learning_rates: tuple[float, ...] | None = numbers(
        None,
        "Step sizes that every method is run with, in one program; --learning_rate, or "
        "0.1, if not given.",
        above=0,
    )
    budget: str = choice(
        "rounds",
        ("rounds", "examples", "messages", "bytes"),
        "Of what every method has used as much where accuracies are compared.",
    )
    budget_amount: float | None = number(
        None,
        "How much of it, mean over agents; if not given, as much as the method that "
        "used least (but some) has used in the end.",
        above=0,
    )
    graph: str = choice(
        "ring",
        list(GRAPHS),
        "Who hears whom in methods that have a graph; sequences go on with each "
        "communication, and --degree is the number of neighbours where one can choose.",
    )
    graph_file: str | None = text(
        None, "Edge list, a pair of agents per line, for --graph=file."
    )
    dataset: str | None = text(
        None,
        "Of digits (the default), glyphs, npz, mnist, femnist, cifar10, har, vsn, idx, "
        "leaf, tff or tfds:NAME; all but the first two are read from --data_dir.",
        topic=DATA,
    )
    num_agents: int = integer(16, "Agents of a run.", at_least=2, topic=DATA)
    split: str | None = choice(
        None,
        list(SPLITS),
        "How examples are split among agents; by_user where the data has users, else "
        "dirichlet, if not given.",
        topic=DATA,
    )
    alpha: float = number(
        0.3, "Of Dirichlet splits: smaller is less alike.", above=0, topic=DATA
    )
    shards: int = integer(
        2, "Shards of each agent in pathological splits.", at_least=1, topic=DATA
    )
    num_clusters: int = integer(
        2, "Clusters of splits that make some.", at_least=1, topic=DATA
    )
    test_fraction: float = number(
        0.2, "Of each agent's examples.", above=0, below=1, topic=DATA
    )
    valid_fraction: float = number(
        0.1,
        "Of each agent's examples, held out to choose learning rates.",
        at_least=0,
        below=1,
        topic=DATA,
    )
    network: str = text(
        "mlp",
        "Of mlp, cnn, batch_norm_cnn, or an import path such as my_module:Net of a "
        "Linen module, an NNX constructor or a Network of functions; what takes "
        "num_classes is given them.",
        topic=TRAINING,
    )
    hidden: tuple[int, ...] = integers(
        (64,),
        "Cells of hidden dense layers.",
        at_least=1,
        distinct=False,
        topic=TRAINING,
    )
    channels: tuple[int, ...] = integers(
        (16, 32),
        "Channels of convolutions.",
        at_least=1,
        distinct=False,
        topic=TRAINING,
    )
    optimizer: str = choice(
        "sgd", ("sgd", "momentum", "adam"), "Optimizer of every agent.", topic=TRAINING
    )
    local_steps: int | None = integer(
        None,
        "Mini-batches between two exchanges; each method's own if not given.",
        at_least=1,
        topic=TRAINING,
    )
    local_epochs: int | None = integer(
        None,
        "Passes over own data between two exchanges; each method's own if not given.",
        at_least=1,
        topic=TRAINING,
    )
    loss_probability: float = number(
        0.0,
        "Of a message, to be lost on its way.",
        at_least=0,
        below=1,
        topic=TRAINING,
    )
    penalty_weight: float = number(
        0.1, "Of fedprox, ditto and fedcurv.", at_least=0, topic=TRAINING
    )
    consensus_step: float = number(
        0.5,
        "Of choco_sgd, which sends signs.",
        above=0,
        at_most=1,
        topic=TRAINING,
    )
    head: tuple[str, ...] | None = names(
        None,
        "Regular expressions of the paths of the last layer, which fedper does not "
        "send and facade has once in each cluster; known of mlp, cnn and "
        "batch_norm_cnn.",
        topic=TRAINING,
    )
    level: tuple[int, ...] | None = integers(
        None,
        "Of partial averaging, percent of the hidden layers; 80 if not given, several "
        "are compared.",
        at_most=100,
        topic=TRAINING,
    )
    scheme_file: str | None = text(
        None,
        "TOML file with partial models, members and dependencies, of partial averaging "
        "in the place of --level.",
        topic=TRAINING,
    )
    score_before: bool = switch(
        True, "Also score the models before they are averaged.", topic=TRAINING
    )
