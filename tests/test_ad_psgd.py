"""AD-PSGD: published iterates, a plain loop of events, identities, refusals."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quadratics
from quadratics import EDGES, ETA, SIZE, VECTORS, gradients, in_64_bits

import p2pjax as pj
from p2pjax.asynchronous.pairs import draw_pairs, finishing_order, waves_of
from p2pjax.graphs.topology import edges, stack
from p2pjax.training.agent_loop import CHUNK, IN_PLACE, VMAP

EXPECTED = VECTORS["ad_psgd"]
TIME, AGENT, PARTNER = np.array(EXPECTED["events_time_agent_partner"]).T
START = np.array(quadratics.PROBLEM["x0_distinct"], float)
GRAPH = pj.graphs.as_graph(EDGES)
EVEN = pj.graphs.as_graph([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)])  # of two sides
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)


def method(graph=GRAPH, task=None, optimizer=None, **options):
    options = {"batch_size": 1, **options}
    return pj.ad_psgd(
        task or quadratics.task(), optimizer or optax.sgd(ETA), graph, **options
    )


def run(algorithm, inputs):
    """Models `[R, N, 3]` and infos after every round."""
    data = jax.tree.map(jnp.asarray, quadratics.world())
    state = algorithm.init(jax.random.key(0), data)
    state = state._replace(
        variables=quadratics.at(START), snapshot=quadratics.at(START)
    )
    step, found = quadratics.jit(algorithm.round), []
    for t in range(len(inputs.agent)):
        one = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t]), inputs)
        key = jax.random.fold_in(jax.random.key(3), t)
        state, info = step(key, jnp.int32(t), one, state, data)
        found.append((np.asarray(state.variables.params["x0"]), info))
    return found


def plan(algorithm, num_rounds, seed=0):
    rng = np.random.default_rng(seed)
    return algorithm.plan(rng, quadratics.world(), num_rounds)


def published(num_rounds):
    """The published events, in so many rounds."""
    agent, partner = (
        x.astype(np.int32).reshape(num_rounds, -1) for x in (AGENT, PARTNER)
    )
    pairs = zip(agent, partner, strict=True)
    drawn = plan(method(), num_rounds)
    return drawn._replace(
        agent=agent, partner=partner, wave=np.stack([waves_of(*p, SIZE) for p in pairs])
    )


def reference(events, num_rounds):
    """One event after the other; models `[R, N, 3]`."""
    x, snapshot, found = START.copy(), START.copy(), []
    for r in range(num_rounds):
        for i, j in zip(events.agent[r], events.partner[r], strict=True):
            x[j] = x[i] = (x[i] + x[j]) / 2
            x[i] -= ETA * gradients(snapshot[i : i + 1], [i])[0]
            snapshot[i] = x[i]
        found.append(x.copy())
    return np.array(found)


@pytest.mark.parametrize("num_events", [1, 2, 12])
def test_published_iterates(num_events):
    """The same in rounds of one event, of two, and in waves of one round."""
    with in_64_bits():
        found = run(method(), published(12 // num_events))
    compared = 0
    for number, expected in EXPECTED["x_after_event"].items():
        rounds, rest = divmod(int(number), num_events)
        if not rest:
            close(found[rounds - 1][0], expected)
            compared += 1
    assert compared == {1: 5, 2: 4, 12: 1}[num_events]


def test_published_clock():
    rng, seconds = np.random.default_rng(0), np.array(EXPECTED["compute_seconds"])
    agent, time = finishing_order(rng, SIZE, 12, seconds)
    np.testing.assert_array_equal(agent, AGENT)
    np.testing.assert_array_equal(time, TIME)
    turns = np.stack([seconds, seconds], axis=1)
    np.testing.assert_array_equal(finishing_order(rng, SIZE, 12, turns)[1], TIME)
    turns[0, 1] = 9  # the second training of agent 0 takes longer
    assert finishing_order(rng, SIZE, 12, turns)[0].tolist().count(0) == 1


@pytest.mark.parametrize("agent_loop", [IN_PLACE, VMAP, CHUNK])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"channel": pj.channel.drop(0.4)},
        {"compute_seconds": EXPECTED["compute_seconds"]},
        {"graph": EVEN, "bipartite": True},
    ],
)
def test_a_plain_loop(options, agent_loop):
    with in_64_bits():
        algorithm = method(agent_loop=agent_loop, **options)
        events = plan(algorithm, 6)
        found = run(algorithm, events)
    assert events.agent.shape == (6, SIZE)
    close([x for x, _ in found], reference(events, 6))
    steps = sum(np.asarray(info.steps) for _, info in found)
    np.testing.assert_array_equal(steps, np.bincount(events.agent.ravel(), minlength=5))
    assert sum(float(info.examples.sum()) for _, info in found) == 30
    for r, (_, info) in enumerate(found):
        averaged = (events.agent[r] != events.partner[r]).sum()
        if "channel" not in options:  # two messages of three numbers in an exchange
            assert info.sent.sum() == info.received.sum() == 2 * int(averaged)
        assert info.payload.sum() == 3 * info.sent.sum()


def test_the_sum_changes_by_updates_only():
    """Section on identities: averaging keeps the sum, also where messages are lost."""
    with in_64_bits():
        algorithm = method(optimizer=optax.sgd(0.0), channel=pj.channel.drop(0.3))
        found = run(algorithm, plan(algorithm, 40))
    x = found[-1][0]
    close(x.sum(0), START.sum(0))
    assert np.abs(x - START.mean(0)).max() < 1e-3 * np.abs(START).max()


def test_no_links_are_local_training():
    alone = pj.graphs.as_graph(np.zeros((SIZE, SIZE), bool))
    with in_64_bits():
        algorithm = method(alone)
        events = plan(algorithm, 4)
        x, info = run(algorithm, events)[-1]
    expected = START.copy()
    for i in events.agent.ravel():
        expected[i] -= ETA * gradients(expected[i : i + 1], [i])[0]
    close(x, expected)
    assert not info.sent.any()


def test_an_agent_that_is_alone_awake():
    """An agent that is not disturbed adds the gradient of what it has."""
    one = draw_pairs(
        np.random.default_rng(0),
        stack([GRAPH]),
        np.zeros(4, int),
        1,
        compute_seconds=np.array([1, 99, 99, 99, 99]),
    )
    assert (one.agent == 0).all()
    with in_64_bits():
        found = run(method(), one)
    close(found[-1][0], reference(one, 4)[-1])


def test_events():
    graphs = stack([GRAPH, EVEN])
    of_round = np.array([0, 1, 1])
    events = draw_pairs(np.random.default_rng(1), graphs, of_round, 400)
    linked = [
        {frozenset(e) for e in EDGES},
        {frozenset(e) for e in zip(*edges(EVEN), strict=True)},
    ]
    for r, graph in enumerate(of_round):
        pairs = np.stack([events.agent[r], events.partner[r]], 1).tolist()
        assert {frozenset(pair) for pair in pairs} == linked[graph]
        np.testing.assert_array_equal(
            events.num_now[r], np.bincount(events.agent[r], minlength=SIZE)
        )
        counts = np.zeros((SIZE, SIZE))
        for i, j in pairs:
            counts[i, j] += 1
            counts[j, i] += 1
        found = np.zeros((SIZE, SIZE))
        ids = np.arange(SIZE)[:, None]
        np.add.at(found, (ids, events.links.sender[r]), events.links.arrived[r])
        np.testing.assert_array_equal(found, counts)
        for wave in range(events.wave[r].max() + 1):
            touched = [
                k for n in np.flatnonzero(events.wave[r] == wave) for k in pairs[n]
            ]
            assert len(touched) == len(set(touched)) > 0
    np.testing.assert_array_equal(events.num_before[2], events.num_now[:2].sum(0))
    assert (np.diff(events.time) > 0).all()
    assert events.num_now.sum(0).min() > 180  # of 240 on average


def test_only_one_side_asks():
    events = plan(method(EVEN, bipartite=True), 40)
    asking = events.agent != events.partner
    assert set(events.agent[asking].tolist()) == {0, 2, 4}
    assert set(events.partner[asking].tolist()) == {1, 3}
    assert set(events.agent[~asking].tolist()) == {1, 3}


def test_lost_messages_are_counted():
    events = plan(method(channel=pj.channel.drop(0.5)), 400)
    sent, arrived = events.sent.sum(), events.links.arrived.sum()
    averaged = (events.agent != events.partner).sum()
    assert 0.22 < averaged / events.agent.size < 0.28  # both of two messages arrive
    assert 1.45 < sent / events.agent.size < 1.55  # an answer to those that arrive
    assert 0.45 < arrived / sent < 0.55


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(6)(x))
        return nn.Dense(2)(nn.relu(x))


def test_through_the_front_door():
    """Learns, with variances that stay positive and a layer that stays at home."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3)).astype(np.float32)
    data = pj.federate(
        x,
        (x[:, 0] > 0).astype(int),
        num_agents=6,
        split=pj.split.iid(),
        test_fraction=0.2,
    )
    task = pj.classification(Normalised(), data)
    algorithm = pj.ad_psgd(
        task,
        optax.sgd(0.1, momentum=0.5),
        pj.graphs.ring(6),
        batch_size=8,
        local_patterns=["params/Dense_1/.*"],
    )
    (last,) = pj.simulate(jax.random.key(0), algorithm, data, 15, eval_every=15)
    assert last.metrics["accuracy"].mean() > 0.85
    assert last.used.messages == 2 * 24 * 15 and last.used.steps == 24 * 15
    assert last.used.bytes == 4 * (24 + 12 + 12) * last.used.messages
    variables = algorithm.models(last.state).reported
    assert variables.stats["batch_stats"]["BatchNorm_0"]["var"].min() > 0
    assert last.used.time > 10  # each agent computes for a second, on average


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"graph": pj.graphs.ring(5, directed=True)},
            "an undirected graph for AD-PSGD",
        ),
        ({"bipartite": True}, "a graph of two sides"),
        ({"compute_seconds": [1, 2]}, r"compute_seconds of each of 5 agents"),
        ({"compute_seconds": [1, 2, 0, 1, 1]}, "compute_seconds above 0"),
        ({"compute_seconds": [1, 2, np.nan, 1, 1]}, "compute_seconds above 0"),
        ({"channel": pj.channel.top_k(0.1)}, "whole models for AD-PSGD, got top_k"),
        ({"graph": pj.graphs.ring(4)}, "as many agents as the data have"),
        ({"rewire_every": 2}, "a sequence of graphs"),
        ({"batch_size": 0}, "batch size of 1 or more"),
    ],
)
def test_refused(options, message):
    with pytest.raises(pj.InputError, match=message):
        plan(method(**options), 2)
