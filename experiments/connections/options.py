"""What the methods of `experiments.connections` can be told."""

import dataclasses

from experiments.engine.config import Common
from experiments.engine.fields import TRAINING, integer, integers, number, switch

MOST = 10**6  # rounds and agents that a method may be told of


@dataclasses.dataclass(frozen=True)
class Options(Common):
    """Settings of methods; where none is given, those of Sajina (2025)."""

    second_stage: int | None = integer(
        None,
        "First round of the second stage of PENS and PANM; a fifth of all if not "
        "given.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    matching_every: int | None = integer(
        None,
        "Rounds between two matchings of PANM; a fiftieth of all if not given.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    counts_all: bool = switch(
        True,
        "All messages of PANM; with --nocounts_all as the thesis counts them, without "
        "those of averaging in the second stage.",
        topic=TRAINING,
    )
    rounds_with_all: int | None = integer(
        None,
        "Rounds in which L2C mixes all models; a fiftieth of all if not given.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    num_kept: int = integer(
        3,
        "Peers that L2C keeps after these rounds.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    bilevel: bool = switch(
        False,
        "L2C as published: weights follow the mixed model's gradient.",
        topic=TRAINING,
    )
    num_candidates: int = integer(
        6,
        "Models that PENS and PANM try in a round.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    sharpness: float = number(
        30.0, "Softmax sharpness of DAC's peer sampling.", at_least=0, topic=TRAINING
    )
    rising: bool = switch(False, "Sharpness of DAC rises from 1.", topic=TRAINING)
    update_share: float = number(
        0.5,
        "Weight of the last round's update in the similarity of panm_grad; the rest is "
        "for everything since the start.",
        at_least=0,
        at_most=1,
        topic=TRAINING,
    )
    iterations: int = integer(
        5, "Averages in a cycle of DiPLe.", at_least=1, at_most=MOST, topic=TRAINING
    )
    search_on_valid: bool = switch(
        False,
        "DiPLe looks for weights of peers on validation examples, not on those that "
        "agents train on.",
        topic=TRAINING,
    )
    search_from_start: bool = switch(
        False,
        "DiPLe looks at peers from the averaged model that a cycle starts with, not "
        "from what it was trained to since.",
        topic=TRAINING,
    )
    return_probability: float = number(
        0.0,
        "That DiPLe may ask a peer of weight 0 again, in each cycle.",
        at_least=0,
        at_most=1,
        topic=TRAINING,
    )
    clique_size: int = integer(
        10,
        "Most agents of a clique of D-Cliques.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    group_limit: int | None = integer(
        None,
        "Group size at which AUCCCR's value function saturates; if not given, four "
        "tenths of all agents for two true clusters and two tenths for more, as in the "
        "thesis.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    probe_size: int = integer(
        100,
        "Test examples of the first agents on which AUCCCR, dac_probe and panm_probe "
        "compare predictions.",
        at_least=1,
        at_most=MOST,
        topic=TRAINING,
    )
    max_in_load: tuple[int, ...] = integers(
        (0,),
        "Most agents that may fetch from one agent in a round, but for d_cliques; 0 is "
        "no limit. Several are run one after the other.",
        topic=TRAINING,
    )
    view_size: tuple[int, ...] = integers(
        (0,),
        "Agents that each agent knows at a time, by gossip, more than --degree, where "
        "methods have no graph; 0 is all. Several are run one after the other.",
        topic=TRAINING,
    )
    score_before: bool = switch(
        True,
        "Also score the models of D-Cliques before they are averaged; methods that "
        "choose peers have both scores anyway.",
        topic=TRAINING,
    )

    @property
    def num_peers(self) -> int:
        """With how many others an agent averages in a round."""
        return self.degree or 3
