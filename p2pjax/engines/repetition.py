"""Several rounds of a method as one, so that methods can be compared round by round."""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.types import Algorithm, Array, FederatedData, Info, InputError, Key, PyTree


def repeat_rounds(algorithm: Algorithm, num_rounds: int) -> Algorithm:
    """A round is `num_rounds` rounds of the method.

    Messages and what they carry add up; the training loss is the mean. Who received
    from whom is not reported.

    Args:
      algorithm: the method.
      num_rounds: how many of its rounds make one.
    """
    if num_rounds < 1:
        raise InputError(f"Need one round or more to make a round, got {num_rounds}.")

    def plan_fn(rng: np.random.Generator, data: FederatedData, rounds: int) -> PyTree:
        inputs = algorithm.plan(rng, data, rounds * num_rounds)
        return jax.tree.map(
            lambda leaf: leaf.reshape(rounds, num_rounds, *leaf.shape[1:]), inputs
        )

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info]:
        def one_round(state: PyTree, scanned: PyTree) -> tuple[PyTree, PyTree]:
            i, inputs = scanned
            state, info = algorithm.round(
                jax.random.fold_in(key, i), t * num_rounds + i, inputs, state, data
            )
            return state, (info.train_loss, info.sent, info.received, info.payload)

        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        state, (loss, *traffic) = jax.lax.scan(one_round, state, (numbers, inputs))
        return state, Info(loss.mean(0), *(leaf.sum(0) for leaf in traffic))

    return Algorithm(algorithm.init, plan_fn, round_fn, algorithm.models)
