"""A gossip of its own for every partial model, among those who implement it.

Jelasity, Montresor, Babaoglu (2005), "Gossip-based aggregation in large dynamic
networks", https://doi.org/10.1145/1082469.1082470. In a cycle each member contacts one
other member, one after the other in a random order, and both take the mean of their two
models; the variance among the members falls by about 1 / (2 sqrt(e)) = .303 per cycle.

Who contacts whom is drawn on the host. Exchanges of exact models are linear, so that
all cycles of a round are one small matrix, and parameters are read once.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.graphs.conversion import GraphLike
from p2pjax.graphs.mixing_matrices import pairwise_weights
from p2pjax.partial.agreement import only_needed
from p2pjax.partial.averaging import Averaging, checked_weight, warn_of_parts
from p2pjax.partial.exchanges import (
    Exchanges,
    Layout,
    exchanged,
    happening,
    partners,
    reached,
    waves,
)
from p2pjax.partial.overlays import Members, Overlay, on_graph, random_members
from p2pjax.types import LOCAL, Array, InputError, Peers


class Situation(NamedTuple):
    """Where a gossip takes place."""

    plan: MixPlan
    average_every: int = 1  # rounds
    loss_probability: float = 0.0  # of an exchange


class PerModel(NamedTuple):
    """A gossip per model; who its members are is known when the scheme is."""

    among: Callable[[Situation], Averaging]


def per_model(
    overlay: Overlay | GraphLike | None = None,
    *,
    cycles: int = 10,
    tolerance: float | None = None,
    weight: Array | None = None,
) -> PerModel:
    """Push-pull gossip of every partial model by itself (Jelasity et al. 2005).

    Each message has one model. With many cycles it is what `server` computes; a model
    of two members is averaged exactly by one exchange. An exchange is lost as a whole.

    Args:
      overlay: whom members contact: any other member (None), those on a graph of all
        agents that are members, `member_graphs`, or `peer_sampling`.
      cycles: of each averaging; with a tolerance, at most so many.
      tolerance: members of a model stop when each is as near to their mean as this, in
        the root mean square over the model's parameters. The simulator sees that;
        agents of a real network would have to estimate it. None: all cycles.
      weight: `[N]`, what each agent counts in the mean; the same for all if None.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.partial_averaging(
      ...     task, optax.sgd(0.1), pj.partial.level(0.8), batch_size=32,
      ...     averaging=pj.partial.per_model(cycles=5))
      >>> method.round_is
      'one mini-batch of each agent, and one averaging after 1 local step'
    """
    if cycles < 1:
        raise InputError(f"Need one cycle or more per averaging, got {cycles}.")
    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise InputError(f"Need a tolerance above 0, got {tolerance}.")
    if overlay is None:
        overlay = random_members()
    known = overlay if isinstance(overlay, Overlay) else on_graph(overlay)

    def among_fn(situation: Situation) -> Averaging:
        cast = cast_of(situation.plan)
        layout = layout_of(cast, cycles)
        if known.graph_of is not None:
            _check_connected(known, cast, situation.plan)

        def plan_fn(rng: np.random.Generator, num_rounds: int) -> Exchanges:
            return plain_exchanges(rng, known, cast, cycles, num_rounds)

        averaging = gossip(layout, plan_fn, weight)
        if tolerance is not None:
            settle = partial(only_needed, layout, cycles, tolerance, weight)
            averaging = averaging._replace(settle=settle)
        return averaging

    return PerModel(among_fn)


class Cast(NamedTuple):
    """Who implements what."""

    num_agents: int
    members: Members


def cast_of(plan: MixPlan) -> Cast:
    """The members of every model that two agents or more implement.

    Args:
      plan: owner classes.
    """
    found: dict[int, set[int]] = {}
    for owner, _ in plan.classes:
        for model in np.unique(owner[owner != LOCAL]):
            found.setdefault(int(model), set()).update(
                np.flatnonzero(owner == model).tolist()
            )
    members = {model: np.sort([*found[model]]) for model in sorted(found)}
    return Cast(len(plan.classes[0].owner), members)


def layout_of(cast: Cast, cycles: int) -> Layout:
    """Of rounds that have this many cycles of all models, cycle after cycle.

    Args:
      cast: who implements what.
      cycles: C.
    """
    one = [np.full(len(who), model) for model, who in cast.members.items()]
    model = np.tile(np.concatenate([*one, np.zeros(0, int)]), cycles).astype(int)
    cycle = np.repeat(np.arange(cycles), len(model) // cycles)
    return Layout(cast.num_agents, model, cycle, np.full(len(model), -1))


def plain_exchanges(
    rng: np.random.Generator, overlay: Overlay, cast: Cast, cycles: int, num_rounds: int
) -> Exchanges:
    """In every cycle each member contacts one other, in a random order, `[R, F]`.

    Args:
      rng: draws them.
      overlay: whom members contact.
      cast: who implements what.
      cycles: of a round.
      num_rounds: R.
    """
    contacts = overlay.contacts(rng, cast.members, cast.num_agents, num_rounds, cycles)
    first, second = [], []
    for model, who in cast.members.items():
        order = np.tile(np.arange(len(who)), (num_rounds, cycles, 1))
        order = rng.permuted(order, axis=2)
        first.append(who[order])
        second.append(np.take_along_axis(contacts[model], order, 2))
    none = np.zeros((num_rounds, cycles, 0), int)

    def flat(parts: list[np.ndarray]) -> np.ndarray:
        joined = np.concatenate([*parts, none], axis=2)  # [R, C, members of all models]
        return joined.reshape(num_rounds, -1).astype(np.int32)

    return Exchanges(flat(first), flat(second))


def gossip(
    layout: Layout,
    plan: Callable[[np.random.Generator, int], Exchanges],
    weight: Array | None = None,
) -> Averaging:
    """Averaging by exchanges of this layout.

    Args:
      layout: what each exchange is about.
      plan: (generator, R) -> the exchanges of R rounds, leaves `[R, ...]`.
      weight: `[N]` of the agents.
    """
    size = layout.num_agents
    weight = checked_weight(weight, size)
    own = np.arange(size, dtype=np.int32)[:, None]

    def links_fn(inputs: Exchanges, owner: np.ndarray) -> Array:
        ends = (own == inputs.first[None]) | (own == inputs.second[None])
        return ends & happening(layout, inputs, owner)[None]  # [N, F]

    def combine_fn(
        inputs: Exchanges, owner: np.ndarray, arrived: Array | None = None
    ) -> mixing.Combine:
        happens = happening(layout, inputs, owner)
        if arrived is not None:
            happens = happens & reached(inputs, arrived)
        # Exchanges of other classes, and of phases of noise, change nothing.
        is_of_class = np.isin(layout.model, owner) & (layout.cycle >= 0)
        used = np.flatnonzero(is_of_class)
        identity = jnp.eye(size, dtype=float)
        pairs = Exchanges(inputs.first[used], inputs.second[used])
        matrix = exchanged(identity, pairs, happens[used], weight)
        return mixing.by_group_matrix(matrix, owner)

    def peers_fn(
        inputs: Exchanges, owner: np.ndarray, arrived: Array | None = None
    ) -> Peers:
        """Of one wave: no agent has two exchanges of a class."""
        happens = happening(layout, inputs, owner)
        if arrived is not None:
            happens = happens & reached(inputs, arrived)
        partner = partners(inputs.only(happens), size)
        return pairwise_weights(partner, owner, weight)

    def together_fn(inputs: Exchanges, arrived: Array) -> Array:
        """An exchange arrives as a whole, `[N, F]`."""
        first, second = jnp.asarray(inputs.first), jnp.asarray(inputs.second)
        at = jnp.arange(len(layout.model))
        is_in = arrived[jnp.minimum(first, second), at]
        return is_in[None] & ((own == first[None]) | (own == second[None]))

    def only_fn(inputs: Exchanges, asking: Array) -> Exchanges:
        return inputs.only(asking[inputs.first] | asking[inputs.second])

    return Averaging(
        size,
        plan,
        combine_fn,
        links_fn,
        only_fn,
        per_model=True,
        peers=peers_fn,
        is_paired=True,
        weight=weight,
        together=together_fn,
        waves=partial(waves, layout),
    )


def _check_connected(overlay: Overlay, cast: Cast, plan: MixPlan) -> None:
    assert overlay.graph_of is not None
    graphs = {
        model: overlay.graph_of(cast.num_agents, who)
        for model, who in cast.members.items()
    }
    warn_of_parts(lambda model: graphs[model], plan)
