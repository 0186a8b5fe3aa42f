"""DivShare: published iterates, a plain loop of messages, what it refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quadratics
from quadratics import EDGES, ETA, SIZE, VECTORS, gradients, in_64_bits

import p2pjax as pj
from p2pjax.algorithms._divshare import Arriving, arriving
from p2pjax.exchange.fragments import fragment_columns

EXPECTED = VECTORS["divshare"]
START = np.array(quadratics.PROBLEM["x0"], float)
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
# Which coordinate each of three fragments has.
COORDINATE = [int(at[0][0]) for at in fragment_columns([np.zeros(3)], 3)]


def method(graph=None, task=None, **options):
    options = {"num_fragments": 3, "batch_size": 1, **options}
    return pj.divshare(task or quadratics.task(), optax.sgd(ETA), graph, **options)


def run(algorithm, num_rounds, inputs=None, seed=0):
    """Models `[R, N, 3]`, infos and states after every round, and the inputs."""
    data = jax.tree.map(jnp.asarray, quadratics.world())
    if inputs is None:
        inputs = algorithm.plan(np.random.default_rng(seed), data, num_rounds)
    state = algorithm.init(jax.random.key(0), data)
    state = state._replace(variables=quadratics.at(START))
    step, found = quadratics.jit(algorithm.round), []
    for t in range(num_rounds):
        one = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t]), inputs)
        key = jax.random.fold_in(jax.random.key(seed), t)
        state, info = step(key, jnp.int32(t), one, state, data)
        found.append((np.asarray(state.variables.params["x0"]), info, state))
    return found, inputs


def published():
    """Receivers `[R, F, N, 1]` of the published messages, and which are late."""
    shape = (4, 3, SIZE, 1)
    sends, is_late = np.full(shape, SIZE, np.int32), np.zeros(shape, bool)
    late = {tuple(message) for message in EXPECTED["one_round_late"]}
    for r, messages in enumerate(EXPECTED["sends_sender_fragment_receiver"]):
        for sender, fragment, receiver in messages:
            at = (r, COORDINATE.index(fragment), sender, 0)
            sends[at] = receiver
            is_late[at] = (r, sender, fragment, receiver) in late
    return arriving(sends, is_late)


def test_published_iterates():
    with in_64_bits():
        found, _ = run(method(late_probability=0.5), 4, published())
    for (x, info, _), expected in zip(found, EXPECTED["x_after_round"], strict=True):
        close(x, expected)
        assert info.sent.tolist() == [3.0] * SIZE  # J * F messages, J models
        assert info.payload.tolist() == [3.0] * SIZE
    assert [int(info.received.sum()) for _, info, _ in found] == [0, 14, 15, 16]


def reference(arriving_now: Arriving, num_rounds):
    """One message after the other, into inboxes of coordinates."""
    x, sent = START.copy(), []
    for r in range(num_rounds):
        x = x - ETA * gradients(x)
        sent.append(x.copy())
        inbox = {}
        for source, receivers in ((r - 2, arriving_now.late), (r - 1, arriving_now[0])):
            for fragment, sender, slot in np.ndindex(receivers.shape[1:]):
                to = receivers[r, fragment, sender, slot]
                if to < SIZE:  # the newer one, which comes second, stays
                    value = sent[source][sender, COORDINATE[fragment]]
                    inbox[int(to), COORDINATE[fragment], sender] = value
        new = x.copy()
        for n, p in np.ndindex(x.shape):
            values = [v for (to, at, _), v in inbox.items() if (to, at) == (n, p)]
            new[n, p] = np.mean([x[n, p], *values])
        x = new
    return x


@pytest.mark.parametrize("late", [0.0, 0.5])
def test_a_plain_loop(late):
    with in_64_bits():
        algorithm = method(num_receivers=2, late_probability=late)
        found, inputs = run(algorithm, 9, seed=4)
    assert (inputs.late < SIZE).any() == (late > 0)
    close(found[-1][0], reference(inputs, 9))
    # No agent sends a fragment to itself, or twice to another in a round.
    for one in inputs.in_time[1:] if not late else []:
        for sender in range(SIZE):
            assert all(len({*row, sender}) == 3 for row in one[:, sender].tolist())


def test_trained_models_are_scored_too():
    with in_64_bits():
        algorithm = method()
        found, _ = run(algorithm, 3)
        models = algorithm.models(found[-1][2])
        before = found[1][0]
        close(models.trained.params["x0"], before - ETA * gradients(before))
        close(models.averaged.params["x0"], found[-1][0])


def test_the_graph_says_who_may_receive():
    inputs = method(pj.graphs.as_graph(EDGES), num_receivers=2).plan(
        np.random.default_rng(0), quadratics.world(), 8
    )
    linked = {(i, j) for i, j in EDGES} | {(j, i) for i, j in EDGES}
    for _, _, sender, slot in np.argwhere(inputs.in_time[1:] < SIZE):
        del slot
        for to in inputs.in_time[1:, :, sender].ravel():
            assert (int(sender), int(to)) in linked
    directed = pj.graphs.ring(SIZE, directed=True)
    inputs = method(directed).plan(np.random.default_rng(0), quadratics.world(), 3)
    receiver_of = {int(n): i for i, (n,) in enumerate(np.asarray(directed.neighbor))}
    for sender in range(SIZE):
        assert (inputs.in_time[1:, :, sender] == receiver_of[sender]).all()


def test_one_fragment_to_all_takes_means_with_what_was_sent_before():
    with in_64_bits():
        found, _ = run(method(num_fragments=1, num_receivers=SIZE - 1), 3)
    x = START - ETA * gradients(START)
    sent = x
    for _ in range(2):
        trained = x - ETA * gradients(x)
        x = (trained + sent.sum(0) - sent) / SIZE
        sent = trained
    close(found[-1][0], x)


def test_lost_fragments_do_not_count():
    with in_64_bits():
        found, _ = run(method(channel=pj.channel.drop(1 - 1e-9)), 4)
    x = START
    for _ in range(4):
        x = x - ETA * gradients(x)
    close(found[-1][0], x)
    assert found[-1][1].received.sum() == 0


def test_what_stays_at_home_is_not_sent():
    task = quadratics.task((2, 1))
    algorithm = method(task=task, num_fragments=2, local_patterns=("params/x1",))
    data = quadratics.world()
    inputs = algorithm.plan(np.random.default_rng(0), data, 3)
    alone = pj.local_only(task, optax.sgd(ETA), batch_size=1)
    state, other = (m.init(jax.random.key(0), data) for m in (algorithm, alone))
    one = jax.tree.map(lambda leaf: leaf[1], inputs)
    for t in range(2):
        state, info = algorithm.round(jax.random.key(0), t, one, state, data)
        if t == 0:
            other, _ = alone.round(jax.random.key(0), t, (), other, data)
            mine, theirs = (m.variables.params["x1"] for m in (state, other))
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert info.payload.tolist() == [2.0] * SIZE


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_fragments": 0}, "one fragment or more, got 0"),
        ({"num_fragments": 4}, "as many fragments as numbers in a message"),
        ({"num_receivers": 0}, "one receiver or more"),
        ({"num_receivers": 5}, "5 agents or more that each agent may send to"),
        ({"late_probability": 1.0}, "from 0 to below 1"),
        ({"channel": pj.channel.top_k(0.1)}, "whole models for DivShare, got top_k"),
        ({"graph": pj.graphs.ring(5), "num_receivers": 3}, "got one with 2"),
        ({"graph": pj.graphs.ring(4)}, "as many agents as the data have"),
    ],
)
def test_refused(options, message):
    with pytest.raises(pj.InputError, match=message):
        method(**options).plan(np.random.default_rng(0), quadratics.world(), 2)
