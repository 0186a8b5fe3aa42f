"""The flags of `experiments.robustness`."""

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
from experiments.robustness.adversaries import ATTACKS, NONE, RULES
from experiments.robustness.formats import FORMATS
from p2pjax.types import InputError

# Of the study selection; `random_` and a rule is a defence.
METHODS = (
    "random",
    "oracle",
    "pens",
    "dac",
    "panm_loss",
    "panm_grad",
    "panm_probe",
    "random_cs_plus",
    "random_ubar",
)
STUDIES = (
    "averaging",
    "two_worlds",
    "dumbbell",
    "separated",
    "partial",
    "selection",
    "compression",
)
GRAPHS = {
    "compression": ("ring", "random_regular"),
    "separated": ("erdos_renyi", "two_castles"),
}


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """What is attacked or compressed, and on which data."""

    study: str = choice("two_worlds", STUDIES, "What is compared.")
    rules: tuple[str, ...] | None = names(
        None,
        "Rules of receivers; mean is plain gossip, and those that begin with bucketed "
        "average random pairs of messages first. If not given, cs_plus, gts, "
        "clipped_gossip and ios under attack, those of He et al. but ubar on the "
        "dumbbell, of Wu et al. in separated, and mean, trimmed_mean, clipped_gossip "
        "and cs_plus in partial.",
        among=tuple(RULES),
    )
    attacks: tuple[str, ...] | None = names(
        None,
        "What attackers do. If not given, none, spectral, alie, dissensus and foe, by "
        "attackers beside each agent with a line search; in the study selection none "
        "and the others, by agents, who are linked to all others in two_worlds; in "
        "separated and partial those of their tables, by agents.",
        among=(NONE, *ATTACKS),
    )
    methods: tuple[str, ...] | None = names(
        None,
        "Ways of choosing peers of the study selection, see its table; all if not "
        "given.",
        among=METHODS,
    )
    byzantine_share: float = number(
        0.2, "Of the agents of the studies selection and partial.", above=0, below=1
    )
    num_byzantine: tuple[int, ...] | None = integers(
        None,
        "Attackers that each honest agent hears, and that rules tolerate, 1, 3, 4, 6 "
        "and 8 if not given; in separated those among all agents, 2 if not given.",
        at_least=1,
    )
    levels: tuple[int, ...] = integers(
        (0, 50, 80, 100),
        "Of the study partial: percent of the hidden cells that agents share.",
    )
    links: int = integer(
        8, "Links of each agent to the other of two worlds.", at_least=1
    )
    dimension: int = integer(
        5, "Numbers of a vector of the study averaging.", at_least=1
    )
    splits: tuple[str, ...] = names(
        ("split", "iid"),
        "Of the dumbbell and of separated: each clique has half of the classes, each "
        "agent of separated has classes of its own, or all have all.",
        among=("split", "iid"),
    )
    extra_edges: tuple[int, ...] = integers(
        (0,), "Edges of the dumbbell beside its bridge, at random; each is tried."
    )
    formats: tuple[str, ...] = names(
        tuple(FORMATS),
        "Formats of messages of the study compression.",
        among=tuple(FORMATS),
    )
    consensus_steps: tuple[float, ...] = numbers(
        (0.05, 0.1, 0.2, 0.4, 0.8),
        "Consensus steps of CHOCO-SGD; validation examples choose among them.",
        above=0,
    )
    graphs: tuple[str, ...] | None = names(
        None,
        "In compression ring and random_regular, whose agents have 4 neighbours, both "
        "if not given; in separated erdos_renyi, of which 70% of all edges exist, or "
        "two_castles, the first if not given.",
        among=tuple(name for own in GRAPHS.values() for name in own),
    )
    dataset: str | None = dataset_field(
        ("digits", "glyphs", "mnist", "femnist"),
        "Small digits of scikit-learn (digits, the default), generated handwriting "
        "(glyphs), or MNIST or FEMNIST in --data_dir.",
    )
    writers: bool = switch(
        False,
        "In compression: agents are writers, of femnist, glyphs or other data with "
        "users, and have their own examples, not Dirichlet shares of classes.",
        topic=DATA,
    )
    num_agents: int | None = integer(
        None,
        "Honest agents of a run, an even number in cliques; 26 in two worlds, with "
        "attackers 12 in separated, 20 in partial and 40 in selection, and 20 "
        "elsewhere if not given.",
        at_least=4,
        topic=DATA,
    )
    train_size: int | None = integer(
        None,
        "Training examples per agent, in the mean, of writers at most; all if not "
        "given.",
        at_least=1,
        topic=DATA,
    )
    test_size: int = integer(
        500,
        "Test examples, on which the models of all agents are judged, but in selection "
        "and partial, where each agent has its own.",
        at_least=1,
        topic=DATA,
    )
    alpha: float = number(
        1.0,
        "Of the Dirichlet shares of each class in two_worlds, partial and compression.",
        above=0,
        topic=DATA,
    )
    network: str | None = choice(
        None,
        ("softmax", "mlp", "cnn"),
        "A dense layer alone (softmax regression, that of separated if not given), one "
        "hidden layer (mlp, elsewhere), or a convolution of 16 channels and a dense "
        "layer.",
        topic=TRAINING,
    )
    hidden: int = integer(
        32, "Hidden cells of the network mlp.", at_least=1, topic=TRAINING
    )
    init_std: float = number(
        0.4,
        "Standard deviation of the first weights of softmax regression: the default "
        "leaves as much of them after 5,000 steps as the 6 of Wu et al. after 50,000.",
        above=0,
        topic=TRAINING,
    )
    momentum: float = number(
        0.9,
        "Of each agent, but in separated, which has none; with dampening, as an "
        "average of gradients, but on the dumbbell.",
        at_least=0,
        below=1,
        topic=TRAINING,
    )
    decay_every: int | None = integer(
        None,
        "Mini-batches after which the learning rate is a half, a third, a fourth...; "
        "40 in two_worlds, and a constant rate elsewhere, if not given. The rate of "
        "separated falls with the square root of their number.",
        at_least=1,
        topic=TRAINING,
    )

    score_before: bool = switch(
        True,
        "Also score the models before they are averaged, of agents who do not choose "
        "their peers.",
        topic=TRAINING,
    )

    @property
    def size(self) -> int:
        """Honest agents; with attackers in separated, partial and selection."""
        usual = {"averaging": 26, "two_worlds": 26, "separated": 12, "selection": 40}
        return self.num_agents or usual.get(self.study, 20)

    @property
    def attackers(self) -> tuple[int, ...]:
        """Numbers of attackers that are tried."""
        usual = (2,) if self.study == "separated" else (1, 3, 4, 6, 8)
        return self.num_byzantine or usual

    @property
    def chosen_graphs(self) -> tuple[str, ...]:
        """Graphs that are tried; refuses those of another study."""
        known = GRAPHS[self.study]
        usual = known if self.study == "compression" else known[:1]
        other = [name for name in self.graphs or () if name not in known]
        if other:
            raise InputError(
                f"Need graphs among {', '.join(known)} in the study {self.study}, got "
                f"{other[0]}."
            )
        return self.graphs or usual

    @property
    def kind(self) -> str:
        """Of the network."""
        return self.network or ("softmax" if self.study == "separated" else "mlp")
