"""Epidemic learning: after local steps, models go to a few agents drawn at random.

de Vos et al. (2023), "Epidemic learning: boosting decentralized learning with
randomized communication", https://arxiv.org/abs/2310.01972.
"""

from typing import Any, Literal, Unpack

import numpy as np
import optax

from p2pjax.engines.any_size import of_any_size
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.options import GossipOptions
from p2pjax.engines.stepwise import gossip
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.epidemic import epidemic_local, epidemic_oracle
from p2pjax.graphs.schedule import COMMUNICATION, RewireEvery
from p2pjax.graphs.topology import Topology, is_sequence, num_agents_of
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.training.local_updates import steps
from p2pjax.types import Algorithm, InputError

VARIANTS = {"oracle": epidemic_oracle, "local": epidemic_local}


def epidemic(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    num_peers: int = 3,
    variant: Literal["oracle", "local"] = "oracle",
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Epidemic learning (de Vos et al. 2023, https://arxiv.org/abs/2310.01972).

    After local training each agent sends its model to `num_peers` agents that are drawn
    anew for each exchange, and takes the plain mean of its own model and what arrives.
    The host draws the graphs: as many as there are exchanges, at most 4096, which then
    come again.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who may hear whom, `[N, D]`, see `graphs.as_graph`; None permits all.
      batch_size: B.
      num_peers: s, whom each agent sends to; log2 of the number of agents in the paper.
      variant: "oracle" (EL-Oracle) where each agent also hears `num_peers` agents, so
        that the agents' mean is kept; "local" (EL-Local) where agents draw on their
        own, so that some hear many and some none.
      **options: see `GossipOptions`, without `rewire_every`: the graph always changes.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.epidemic(task, optax.sgd(0.1), batch_size=32, num_peers=3)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    if variant not in VARIANTS:
        raise InputError(f"Need a variant among {', '.join(VARIANTS)}, got {variant}.")
    if options.get("rewire_every") is not None:
        raise InputError(
            "Need no rewire_every for epidemic learning, whose graph changes in each "
            f"exchange, got {options['rewire_every']}."
        )
    draw = VARIANTS[variant]
    updates = options.get("local_updates", steps(1))
    # With local epochs a round has one exchange, and its links can be told.
    every: RewireEvery = 1 if updates.num_epochs else COMMUNICATION

    settled: Any = {**options, "rewire_every": every}

    def make(num_agents: int, permitted: Topology | None = None) -> Algorithm:
        def draw_fn(rng: np.random.Generator) -> Topology:
            return draw(num_agents, num_peers, seed=rng, permitted=permitted)

        return gossip(
            task,
            optimizer,
            neighbor_averaging(),
            draw_fn,
            batch_size=batch_size,
            name="Epidemic learning",
            **settled,
        )

    if graph is None:
        if not isinstance(num_peers, int | np.integer) or num_peers < 1:
            raise InputError(f"Need num_peers of 1 or more, got {num_peers}.")
        return of_any_size(make, num_peers + 1)
    permitted = as_topology(graph)
    if not isinstance(permitted, Topology) or is_sequence(permitted):
        raise InputError(
            "Need one graph that says who may be drawn for epidemic learning, got "
            "several or a function: give one, or None for all."
        )
    size = num_agents_of(permitted)
    draw(size, num_peers, seed=0, permitted=permitted)  # refused now, not later
    return make(size, permitted)
