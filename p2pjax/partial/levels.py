"""Averaging levels: a share of every hidden layer is global, the rest is local."""

from collections.abc import Callable

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
