"""Matrices of one's own: checked, and turned into weights or links of agents."""

from typing import Any, NamedTuple

import jax
import numpy as np

from p2pjax.graphs.topology import num_agents_of, stack, weighted_edges
from p2pjax.types import InputError, Peers

ROW_TOLERANCE = 1e-6  # of what the weights of an agent sum to


class Entries(NamedTuple):
    """What is not zero in a matrix `[N, N]`, row by row."""

    num_agents: int
    receiver: np.ndarray  # [E] row
    sender: np.ndarray  # [E] column
    value: np.ndarray  # [E] float64


def weights(
    matrix: Any, *, allow_negative: bool = False, push_sum: bool = False
) -> Peers:
    """A mixing matrix of one's own, or a sequence, wherever a graph is taken.

    Row = receiver: `new[n] = sum_j matrix[n, j] * old[j]`. `is_doubly_stochastic` says
    whether columns sum to 1 as well, so that a mixing keeps the mean of all models.
    Xiao & Boyd (2004), "Fast linear iterations for distributed averaging",
    https://doi.org/10.1016/j.sysconle.2004.02.022, on how to choose one.

    Args:
      matrix: `[N, N]` or `[G, N, N]`: an array, nested lists, a sparse matrix of scipy
        or a list of them. (`networkx.to_numpy_array` has row = sender: transpose it.)
      allow_negative: whether weights below 0 are permitted, as the fastest matrices of
        Xiao & Boyd have them.
      push_sum: whether columns, not rows, sum to 1: for methods that correct for it by
        push-sum weights, such as SGP.

    Returns:
      `Peers` with ids and weights `[N, K]` or `[G, N, K]`: slot 0 is the agent itself,
      padding points at it with weight 0.

    >>> peers = weights([[0.5, 0.5, 0], [0.25, 0.5, 0.25], [0, 0.5, 0.5]])
    >>> peers.ids.tolist()
    [[0, 1, 0], [1, 0, 2], [2, 1, 2]]
    >>> peers.weight.tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    """
    if depth(matrix) == 3:
        found = [
            _weights(one, allow_negative, push_sum, f" of matrix {number}")
            for number, one in enumerate(matrix)
        ]
        sizes = sorted({num_agents_of(one) for one in found})
        if len(sizes) != 1:
            raise InputError(
                "Need one matrix or more, all of the same agents, got matrices of "
                f"{sizes} agents."
            )
        return stack(found)
    return _weights(matrix, allow_negative, push_sum, "")


def _weights(matrix: Any, allow_negative: bool, push_sum: bool, where: str) -> Peers:
    found = entries(matrix)
    _refuse_any(~np.isfinite(found.value), found, where, "finite weights", "mend it")
    if not allow_negative:
        mend = "pass allow_negative=True if it is meant"
        _refuse_any(found.value < 0, found, where, "weights of 0 or more", mend)
    axis, line = (found.sender, "column") if push_sum else (found.receiver, "row")
    sums = np.bincount(axis, found.value, found.num_agents)
    wrong = np.flatnonzero(np.abs(sums - 1) > ROW_TOLERANCE)
    if len(wrong):
        other = "" if push_sum else " (for push-sum, pass push_sum=True)"
        raise InputError(
            f"Need {line}s that sum to 1, got {sums[wrong[0]]:.7g} in {line} "
            f"{wrong[0]}{where}: divide each {line} by its sum{other}."
        )
    is_own = found.sender == found.receiver
    own = np.zeros(found.num_agents)
    own[found.receiver[is_own]] = found.value[is_own]
    # As constants of a program would be: double only where JAX computes in double.
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    return weighted_edges(
        found.num_agents,
        found.sender[~is_own],
        found.receiver[~is_own],
        found.value[~is_own].astype(dtype),
        own,
    )


def _refuse_any(
    is_bad: np.ndarray, found: Entries, where: str, needed: str, mend: str
) -> None:
    if is_bad.any():
        at = np.flatnonzero(is_bad)[0]
        raise InputError(
            f"Need {needed}, got {found.value[at]} in row {found.receiver[at]}, "
            f"column {found.sender[at]}{where}: {mend}."
        )


def entries(matrix: Any) -> Entries:
    """Reads one square matrix, dense or sparse."""
    if is_sparse(matrix):
        by_row = matrix.tocsr(copy=True)
        by_row.sum_duplicates()
        found = by_row.tocoo()
        shape, value = found.shape, numbers(found.data)
        row, column = found.row.astype(np.int64), found.col.astype(np.int64)
    else:
        table = numbers(matrix)
        shape = table.shape
        if table.ndim == 2:
            row, column = np.nonzero(table)
            value = table[row, column]
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
        raise InputError(
            f"Need a square matrix [N, N] or a sequence of them, got shape {shape}."
        )
    kept = value != 0
    return Entries(shape[0], row[kept], column[kept], value[kept])


def numbers(table: Any) -> np.ndarray:
    """A table of numbers in float64, and nothing else."""
    try:
        array = np.asarray(table)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise InputError(
            "Need numbers in rows of one length, got "
            f"{type(table).__name__} {str(table)[:60]!r}."
        )
    return array.astype(np.float64)


def is_sparse(matrix: Any) -> bool:
    """Whether it is a sparse matrix or array of scipy."""
    return hasattr(matrix, "tocsr") and hasattr(matrix, "tocoo")


def depth(table: Any) -> int:
    """How many axes an array, a sparse matrix or nested lists have; a number has 0."""
    if is_sparse(table):
        return 2
    if hasattr(table, "ndim"):
        return table.ndim
    if isinstance(table, list | tuple):
        return 1 + max(map(depth, table), default=0)
    return 0
