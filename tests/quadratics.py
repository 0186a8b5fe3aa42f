"""Five agents with quadratic losses in three dimensions, as published vectors use."""

import contextlib
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, Ratio, Split, Variables

VECTORS = json.loads(
    (Path(__file__).parent / "vectors/baselines_events.json").read_text()
)
PROBLEM = VECTORS["problem"]
A, B = np.array(PROBLEM["A"], float), np.array(PROBLEM["b"], float)
ETA = PROBLEM["eta"]
EDGES = PROBLEM["edges"]
SIZE = len(A)
# Compilation is all the time these tests take.
jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
    },
)


def gradients(x, agents=None):
    """Of all agents, or of some, at a row of x each."""
    agents = np.arange(SIZE) if agents is None else np.asarray(agents)
    left = A[agents]
    rest = np.einsum("nij,nj->ni", left, x) - B[agents]
    return np.einsum("nij,ni->nj", left, rest)


def losses(x):
    """Of all agents, at a row of x each."""
    return np.square(np.einsum("nij,nj->ni", A, x) - B).sum(1) / 2


def task(parts=(3,)):
    """Half the squared distance; the coordinates are leaves of these lengths."""

    def loss_fn(variables, batch, key):
        del key
        x = jnp.concatenate([variables.params[name] for name in names])
        rest = batch["a"][0] @ x - batch["b"][0]
        return (rest * rest).sum() / 2, variables.stats

    def evaluate_fn(variables, batch):
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    def init_fn(key):
        del key
        return Variables(
            {n: jnp.zeros(p) for n, p in zip(names, parts, strict=True)}, {}
        )

    names = [f"x{i}" for i in range(len(parts))]
    return Task(init_fn, loss_fn, evaluate_fn)


def world():
    """One example of each agent: its whole problem."""
    split = Split({"a": A[:, None], "b": B[:, None]}, np.ones(SIZE, np.int32))
    return FederatedData(split, split, split, np.zeros(SIZE, np.int32))


def at(rows):
    """Models at these rows, as leaves `[N, ...]` of `task()`, in the present width."""
    return Variables({"x0": jnp.asarray(np.array(rows, float))}, {})


@contextlib.contextmanager
def in_64_bits():
    """Where published numbers are compared."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield
