"""What every learning method is made of."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from p2pjax.data import World
from p2pjax.types import Array, Info, Key, PyTree, Variables


class Algorithm(NamedTuple):
    """A learning method. `round` is safe to jit, scan and vmap over seeds."""

    init: Callable[[Key, World], PyTree]  # state; every leaf [N, ...]
    plan: Callable[[np.random.Generator, World, int], PyTree]  # host; inputs [R, ...]
    # (key, round number, this round's inputs, state, world) -> (state, info)
    round: Callable[[Key, Array, PyTree, PyTree, World], tuple[PyTree, Info]]
    models: Callable[[PyTree], Variables]  # what evaluation reads, leaves [N, ...]
