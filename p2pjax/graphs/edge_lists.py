"""Graphs from lists of edges, in memory or in a text file."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from p2pjax.graphs.topology import Topology, from_edges
from p2pjax.types import InputError


def from_edge_list(
    path: str | Path, num_agents: int | None = None, *, directed: bool = False
) -> Topology:
    """Reads a text file with a line such as "0 1" for each edge.

    Agents are numbered from 0; what follows a # is a comment. As everywhere in this
    package, and as in networkx, a list of edges is undirected unless it is said to be
    directed.

    Args:
      path: of the file.
      num_agents: N, needed where agents without any edge exist.
      directed: whether a line is "sender receiver" and stands for one way only.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     print("0 1  # neighbours", file=file)
    ...     print("1 2", file=file, flush=True)
    ...     from_edge_list(file.name).mask.sum(1).tolist()
    [1, 2, 1]
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"Need a file of edges, but {path} is not a file.")
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            found.append(_read_edge(words, f"{path} line {number}", num_agents))
    ends = np.array(found, np.int64).reshape(-1, 2)
    if num_agents is None:
        num_agents = agents_of_edges([ends], str(path))
    return from_pairs(ends, num_agents, directed)


def from_pairs(ends: np.ndarray, num_agents: int, directed: bool) -> Topology:
    """The graph of the edges `[E, 2]`; directed, a row is sender and receiver."""
    if not directed:
        ends = np.concatenate([ends, ends[:, ::-1]])
    return from_edges(num_agents, ends[:, 0], ends[:, 1])


def agents_of_edges(lists: Iterable[np.ndarray], name: str) -> int:
    """How many agents the lists `[E, 2]` of a graph or a sequence are about."""
    present = np.unique(np.concatenate([ends.ravel() for ends in lists]))
    if not len(present):
        raise InputError(
            f"Need one edge or more, but {name} has none: give the number of agents."
        )
    missing = np.flatnonzero(present != np.arange(len(present)))
    if len(missing):
        raise InputError(
            f"Need agents numbered from 0 without gaps, but {name} has no edge of "
            f"agent {missing[0]}: renumber them, or give the number of agents if it "
            "is alone."
        )
    return len(present)


def _read_edge(words: list[str], where: str, num_agents: int | None) -> tuple[int, int]:
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise InputError(
            f'Need two whole numbers for an edge, got "{" ".join(words)}" in {where}.'
        )
    sender, receiver = map(int, words)
    if num_agents is not None and max(sender, receiver) >= num_agents:
        raise InputError(
            f"Need agents 0 to {num_agents - 1}, got agent {max(sender, receiver)} in "
            f"{where}."
        )
    return sender, receiver
