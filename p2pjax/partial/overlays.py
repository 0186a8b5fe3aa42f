"""Whom the members of a partial model contact when each model has its own gossip.

An overlay is drawn on the host for a whole run: nothing of it depends on parameters.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import Topology, is_sequence
from p2pjax.types import InputError

# Number of a model -> the agents that implement it, in increasing order.
Members = Mapping[int, np.ndarray]


class Overlay(NamedTuple):
    """Whom members contact."""

    # (rng, members of each model, N, rounds R, cycles C of a round) -> of each model
    # whom its n members contact, agents `[R, C, n]`; itself where it knows none
    contacts: Callable[
        [np.random.Generator, Members, int, int, int], dict[int, np.ndarray]
    ]
    # (N, members) -> the graph of a model, for those that stay the same; else None
    graph_of: Callable[[int, np.ndarray], Topology] | None = None


def random_members() -> Overlay:
    """Each member contacts any other one of its model, all with the same probability.

    Example:
      >>> members = {0: np.array([2, 5, 7])}
      >>> rng = np.random.default_rng(0)
      >>> random_members().contacts(rng, members, 8, 1, 4)[0].shape
      (1, 4, 3)
    """

    def contacts_fn(
        rng: np.random.Generator, members: Members, size: int, rounds: int, cycles: int
    ) -> dict[int, np.ndarray]:
        del size
        found = {}
        for model, who in members.items():
            other = rng.integers(len(who) - 1, size=(rounds, cycles, len(who)))
            found[model] = who[other + (other >= np.arange(len(who)))]
        return found

    return Overlay(contacts_fn)


def on_graph(graph: GraphLike) -> Overlay:
    """Each member contacts one of its neighbours that are members too.

    Args:
      graph: of all agents, see `graphs.as_graph`; one for the whole run. What two
        agents exchange goes both ways, whoever contacts the other.

    Example:
      >>> from p2pjax.graphs import ring
      >>> members = {0: np.arange(3)}  # agent 1 links the others
      >>> rng = np.random.default_rng(0)
      >>> on_graph(ring(5)).contacts(rng, members, 5, 1, 1)[0][0, 0, [0, 2]].tolist()
      [1, 1]
    """
    read = as_topology(graph)
    if not isinstance(read, Topology) or is_sequence(read):
        raise InputError(
            "Need one graph for the whole run where each model has its own gossip, got "
            "a sequence or a function: use member_graphs to draw a graph per model."
        )
    found: Topology = read

    def graph_of(size: int, who: np.ndarray) -> Topology:
        if len(found.mask) != size:
            raise InputError(
                f"Need a graph of as many agents as there are, {size}, got one of "
                f"{len(found.mask)}."
            )
        is_member = np.isin(np.arange(size), who)
        mask = found.mask & is_member[found.neighbor] & is_member[:, None]
        own = np.arange(size, dtype=np.int32)[:, None]
        return Topology(np.where(mask, found.neighbor, own), mask)

    def contacts_fn(
        rng: np.random.Generator, members: Members, size: int, rounds: int, cycles: int
    ) -> dict[int, np.ndarray]:
        return {
            model: _neighbors(rng, graph_of(size, who), who, rounds, cycles)
            for model, who in members.items()
        }

    return Overlay(contacts_fn, graph_of)


def member_graphs(
    draw: Callable[[np.random.Generator, int], GraphLike],
    *,
    rewire_every: int | None = None,
) -> Overlay:
    """A graph of its own for every model, among its members.

    Args:
      draw: `(rng, n)` -> a graph of the n members of a model.
      rewire_every: rounds after which new graphs are drawn; None keeps the first.

    Example:
      >>> from p2pjax.graphs import ring
      >>> overlay = member_graphs(lambda rng, size: ring(size))
      >>> members, rng = {0: np.array([1, 4])}, np.random.default_rng(0)
      >>> overlay.contacts(rng, members, 5, 1, 1)[0].tolist()
      [[[4, 1]]]
    """
    if rewire_every is not None and rewire_every < 1:
        raise InputError(f"Need rewire_every of 1 or more rounds, got {rewire_every}.")

    def contacts_fn(
        rng: np.random.Generator, members: Members, size: int, rounds: int, cycles: int
    ) -> dict[int, np.ndarray]:
        del size
        length = rewire_every or rounds
        found = {}
        for model, who in members.items():
            parts = []
            for first in range(0, rounds, length):
                now = min(length, rounds - first)
                graph = as_topology(draw(rng, len(who)), len(who))
                if not isinstance(graph, Topology) or is_sequence(graph):
                    raise InputError(
                        "Need a function that draws one graph of the members of a "
                        "model, got one that returns several or another function."
                    )
                inside = _neighbors(rng, graph, np.arange(len(who)), now, cycles)
                parts.append(who[inside])
            found[model] = np.concatenate(parts)
        return found

    return Overlay(contacts_fn)


def _neighbors(
    rng: np.random.Generator,
    graph: Topology,
    who: np.ndarray,
    rounds: int,
    cycles: int,
) -> np.ndarray:
    """A random neighbour of each of the agents `who` `[n]`, `[R, C, n]`."""
    mask = np.asarray(graph.mask)[who]
    # Neighbours first, so that the k-th of them is in column k.
    order = np.argsort(~mask, axis=1, kind="stable")
    listed = np.take_along_axis(np.asarray(graph.neighbor)[who], order, 1)
    degree = mask.sum(1)
    shape = (rounds, cycles, len(who))
    chosen = (rng.random(shape) * np.maximum(degree, 1)).astype(int)
    if listed.shape[1] == 0:
        return np.broadcast_to(who, shape)
    return np.where(degree > 0, listed[np.arange(len(who)), chosen], who)
