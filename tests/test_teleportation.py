"""Teleportation: published iterates and messages, a plain loop, what it refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quadratics
from quadratics import ETA, SIZE, VECTORS, gradients, in_64_bits

import p2pjax as pj
from p2pjax.engines.tokens import Holders, draw_holders, sent_to

EXPECTED = VECTORS["teleportation"]
START = np.array(quadratics.PROBLEM["x0"][0], float)
HOLDERS = np.array(EXPECTED["holders_by_step"])
RING = pj.graphs.ring(4)
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)


def method(graph=RING, **options):
    return pj.teleportation(
        quadratics.task(), optax.sgd(ETA), graph, batch_size=1, **options
    )


def started(algorithm, data):
    """All tokens at the published start."""
    state = algorithm.init(jax.random.key(0), data)
    number = state.tokens.variables.params["x0"].shape[0]
    start = quadratics.at(np.tile(START, (number, 1)))
    return state._replace(tokens=state.tokens._replace(variables=start))


def run(algorithm, holders, **replaced):
    """Tokens `[T, k, 3]` and infos after each exchange, a round each."""
    data = jax.tree.map(jnp.asarray, quadratics.world())
    number = len(holders.now)
    inputs = algorithm.plan(np.random.default_rng(0), data, number)
    one = jax.tree.map(lambda leaf: leaf[0], inputs)._replace(**replaced)
    state, found = started(algorithm, data), []
    step = quadratics.jit(algorithm.round)
    for t in range(number):
        now = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t][None]), holders)
        key = jax.random.fold_in(jax.random.key(1), t)
        state, info = step(key, jnp.int32(t), one._replace(holders=now), state, data)
        found.append((state.tokens.variables.params["x0"], info, state))
    return found, algorithm


def published():
    """Each exchange with the next holders; the last ones go on as they are."""
    later = np.concatenate([HOLDERS[1:], HOLDERS[-1:]])
    return Holders(HOLDERS, later, np.zeros_like(HOLDERS))


@pytest.mark.parametrize("fused", [True, False])
def test_published_iterates_and_messages(fused):
    with in_64_bits():
        found, algorithm = run(method(fused=fused), published())
    for (tokens, info, state), expected in zip(found, EXPECTED["z"], strict=True):
        close(tokens, expected)
        with in_64_bits():
            mean = algorithm.models(state).reported.params["x0"]
        close(mean, np.tile(np.mean(expected, 0), (SIZE, 1)))
        assert info.sent.sum() == info.received.sum()
        assert info.payload.sum() == 3 * info.sent.sum()
        assert info.steps.sum() == info.examples.sum() == 4
    name = "messages_fused" if fused else "messages_gossip_then_move"
    assert [info.sent.sum() for _, info, _ in found[:-1]] == EXPECTED[name]


def test_a_plain_loop():
    """Of several exchanges in a round, on a graph of uneven degrees."""
    graph = pj.graphs.as_graph([(0, 1), (1, 2)])
    weight = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    with in_64_bits():
        data = jax.tree.map(jnp.asarray, quadratics.world())
        algorithm = method(graph)
        inputs = algorithm.plan(np.random.default_rng(3), data, 4)
        state = started(algorithm, data)
        now = np.asarray(inputs.holders.now)
        assert now.shape == (4, 2, 3)  # two exchanges of three tokens for five agents
        for t in range(4):
            one = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t]), inputs)
            state, _ = algorithm.round(jax.random.key(t), t, one, state, data)
    z = np.tile(START, (3, 1))
    for holders in now.reshape(-1, 3):
        z = weight @ (z - ETA * gradients(z, holders))
    close(state.tokens.variables.params["x0"], z)


def test_all_agents_as_tokens_that_stay_are_dpsgd():
    graph = pj.graphs.as_graph(quadratics.EDGES)
    stay = np.tile(np.arange(SIZE), (6, 1))
    with in_64_bits():
        data = jax.tree.map(jnp.asarray, quadratics.world())
        found, _ = run(method(graph), Holders(stay, stay, np.zeros_like(stay)))
        algorithm = pj.dpsgd(
            quadratics.task(),
            optax.sgd(ETA),
            graph,
            batch_size=1,
            mixing_weights=pj.graphs.metropolis_hastings,
        )
        state = algorithm.init(jax.random.key(0), data)
        state = state._replace(variables=quadratics.at(np.tile(START, (SIZE, 1))))
        inputs = algorithm.plan(np.random.default_rng(0), data, 6)
        for t in range(6):
            one = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
            state, info = algorithm.round(jax.random.key(t), t, one, state, data)
    close(found[-1][0], state.variables.params["x0"])
    assert found[-1][1].sent.tolist() == info.sent.tolist()


def test_holders_are_distinct_and_go_on_where_agents_were():
    holders = draw_holders(np.random.default_rng(0), 7, 3, 5, 4)
    now = holders.now.reshape(-1, 3)
    assert all(len(set(row)) == 3 for row in now.tolist())
    np.testing.assert_array_equal(holders.later.reshape(-1, 3)[:-1], now[1:])
    seen = np.zeros(7, int)
    for row, visit in zip(now, holders.visit.reshape(-1, 3), strict=True):
        np.testing.assert_array_equal(visit, seen[row])
        seen[row] += 1
    assert np.ptp(np.bincount(now.ravel(), minlength=7)) < 12


def test_lost_messages():
    """Tokens themselves arrive; what is lost counts for the token's own model."""
    always = run(method(channel=pj.channel.drop(0.99)), published())[0]
    assert sum(info.received.sum() for _, info, _ in always) < 30  # of 55 and 20 moves
    z = always[-1][0]
    assert np.isfinite(z).all()
    ids = np.asarray([[0, 1, 3], [1, 0, 2], [2, 1, 3], [3, 0, 2]])
    stay = np.arange(4)
    assert not sent_to(ids, stay, stay, fused=True)[:, 0].any()


def test_momentum_travels_and_is_counted():
    task, data = quadratics.task(), quadratics.world()
    algorithm = pj.teleportation(task, optax.sgd(ETA, momentum=0.9), RING, batch_size=1)
    inputs = algorithm.plan(np.random.default_rng(0), data, 1)
    one = jax.tree.map(lambda leaf: leaf[0], inputs)
    state = algorithm.init(jax.random.key(0), data)
    _, info = algorithm.round(jax.random.key(0), 0, one, state, data)
    moved = (one.holders.now != one.holders.later).sum()
    assert float(info.payload.sum()) == 3 * float(info.sent.sum()) + 3 * int(moved)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: method(pj.graphs.ring(6)), "at most as many tokens as agents"),
        (
            lambda: method(
                mixing_weights=pj.graphs.uniform_send, graph=pj.graphs.star(4)
            ),
            "rows sum to 1",
        ),
        (
            lambda: method(
                mixing_weights=pj.graphs.uniform_receive, graph=pj.graphs.star(4)
            ),
            "rows and columns sum to 1 for Teleportation",
        ),
        (
            lambda: method(channel=pj.channel.top_k(0.1)),
            "whole models for Teleportation",
        ),
        (lambda: method(channel=pj.channel.delay(1.0)), "has no clock"),
        (lambda: method(rewire_every=2), "a sequence of graphs"),
    ],
)
def test_refused(make, message):
    with pytest.raises(pj.InputError, match=message):
        algorithm = make()
        data = quadratics.world()
        algorithm.init(jax.random.key(0), data)
        algorithm.plan(np.random.default_rng(0), data, 2)
