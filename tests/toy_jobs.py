"""Jobs that compile in no time: agents that move towards random others."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from experiments.engine.jobs import Program, jobs_of_runs
from p2pjax.types import Algorithm, FederatedData, Info, Links, Models, Split

SIZE = 4  # agents, in two clusters


def toy_world(run):
    x = np.random.default_rng(run).normal(size=(SIZE, 3)).astype("f4")
    data = Split({"x": x}, np.full(SIZE, 3, np.int32))
    return FederatedData(data, data, data, np.array([0, 0, 1, 1], np.int32))


@cache
def toy_algorithm(scheme, links=True, widths=(1,)):
    """Everybody hears some others; how many is drawn from `widths` for every run."""
    del scheme  # a program of its own

    def init_fn(key, world):
        del world
        return {"x": jax.random.normal(key, (SIZE,)), "old": jnp.zeros(SIZE)}

    def plan_fn(rng, world, num_rounds):
        del world
        width = rng.choice(widths)
        return rng.integers(0, SIZE, (num_rounds, SIZE, width)).astype("i4")

    def round_fn(key, t, sender, state, world):
        del t
        x = 0.5 * (state["x"] + state["x"][sender[:, 0]]) + world.train.examples["x"][
            :, 0
        ] * jax.random.uniform(key, (SIZE,))
        count = (sender != jnp.arange(SIZE, dtype=sender.dtype)[:, None]).astype("f4")
        sent = jnp.zeros(SIZE).at[sender].add(count)
        info = Info(
            x,
            sent,
            count.sum(1),
            2 * sent,
            links=Links(sender, count) if links else None,
            examples=jnp.full(SIZE, 3.0) if links else None,
        )
        return {"x": x, "old": state["x"]}, info

    return Algorithm(
        init_fn,
        plan_fn,
        round_fn,
        lambda state: Models(state["x"]),
        toy_evaluate,
        "each agent moves towards another",
    )


def toy_evaluate(models, world):
    x = models.reported
    target = world.cluster.astype(x.dtype)
    return {"accuracy": jnp.tanh(x) ** 2, "loss": (x - target).mean()}


def toy_jobs(config, schemes=("near", "far"), **options):
    """Two schemes with a program each."""
    return [
        job
        for scheme in schemes
        for job in jobs_of_runs(
            config,
            scheme,
            {"of": scheme},
            Program(toy_algorithm(scheme, **options), toy_evaluate),
            toy_world,
        )
    ]
