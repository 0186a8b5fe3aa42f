"""Graphs that change: sequences of graphs, and which of them each round uses."""

from collections.abc import Callable

import numpy as np

from p2pjax.graphs.topology import Graphs, Topology, stack
from p2pjax.types import InputError


def varying(
    draw: Callable[[np.random.Generator], Topology],
    rng: np.random.Generator,
    num_graphs: int,
) -> Topology:
    """A sequence of independently drawn graphs, `[G, N, D]`.

    Example: `varying(partial(random_regular, num_agents=100, degree=3), rng, 20)`.
    """
    if num_graphs < 1:
        raise InputError(f"Need one graph or more in a sequence, got {num_graphs}.")
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


def check_rewiring(graph: Graphs, rewire_every: int | None) -> None:
    """Refuses a sequence that nothing switches, and switching without a sequence."""
    is_sequence = callable(graph) or graph.mask.ndim == 3
    if rewire_every is not None and (rewire_every < 1 or not is_sequence):
        raise InputError(
            "Need rewire_every of 1 or more and a sequence of graphs or a function "
            f"that draws them, got rewire_every={rewire_every} and "
            f"{'graphs' if is_sequence else 'one graph'}."
        )
    if rewire_every is None and not callable(graph) and is_sequence:
        raise InputError(
            "Need rewire_every for a sequence of graphs, got None: give the number of "
            "network epochs after which the next graph comes."
        )


def graphs_of_rounds(
    rng: np.random.Generator,
    graph: Graphs,
    rewire_every: int | None,
    size: int,
    num_rounds: int,
) -> tuple[Topology, np.ndarray]:
    """The graphs `[G, N, D]` of a run, and which of them each round uses, `[R]`."""
    if callable(graph):
        num_graphs = 1 if rewire_every is None else -(-num_rounds // rewire_every)
        graphs = varying(graph, rng, num_graphs)
    else:
        graphs = graph if graph.mask.ndim == 3 else stack([graph])
    if graphs.mask.shape[1] != size:
        raise InputError(
            f"Need a graph of as many agents as the data have, {size}, got one of "
            f"{graphs.mask.shape[1]}."
        )
    of_round = graph_of_epoch(
        np.arange(num_rounds), rewire_every or num_rounds, len(graphs.mask)
    )
    return graphs, of_round
