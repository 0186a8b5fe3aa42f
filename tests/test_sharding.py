"""Several devices give the numbers of one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_partial_averaging import SCHEME, build, random_world

from p2pjax import sharding
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.graphs import generators
from p2pjax.partial import averaging
from p2pjax.simulation._simulate import simulate
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.types import InputError

REALISATIONS = {
    "server": averaging.server(4),
    "gossip": averaging.metropolis_gossip(4, generators.ring(4)),
    "pairs": averaging.random_pairs(4),
}


def final(algorithm, task, world):
    *_, last = simulate(
        jax.random.key(0),
        algorithm,
        world,
        6,
        eval_every=3,
        evaluate=on_test_sets(task),
    )
    return jax.tree.map(np.asarray, (last.state.variables, last.metrics))


@pytest.mark.parametrize(
    "realisation, agent_loop",
    [
        pytest.param("server", IN_PLACE, marks=pytest.mark.slow),
        ("gossip", IN_PLACE),
        pytest.param("pairs", IN_PLACE, marks=pytest.mark.slow),
        ("server", VMAP),
    ],
)
def test_same_numbers_on_several_devices(realisation, agent_loop):
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    results = []
    for mesh_size in (1, 4):
        algorithm, _, task = build(
            SCHEME,
            real=REALISATIONS[realisation],
            agent_loop=agent_loop,
            optimizer=optax.sgd(0.5, momentum=0.5),
        )
        with jax.set_mesh(sharding.agents_mesh(mesh_size)):
            results.append(final(algorithm, task, world))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_state_lives_where_its_agents_do():
    algorithm, _, task = build(SCHEME)
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    with jax.set_mesh(sharding.agents_mesh(4)):
        (last,) = simulate(
            jax.random.key(0),
            algorithm,
            world,
            2,
            eval_every=2,
            evaluate=on_test_sets(task),
        )
        kernel = last.state.variables.params["layer_1"]["kernel"]
        assert len(kernel.sharding.device_set) == 4
        assert {s.data.shape[0] for s in kernel.addressable_shards} == {1}


def test_arrays_are_born_where_their_agents_live(monkeypatch):
    """Nothing is made on one device and moved: that would hold all agents twice."""
    monkeypatch.delattr(jax, "device_put")
    make = sharding.jit_sharded(
        lambda x: {"agents": jnp.zeros((8, 3)) + x, "other": jnp.ones(3)}
    )
    with jax.set_mesh(sharding.agents_mesh(8)):
        made = make(1.0)
    shapes = {shard.data.shape for shard in made["agents"].addressable_shards}
    assert shapes == {(2, 3)}
    assert made["other"].is_fully_replicated
    assert (make(2.0)["agents"] == 2).all()  # without a mesh


def test_meshes_divide_the_agents():
    assert jax.device_count() == 4
    assert sharding.agents_mesh(8).size == 4
    assert sharding.agents_mesh(6).size == 3
    assert sharding.agents_mesh(7).size == 1


def test_devices_cannot_be_split_later():
    with pytest.raises(InputError, match="before JAX has started"):
        sharding.use_cpu_devices(3)
