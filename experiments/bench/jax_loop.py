"""A Python loop over agents with a jitted function per agent: plain JAX, no stack."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.bench import inputs
from experiments.bench.jax_tasks import task_of
from p2pjax.types import Array, PyTree, Variables


def rounds(setting: dict[str, Any]) -> Callable[[], float]:
    """Updates done by all agents in a run."""
    want = inputs.Training(**setting)
    task = task_of(want.network)

    def update(params: PyTree, x: Array, y: Array) -> PyTree:
        batch = {"x": x, "y": y, "valid": jnp.ones(x.shape[0], bool)}
        gradient = jax.grad(
            lambda p: task.loss(Variables(p, {}), batch, jax.random.key(0))[0]
        )(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)

    @partial(jax.jit, donate_argnums=0)
    def steps(params: PyTree, x: Array, y: Array, first: Array) -> PyTree:
        def one(step: Array, params: PyTree) -> PyTree:
            number = (first + step) % (want.num_examples // want.batch_size)
            start = number * want.batch_size
            xs = jax.lax.dynamic_slice_in_dim(x, start, want.batch_size)
            ys = jax.lax.dynamic_slice_in_dim(y, start, want.batch_size)
            if not want.per_sample:
                return update(params, xs, ys)
            singles = xs[:, None], ys[:, None]
            return jax.lax.scan(
                lambda p, one: (update(p, *one), None), params, singles
            )[0]

        return jax.lax.fori_loop(0, want.num_steps, one, params)

    @jax.jit
    def average(*models: PyTree) -> PyTree:
        return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *models)

    x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
    own = [(jnp.asarray(a), jnp.asarray(b)) for a, b in zip(x, y, strict=True)]
    ids = inputs.peer_ids(want.num_agents, want.degree).tolist()
    first_model = jax.jit(task.init)(jax.random.key(0)).params
    models = [jax.tree.map(jnp.copy, first_model) for _ in ids]
    done = 0

    def run() -> float:
        nonlocal models, done
        for _ in range(want.num_rounds):
            first = jnp.int32(done)
            trained = [
                steps(model, *data, first)
                for model, data in zip(models, own, strict=True)
            ]
            models = [average(*[trained[i] for i in row]) for row in ids]
            done += want.num_steps
        jax.block_until_ready(models)
        return want.updates

    return run
