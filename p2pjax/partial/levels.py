"""Averaging levels: a share of every hidden layer is global, the rest is local."""

from collections.abc import Callable

import numpy as np

from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.types import InputError, Layout


def level(share: float) -> Callable[[Layout, int], Scheme]:
    """One global model of all agents with a share of the cells of each hidden layer.

    Input and output cells are global, except at level 0, where nothing is. Cells are
    rounded to whole numbers.

    Args:
      share: from 0, local training, to 1, everything is averaged.

    >>> level(0.75)((64, 32, 10), 4).models[0].cells
    (64, 24, 10)
    """
    if not 0 <= share <= 1:
        raise InputError(f"Need a level from 0 to 1, got {share}.")

    def scheme_fn(network: Layout, num_agents: int) -> Scheme:
        networks = (tuple(network),) * num_agents
        if share == 0:
            return Scheme(networks, ())
        inputs, *hidden, outputs = network
        cells = (inputs, *(round(share * size) for size in hidden), outputs)
        return Scheme(networks, (PartialModel(cells, tuple(range(num_agents))),))

    return scheme_fn


def slots(
    share: float, *shares: float, nested: bool = False
) -> Callable[[Layout, int], Scheme]:
    """A global model, and models whose members may change (`changing`).

    Input and output cells are global. All other models depend on the global one; with
    `nested` each also depends on the one before it, so that a group in it is part of a
    group there. Else agents belong to groups of each model independently, and what lies
    between two of these models is local. What is left of the shares is local, too.

    Args:
      share: of every hidden layer that is global.
      *shares: of the other models.
      nested: whether groups of a model are parts of groups of the model before it.

    Example:
      >>> scheme = slots(0.5, 0.25)((64, 32, 10), 4)
      >>> [model.cells for model in scheme.models]
      [(64, 16, 10), (0, 8, 0)]
    """
    all_shares = (share, *shares)
    if not shares or min(all_shares) <= 0 or sum(all_shares) > 1 + 1e-9:
        raise InputError(
            "Need a share of the global model and one or more of others, above 0 and "
            f"together at most 1, got {all_shares}."
        )
    ends = np.minimum(np.cumsum(all_shares), 1)

    def scheme_fn(network: Layout, num_agents: int) -> Scheme:
        inputs, *hidden, outputs = network
        edges = np.round(np.outer(hidden, [0, *ends])).astype(int)  # [parts, models+1]
        members = tuple(range(num_agents))
        models = [
            PartialModel((0, *cells, 0), members) for cells in np.diff(edges).T.tolist()
        ]
        first = models[0].cells[1:-1]
        models[0] = models[0]._replace(cells=(inputs, *first, outputs))
        lower = range(1, len(models))
        depends = [(m, m - 1 if nested else 0) for m in lower]
        return Scheme((tuple(network),) * num_agents, tuple(models), tuple(depends))

    return scheme_fn
