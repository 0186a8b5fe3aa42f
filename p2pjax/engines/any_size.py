"""Methods whose graphs depend on how many agents there are, which only data tell."""

from collections.abc import Callable
from functools import cache

import numpy as np

from p2pjax.types import Algorithm, Array, FederatedData, Info, Key, PyTree, num_agents


def of_any_size(make: Callable[[int], Algorithm], smallest: int) -> Algorithm:
    """The method of as many agents as the data have.

    It is made once for each number of agents.

    Args:
      make: of a number of agents N; what it evaluates and says of a round, and the
        models of its states, do not depend on it.
      smallest: N for which it can be made, to refuse at once what never works.
    """
    of_size = cache(make)
    example = of_size(smallest)

    def init_fn(key: Key, data: FederatedData) -> PyTree:
        return of_size(num_agents(data)).init(key, data)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        return of_size(num_agents(data)).plan(rng, data, num_rounds)

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info]:
        return of_size(num_agents(data)).round(key, t, inputs, state, data)

    return example._replace(init=init_fn, plan=plan_fn, round=round_fn)
