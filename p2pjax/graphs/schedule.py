"""Graphs that change: sequences of graphs, and which of them is used when.

`rewire_every` says when the next graph comes: after so many rounds, or, as
`COMMUNICATION`, after each communication. `graphs_of_rounds` is for methods that use
one graph in a round, `graphs_of_run` for those that communicate several times.
"""

import enum
from collections.abc import Callable

import numpy as np

from p2pjax.graphs.topology import (
    AnyGraph,
    Seed,
    Topology,
    WeightedGraphs,
    generator,
    is_sequence,
    num_agents_of,
    stack,
)
from p2pjax.types import InputError, Peers

MAX_DRAWN = 4096  # random graphs of a run that changes them in each communication


class Rewiring(enum.Enum):
    """When the next graph comes, if not after a number of rounds."""

    COMMUNICATION = "each communication"


COMMUNICATION = Rewiring.COMMUNICATION


RewireEvery = int | Rewiring | None  # rounds, or each communication; None: never


def varying(
    draw: Callable[[np.random.Generator], AnyGraph], num_graphs: int, *, seed: Seed
) -> AnyGraph:
    """A sequence of independently drawn graphs, `[G, N, D]`.

    >>> from p2pjax.graphs import random_regular
    >>> varying(lambda rng: random_regular(10, 3, seed=rng), 20, seed=0).mask.shape
    (20, 10, 3)
    """
    if num_graphs < 1:
        raise InputError(f"Need one graph or more in a sequence, got {num_graphs}.")
    rng = generator(seed)
    return stack([draw(rng) for _ in range(num_graphs)])


def graph_of_epoch(epoch: np.ndarray, switch_every: int, num_graphs: int) -> np.ndarray:
    """Which graph of a sequence is in use in each network epoch.

    A graph serves `switch_every` epochs; after the last one the first comes again.

    >>> graph_of_epoch(np.arange(7), switch_every=2, num_graphs=3).tolist()
    [0, 0, 1, 1, 2, 2, 0]
    """
    if switch_every < 1 or num_graphs < 1:
        raise InputError(
            "Need graphs that serve one epoch or more, and one graph or more, got "
            f"switch_every={switch_every} and {num_graphs} graphs."
        )
    return (np.asarray(epoch) // switch_every % num_graphs).astype(np.int32)


def check_rewiring(
    graph: WeightedGraphs,
    rewire_every: RewireEvery,
    *,
    per_communication: bool = False,
) -> None:
    """Refuses a sequence that nothing switches, and switching without a sequence.

    Args:
      graph: what `as_graph` returns.
      rewire_every: rounds after which the next graph comes, or `COMMUNICATION`.
      per_communication: whether the method communicates several times in a round, one
        after the other, so that `COMMUNICATION` is possible.
    """
    several = not isinstance(graph, Topology | Peers) or is_sequence(graph)
    if isinstance(rewire_every, Rewiring) and not per_communication:
        raise InputError(
            "Need rewire_every as a number of rounds, because this method does not "
            "communicate in steps, got COMMUNICATION: 1 is a graph per round."
        )
    is_too_small = isinstance(rewire_every, int) and rewire_every < 1
    if is_too_small or (rewire_every is not None and not several):
        raise InputError(
            "Need rewire_every of 1 or more and a sequence of graphs or a function "
            f"that draws them, got rewire_every={rewire_every} and "
            f"{'graphs' if several else 'one graph'}."
        )
    if rewire_every is None and several and isinstance(graph, Topology | Peers):
        raise InputError(
            "Need rewire_every for a sequence of graphs, got None: give the number of "
            "rounds after which the next graph comes"
            + (", or graphs.COMMUNICATION." if per_communication else ".")
        )


def check_width(width: int, expected: int) -> None:
    """Refuses graphs that are not as wide as the first, where a state holds one."""
    if width != expected:
        raise InputError(
            f"Need graphs of one width, got some of {expected} and of {width} "
            "neighbours at most: give those that a function draws one width with "
            "graphs.pad_width."
        )


def graphs_of_run(
    rng: np.random.Generator,
    graph: AnyGraph | Callable[[np.random.Generator], AnyGraph],
    rewire_every: RewireEvery,
    num_agents: int,
    communications: np.ndarray,
) -> tuple[AnyGraph, np.ndarray]:
    """The graphs of a run, and those that each round uses in turn.

    Where `rewire_every` is `COMMUNICATION`, communication s of the run, counted over
    all rounds, uses graph s modulo G. A function then draws as many graphs as there are
    communications, at most `MAX_DRAWN`; after the last one the first comes again.

    Args:
      rng: draws the graphs, if `graph` is a function.
      graph: `[N, D]`, `[G, N, D]`, `Peers`, or a function; what `as_graph` returns.
      rewire_every: rounds after which the next graph comes, or `COMMUNICATION`; None
        keeps the first.
      num_agents: N, of the data.
      communications: `[R]`, how many each round has.

    Returns:
      The graphs `[G, ...]`, and numbers of graphs `[R, W]`: communication c of a round,
      counted from 0, uses number `c % W` of its row. W is 1 where a round has one
      graph, else the smaller of G and the most communications of a round, so that no
      round needs more graphs than it uses.

    >>> from p2pjax.graphs import one_peer_exponential
    >>> rng, graphs = np.random.default_rng(0), one_peer_exponential(8)
    >>> graphs_of_run(rng, graphs, COMMUNICATION, 8, np.array([4, 5]))[1].tolist()
    [[0, 1, 2], [1, 2, 0]]
    """
    communications = np.asarray(communications, np.int64)
    if not isinstance(rewire_every, Rewiring):
        graphs, of_round = graphs_of_rounds(
            rng, graph, rewire_every, num_agents, len(communications)
        )
        return graphs, of_round[:, None]
    total = int(communications.sum())
    graphs = _graphs(rng, graph, max(1, min(total, MAX_DRAWN)), num_agents)
    num_graphs = len(graphs[0])
    width = min(num_graphs, max(1, int(communications.max(initial=0))))
    first = np.cumsum(communications) - communications
    in_turn = (first[:, None] + np.arange(width)) % num_graphs
    return graphs, in_turn.astype(np.int32)


def graphs_of_rounds(
    rng: np.random.Generator,
    graph: AnyGraph | Callable[[np.random.Generator], AnyGraph],
    rewire_every: int | None,
    num_agents: int,
    num_rounds: int,
) -> tuple[AnyGraph, np.ndarray]:
    """The graphs `[G, N, D]` of a run, and which of them each round uses, `[R]`.

    Args:
      rng: draws the graphs, if `graph` is a function.
      graph: what `as_graph` returns.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      num_agents: N, of the data.
      num_rounds: R.
    """
    num_graphs = 1 if rewire_every is None else -(-num_rounds // rewire_every)
    graphs = _graphs(rng, graph, num_graphs, num_agents)
    of_round = graph_of_epoch(
        np.arange(num_rounds), rewire_every or num_rounds, len(graphs[0])
    )
    return graphs, of_round


def _graphs(
    rng: np.random.Generator,
    graph: AnyGraph | Callable[[np.random.Generator], AnyGraph],
    num_graphs: int,
    num_agents: int,
) -> AnyGraph:
    """Those given, or as many as are asked for, `[G, ...]`."""
    if isinstance(graph, Topology | Peers):
        graphs = graph if is_sequence(graph) else stack([graph])
    else:
        graphs = varying(graph, num_graphs, seed=rng)
    if num_agents_of(graphs) != num_agents:
        raise InputError(
            f"Need a graph of as many agents as the data have, {num_agents}, got one "
            f"of {num_agents_of(graphs)}."
        )
    return graphs
