"""Between sender and receiver: channels, leaves that stay, when and how often."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_events import quadratic
from test_protocols import (
    TOY,
    TOY_LEARNER,
    close,
    digraph,
    jit,
    run,
    started,
    toy,
    toy_world,
)

from p2pjax.algorithms._d2 import d2, d2_protocol
from p2pjax.algorithms._diple import diple
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._fedcurv_neighbors import fedcurv_neighbors
from p2pjax.algorithms._gosgd import gosgd_protocol
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.algorithms._sgp import sgp_protocol
from p2pjax.asynchronous.events import Timing
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.engines.pulling import pull
from p2pjax.engines.server import server_rounds
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange import pipeline, shared
from p2pjax.exchange.channel import (
    PERFECT,
    arrivals,
    chain,
    check_channel,
    delay,
    drop,
    lost_to_self,
    without_lost,
)
from p2pjax.exchange.shared import FED_BN, FULL, SILO_BN, local_paths, shared_leaves
from p2pjax.graphs import COMMUNICATION, analysis, generators, topology
from p2pjax.nn import mlp
from p2pjax.partial import averaging
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.selection.dac import dac
from p2pjax.selection.diple import line_search
from p2pjax.selection.l2c import l2c
from p2pjax.selection.panm import panm
from p2pjax.selection.pens import pens
from p2pjax.selection.similarity import update_cosine
from p2pjax.selection.sparse import sparse
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks._classification import classification
from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.training import epochs as network_epochs
from p2pjax.training import samplers
from p2pjax.training.agent_loop import VMAP
from p2pjax.training.learner import Learner
from p2pjax.training.local_updates import epochs, steps
from p2pjax.types import InputError, Peers, Variables

NUM_AGENTS = 6
# Degrees differ, in and out.
ENDS = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 2), (0, 3), (1, 4), (3, 1))
GRAPH = digraph(NUM_AGENTS, *ENDS)
HALF = drop(0.5)
SLOW = pytest.mark.slow


class TestChannel:
    def test_stages_add_up(self):
        both = chain(drop(0.5), delay(2.0), drop(0.2), delay(0.5))
        assert both.loss_probability == pytest.approx(0.6)
        assert both.mean_delay == 2.5
        assert len(both.stages) == 4
        assert drop(0.3).mean_delay == 0
        assert delay(3).loss_probability == 0

    def test_what_does_nothing_is_no_stage(self):
        assert drop(0.0) == delay(0) == chain() == chain(PERFECT, drop(0)) == PERFECT

    @pytest.mark.parametrize(
        "build, message",
        [
            (lambda: drop(1.0), "losing a message from 0 to below 1, got 1.0"),
            (lambda: drop(-0.1), "losing a message from 0 to below 1, got -0.1"),
            (lambda: drop(float("nan")), "from 0 to below 1, got nan"),
            (lambda: delay(-1.0), "mean delay of 0 or more, got -1.0"),
            (lambda: delay(float("inf")), "mean delay of 0 or more, got inf"),
            (
                lambda: check_channel(HALF, "It", loses=False),
                "^It corrects with what was sent before, so it cannot take lost",
            ),
            (lambda: check_channel(delay(1), "It"), "^It has no clock, so messages"),
        ],
    )
    def test_refuses(self, build, message):
        with pytest.raises(InputError, match=message):
            build()

    def test_takes_what_fits(self):
        check_channel(PERFECT, "It", loses=False)
        check_channel(HALF, "It")
        check_channel(chain(HALF, delay(1)), "It", delays=True)

    def test_arrivals(self):
        sent = jnp.asarray(np.random.default_rng(0).random((40, 50)) < 0.6)
        assert arrivals(PERFECT, jax.random.key(0), sent) is sent
        found = arrivals(drop(0.3), jax.random.key(0), sent)
        assert not (found & ~sent).any()
        assert found.sum() / sent.sum() == pytest.approx(0.7, abs=0.05)


@st.composite
def weighted(draw):
    """A mixing matrix, which of its messages arrive, and its rows as a dense matrix."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    num_agents, width = draw(st.sampled_from([(1, 1), (3, 5), (6, 1), (6, 4)]))
    own = np.arange(num_agents, dtype=np.int32)
    ids = np.tile(own[:, None], (1, width))
    for row in ids:  # some slots are padding
        others = rng.permutation(np.setdiff1d(own, row[:1]))[: rng.integers(width)]
        row[1 : 1 + len(others)] = others
    is_used = (ids != own[:, None]) | (np.arange(width) == 0)
    weight = np.where(is_used, rng.random(ids.shape), 0)
    weight = (weight / weight.sum(1, keepdims=True)).astype(np.float32)
    arrived = rng.random(ids.shape) < draw(st.sampled_from([0, 0.5, 1]))
    return Peers(ids, weight), arrived


class TestLostMessages:
    @settings(max_examples=25)
    @given(weighted())
    def test_rows_still_sum_to_one(self, drawn):
        peers, arrived = drawn
        found = lost_to_self(peers, arrived)
        close(found.weight.sum(1), np.ones(len(arrived)))
        expected = np.zeros((len(arrived),) * 2)
        for n, row in enumerate(peers.ids):
            for slot, sender in enumerate(row):
                arrives = sender == n or arrived[n, slot]
                expected[n, sender if arrives else n] += peers.weight[n, slot]
        close(analysis.dense_matrix(found), expected)
        is_lost = ~arrived & (peers.ids != peers.ids[:, :1])
        own = np.broadcast_to(peers.ids[:, :1], is_lost.shape)
        assert (np.asarray(found.ids)[is_lost] == own[is_lost]).all()

    @settings(max_examples=25)
    @given(weighted())
    def test_or_the_weight_is_gone(self, drawn):
        peers, arrived = drawn
        found = without_lost(peers, arrived)
        kept = lost_to_self(peers, arrived)
        is_lost = ~arrived & (peers.ids != peers.ids[:, :1])
        np.testing.assert_array_equal(found.ids, kept.ids)
        expected = np.where(is_lost, 0, peers.weight)
        np.testing.assert_array_equal(found.weight, expected)

    def test_without_a_channel_nothing_is_computed(self):
        peers = Peers(np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32))
        assert lost_to_self(peers, None) is peers
        assert without_lost(peers, None) is peers


SERVED = {"batch_size": 2, "agent_loop": VMAP}
STAGES = {"num_peers": 2, "num_candidates": 3, "second_stage": 3, "matching_every": 2}


def chosen(selection):
    return partial(pull, TOY, TOY_LEARNER, selection, **SERVED)


GOSSIP = {
    "dpsgd": partial(toy, neighbor_averaging(), GRAPH),
    "mix_first": partial(toy, neighbor_averaging(mix_first=True), GRAPH),
    "sgp": partial(toy, sgp_protocol(), GRAPH),
    "gosgd": partial(toy, gosgd_protocol(0.5), GRAPH),
    "fedcurv_neighbors": partial(
        fedcurv_neighbors, TOY, TOY_LEARNER, GRAPH, penalty_weight=0.0, **SERVED
    ),
}
PULL = {
    "sparse": chosen(sparse(2)),
    "pens": chosen(pens(num_peers=2, num_candidates=3, second_stage=3)),
    "dac": chosen(dac(num_peers=2)),
    "dac_cosine": chosen(dac(num_peers=2, similarity=update_cosine())),
    "panm": chosen(panm(**STAGES)),
    "l2c": chosen(l2c(num_kept=2, num_rounds_all=4, optimizer=optax.sgd(0.5))),
    "l2c_bilevel": chosen(
        l2c(bilevel=True, num_kept=2, num_rounds_all=4, optimizer=optax.sgd(0.5))
    ),
    "line_search": chosen(line_search(num_peers=2)),
    "diple": partial(diple, TOY, TOY_LEARNER, num_peers=2, num_iterations=2, **SERVED),
}
SERVER = {
    "fedavg": partial(server_rounds, TOY, TOY_LEARNER, **SERVED),
    "fedavg_adaptive": partial(
        server_rounds, TOY, TOY_LEARNER, server_opt=optax.sgd(0.5), **SERVED
    ),
    "ditto": partial(ditto, TOY, TOY_LEARNER, penalty_weight=0.5, **SERVED),
    "fedcurv": partial(fedcurv, TOY, TOY_LEARNER, penalty_weight=0.0, **SERVED),
}
METHODS = GOSSIP | PULL | SERVER
# One of each engine is fast enough for every run of the tests.
ONE_OF_EACH = [
    name if name in ("dpsgd", "pens", "fedavg") else pytest.param(name, marks=SLOW)
    for name in METHODS
]


def some_world(of_others=0.0):
    """Agent 0 always has the same data."""
    targets = np.array([1.0, 2, 4, 10, -3, 5]) + of_others
    targets[0] = 1.0
    return toy_world(targets, [1, 2, 3, 1, 2, 2])


def params_of(method, states):
    models = jax.vmap(method.models)(states)
    return np.asarray(models.reported.params["x"])


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_half_of_the_messages_is_lost(name):
    method = METHODS[name](channel=HALF)
    states, info = run(method, some_world(), 24)
    if name != "sgp":  # whose weights go to zero with what is lost
        assert np.isfinite(params_of(method, states)).all()
    tried = np.asarray(info.sent if info.served is None else info.served).sum()
    assert tried >= 70
    assert float(info.received.sum()) / tried == pytest.approx(0.5, abs=0.15)
    if info.links is not None:
        assert info.links.arrived.sum() == info.received.sum()
    if name in SERVER:  # only those who have heard of the server answer
        np.testing.assert_array_equal(info.sent, info.received)
        assert (np.asarray(info.served) == 1).all()
        assert (np.asarray(info.delivered) == 1).all()
    # One parameter, with an update for cosines; paid for whether it arrives or not.
    num_models = 2 if name == "dac_cosine" else 1
    np.testing.assert_array_equal(info.payload, num_models * np.asarray(info.sent))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_what_is_lost_has_no_influence(name, monkeypatch):
    monkeypatch.setattr(
        pipeline, "arrivals", lambda channel, key, sent, **more: jnp.zeros_like(sent)
    )
    method = METHODS[name](channel=HALF)
    inputs = method.plan(np.random.default_rng(0), some_world(), 4)

    @jit
    def rounds(inputs, world):
        def one(state, scanned):
            t, inputs = scanned
            key = jax.random.fold_in(jax.random.key(0), t)
            state, info = method.round(key, t, inputs, state, world)
            return state, (state, info.received)

        state = method.init(jax.random.key(0), world)
        numbers = jnp.arange(4, dtype=jnp.int32)
        return jax.lax.scan(one, state, (numbers, inputs))[1]

    found = []
    for of_others in (0.0, 100.0):
        world = jax.tree.map(jnp.asarray, some_world(of_others))
        states, received = rounds(inputs, world)
        assert not received.any()
        found.append(params_of(method, states))
    np.testing.assert_array_equal(found[0][:, 0], found[1][:, 0])
    if name in SERVER:  # no client has ever heard of the server
        assert (found[0] == 1).all()
    else:
        assert (found[0][:, 1:] != found[1][:, 1:]).all()


class TestServers:
    """Two parameters of which one stays with its client."""

    def task(self):
        def loss(variables, batch, key):
            del key
            valid = batch["valid"].astype(jnp.float32)
            of_both = sum(
                jnp.square(leaf - batch["c"]) for leaf in variables.params.values()
            )
            return (of_both * valid).sum() / valid.sum() / 2, variables.stats

        params = {"own": jnp.zeros(()), "x": jnp.zeros(())}
        return TOY._replace(init=lambda key: Variables(params, {}), loss=loss)

    @pytest.mark.parametrize("build", [server_rounds, fedcurv])
    def test_leaves_that_stay_are_trained_whatever_is_lost(self, build):
        options = {} if build is server_rounds else {"penalty_weight": 0.0}
        method = build(
            self.task(),
            optax.sgd(0.1),
            channel=drop(0.6),
            local_patterns=("params/own",),
            **SERVED,
            **options,
        )
        states, info = run(method, toy_world([5.0, 6.0]), 40)
        heard = np.asarray(info.received) > 0
        params = {
            name: np.insert(np.asarray(leaf), 0, 0, axis=0)
            for name, leaf in states.variables.params.items()
        }
        np.testing.assert_array_equal(np.diff(params["own"], axis=0) != 0, heard)
        assert (params["x"][:, 0] == params["x"][:, 1]).all()
        has_moved = np.diff(params["x"][:, 0]) != 0
        assert not (has_moved & ~heard.any(1)).any()
        assert (heard.any(1) & ~has_moved).any()  # all answers were lost
        assert has_moved.any()

    def test_own_models_wait_for_the_servers(self):
        method = ditto(TOY, optax.sgd(0.1), penalty_weight=0.5, channel=HALF, **SERVED)
        states, info = run(method, toy_world([5.0, 6, 7]), 10)
        models = np.insert(np.asarray(states.variables.params["x"]), 0, 1, axis=0)
        heard = np.asarray(info.received) > 0
        np.testing.assert_array_equal(np.diff(models, axis=0) != 0, heard)
        np.testing.assert_array_equal(info.steps, 2 * heard)

    def test_the_server_keeps_what_arrived_last(self):
        """Of FedCurv's clients whose answers are lost."""
        method = fedcurv(
            TOY, optax.sgd(0.1), penalty_weight=0.0, channel=HALF, **SERVED
        )
        states, info = run(method, toy_world([5.0] * 8), 40)
        known = np.insert(np.asarray(states.sent["x"]), 0, 1, axis=0)
        has_changed = np.diff(known, axis=0) != 0
        heard = np.asarray(info.received) > 0
        assert not (has_changed & ~heard).any()
        assert has_changed.sum() / heard.sum() == pytest.approx(0.5, abs=0.15)


def with_labels(world):
    """All examples are of class 0."""

    def label(split):
        num_examples = next(iter(split.examples.values())).shape[1]
        y = np.zeros((NUM_AGENTS, num_examples), np.int32)
        return split._replace(examples={**split.examples, "y": y})

    return world._replace(
        train=label(world.train), valid=label(world.valid), test=label(world.test)
    )


@pytest.mark.parametrize(
    "realisation",
    [
        averaging.server(NUM_AGENTS),
        averaging.metropolis_gossip(NUM_AGENTS, generators.ring(NUM_AGENTS)),
        averaging.random_pairs(NUM_AGENTS),
    ],
    ids=["server", "gossip", "pairs"],
)
def test_partial_averaging_counts_what_arrives(realisation):
    task = classification(mlp.MLP((3, 2)), (2,), softmax_cross_entropy)
    model = PartialModel((2, 1, 2), tuple(range(NUM_AGENTS)))
    scheme = Scheme(networks=((2, 3, 2),) * NUM_AGENTS, models=(model,))
    idle = Learner(
        lambda variables: (),
        lambda key, variables, opt, batch, context: (variables, opt, jnp.zeros(())),
    )
    build = partial(
        partial_rounds,
        task,
        idle,
        samplers.cyclic_window(1),
        compile_scheme(scheme, mlp.wiring(2), task),
        realisation,
        average_every=2,
        agent_loop=VMAP,
    )
    world = with_labels(toy_world([0.0] * NUM_AGENTS))
    _, all_of_it = run(build(), world, 60)
    states, info = run(build(channel=HALF), world, 60)
    np.testing.assert_array_equal(info.sent, all_of_it.sent)
    np.testing.assert_array_equal(info.payload, all_of_it.payload)
    np.testing.assert_array_equal(all_of_it.sent, all_of_it.received)
    share = float(info.received.sum() / info.sent.sum())
    assert share == pytest.approx(0.5, abs=0.15)
    assert (info.received <= info.sent).all()
    leaves = jax.tree.leaves(states.variables)
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def program(method):
    world = jax.tree.map(jnp.asarray, some_world())
    inputs = method.plan(np.random.default_rng(0), world, 1)
    first = jax.tree.map(lambda leaf: leaf[0], inputs)
    state = jax.eval_shape(method.init, jax.random.key(0), world)
    text = str(
        jax.make_jaxpr(method.round)(
            jax.random.key(0), jnp.int32(0), first, state, world
        )
    )
    return re.sub(r"0x[0-9a-f]+", "", text)


@pytest.mark.parametrize("name", METHODS)
def test_a_channel_that_loses_nothing_costs_nothing(name):
    plain = program(METHODS[name]())
    assert program(METHODS[name](channel=drop(0.0))) == plain
    assert program(METHODS[name](channel=HALF)) != plain


@pytest.mark.parametrize("name", METHODS)
def test_methods_without_clocks_refuse_delays(name):
    with pytest.raises(InputError, match="has no clock, so messages cannot be late"):
        METHODS[name](channel=chain(drop(0.1), delay(1.0)))


def test_d2_refuses_losses():
    with pytest.raises(InputError, match="D2 corrects with what was sent before"):
        d2(TOY, TOY_LEARNER, generators.ring(5), batch_size=1, channel=HALF)


def test_asynchronous_methods_take_both():
    """Beside what their timing says."""
    world = toy_world(np.arange(12.0))
    graph = generators.directed_regular(12, 3, seed=0)
    build = partial(p2p_bn, quadratic(), optax.sgd(0.1), graph, fine_tuning=False)
    plans = [
        build(batch_size=1, **options).plan(np.random.default_rng(3), world, 20)
        for options in (
            {},
            {"channel": chain(HALF, delay(0.5))},
            {"timing": Timing(mean_delay=0.5, loss_probability=0.5)},
            {"timing": Timing(loss_probability=0.5), "channel": HALF},
        )
    ]
    perfect, lossy, timed, twice = (plan.traffic for plan in plans)
    for one, other in zip(*map(jax.tree.leaves, (lossy, timed)), strict=True):
        np.testing.assert_array_equal(one, other)
    shares = [t.received.sum() / t.sent.sum() for t in (perfect, lossy, twice)]
    assert shares[0] == 1
    assert shares[1] == pytest.approx(0.5, abs=0.1)
    assert shares[2] == pytest.approx(0.25, abs=0.1)


def normalised_task():
    """A layer, a norm inside a block, statistics with a counter, and a cache."""
    params = {
        "block": {"norm": {"scale": jnp.ones(3)}, "layer": {"kernel": jnp.ones(5)}},
        "head": jnp.ones(2),
    }
    moments = {"mean": jnp.zeros(3), "count": jnp.zeros((), jnp.int32)}
    stats = {"batch_stats": {"block": {"norm": moments}}, "cache": {"a": jnp.ones(7)}}
    return TOY._replace(
        init=lambda key: Variables(params, stats), norm=frozenset({"block/norm"})
    )


class TestLeavesThatStay:
    @pytest.mark.parametrize(
        "patterns, message",
        [
            (("params/x", "params/none"), "among params/x, got 'params/none', which"),
            (("x",), "got 'x', which matches none"),  # paths are whole
            ("params/x", r"write \('params/x',\)"),
            (FED_BN, "network with normalisation for FedBN"),
            (SILO_BN, "network with normalisation for SiloBN"),
        ],
    )
    def test_what_matches_nothing_is_refused(self, patterns, message):
        for build in (partial(local_paths, TOY), self.of_gossip, self.of_server):
            with pytest.raises(InputError, match=message):
                build(patterns)

    @staticmethod
    def of_gossip(patterns):
        return toy(neighbor_averaging(), GRAPH, local_patterns=patterns)

    @staticmethod
    def of_server(patterns):
        return server_rounds(TOY, TOY_LEARNER, batch_size=1, local_patterns=patterns)

    @pytest.mark.parametrize(
        "rule, size",
        [(FULL, 13), (SILO_BN, 10), (FED_BN, 7), (("params/block/.*",), 5)],
    )
    def test_rules_read_the_norm_of_the_task(self, rule, size):
        task = normalised_task()
        variables = jax.tree.map(lambda leaf: leaf[None], task.init(None))
        plan = shared.sharing_plan(variables, local_paths(task, rule))
        assert shared.message_size(plan) == size

    def test_layers_without_statistics_are_normalised_too(self):
        task = normalised_task()._replace(
            init=lambda key: Variables({"norm": jnp.ones(2), "y": jnp.ones(1)}, {}),
            norm=frozenset({"norm"}),
        )
        assert local_paths(task, FED_BN) == ("params/norm(/.*)?",)
        with pytest.raises(InputError, match="network with normalisation for SiloBN"):
            local_paths(task, SILO_BN)

    def test_only_floating_statistics_travel(self):
        task = normalised_task()
        one = task.init(None)
        sent = shared_leaves(one)
        assert set(sent) == {"params", "batch_stats"}
        assert sent["batch_stats"]["block"]["norm"]["count"] is None
        numbers = jnp.arange(4, dtype=jnp.int32)

        def apart(leaf):
            own = numbers.astype(leaf.dtype).reshape((-1,) + (1,) * leaf.ndim)
            return leaf[None] + own

        idle = Learner(
            lambda variables: (),
            lambda key, variables, opt, batch, context: (variables, opt, jnp.zeros(())),
        )
        method = gossip(
            task, idle, neighbor_averaging(), generators.complete(4), **SERVED
        )
        start = jax.tree.map(apart, one)
        states, info = run(started(method, start), toy_world(), 1)
        found = states.variables
        moments = found.stats["batch_stats"]["block"]["norm"]
        close(moments["mean"], np.full((1, 4, 3), 1.5))
        close(found.params["head"], np.full((1, 4, 2), 2.5))
        assert moments["count"].dtype == jnp.int32
        assert moments["count"].tolist() == [[0, 1, 2, 3]]
        np.testing.assert_array_equal(
            found.stats["cache"]["a"][0], start.stats["cache"]["a"]
        )
        assert info.payload.tolist() == [[3 * 13] * 4]


def stacked(*graphs):
    return topology.stack([digraph(NUM_AGENTS, *ends) for ends in graphs])


OTHER = tuple((b, a) for a, b in ENDS[:7])
THIRD = ((0, 5), (1, 3), (2, 0), (5, 4), (4, 1))
SEQUENCE = stacked(ENDS, OTHER, THIRD)
CHANGING = {"rewire_every": COMMUNICATION}


def last_of(method, states):
    return method.models(jax.tree.map(lambda leaf: leaf[-1], states))


class TestScoresBefore:
    """An exchange that is pending until the next round changes no numbers."""

    @pytest.mark.parametrize(
        "protocol, graph, options",
        [
            (neighbor_averaging(), GRAPH, {}),
            pytest.param(neighbor_averaging(mix_first=True), GRAPH, {}, marks=SLOW),
            pytest.param(sgp_protocol(), GRAPH, {}, marks=SLOW),
            pytest.param(
                d2_protocol(), generators.ring(NUM_AGENTS + 1), {}, marks=SLOW
            ),
            pytest.param(gosgd_protocol(0.5), GRAPH, {}, marks=SLOW),
            pytest.param(neighbor_averaging(), GRAPH, {"channel": HALF}, marks=SLOW),
            pytest.param(
                sgp_protocol(), SEQUENCE, {"channel": HALF, **CHANGING}, marks=SLOW
            ),
            pytest.param(
                gosgd_protocol(0.5), SEQUENCE, {"rewire_every": 2}, marks=SLOW
            ),
            pytest.param(
                neighbor_averaging(), GRAPH, {"local_updates": epochs(2)}, marks=SLOW
            ),
        ],
        ids=[
            "dpsgd",
            "mix_first",
            "sgp",
            "d2",
            "gosgd",
            "lossy",
            "lossy_changing",
            "rewired",
            "epochs",
        ],
    )
    def test_gossip(self, protocol, graph, options):
        size = topology.num_agents_of(graph)
        world = toy_world(np.arange(size) ** 2 % 7, 1 + np.arange(size) % 3)
        results = []
        for score_before in (False, True):
            method = toy(
                protocol, graph, batch_size=2, score_before=score_before, **options
            )
            states, info = run(method, world, 5)
            results.append((jax.vmap(method.models)(states), info))
        (plain, info), (both, same) = results
        assert plain.trained is None
        x = plain.averaged.params["x"]
        close(both.averaged.params["x"], x, rtol=1e-6, atol=1e-6)
        close(both.reported.params["x"], x, rtol=1e-6, atol=1e-6)
        assert (abs(both.trained.params["x"] - x) > 1e-3).any(axis=1).all()
        # Push-sum weights are those before the exchange that is pending.
        info, same = info._replace(weight=None), same._replace(weight=None)
        for one, other in zip(*map(jax.tree.leaves, (info, same)), strict=True):
            close(one, other, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("options", [{}, {"server_opt": optax.sgd(0.5)}])
    def test_servers(self, options):
        world = toy_world([0.0, 2, 4, 10], [1, 2, 3, 5])
        results = []
        for score_before in (False, True):
            method = server_rounds(
                TOY,
                TOY_LEARNER,
                num_clients=3,
                channel=drop(0.3),
                score_before=score_before,
                **SERVED,
                **options,
            )
            states, _ = run(method, world, 6)
            results.append(jax.vmap(method.models)(states))
        plain, both = results
        close(both.averaged.params["x"], plain.averaged.params["x"], atol=1e-6)
        assert (both.trained.params["x"] != both.averaged.params["x"]).any(1).all()

    def test_a_simulation_has_both(self):
        task = classification(mlp.MLP((2,)), (2,), softmax_cross_entropy)
        rng = np.random.default_rng(0)
        world = toy_world([0.0] * 4, [5] * 4)
        examples = {
            "x": rng.normal(size=(4, 5, 2)).astype("f4"),
            "y": rng.integers(0, 2, (4, 5)).astype("i4"),
        }
        split = world.train._replace(examples=examples)
        world = world._replace(train=split, valid=split, test=split)
        method = gossip(
            task,
            optax.sgd(1.0),
            neighbor_averaging(),
            generators.ring(4),
            score_before=True,
            **SERVED,
        )
        *_, last = simulate(jax.random.key(0), method, world, 2, eval_every=1)
        for when in ("accuracy", "accuracy_before", "accuracy_after"):
            assert last.metrics[when].shape == (4,)
        np.testing.assert_array_equal(
            last.metrics["accuracy"], last.metrics["accuracy_after"]
        )

    def test_refuses(self):
        needs_gradient = neighbor_averaging()._replace(needs_gradient=True)
        with pytest.raises(InputError, match="gone when a pending exchange takes"):
            toy(needs_gradient, GRAPH, score_before=True)
        with pytest.raises(InputError, match="one local step between exchanges"):
            toy(needs_gradient, GRAPH, local_updates=steps(2))
        widths = iter([1, 2, 3, 1, 2, 3])
        method = toy(
            neighbor_averaging(),
            lambda rng: generators.directed_regular(6, next(widths), seed=rng),
            score_before=True,
            rewire_every=1,
        )
        with pytest.raises(InputError, match="Need graphs of one width"):
            method.plan(np.random.default_rng(0), some_world(), 3)


SIZES = (1, 2, 3, 7, 2, 5)
TARGETS = np.array([1.0, 2, 4, 10, -3, 5])
RATE = 0.5  # of the toy learner


def matrix_of(graph):
    """Everybody takes the mean of itself and its senders."""
    result = np.eye(NUM_AGENTS)
    for sender, receiver in zip(*topology.edges(graph), strict=True):
        result[receiver, sender] = 1
    return result / result.sum(1, keepdims=True)


def descended(x, num_steps):
    """All of an agent's targets are equal, so its batches do not matter."""
    return TARGETS + (1 - RATE) ** np.asarray(num_steps) * (x - TARGETS)


def out_degrees(graph):
    return np.asarray(topology.out_degrees(graph), float)


class TestLocalUpdates:
    def test_several_steps_between_exchanges(self):
        """As many exchanges as it takes until the network epoch is over."""
        num_rounds = 6
        method = toy(neighbor_averaging(), GRAPH, batch_size=2, local_updates=steps(3))
        world = toy_world(TARGETS, SIZES)
        states, info = run(method, world, num_rounds)
        ends = network_epochs.steps_of_epochs(np.array(SIZES), 2, num_rounds).cumsum()
        x, taken, done = np.ones(NUM_AGENTS), 0, 0
        for r, end in enumerate(ends):
            num_exchanges = 0
            while taken < end:
                x = matrix_of(GRAPH) @ descended(x, 3)
                taken, num_exchanges = taken + 3, num_exchanges + 1
            close(states.variables.params["x"][r], x)
            assert (np.asarray(info.steps[r]) == 3 * num_exchanges).all()
            np.testing.assert_array_equal(
                info.sent[r], num_exchanges * out_degrees(GRAPH)
            )
            done += num_exchanges
        assert done == -(-ends[-1] // 3)
        assert done > num_rounds / 2

    def test_several_epochs_before_an_exchange(self):
        method = toy(neighbor_averaging(), GRAPH, batch_size=2, local_updates=epochs(2))
        states, info = run(method, toy_world(TARGETS, SIZES), 3)
        num_steps = 2 * -(-np.array(SIZES) // 2)
        x = np.ones(NUM_AGENTS)
        for r in range(3):
            x = matrix_of(GRAPH) @ descended(x, num_steps)
            close(states.variables.params["x"][r], x)
        np.testing.assert_array_equal(info.steps, np.tile(num_steps, (3, 1)))
        np.testing.assert_array_equal(
            info.examples, np.tile(2 * np.array(SIZES), (3, 1))
        )
        np.testing.assert_array_equal(info.sent, np.tile(out_degrees(GRAPH), (3, 1)))
        np.testing.assert_array_equal(
            info.received, np.tile(topology.in_degrees(GRAPH), (3, 1))
        )

    @pytest.mark.parametrize("num_steps", [1, 2])
    def test_a_graph_for_each_communication(self, num_steps):
        num_rounds = 5
        method = toy(
            neighbor_averaging(),
            SEQUENCE,
            batch_size=2,
            local_updates=steps(num_steps),
            **CHANGING,
        )
        states, info = run(method, toy_world(TARGETS, SIZES), num_rounds)
        graphs = topology.unstack(SEQUENCE)
        ends = network_epochs.steps_of_epochs(np.array(SIZES), 2, num_rounds).cumsum()
        x, number = np.ones(NUM_AGENTS), 0
        for r, end in enumerate(ends):
            sent, received = np.zeros((2, NUM_AGENTS))
            while num_steps * number < end:
                graph = graphs[number % 3]
                x = matrix_of(graph) @ descended(x, num_steps)
                sent += out_degrees(graph)
                received += topology.in_degrees(graph)
                number += 1
            close(states.variables.params["x"][r], x)
            np.testing.assert_array_equal(info.sent[r], sent)
            np.testing.assert_array_equal(info.received[r], received)
        assert number > 4  # all graphs and the first again
        assert info.links is None  # the senders of a slot change within a round
