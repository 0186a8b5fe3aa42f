"""Models of peers on own data, and comparisons of updates, against plain loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_protocols import jit

from p2pjax import sharding
from p2pjax.exchange import mixing
from p2pjax.exchange.mixing import Change
from p2pjax.graphs.topology import Topology
from p2pjax.selection import peer_evaluation
from p2pjax.training.agent_loop import IN_PLACE, VMAP

NUM_AGENTS, NUM_EXAMPLES = 8, 3


def pair_fn(model, own):
    examples, size = own
    is_real = jnp.arange(NUM_EXAMPLES) < size
    outputs = jnp.tanh(examples @ model["kernel"]) + model["bias"]
    return jnp.where(is_real, outputs, 0).sum() / jnp.maximum(size, 1).astype("f4")


def random_agents(rng):
    models = {
        "kernel": rng.normal(size=(NUM_AGENTS, 2)).astype("f4"),
        "bias": rng.normal(size=NUM_AGENTS).astype("f4"),
    }
    examples = rng.normal(size=(NUM_AGENTS, NUM_EXAMPLES, 2)).astype("f4")
    return models, (examples, rng.integers(1, 4, NUM_AGENTS).astype("i4"))


def random_table(rng, num_slots, share):
    ids = rng.integers(0, NUM_AGENTS, (NUM_AGENTS, num_slots)).astype("i4")
    return Topology(ids, rng.random(ids.shape) < share)


def reference(models, own, table):
    examples, sizes = own
    result = np.zeros(table.mask.shape)
    for n, c in np.argwhere(table.mask):
        peer = table.neighbor[n, c]
        for example in examples[n, : sizes[n]]:
            output = np.tanh(example @ models["kernel"][peer]) + models["bias"][peer]
            result[n, c] += output / sizes[n]
    return result


@partial(jit, static_argnames="agent_loop")
def evaluated(models, own, table, agent_loop):
    return peer_evaluation.over_pairs(pair_fn, models, own, table, agent_loop)


@pytest.mark.parametrize(
    "agent_loop, num_devices",
    [
        (VMAP, 1),
        (VMAP, 4),
        (IN_PLACE, 1),
        (IN_PLACE, 2),
        (IN_PLACE, 4),
        (3, 2),
    ],
)
def test_pairs_equal_a_plain_loop(agent_loop, num_devices):
    rng = np.random.default_rng(num_devices)
    models, own = random_agents(rng)
    with jax.set_mesh(sharding.agents_mesh(NUM_AGENTS, num_devices)):
        for share in (0.0, 0.4, 1.0):
            table = random_table(rng, 4, share)
            args = sharding.place((models, own, table))
            found = evaluated(*args, agent_loop)
            np.testing.assert_allclose(found, reference(models, own, table), atol=1e-6)


@pytest.mark.parametrize("agent_loop", [VMAP, IN_PLACE])
def test_tables_of_one_slot_and_seeds_side_by_side(agent_loop):
    rng = np.random.default_rng(0)
    settings = [(*random_agents(rng), random_table(rng, 1, 0.7)) for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *settings)
    fn = partial(peer_evaluation.over_pairs, pair_fn, agent_loop=agent_loop)
    found = jit(jax.vmap(fn))(*stacked)
    for one, setting in zip(found, settings, strict=True):
        np.testing.assert_allclose(one, reference(*setting), atol=1e-6)


def test_memory_stays_near_that_of_the_models():
    """Sixty-four candidates of everybody, and no copy of the models for each."""
    size, num_slots, width = 16, 64, 20_000
    models = {"w": jax.ShapeDtypeStruct((size, width), "f4")}
    table = Topology(
        jax.ShapeDtypeStruct((size, num_slots), "i4"),
        jax.ShapeDtypeStruct((size, num_slots), bool),
    )
    for agent_loop, copies in ((IN_PLACE, 0.5), (VMAP, 3)):
        fn = partial(
            peer_evaluation.over_pairs,
            lambda model, own: (model["w"] * own["w"]).sum(),
            agent_loop=agent_loop,
        )
        compiled = jax.jit(fn).lower(models, models, table).compile()
        used = compiled.memory_analysis().temp_size_in_bytes
        assert used < copies * 4 * size * width


def random_change(rng, num_agents, shapes, *, common=False):
    def leaves(size):
        return [rng.normal(size=(size, *shape)).astype("f4") for shape in shapes]

    return Change(leaves(num_agents), leaves(1 if common else num_agents))


def flat(change):
    parts = [
        (after - before).reshape(len(after), -1)
        for after, before in zip(*change, strict=True)
    ]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("num_agents, num_slots", [(12, 2), (12, 4)])
def test_dots_and_cosines(num_agents, num_slots, monkeypatch):
    monkeypatch.setattr(mixing, "BLOCK_BYTES", 1 << 8)  # several blocks and tails
    rng = np.random.default_rng(0)
    shapes = [(), (1, 30), (30, 1), (7, 3), (11,)]
    left = random_change(rng, num_agents, shapes)
    right = random_change(rng, num_agents, shapes, common=True)
    ids = rng.integers(0, num_agents, (num_agents, num_slots)).astype("i4")
    found = jit(mixing.dots)(left, right, ids)
    expected = np.einsum("np,ncp->nc", flat(left), flat(right)[ids])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for leaf in right.after:
        leaf[0] = 0
    for leaf in right.before:
        leaf[:] = 0  # agent 0 has not moved
    length = np.linalg.norm(flat(right), axis=1)
    products = np.einsum("np,ncp->nc", flat(right), flat(right)[ids])
    lengths = length[:, None] * length[ids]
    expected = np.where(lengths > 0, products / np.maximum(lengths, 1e-9), 0)
    np.testing.assert_allclose(jit(mixing.cosines)(right, ids), expected, atol=1e-5)
