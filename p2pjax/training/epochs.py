"""Network epochs: the common clock of synchronous and asynchronous methods.

A network epoch is over when the examples processed by all agents together have grown
by as many as there are (Sajina 2025), so agents with little data see theirs more often
where each agent takes a step at a time. All of it is numpy, on the host.
"""

import numpy as np

from p2pjax.training.local_updates import LocalUpdates


def steps_of_epochs(sizes: np.ndarray, batch_size: int, num_epochs: int) -> np.ndarray:
    """Common steps in each of the first network epochs, `[num_epochs]`.

    In a step every agent processes its next mini-batch; the last one of a pass over
    its data is short. An epoch ends with the first step that completes it.

    Args:
      sizes: `[N]` examples of the agents.
      batch_size: B.
      num_epochs: how many epochs.
    """
    sizes = np.asarray(sizes, np.int64)
    passes = -(-sizes // batch_size)  # steps in one pass of each agent
    steps, ends = 0, [0]
    total = sizes.sum()
    for epoch in range(1, num_epochs + 1):
        while _processed(steps, sizes, passes, batch_size) < epoch * total:
            steps += 1
        ends.append(steps)
    return np.diff(ends).astype(np.int32)


def exchanges_of_rounds(
    sizes: np.ndarray, batch_size: int, updates: LocalUpdates, num_rounds: int
) -> np.ndarray:
    """Exchanges in each round, int32 `[R]`: one after local epochs.

    Args:
      sizes: `[N]` examples of the agents.
      batch_size: B.
      updates: between two exchanges.
      num_rounds: R.
    """
    if updates.num_epochs:
        return np.ones(num_rounds, np.int32)
    ends = np.cumsum(steps_of_epochs(sizes, batch_size, num_rounds), dtype=np.int64)
    exchanges = -(-ends // updates.num_steps)
    return np.diff(exchanges, prepend=0).astype(np.int32)


def _processed(
    steps: int, sizes: np.ndarray, passes: np.ndarray, batch_size: int
) -> int:
    """Examples that all agents have processed together after `steps` steps."""
    whole, rest = np.divmod(steps, passes)
    return int((whole * sizes + np.minimum(rest * batch_size, sizes)).sum())
