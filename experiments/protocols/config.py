"""The flags of `experiments.protocols`."""

import dataclasses

from experiments.compare.config import Config as ComparedConfig
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
from experiments.protocols.graphs import GRAPHS
from experiments.protocols.methods import METHODS
from p2pjax.types import InputError

STUDIES = (
    "heterogeneity",
    "loss",
    "graphs",
    "epidemic",
    "consensus",
    "merge",
    "local_updates",
    "clusters",
    "tokens",
)
SPLITS = ("dirichlet", "shards", "by_user", "rotated")
TUNING_RUN = 1000  # number of the run that chooses rates; it judges nothing

# Who takes part, if not given; of the others the schemes are what the study is about.
SCHEMES = {
    "heterogeneity": (
        "dpsgd",
        "dsgdm",
        "qg_dsgdm",
        "gradient_tracking",
        "momentum_tracking",
        "exact_diffusion",
        "exact_diffusion_momentum",
        "relay_sgd",
        "relay_sgd_momentum",
        "all_reduce",
        "all_reduce_momentum",
    ),
    "loss": ("dpsgd", "dsgdm", "qg_dsgdm", "relay_sgd", "sgp"),
    "graphs": ("dsgdm",),
    "epidemic": ("dpsgd",),
    "local_updates": ("dpsgd", "dfedavgm", "dfedsam", "k_gt"),
    "clusters": ("local_only", "dfedavgm", "dfca_gi", "dfca_li", "facade", "oracle"),
}
ON_GRAPHS = {
    "graphs": (
        "ring",
        "torus",
        "exponential",
        "one_peer_exponential",
        "base_2",
        "base_3",
        "base_5",
        "el_local_1",
        "el_local_2",
    ),
    "epidemic": ("random_regular", "el_oracle", "el_local", "complete"),
    "consensus": (
        "ring",
        "torus",
        "exponential",
        "one_peer_exponential",
        "base_2",
        "base_3",
        "base_4",
        "base_5",
        "el_oracle_1",
        "el_local_1",
        "matchings",
        "random_regular",
    ),
    "clusters": ("erdos_renyi",),
}


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The study, its schemes and their data."""

    study: str = choice("heterogeneity", STUDIES, "What is compared.")
    methods: tuple[str, ...] | None = names(
        None,
        "Methods of the studies heterogeneity, loss, graphs, epidemic, local_updates "
        "and clusters; those of the study's table if not given.",
        among=tuple(METHODS),
    )
    graphs: tuple[str, ...] | None = names(
        None,
        "Graphs of the studies graphs, epidemic and consensus, of which those that end "
        "in a number have a degree of their own and others that of --degree; in other "
        "studies one, the ring if not given, of methods that bring none.",
        among=tuple(GRAPHS),
    )
    alphas: tuple[float, ...] = numbers(
        (0.1,),
        "Of Dirichlet shares of labels, small where agents differ; several in the "
        "study heterogeneity.",
        above=0,
    )
    losses: tuple[float, ...] = numbers(
        (0.0, 0.01, 0.1),
        "Probabilities that a message is lost in the study loss.",
        at_least=0,
    )
    local_steps: tuple[int, ...] | None = integers(
        None,
        "Mini-batches between two exchanges: several in the study local_updates (1, 5 "
        "and 20 if not given), one elsewhere (25 in merge and each method's own in "
        "other studies if not given).",
        at_least=1,
    )
    tokens: tuple[int, ...] = integers(
        (2, 4, 8, 16), "Numbers of models that wander in the study tokens.", at_least=2
    )
    probability: float = number(
        0.2,
        "With which an agent hears another one in an exchange of the study merge.",
        above=0,
        at_most=1,
    )
    score_before: bool = switch(
        True,
        "Also score the models before they are averaged; never in the study merge.",
        topic=TRAINING,
    )
    rates: tuple[float, ...] | None = numbers(
        None,
        "First learning rates, as --tune prints them: one for all, for each scheme or "
        "for each scheme and setting, in the order in which they run; --learning_rate, "
        "or 0.1, if not given.",
        above=0,
        distinct=False,
        topic=TRAINING,
    )
    tune: bool = switch(
        False,
        "Choose rates: run each scheme with all of --grid for a quarter of the rounds "
        "and score validation examples of a run that judges nothing.",
    )
    grid: tuple[float, ...] = numbers(
        (0.4, 0.2, 0.1, 0.05, 0.025, 0.0125),
        "First learning rates that --tune tries.",
        above=0,
    )
    drop: float = number(
        0.1,
        "What the learning rate is multiplied by after --drop_at of all steps; 1 "
        "keeps it.",
        above=0,
        at_most=1,
        topic=TRAINING,
    )
    drop_at: float = number(
        0.75,
        "Share of all steps after which the learning rate drops.",
        above=0,
        below=1,
        topic=TRAINING,
    )
    dataset: str | None = dataset_field(
        ("digits", "mnist", "femnist", "cifar10"),
        "Small digits of scikit-learn (digits, the default), or MNIST, FEMNIST or "
        "CIFAR-10 in --data_dir.",
    )
    num_agents: int = integer(16, "Agents of a run.", at_least=3, topic=DATA)
    split: str | None = choice(
        None,
        SPLITS,
        "Dirichlet shares of labels (dirichlet), shards of sorted labels (shards, that "
        "of the study epidemic if not given), users (by_user) or images that are "
        "turned (rotated, that of clusters).",
        topic=DATA,
    )
    shards: int = integer(
        2, "Shards of each agent.", at_least=1, at_most=10**4, topic=DATA
    )
    num_clusters: int = integer(
        4,
        "Clusters of agents with images turned alike.",
        at_least=1,
        at_most=4,
        topic=DATA,
    )
    train_size: int | None = integer(
        None,
        "Training examples of each agent, of a part of all examples that each run "
        "draws anew; as many as there are if not given.",
        at_least=1,
        topic=DATA,
    )
    test_fraction: float = number(
        0.1, "Of each agent's examples.", above=0, below=0.5, topic=DATA
    )
    network: str = choice(
        "mlp",
        ("mlp", "cnn"),
        "Dense layers, or convolutions and dense layers.",
        topic=TRAINING,
    )
    hidden: tuple[int, ...] = integers(
        (50,),
        "Cells of hidden dense layers.",
        at_least=1,
        distinct=False,
        topic=TRAINING,
    )
    channels: tuple[int, ...] = integers(
        (6, 16),
        "Channels of convolutions.",
        at_least=1,
        distinct=False,
        topic=TRAINING,
    )

    @property
    def chosen_methods(self) -> tuple[str, ...]:
        """Those of the study's table if none are given."""
        return self.methods or SCHEMES.get(self.study, ("dpsgd",))

    @property
    def chosen_graphs(self) -> tuple[str, ...]:
        """One, unless the study compares graphs."""
        found = self.graphs or ON_GRAPHS.get(self.study, ("ring",))
        several = self.study in ("graphs", "epidemic", "consensus")
        if len(found) > 1 and not several:
            raise InputError(
                f"Need one graph in the study {self.study}, got {', '.join(found)}."
            )
        return found

    @property
    def scores_before(self) -> bool:
        """Exchanges cannot wait where all models are merged after a round."""
        return self.score_before and self.study != "merge" and not self.tune

    @property
    def chosen_split(self) -> str:
        """The study's own if none is given."""
        usual = {"epidemic": "shards", "clusters": "rotated"}
        return self.split or usual.get(self.study, "dirichlet")

    @property
    def chosen_steps(self) -> tuple[int, ...]:
        """Between two exchanges; none for each method's own."""
        usual = {"local_updates": (1, 5, 20), "merge": (25,)}
        found = self.local_steps or usual.get(self.study, ())
        if len(found) > 1 and self.study != "local_updates":
            raise InputError(
                f"Need one value of --local_steps in the study {self.study}, got "
                f"{', '.join(map(str, found))}."
            )
        return found

    @property
    def chosen_alphas(self) -> tuple[float, ...]:
        """One, unless the study compares them."""
        if len(self.alphas) > 1 and self.study != "heterogeneity":
            raise InputError(
                f"Need one value of --alphas in the study {self.study}, got "
                f"{', '.join(f'{alpha:g}' for alpha in self.alphas)}."
            )
        return self.alphas


def settle_tuning(config: Config) -> Config:
    """The config of a run that chooses rates, if it is to; also of a resumed one."""
    if not config.tune or config.first_run == TUNING_RUN:
        return config
    num_rounds = -(-config.num_rounds // 4)
    return dataclasses.replace(
        config,
        num_rounds=num_rounds,
        eval_every=num_rounds,
        num_runs=1,
        first_run=TUNING_RUN,
    )


def as_compared(config: Config, degree: int | None = None) -> ComparedConfig:
    """The same problem for what `experiments.compare` makes of its own flags.

    Args:
      config: of this experiment.
      degree: of graphs; that of the config if not given.
    """
    return ComparedConfig(
        seed=config.seed,
        num_rounds=config.num_rounds,
        num_agents=config.num_agents,
        degree=degree or config.degree,
        network=config.network,
        hidden=config.hidden,
        channels=config.channels,
    )
