"""Where attackers are, on the host, and what attached ones count."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from p2pjax.graphs.conversion import as_graph
from p2pjax.graphs.mixing_matrices import same_owner
from p2pjax.graphs.topology import (
    Seed,
    Topology,
    from_peers,
    generator,
    is_sequence,
    num_agents_of,
)
from p2pjax.types import Array, InputError, Peers

MAX_DRAWS = 1000  # of a placement


def uniform(num_agents: int, num_byzantine: int, *, seed: Seed) -> tuple[int, ...]:
    """So many agents at random, all sets equally likely.

    Args:
      num_agents: N.
      num_byzantine: how many attack, fewer than N.
      seed: draws them.

    Example:
      >>> len(uniform(10, 3, seed=0))
      3
    """
    _check_number(num_agents, num_byzantine)
    return _draw(generator(seed), num_agents, num_byzantine)


def spread(
    graph: Any, num_byzantine: int, max_per_neighborhood: int, *, seed: Seed
) -> tuple[int, ...]:
    """So many agents at random, but no honest agent hears more than a few of them.

    Drawn uniformly until it is so; refused after 1000 draws.

    Args:
      graph: who receives from whom: see `graphs.as_graph`.
      num_byzantine: how many attack, fewer than N.
      max_per_neighborhood: b, the most that an honest agent may hear.
      seed: draws them.

    Example:
      >>> from p2pjax.graphs import ring
      >>> byzantine = spread(ring(12), 4, 1, seed=0)
      >>> byzantine_neighbors(ring(12), byzantine).max()
      np.int64(1)
    """
    links = links_of(graph)
    num_agents = num_agents_of(links)
    _check_number(num_agents, num_byzantine)
    rng = generator(seed)
    for _ in range(MAX_DRAWS):
        byzantine = _draw(rng, num_agents, num_byzantine)
        if byzantine_neighbors(links, byzantine).max() <= max_per_neighborhood:
            return byzantine
    raise InputError(
        f"Need a placement of {num_byzantine} Byzantine agents with at most "
        f"{max_per_neighborhood} beside each honest agent, found none in {MAX_DRAWS} "
        "draws: lower num_byzantine, or raise max_per_neighborhood."
    )


def _draw(rng: np.random.Generator, num_agents: int, count: int) -> tuple[int, ...]:
    return tuple(sorted(rng.choice(num_agents, count, replace=False).tolist()))


def _check_number(num_agents: int, num_byzantine: int) -> None:
    if not 0 <= num_byzantine < num_agents:
        raise InputError(
            f"Need 0 to {num_agents - 1} Byzantine agents of {num_agents}, got "
            f"{num_byzantine}: one must be honest."
        )


def byzantine_neighbors(graph: Any, byzantine: tuple[int, ...]) -> np.ndarray:
    """How many Byzantine agents each honest agent hears, `[N]`; 0 for Byzantine ones.

    Of a sequence of graphs: the most in any of them.

    Args:
      graph: who receives from whom: see `graphs.as_graph`.
      byzantine: numbers of agents.

    Example:
      >>> from p2pjax.graphs import ring
      >>> byzantine_neighbors(ring(5), (0, 2)).tolist()
      [0, 2, 0, 1, 1]
    """
    links = links_of(graph)
    is_byzantine = np.isin(np.arange(num_agents_of(links)), byzantine)
    heard = (np.asarray(links.mask) & is_byzantine[links.neighbor]).sum(-1)
    most = heard.max(0) if is_sequence(links) else heard
    return np.where(is_byzantine, 0, most)


def attached_weights(
    topology: Topology, num_attached: int, owner: np.ndarray | None = None
) -> Peers:
    """Metropolis weights with attackers beside each agent, in the last slots.

    `1 / (1 + f + the larger of the two degrees)` for neighbours, the largest of these
    for each attacker, the rest for the agent itself. Slots of attackers point at the
    agent itself, see `hostile_slots`. May be traced.

    Args:
      topology: `[N, D]`, undirected.
      num_attached: f.
      owner: `[N]`: only agents with equal values average; None: all.

    Example:
      >>> from p2pjax.graphs import ring
      >>> print(attached_weights(ring(4), 2).weight[0].round(3))
      [0.2 0.2 0.2 0.2 0.2]
    """
    num_agents = topology.mask.shape[0]
    owner = np.zeros(num_agents, np.int32) if owner is None else owner
    linked = same_owner(topology, owner)  # [N, D]
    degree = linked.sum(1).astype(float)
    larger = jnp.maximum(degree[:, None], degree[topology.neighbor])
    share = linked.astype(float) / (1 + num_attached + larger)
    alone = 1 / (1 + num_attached + degree)
    most = jnp.where(degree > 0, share.max(1), alone)[:, None]
    hostile = jnp.broadcast_to(most, (num_agents, num_attached))
    rest = 1 - share.sum(1, keepdims=True) - num_attached * most
    own = jnp.arange(num_agents, dtype=jnp.int32)[:, None]
    ids: list[Array] = [own, jnp.where(linked, topology.neighbor, own)]
    ids.append(jnp.broadcast_to(own, (num_agents, num_attached)))
    return Peers(jnp.concatenate(ids, 1), jnp.concatenate([rest, share, hostile], 1))


def links_of(graph: Any) -> Topology:
    """The links of anything that is a graph, or a sequence of graphs."""
    found = as_graph(graph)
    if isinstance(found, Peers):
        return from_peers(found)
    if not isinstance(found, Topology):
        raise InputError(
            "Need a graph or a sequence of graphs to place attackers, got a function "
            "that draws one: call it with a numpy.random.Generator."
        )
    return found
