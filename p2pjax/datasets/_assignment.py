"""What a split is told and what it decides."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from p2pjax.types import FederatedData, InputError


class Request(NamedTuple):
    """What a splitter is told about the E examples that it splits."""

    y: np.ndarray  # [E] int32, from 0
    users: np.ndarray | None  # [E] who produced the example, where that is known
    shape: tuple[int, ...]  # of the input of one example
    num_agents: int | None  # N; None lets the splitter choose
    min_size: int  # examples that each agent needs: to train, to test, ...


class Assignment(NamedTuple):
    """Who gets which examples; no example goes to two agents.

    Example:
      >>> def in_order(request, rng):  # a split of one's own: the first are agent 0's
      ...     rows = np.arange(len(request.y))
      ...     return Assignment(np.array_split(rows, request.num_agents))
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=in_order, test_fraction=0.5)
      >>> data.train.size.tolist()
      [225, 225, 225, 225]
    """

    rows: list[np.ndarray]  # per agent, the numbers of its examples
    cluster: np.ndarray | None = None  # [N] ground truth; None is one cluster
    transform: Callable[[FederatedData], FederatedData] | None = None  # of all splits


Splitter = Callable[[Request, np.random.Generator], Assignment]


def required_agents(request: Request) -> int:
    """N, which the user must have given."""
    if request.num_agents is None:
        raise InputError(
            "Need the number of agents, which only split.by_user() can do without, got "
            "none: give num_agents."
        )
    return request.num_agents


def check_clusters(num_clusters: int) -> None:
    """Refuses a number of clusters below one."""
    if num_clusters < 1:
        raise InputError(f"Need one cluster or more, got {num_clusters}: raise it.")


def blocks(num_agents: int, num_clusters: int) -> np.ndarray:
    """`[N]`: clusters of consecutive agents, of equal size up to one."""
    return (np.arange(num_agents) * num_clusters // num_agents).astype(np.int32)
