"""Several rounds of a method as one, so that methods can be compared round by round."""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.types import Algorithm, Array, FederatedData, Info, InputError, Key, PyTree


def repeat_rounds(algorithm: Algorithm, num_rounds: int) -> Algorithm:
    """A round is `num_rounds` rounds of the method.

    Messages and what they carry, steps and examples add up; the training loss is the
    mean; times and push-sum weights are the last. Who received from whom is not
    reported.

    Args:
      algorithm: the method.
      num_rounds: how many of its rounds make one.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((16, 10)), (64,))
      >>> method = pj.local_only(task, optax.sgd(0.1), batch_size=32)
      >>> repeat_rounds(method, 5).round_is
      '5 times: 1 local epoch of each agent'
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
            return state, info._replace(links=None, merged=None)

        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        state, infos = jax.lax.scan(one_round, state, (numbers, inputs))
        added = jax.tree.map(lambda leaf: leaf.sum(0), infos)
        last = jax.tree.map(lambda leaf: leaf[-1], (infos.time, infos.weight))
        return state, added._replace(
            train_loss=infos.train_loss.mean(0), time=last[0], weight=last[1]
        )

    return algorithm._replace(
        plan=plan_fn,
        round=round_fn,
        round_is=f"{num_rounds} times: {algorithm.round_is}",
    )
