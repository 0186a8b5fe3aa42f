"""Graphs from lists of edges, in memory or in a text file."""

import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import numpy as np

from p2pjax.graphs.topology import Topology, from_edges
from p2pjax.ordinary_files import open_file
from p2pjax.types import InputError

_LONGEST_LINE = 10_000  # characters


_MOST_DIGITS = 9  # of the number of an agent


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
    try:
        with os.fdopen(open_file(path), errors="replace") as file:
            ends = _read_edges(file, path, num_agents)
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or "it takes too much memory"
        raise InputError(
            f"Need a file of edges, but {path} cannot be read ({reason}): name an "
            "ordinary file with a line for each edge."
        ) from error
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


def _read_edges(file: TextIO, path: Path, num_agents: int | None) -> np.ndarray:
    """The edges `[E, 2]`, line by line."""
    found = array("q")
    lines = iter(lambda: file.readline(_LONGEST_LINE), "")
    for number, line in enumerate(lines, 1):
        where = f"{path} line {number}"
        if len(line) == _LONGEST_LINE:
            raise InputError(
                f"Need lines of less than {_LONGEST_LINE} characters, got more in "
                f"{where}: put each edge on a line of its own."
            )
        words = line.split("#")[0].split()
        if words:
            found.extend(_read_edge(words, where, num_agents))
    return np.array(found, np.int64).reshape(-1, 2)


def _read_edge(words: list[str], where: str, num_agents: int | None) -> tuple[int, int]:
    if len(words) != 2 or not all(
        word.isdecimal() and len(word) <= _MOST_DIGITS for word in words
    ):
        raise InputError(
            "Need two whole numbers for an edge, got "
            f'"{ascii(" ".join(words)[:40])[1:-1]}" in {where}.'
        )
    sender, receiver = map(int, words)
    if num_agents is not None and max(sender, receiver) >= num_agents:
        raise InputError(
            f"Need agents 0 to {num_agents - 1}, got agent {max(sender, receiver)} in "
            f"{where}."
        )
    return sender, receiver
