"""What a simulation yields after every evaluation."""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from p2pjax.evaluation.test_sets import DIVERGED
from p2pjax.simulation._used import Used
from p2pjax.types import Info, PyTree


class Snapshot(NamedTuple):
    """Where a simulation stands after an evaluation.

    Of S runs side by side, all leaves begin with S.
    """

    num_rounds: int  # done so far
    state: PyTree  # valid until the next snapshot is asked for: it is donated
    metrics: dict[str, np.ndarray]
    info: Info  # of every round since the last snapshot, leaves [rounds, N]
    used: Used  # since the start


def watched(found: Iterator[Snapshot]) -> Iterator[Snapshot]:
    """The same, with a warning at the first evaluation where agents have diverged.

    Args:
      found: of a simulation.
    """
    is_told = False
    for snapshot in found:
        diverged = snapshot.metrics.get(DIVERGED)  # [N], or [S, N]
        # NaN of agents that attack
        if not is_told and diverged is not None and np.any(diverged > 0):
            is_told = True
            warnings.warn(
                f"The models of {np.sum(diverged > 0)} of {np.size(diverged)} "
                f"agents are not finite by round {snapshot.num_rounds}, where they "
                "were evaluated: lower the learning rate.",
                stacklevel=2,
            )
        yield snapshot


def stacked(runs: Sequence[Snapshot]) -> Snapshot:
    """Snapshots of single runs as one of S runs.

    Args:
      runs: of the same number of rounds.
    """

    def stack(*leaves: np.ndarray) -> np.ndarray | None:
        same = len({np.shape(leaf) for leaf in leaves}) == 1
        return np.stack(leaves) if same else None  # tables of different widths

    metrics, info, used = (
        jax.tree.map(stack, *(getattr(run, field) for run in runs))
        for field in ("metrics", "info", "used")
    )
    state = tuple(run.state for run in runs)
    return Snapshot(runs[0].num_rounds, state, metrics, info, used)
