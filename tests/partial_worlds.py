"""Agents that share cells of a hidden layer, and what an averaging makes of them."""

import jax
import numpy as np
import optax
from test_protocols import run, world_of

from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.exchange.owner_classes import owner_arrays
from p2pjax.nn import mlp
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.tasks._classification import classification
from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.training import samplers
from p2pjax.training.agent_loop import VMAP

TASK = classification(mlp.MLP((3, 2)), (2,), softmax_cross_entropy)


def flat(params, size):
    """Leaves `[..., N, ...]` as `[..., N, P]`; what is before N is one axis or none."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    first = leaves[0].shape[: list(leaves[0].shape).index(size) + 1]
    return np.concatenate([leaf.reshape(*first, -1) for leaf in leaves], axis=-1)


class PartialWorld:
    """Three hidden cells, of which agents share one, two or none."""

    SIZE = 5
    MODELS = (PartialModel((2, 1, 2), (0, 1, 2, 3)), PartialModel((0, 1, 0), (0, 1, 4)))
    DEPENDS = ()

    def method(self, average, **options):
        scheme = Scheme(((2, 3, 2),) * self.SIZE, self.MODELS, self.DEPENDS)
        self.sharing = compile_scheme(scheme, mlp.wiring(2), TASK)
        options = {"agent_loop": VMAP, "shared_init": False, **options}
        return partial_rounds(
            TASK,
            optax.sgd(0.0),
            samplers.cyclic_window(1),
            self.sharing,
            average,
            **options,
        )

    def world(self):
        examples = {"x": np.ones((1, 2), "f4"), "y": np.zeros(1, "i4")}
        return world_of([examples] * self.SIZE)

    def averaged(self, average, num_rounds=1, **options):
        """Owners `[N, P]`, models before and after rounds, counts and inputs."""
        method = self.method(average, **options)
        world = self.world()
        start = jax.jit(method.init)(jax.random.key(0), world).variables.params
        inputs = method.plan(np.random.default_rng(2), world, num_rounds)
        states, info = run(method, world, num_rounds, inputs=inputs)
        one = jax.tree.map(lambda leaf: leaf[0], start)
        owners = owner_arrays(self.sharing.plan, one)
        new = jax.jit(jax.vmap(method.models))(states).averaged.params
        size = self.SIZE
        return flat(owners, size), flat(start, size), flat(new, size), info, inputs

    def members(self, owners, n, column):
        """Others that share a number with an agent."""
        owner = owners[:, column]
        if owner[n] < 0:
            return []
        return [k for k in range(self.SIZE) if k != n and owner[k] == owner[n]]


class ManyModels(PartialWorld):
    """A model of all agents, and two of some of them that depend on it.

    The two are one owner class, with groups of four and five agents; agent 9 is in
    neither of them.
    """

    SIZE = 10
    MODELS = (
        PartialModel((2, 1, 2), tuple(range(10))),
        PartialModel((0, 1, 0), (0, 1, 2, 3)),
        PartialModel((0, 1, 0), (4, 5, 6, 7, 8)),
    )
    DEPENDS = ((1, 0), (2, 0))
