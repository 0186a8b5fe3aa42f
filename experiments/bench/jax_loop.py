"""A Python loop over agents with a jitted function per agent: plain JAX, no stack."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import inputs
from experiments.bench.jax_tasks import task_of
from p2pjax.types import Array, PyTree, Variables


class _Agents:
    """Models of all agents, and their training."""

    def __init__(self, want: inputs.Training):
        self._want, self._task = want, task_of(want.network)
        x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
        self._own = [
            (jnp.asarray(a), jnp.asarray(b)) for a, b in zip(x, y, strict=True)
        ]
        first = jax.jit(self._task.init)(jax.random.key(0)).params
        self.models = [jax.tree.map(jnp.copy, first) for _ in self._own]
        self._steps = jax.jit(self._take_steps, donate_argnums=0)
        self._mean = jax.jit(_mean)
        self._loss = jax.jit(self._loss_of)
        self._done = 0

    def train(self) -> None:
        """The steps of one round, agent after agent."""
        first = jnp.int32(self._done)
        self.models = [
            self._steps(model, *own, first)
            for model, own in zip(self.models, self._own, strict=True)
        ]
        self._done += self._want.num_steps

    def average(self, ids: list[list[int]]) -> None:
        """Each agent takes the mean of the models in its row."""
        self.models = [self._mean(*[self.models[i] for i in row]) for row in ids]

    def best(self, drawn: list[list[int]], kept: int) -> list[list[int]]:
        """Of those drawn, whose models have the lowest loss on the agent's examples."""
        losses = [
            [self._loss(self.models[c], *own) for c in candidates]
            for own, candidates in zip(self._own, drawn, strict=True)
        ]
        orders = np.argsort(np.asarray(jax.device_get(losses)), axis=1)[:, :kept]
        return np.take_along_axis(np.asarray(drawn), orders, axis=1).tolist()

    def _loss_of(self, params: PyTree, x: Array, y: Array) -> Array:
        batch = {"x": x, "y": y, "valid": jnp.ones(x.shape[0], bool)}
        return self._task.loss(Variables(params, {}), batch, jax.random.key(0))[0]

    def _update(self, params: PyTree, x: Array, y: Array) -> PyTree:
        gradient = jax.grad(self._loss_of)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)

    def _take_steps(self, params: PyTree, x: Array, y: Array, first: Array) -> PyTree:
        want = self._want

        def one(step: Array, params: PyTree) -> PyTree:
            number = (first + step) % (want.num_examples // want.batch_size)
            start = number * want.batch_size
            xs = jax.lax.dynamic_slice_in_dim(x, start, want.batch_size)
            ys = jax.lax.dynamic_slice_in_dim(y, start, want.batch_size)
            if not want.per_sample:
                return self._update(params, xs, ys)
            singles = xs[:, None], ys[:, None]
            return jax.lax.scan(
                lambda p, one: (self._update(p, *one), None), params, singles
            )[0]

        return jax.lax.fori_loop(0, want.num_steps, one, params)


def _mean(*models: PyTree) -> PyTree:
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *models)


def rounds(setting: dict[str, Any]) -> Callable[[], float]:
    """Updates done by all agents in a run."""
    want = inputs.Training(**setting)
    agents = _Agents(want)
    ids = inputs.peer_ids(want.num_agents, want.degree).tolist()

    def run() -> float:
        for _ in range(want.num_rounds):
            agents.train()
            agents.average(ids)
        jax.block_until_ready(agents.models)
        return want.updates

    return run


def pens_rounds(
    setting: dict[str, Any], num_candidates: int, num_kept: int
) -> Callable[[], float]:
    """Rounds of PENS, counted once for every agent."""
    want = inputs.Training(**setting)
    agents = _Agents(want)
    rng = np.random.default_rng(0)

    def run() -> float:
        for _ in range(want.num_rounds):
            agents.train()
            drawn = inputs.drawn_peers(rng, want.num_agents, num_candidates)
            chosen = agents.best(drawn, num_kept)
            agents.average([[n, *others] for n, others in enumerate(chosen)])
        jax.block_until_ready(agents.models)
        return float(want.num_rounds * want.num_agents)

    return run
