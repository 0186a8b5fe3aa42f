"""The methods by name, made for one problem."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

import p2pjax as pj
from experiments.compare.graphs import NamedGraph
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.tasks.task import Task
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    PyTree,
)

# What methods do in a round that decide it themselves.
UPDATES_OF_THEIR_OWN = {
    "central": "passes once over all agents' data in a round",
    "complete_training": "trains agents until their held-out losses stop falling",
    "d_cliques": "exchanges gradients in every step",
    "diple": "trains for an epoch and then takes two steps in each iteration",
}


class Problem(NamedTuple):
    """What a method is made of."""

    task: Task
    optimizer: optax.GradientTransformation
    graph: NamedGraph
    data: FederatedData  # of the first run
    num_rounds: int
    num_peers: int
    penalty_weight: float
    batch_size: int
    local_updates: pj.LocalUpdates | None  # None: each method's own
    loss_probability: float
    score_before: bool
    agent_loop: int
    consensus_step: float = 0.5  # of choco_sgd
    head: tuple[str, ...] = ()  # paths of the leaves of the last layer
    scheme: Scheme | SchemeFn = pj.partial.level(0.8)  # of partial averaging

    @property
    def own(self) -> dict[str, Any]:
        """Arguments of all methods."""
        found: dict[str, Any] = {"batch_size": self.batch_size}
        if self.local_updates is not None:
            found["local_updates"] = self.local_updates
        return found | {"agent_loop": self.agent_loop}

    @property
    def sent(self) -> dict[str, Any]:
        """Arguments of methods that exchange models."""
        if not self.loss_probability:
            return self.own
        return self.own | {"channel": pj.channel.drop(self.loss_probability)}

    @property
    def averaged(self) -> dict[str, Any]:
        """Arguments of methods that have both models on request."""
        return self.sent | {"score_before": self.score_before}

    def whole(self, method: str) -> dict[str, Any]:
        """Arguments of methods whose messages all arrive.

        Args:
          method: its name, for messages.
        """
        if self.loss_probability:
            raise InputError(
                f"Need messages that arrive for {method}, which cannot do without "
                f"one, got --loss_probability={self.loss_probability:g}: leave it, or "
                "the method, out."
            )
        return self.own

    def own_updates(self, method: str) -> None:
        """Refuse numbers of updates for a method that has its own.

        Args:
          method: its name, for messages.
        """
        if self.local_updates is not None:
            raise InputError(
                f"Need no --local_steps and no --local_epochs for {method}, which "
                f"{UPDATES_OF_THEIR_OWN[method]}: leave them, or the method, out."
            )

    def personal(self, method: str) -> tuple[str, ...]:
        """Paths of the last layer.

        Args:
          method: that does not average it, for messages.
        """
        if not self.head:
            raise InputError(
                f"Need to know the last layer of this network for {method}, which "
                "does not average it over all agents: give regular expressions of its "
                "paths, such as --head=params/layer_2/.*."
            )
        return self.head

    def stage(self, parts: int, least: int = 1) -> int:
        """A part of all rounds, for methods with stages."""
        return max(least, self.num_rounds // parts)


def on_graph(
    make: Callable[..., Algorithm], **arguments: Any
) -> Callable[[Problem], Algorithm]:
    """Of methods that communicate in steps, on the problem's graph.

    Args:
      make: such as `pj.dpsgd`.
      **arguments: of its own.
    """
    return lambda p: make(
        p.task,
        p.optimizer,
        p.graph.graph,
        rewire_every=pj.graphs.COMMUNICATION if p.graph.changes else None,
        **p.averaged,
        **arguments,
    )


def per_round(
    make: Callable[..., Algorithm],
    arguments: Callable[[Problem], dict[str, Any]] = lambda p: {},
) -> Callable[[Problem], Algorithm]:
    """Of methods that communicate once in a round, on the problem's graph.

    Args:
      make: such as `pj.dfca`.
      arguments: of its own, for a problem.
    """
    return lambda p: make(
        p.task,
        p.optimizer,
        p.graph.graph,
        rewire_every=1 if p.graph.changes else None,
        **p.sent,
        **arguments(p),
    )


def _served(make: Callable[..., Algorithm]) -> Callable[[Problem], Algorithm]:
    return lambda p: make(p.task, p.optimizer, **p.averaged)


def _penalised(make: Callable[..., Algorithm]) -> Callable[[Problem], Algorithm]:
    return lambda p: make(
        p.task, p.optimizer, penalty_weight=p.penalty_weight, **p.averaged
    )


def _num_clusters(data: FederatedData) -> int:
    """Those that the data have, two where they have none."""
    return max(2, len(set(np.asarray(data.cluster).tolist())))


def _token_ring(num_agents: int) -> Any:
    """Of a quarter of the agents; all of them where there are few."""
    return pj.graphs.ring(min(num_agents, max(3, num_agents // 4)))


def _central(p: Problem) -> Algorithm:
    p.own_updates("central")
    return pj.central(p.task, p.optimizer, batch_size=p.batch_size)


def _complete(p: Problem) -> Algorithm:
    p.own_updates("complete_training")
    return pj.complete_training(p.task, p.optimizer, **p.whole("complete_training"))


def _diple(p: Problem) -> Algorithm:
    p.own_updates("diple")
    return pj.diple(p.task, p.optimizer, num_peers=p.num_peers, **p.sent)


def _partial_averaging(p: Problem) -> Algorithm:
    """Servers of partial models are charged for what they send, as others are."""
    method = pj.partial_averaging(p.task, p.optimizer, p.scheme, **p.averaged)

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info]:
        state, info = method.round(key, t, inputs, state, data)
        hears = info.received > 0  # the servers, with the means of all its models
        delivered = jnp.where(hears, info.payload, 0)
        return state, info._replace(served=info.received, delivered=delivered)

    return method._replace(round=round_fn)


def _d_cliques(p: Problem) -> Algorithm:
    p.own_updates("d_cliques")
    cliques = pj.selection.label_cliques(p.data, seed=0)
    arguments = p.whole("d_cliques") | {"score_before": p.score_before}
    return pj.d_cliques(p.task, p.optimizer, cliques, **arguments)


METHODS: Mapping[str, Callable[[Problem], Algorithm]] = {
    "local_only": lambda p: pj.local_only(p.task, p.optimizer, **p.own),
    "central": _central,
    "dpsgd": on_graph(pj.dpsgd),
    "choco_sgd": lambda p: on_graph(
        pj.choco_sgd,
        compression=pj.channel.sign(),
        consensus_step=p.consensus_step,
    )(p),
    "d2": on_graph(pj.d2),
    "dfedavgm": on_graph(pj.dfedavgm),
    "dfedsam": on_graph(pj.dfedsam),
    "k_gt": on_graph(pj.k_gt),
    "epidemic": lambda p: pj.epidemic(
        p.task, p.optimizer, num_peers=p.num_peers, **p.averaged
    ),
    "ad_psgd": lambda p: pj.ad_psgd(p.task, p.optimizer, p.graph.graph, **p.sent),
    "sgp": on_graph(pj.sgp),
    "gosgd": on_graph(pj.gosgd),
    "exact_diffusion": on_graph(pj.exact_diffusion),
    "extra": on_graph(pj.extra),
    "gradient_tracking": on_graph(pj.gradient_tracking),
    "momentum_tracking": on_graph(pj.momentum_tracking),
    "qg_dsgdm": on_graph(pj.qg_dsgdm),
    "relay_sgd": on_graph(pj.relay_sgd),
    "p2p_bn": per_round(pj.p2p_bn),
    "fedavg": _served(pj.fedavg),
    "fedopt": _served(pj.fedopt),
    "fedprox": _penalised(pj.fedprox),
    "fedper": lambda p: pj.fedper(
        p.task, p.optimizer, personal=p.personal("fedper"), **p.averaged
    ),
    "scaffold": _served(pj.scaffold),
    "ditto": _penalised(pj.ditto),
    "fedcurv": lambda p: pj.fedcurv(
        p.task, p.optimizer, penalty_weight=p.penalty_weight, **p.sent
    ),
    "fedcurv_neighbors": per_round(
        pj.fedcurv_neighbors, lambda p: {"penalty_weight": p.penalty_weight}
    ),
    "sparse": lambda p: pj.sparse(p.task, p.optimizer, p.graph.graph, **p.sent),
    "dfca": per_round(pj.dfca, lambda p: {"num_clusters": _num_clusters(p.data)}),
    "facade": per_round(
        pj.facade,
        lambda p: {
            "head": p.personal("facade"),
            "num_clusters": _num_clusters(p.data),
        },
    ),
    "divshare": per_round(pj.divshare),
    "teleportation": lambda p: pj.teleportation(
        p.task, p.optimizer, _token_ring(len(p.data.cluster)), **p.sent
    ),
    "oracle": lambda p: pj.oracle(
        p.task, p.optimizer, p.data.cluster, degree=p.num_peers, **p.sent
    ),
    "pens": lambda p: pj.pens(
        p.task,
        p.optimizer,
        num_peers=p.num_peers,
        num_candidates=2 * p.num_peers,
        second_stage=p.stage(5),
        **p.sent,
    ),
    "dac": lambda p: pj.dac(p.task, p.optimizer, num_peers=p.num_peers, **p.sent),
    "panm": lambda p: pj.panm(
        p.task,
        p.optimizer,
        num_peers=p.num_peers,
        num_candidates=2 * p.num_peers,
        second_stage=p.stage(5, least=2),
        matching_every=p.stage(50),
        **p.sent,
    ),
    "l2c": lambda p: pj.l2c(p.task, p.optimizer, num_rounds_all=p.stage(50), **p.sent),
    "diple": _diple,
    "aucccr": lambda p: pj.aucccr(
        p.task,
        p.optimizer,
        num_agents=len(p.data.cluster),
        degree=p.num_peers,
        **p.sent,
    ),
    "d_cliques": _d_cliques,
    "partial_averaging": _partial_averaging,
    "combination": lambda p: pj.combination(
        p.task, p.optimizer, **p.whole("combination")
    ),
    "complete_training": _complete,
}
# Whose optimizer starts afresh in each round, so that no state has its rate.
AFRESH = ("combination", "complete_training")
# Methods of `pj.METHODS` that cannot be compared here, and why.
REFUSED: Mapping[str, str] = {
    "virtual": "virtual learns distributions of weights and needs a network of them, "
    "not one with a number for each weight: see experiments.virtual",
    "multi_task": "multi_task needs groups of agents with tasks of their own, not one "
    "task for all: see experiments.multi_task",
}
