"""Methods with momentum and corrections: published iterates, limits, a plain loop."""

import json
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from slow_cases import marked
from test_protocols import jit, world_of

import p2pjax as pj
from p2pjax.graphs import analysis, trees
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import InputError, Ratio, Variables

VECTORS = json.loads(
    (Path(__file__).parent / "vectors/step_baselines.json").read_text()
)
PROBLEM, KNOWN = VECTORS["problem"], VECTORS["methods"]
A, B = np.array(PROBLEM["A"], float), np.array(PROBLEM["b"], float)
START, RATE = np.array(PROBLEM["x0"]), PROBLEM["eta"]
DISTINCT = np.array(PROBLEM["x0_distinct"], float)
BEST = np.array(PROBLEM["x_star"])
EDGES = nx.Graph(PROBLEM["edges"])
EDGES = nx.from_edgelist(sorted(EDGES.edges))
CHAIN = nx.path_graph(5)
W = pj.graphs.metropolis_hastings
MATRIX = np.array(PROBLEM["W_metropolis"])
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)


def quadratics(dtype=float):
    """Half the squared residuals of an agent's equations, all of them in a batch."""

    def loss_fn(variables, batch, key):
        del key
        residual = batch["a"] @ variables.params["x"] - batch["b"]
        loss = (jnp.square(residual) * batch["valid"]).sum() / 2
        return loss, variables.stats

    def evaluate_fn(variables, batch):
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    def init_fn(key):
        del key
        return Variables({"x": jnp.asarray(START[0], dtype)}, {})

    return Task(init_fn, loss_fn, evaluate_fn)


def worlds(a=A, b=B):
    return world_of([{"a": x, "b": y} for x, y in zip(a, b, strict=True)])


SGD = optax.sgd(RATE)
HEAVY = optax.sgd(RATE, momentum=0.9)
NESTEROV = optax.sgd(RATE, momentum=0.9, nesterov=True)
# Method, optimizer, options.
ROWS = {
    "dsgd_atc": (pj.dpsgd, SGD, {"mixing_weights": W}),
    "dsgd_cta": (pj.dpsgd, SGD, {"mixing_weights": W, "mix_first": True}),
    "dsgdm": (pj.dpsgd, HEAVY, {"mixing_weights": W}),
    "dsgdm_n": (pj.dpsgd, NESTEROV, {"mixing_weights": W}),
    "qg_dsgdm": (pj.qg_dsgdm, SGD, {}),
    "qg_dsgdm_n": (pj.qg_dsgdm, SGD, {"nesterov": True}),
    "qg_dsgdm_mu_0.8": (pj.qg_dsgdm, SGD, {"decay": 0.8}),
    "gt_cta": (pj.gradient_tracking, SGD, {"order": "combine_then_adapt"}),
    "gt_semi_atc": (pj.gradient_tracking, SGD, {}),
    "gt_atc": (pj.gradient_tracking, SGD, {"order": "adapt_then_combine"}),
    "momentum_tracking": (pj.momentum_tracking, SGD, {}),
    "extra": (pj.extra, SGD, {}),
    "d2": (pj.d2, SGD, {}),
    "exact_diffusion": (pj.exact_diffusion, SGD, {}),
    "nids": (pj.exact_diffusion, SGD, {"mix_first_step": False}),
    "relay_sgd_bfs_tree": (pj.relay_sgd, SGD, {}),
    "relay_sgd_chain": (pj.relay_sgd, SGD, {"graph": CHAIN}),
}


def built(name, *, optimizer=None, **others):
    make, usual, options = ROWS[name]
    options = {"graph": EDGES, "batch_size": 3, "agent_loop": VMAP} | options | others
    return make(quadratics(), usual if optimizer is None else optimizer, **options)


def program(method, num_rounds, world=None):
    """Of a start and a world: states and infos of all rounds, leaves `[R, ...]`."""
    world = worlds() if world is None else world
    inputs = method.plan(np.random.default_rng(0), world, num_rounds)
    numbers = jnp.arange(num_rounds, dtype=jnp.int32)
    key = jax.random.key(0)

    @jit
    def rounds(start, inputs, world):
        def one(state, scanned):
            t, inputs = scanned
            key_round = jax.random.fold_in(key, t)
            state, info = method.round(key_round, t, inputs, state, world)
            return state, (state, info)

        state = method.init(key, world)
        if start is not None:
            state = state._replace(variables=Variables({"x": start}, {}))
        return jax.lax.scan(one, state, (numbers, inputs))[1]

    return lambda start, world: rounds(start, inputs, world)


def ran(method, num_rounds, start=None, world=None):
    """States and infos of all rounds in float64, leaves `[R, ...]`."""
    world = jax.tree.map(jnp.asarray, worlds() if world is None else world)
    start = None if start is None else jnp.asarray(start)
    return program(method, num_rounds, world)(start, world)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


LAST = 2500


@cache
def program_of(name):
    return program(built(name), LAST)


@cache
def iterates(name, is_distinct=False):
    """One program for all tests of a method, from one of two starts."""
    start = jnp.asarray(DISTINCT if is_distinct else START)
    return program_of(name)(start, jax.tree.map(jnp.asarray, worlds()))


@pytest.mark.parametrize("name", ROWS)
class TestVectors:
    def test_equal_starts(self, name):
        x = iterates(name)[0].variables.params["x"]
        for number, expected in KNOWN[name]["x"].items():
            close(x[int(number) - 1], expected)

    def test_distinct_starts(self, name):
        if "x_from_distinct" not in KNOWN[name]:
            pytest.skip("RelaySGD starts from equal models")
        x = iterates(name, True)[0].variables.params["x"]
        for number, expected in KNOWN[name]["x_from_distinct"].items():
            close(x[int(number) - 1], expected)

    def test_messages(self, name):
        known, info = KNOWN[name], iterates(name)[1]
        num_edges = 4 if name.startswith("relay") else 6
        later = 2 * num_edges * known["exchanges_per_step"]
        first = {"nids": 0, "gt_atc": later // 2}.get(name, later)
        assert info.sent.sum(1).tolist() == [first] + [later] * (LAST - 1)
        assert info.received.sum(1).tolist() == [first] + [later] * (LAST - 1)
        payload = 3 * known["models_per_message"] * np.asarray(info.sent)
        assert np.array_equal(info.payload, payload)


def gradients(x):
    return np.einsum("nri,nr->ni", A, np.einsum("nri,ni->nr", A, x) - B)


class TestMemories:
    """After five iterations, in the units of the textbooks."""

    def memory(self, name):
        state = jax.tree.map(lambda leaf: leaf[4], iterates(name)[0])
        return state.protocol_state, state.variables.params["x"], state.opt_state

    @pytest.mark.parametrize("name", ["qg_dsgdm", "qg_dsgdm_n", "qg_dsgdm_mu_0.8"])
    def test_quasi_global_momentum(self, name):
        memory, _, _ = self.memory(name)
        close(-memory["x"] / RATE, KNOWN[name]["memory_after_5"]["m"])

    @pytest.mark.parametrize("name", ["dsgdm", "dsgdm_n"])
    def test_own_momentum(self, name):
        trace = self.memory(name)[2][0].trace["x"]
        close(trace, KNOWN[name]["memory_after_5"]["m"])

    @pytest.mark.parametrize("name", ["gt_cta", "gt_semi_atc"])
    def test_tracker(self, name):
        correction, x, _ = self.memory(name)
        tracker = gradients(x) - correction["x"] / RATE
        close(tracker, KNOWN[name]["memory_after_5"]["y"])
        close(correction["x"].sum(0), 0)

    def test_tracker_that_is_mixed_before_use(self):
        state, x, _ = self.memory("gt_atc")
        update = -RATE * gradients(x)
        tracker = MATRIX @ (state.tracker["x"] + update - state.update["x"])
        close(-tracker / RATE, KNOWN["gt_atc"]["memory_after_5"]["y"])
        close(state.tracker["x"].sum(0), state.update["x"].sum(0))

    def test_momentum_tracking(self):
        correction, _, opt_state = self.memory("momentum_tracking")
        known = KNOWN["momentum_tracking"]["memory_after_5"]
        close(opt_state[0].trace["x"], known["u"])
        close(correction["x"] / RATE, known["c"])


@cache
def limit(name, factor=1):
    if factor == 1:
        return iterates(name)[0].variables.params["x"][-1]
    method = built(name, optimizer=optax.sgd(factor * RATE))
    return ran(method, LAST)[0].variables.params["x"][-1]


class TestLimits:
    @pytest.mark.parametrize("name", ROWS)
    def test_errors(self, name):
        x, known = np.asarray(limit(name)), KNOWN[name]
        error, of_mean = np.abs(x - BEST).max(), np.abs(x.mean(0) - BEST).max()
        close(error, known["limit_max_error"])
        close(of_mean, known["limit_error_of_mean"])

    @pytest.mark.parametrize(
        "name, factor",
        [
            ("dsgdm", 10),
            ("dsgdm_n", 10),
            ("qg_dsgdm", 1),
            ("qg_dsgdm_mu_0.8", 1),
            ("qg_dsgdm_n", 1.9),
        ],
    )
    def test_of_dpsgd_with_other_rates(self, name, factor):
        """Local momentum multiplies the bias, quasi-global momentum does not."""
        close(limit(name), limit("dsgd_atc", factor))


class TestIdentities:
    def x(self, method, start=DISTINCT):
        if isinstance(method, str):
            return iterates(method, True)[0].variables.params["x"][:10]
        return ran(method, 10, start)[0].variables.params["x"]

    def test_momentum_tracking_is_tracking_of_momentum(self):
        tracked = built("gt_cta", optimizer=HEAVY)
        close(self.x("momentum_tracking"), self.x(tracked))

    def test_momentum_of_trackers_on_one_matrix(self):
        """`m <- 0.9 m + y` instead: the same, as long as the matrix stays."""
        x, y, m = DISTINCT, gradients(DISTINCT), 0
        expected = []
        for _ in range(10):
            m = 0.9 * m + y
            new = MATRIX @ x - RATE * m
            y, x = MATRIX @ y + gradients(new) - gradients(x), new
            expected.append(x)
        close(self.x("momentum_tracking"), expected)

    @pytest.mark.parametrize("name", ["qg_dsgdm", "qg_dsgdm_n"])
    def test_without_momentum_it_is_dpsgd(self, name):
        close(self.x(built(name, momentum=0.0)), self.x("dsgd_atc"))

    def test_tracking_without_momentum(self):
        method = built("momentum_tracking", momentum=0.0)
        close(self.x(method), self.x("gt_cta"))

    def test_exact_diffusion_is_d2_on_the_lazy_matrix(self):
        lazy = built("d2", mixing_weights=lambda g: pj.graphs.lazy(W(g)))
        close(self.x("exact_diffusion"), self.x(lazy))

    def test_complete_graph_in_one_step(self):
        """Where all hear all, adapt-then-combine methods are SGD of the mean."""
        graph = nx.complete_graph(5)
        x, expected = START, []
        for _ in range(10):
            x = np.tile((x - RATE * gradients(x)).mean(0), (5, 1))
            expected.append(x)
        for name in ("dsgd_atc", "gt_semi_atc", "gt_atc", "d2"):
            close(self.x(built(name, graph=graph), start=START), expected)

    @pytest.mark.parametrize("name", [n for n in ROWS if n[:5] != "relay"])
    def test_agents_with_equal_data_and_starts_stay_equal(self, name):
        """Corrections vanish: they are SGD, heavy balls, or QG's own recursion."""
        world = worlds([A[1]] * 5, [B[1]] * 5)
        x, m, expected = START[0], 0, []
        for _ in range(10):
            g = A[1].T @ (A[1] @ x - B[1])
            if name[:2] == "qg":
                ahead, past = (1.9, 0.81) if name == "qg_dsgdm_n" else (1, 0.9)
                mu = 0.8 if "mu" in name else 0.9
                move = -ahead * RATE * g + past * m
                x, m = x + move, mu * m + (1 - mu) * move
            elif name in ("dsgdm", "dsgdm_n", "momentum_tracking"):
                m = 0.9 * m + g
                x = x - RATE * (g + 0.9 * m if name == "dsgdm_n" else m)
            else:
                x = x - RATE * g
            expected.append(np.tile(x, (5, 1)))
        world = jax.tree.map(jnp.asarray, world)
        states, _ = program_of(name)(jnp.asarray(START), world)
        close(states.variables.params["x"][:10], expected)


def numpy_run(name, rates, matrices):
    """Textbook forms with momenta and trackers in units of gradients, `[R, 5, 3]`."""
    x, y, m, c, found = DISTINCT, 0, 0, 0, []
    old = np.zeros_like(x)
    for t, (rate, w) in enumerate(zip(rates, matrices, strict=True)):
        g = gradients(x)
        if name == "qg_dsgdm":
            new = w @ (x - rate * (g + 0.9 * m))
            m = 0.9 * m + 0.1 * (x - new) / rate
        elif name == "gt_atc":
            y = g if t == 0 else w @ (y + g - old)
            new = w @ (x - rate * y)
        elif name in ("gt_cta", "gt_semi_atc", "momentum_tracking"):
            g = m = 0.9 * m + g if name == "momentum_tracking" else g
            y = g if t == 0 else y + g - old
            new = w @ (x - rate * y) if name == "gt_semi_atc" else w @ x - rate * y
            y = w @ y
        elif name == "extra":
            new = w @ x - rate * (g + c)
            c = c + (x - w @ x) / 2 / rate
        else:  # exact diffusion, D2: a dual variable in units of gradients
            v = w if name == "d2" else (w + np.eye(5)) / 2
            stepped = x - rate * g
            new = v @ (stepped - rate * c)
            c = (stepped - new) / rate
        old, x = g, new
        found.append(x)
    return np.array(found)


MEMORIES = [
    "qg_dsgdm",
    "gt_cta",
    "gt_semi_atc",
    "gt_atc",
    "momentum_tracking",
    "extra",
    "d2",
    "exact_diffusion",
]


class TestRates:
    """What is remembered follows the learning rate."""

    DROPS = np.array([0.05, 0.05, 0.08, 0.08, 0.08, 0.008, 0.008, 0.008, 0.004, 0.004])

    def injected(self, rates=DROPS):
        table = jnp.asarray(rates)
        return optax.inject_hyperparams(optax.sgd)(learning_rate=lambda t: table[t])

    @pytest.mark.parametrize("name", MEMORIES)
    def test_textbook_forms(self, name):
        method = built(name, optimizer=self.injected())
        states, _ = ran(method, 10, DISTINCT)
        expected = numpy_run(name, self.DROPS, [MATRIX] * 10)
        close(states.variables.params["x"], expected)

    @pytest.mark.parametrize("name", ["gt_atc", "d2"])
    def test_exchanges_that_are_pending(self, name):
        expected = numpy_run(name, self.DROPS, [MATRIX] * 10)
        scored = built(name, optimizer=self.injected(), score_before=True)
        states, _ = ran(scored, 10, DISTINCT)
        last = jax.tree.map(lambda leaf: leaf[-1], states)
        close(scored.models(last).averaged.params["x"], expected[-1])

    @pytest.mark.parametrize("name", ["gt_atc", "momentum_tracking", "extra", "nids"])
    def test_no_spike_where_the_rate_drops(self, name):
        """At the optimum, a tenth of the rate changes nothing."""
        rates = np.repeat([0.05, 0.005], [1500, 5])
        states, _ = ran(built(name, optimizer=self.injected(rates)), len(rates))
        x = states.variables.params["x"][1495:]
        close(x, np.broadcast_to(BEST, x.shape))

    def test_steps_between_exchanges_are_counted_together(self):
        """A rate that changes with them counts with their sum."""
        rates = np.array([0.05, 0.01, 0.01, 0.02, 0.02, 0.0])
        method = built(
            "gt_semi_atc", optimizer=self.injected(rates), local_updates=pj.steps(2)
        )
        states, _ = ran(method, 6, DISTINCT)
        x, c, old, found = DISTINCT, 0, 0, []
        for first, second in rates.reshape(3, 2):
            c = c * (first + second) / old if old else c
            old = first + second
            stepped = x - first * gradients(x)
            u = stepped - second * gradients(stepped) - x
            x, c = MATRIX @ (x + u + c), MATRIX @ (c + u) - u
            found.append(x)
        close(states.variables.params["x"][::2], found)

    def test_warm_up_from_zero(self):
        rates = np.array([0.0, 0.0, 0.05, 0.05, 0.0, 0.05])
        states, _ = ran(built("gt_cta", optimizer=self.injected(rates)), 6, DISTINCT)
        assert np.isfinite(states.variables.params["x"]).all()
        assert (states.protocol_state["x"][:2] == 0).all()

    def test_sweeps(self):
        """A rate that is written into a state is that of a method made with it."""
        sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)
        (found,) = pj.sweep(
            jax.random.key(0),
            built("qg_dsgdm", optimizer=sgd),
            worlds(),
            {"learning_rate": [RATE]},
            5,
            eval_every=5,
            evaluate=lambda models, world: models.reported.params,
        )
        (x,) = found.history.values("x")
        close(x, KNOWN["qg_dsgdm"]["x"]["5"], atol=1e-7)  # a rate in float32

    @pytest.mark.parametrize("name", MEMORIES)
    def test_hidden_schedules_are_refused(self, name):
        hidden = optax.sgd(optax.exponential_decay(0.1, 10, 0.5))
        with pytest.raises(InputError, match="can read, because what it remembers"):
            built(name, optimizer=hidden)

    def test_two_rates_are_refused(self):
        one = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
        with pytest.raises(InputError, match="Need one learning rate for EXTRA"):
            built("extra", optimizer=optax.chain(one, one))


GRAPHS = [nx.cycle_graph(5), nx.path_graph(5), nx.complete_graph(5)]


@pytest.mark.parametrize("name", ["qg_dsgdm", "gt_semi_atc", "gt_atc"])
def test_graphs_that_change(name):
    """Against the textbook, with another matrix in every step."""
    graphs = pj.graphs.as_graph(GRAPHS)
    method = built(name, graph=graphs, rewire_every=pj.graphs.COMMUNICATION)
    states, _ = ran(method, 9, DISTINCT)
    matrices = [analysis.dense_matrix(W(pj.graphs.as_graph(g))) for g in GRAPHS] * 3
    close(states.variables.params["x"], numpy_run(name, [RATE] * 9, matrices))


@pytest.mark.parametrize("name", ["extra", "nids"])
def test_graphs_that_should_not_change(name):
    graphs = pj.graphs.as_graph(GRAPHS)
    method = built(name, graph=graphs, rewire_every=pj.graphs.COMMUNICATION)
    with pytest.warns(UserWarning, match="needs one graph that stays, and here graphs"):
        method.plan(np.random.default_rng(0), worlds(), 3)


class TestRelays:
    def test_tables(self):
        tables = trees.relay_tables(pj.graphs.bfs_tree(EDGES))
        known = VECTORS["relay_tables_bfs_tree"]
        for field in tables._fields:
            value = getattr(tables, field)
            where = tables.mask if field != "mask" else ...
            assert np.array_equal(value[where], np.array(known[field])[where]), field

    @pytest.mark.parametrize("drop", [0.0, 0.3])
    def test_counts_of_messages(self, drop):
        """A loop over messages with their counts, some of which are lost."""
        graph = nx.balanced_tree(2, 2)
        world = worlds(np.concatenate([A, A[:2]]), np.concatenate([B, B[2:4]]))
        a, b = world.train.examples["a"], world.train.examples["b"]
        method = built("relay_sgd_chain", graph=graph, channel=pj.channel.drop(drop))
        states, info = ran(method, 8, world=world)
        arrived = np.asarray(info.links.arrived) > 0  # [R, N, D]
        senders = np.asarray(info.links.sender)
        assert (arrived[:, senders[0] != np.arange(7)[:, None]].mean() == 1) == (
            drop == 0
        )
        x0 = START[0]
        behind = {
            (j, i): nx.node_connected_component(_without(graph, i, j), j)
            for i, j in nx.DiGraph(graph).edges
        }
        mail = {edge: (len(far) * x0, len(far)) for edge, far in behind.items()}
        x = np.tile(x0, (7, 1))
        for t in range(8):
            g = np.einsum("nri,nr->ni", a, np.einsum("nri,ni->nr", a, x) - b)
            h, new = x - RATE * g, {}
            for j, i in mail:
                others = [mail[k, j] for k in graph[j] if k != i]
                total = h[j] + sum(one for one, _ in others)
                count = 1 + sum(number for _, number in others)
                is_lost = not arrived[t, i][senders[t, i] == j].any()
                new[j, i] = (0 * x0, 0) if is_lost else (total, count)
            mail = new
            for i in range(7):
                got = [mail[j, i] for j in graph[i]]
                x[i] = h[i] + sum(one for one, _ in got)
                x[i] /= 1 + sum(number for _, number in got)
            close(states.variables.params["x"][t], x)

    @pytest.mark.parametrize(
        "graph, options, message",
        [
            (nx.empty_graph(5), {}, "connected graph for a spanning tree, got one in"),
            (pj.graphs.ring(5, directed=True), {}, "Need an undirected graph for a sp"),
            (pj.graphs.as_graph(GRAPHS), {}, "Need one graph for a spanning tree"),
            (CHAIN, {"root": 5}, "Need a root among 0 to 4, got 5"),
            (CHAIN, {"rewire_every": 1}, "one graph that stays for RelaySGD"),
            (CHAIN, {"aggregate": pj.robust.median(1)}, "D-PSGD for a robust rule"),
            (CHAIN, {"channel": pj.channel.noise(1.0)}, "cannot take noisy messages"),
        ],
    )
    def test_refusals(self, graph, options, message):
        with pytest.raises(InputError, match=message):
            built("relay_sgd_chain", graph=graph, **options)

    def test_other_graphs_than_its_own(self):
        ring = pj.graphs.ring(5)
        with pytest.raises(InputError, match="Need a tree of 4 edges for RelaySGD"):
            pj.protocols.relay_sgd(ring)
        protocol = pj.protocols.relay_sgd(pj.graphs.bfs_tree(ring))
        method = pj.gossip(quadratics(), SGD, protocol, ring, batch_size=3)
        with pytest.raises(InputError, match="Need the tree of RelaySGD as its graph"):
            method.plan(np.random.default_rng(0), worlds(), 1)
        method = built("relay_sgd_chain", graph=nx.path_graph(4))
        with pytest.raises(InputError, match="Need a tree of as many agents as the da"):
            method.init(jax.random.key(0), worlds())


def _without(graph, i, j):
    cut = graph.copy()
    cut.remove_edge(i, j)
    return cut


@pytest.mark.parametrize("name", ["qg_dsgdm", "gt_cta", "gt_atc", "extra", "nids"])
def test_what_stays_at_home_takes_plain_steps(name):
    """Corrections are nothing and quasi-global momentum is the agent's own."""
    method = built(name, local_patterns=("params/x",))
    states, info = ran(method, 5, DISTINCT)
    alone = "qg_dsgdm" if name == "qg_dsgdm" else "gt_cta"
    expected = numpy_run(alone, [RATE] * 5, [np.eye(5)] * 5)
    close(states.variables.params["x"], expected)
    assert not np.asarray(info.payload).any()


def test_relays_of_what_stays_at_home():
    states, _ = ran(built("relay_sgd_chain", local_patterns=("params/x",)), 60)
    x = START
    for _ in range(60):
        x = x - RATE * gradients(x)
    close(states.variables.params["x"][-1], x)
    assert np.isfinite(states.protocol_state.sums["params"]["x"]).all()


HOSTILE = pj.attacks.alie((0,), 1.5)
REFUSED = [
    ("gt_cta", {"channel": pj.channel.drop(0.1)}, "Gradient tracking corrects with"),
    ("gt_atc", {"channel": pj.channel.drop(0.1)}, "Gradient tracking corrects with"),
    ("momentum_tracking", {"channel": pj.channel.drop(0.1)}, "Momentum tracking corr"),
    ("extra", {"channel": pj.channel.drop(0.1)}, "EXTRA corrects with what was sent"),
    ("nids", {"channel": pj.channel.drop(0.1)}, "Exact diffusion corrects with what"),
    ("gt_cta", {"channel": pj.channel.noise(1.0)}, "Gradient tracking cannot take n"),
    ("extra", {"channel": pj.channel.quantize(16)}, "EXTRA needs exact messages"),
    ("extra", {"aggregate": pj.robust.median(1)}, "D-PSGD for a robust rule, got EXT"),
    ("gt_semi_atc", {"aggregate": pj.robust.median(1)}, "a robust rule, got Gradient"),
    ("nids", {"aggregate": pj.robust.median(1)}, "a robust rule, got Exact diffusion"),
    ("gt_cta", {"attack": HOSTILE}, "an attack on messages, got Gradient tracking, w"),
    ("relay_sgd_chain", {"attack": HOSTILE}, "D-PSGD for an attack on messages, got "),
    ("extra", {"attack": pj.attacks.sign_flip((0,))}, "got EXTRA: what it sends is"),
    ("gt_cta", {"order": "backwards"}, "Need an order among combine_then_adapt, semi"),
    ("qg_dsgdm", {"momentum": 1.0}, "momentum from 0 to less than 1 for QG-DSGDm"),
    ("qg_dsgdm", {"decay": -0.1}, "decay from 0 to less than 1 for QG-DSGDm, got -0"),
    ("momentum_tracking", {"momentum": 2}, "momentum from 0 to less than 1 for Mome"),
    ("qg_dsgdm", {"optimizer": HEAVY}, "without momentum for QG-DSGDm, which has its"),
    ("momentum_tracking", {"optimizer": optax.adam(0.1)}, "without momentum for Mom"),
]


@pytest.mark.parametrize("name, options, message", REFUSED)
def test_refusals(name, options, message):
    with pytest.raises(InputError, match=message):
        built(name, **options)


def test_learners_are_refused_where_momentum_is_added():
    learner = pj.gradient_descent(quadratics(), SGD)
    with pytest.raises(InputError, match="Need an optimizer of optax for Momentum tr"):
        built("momentum_tracking", optimizer=learner)


@pytest.mark.parametrize(
    "name, message",
    [
        ("gt_cta", "doubly stochastic mixing matrix for Gradient tracking"),
        ("extra", "symmetric mixing matrix for EXTRA"),
        ("exact_diffusion", "symmetric mixing matrix for Exact diffusion"),
    ],
)
def test_matrices_that_will_not_do(name, message):
    method = built(name, mixing_weights=pj.graphs.uniform_receive)
    with pytest.raises(InputError, match=message):
        method.plan(np.random.default_rng(0), worlds(), 1)


TAKEN = {
    "losses": {"channel": pj.channel.drop(0.3)},
    "noise": {"channel": pj.channel.noise(0.01)},
    "half": {"channel": pj.channel.quantize(16)},
    "sparse": {"channel": pj.channel.top_k(0.7)},
    "stale": {"channel": pj.channel.stale()},
    "attack": {
        "attack": pj.attacks.sign_flip((4,)),
        "aggregate": pj.robust.median(1),
    },
    "epochs": {"local_updates": pj.epochs(2)},
}


@pytest.mark.parametrize("name", marked(TAKEN, *{*TAKEN} - {"losses", "attack"}))
def test_quasi_global_momentum_takes_what_dpsgd_takes(name):
    """Of which it is a case, whatever happens to messages."""
    options = {"graph": nx.complete_graph(5), **TAKEN[name]}
    same, _ = ran(built("qg_dsgdm", momentum=0.0, **options), 20)
    other, _ = ran(built("dsgd_atc", **options), 20)
    x = same.variables.params["x"]
    close(x, other.variables.params["x"], atol=1e-5)
    assert np.abs(x[-1] - START).max() > 0.1


@pytest.mark.parametrize("name", ["gt_atc", "extra"])
def test_local_epochs(name):
    """Agents agree, at a point that is close to the best."""
    method = built(name, optimizer=optax.sgd(0.02), local_updates=pj.epochs(3))
    states, info = ran(method, 400)
    x = np.asarray(states.variables.params["x"][-1])
    close(x, np.broadcast_to(x.mean(0), x.shape), atol=1e-6)
    assert 1e-3 < np.abs(x - BEST).max() < 0.1
    assert info.steps.tolist() == [[3] * 5] * 400


@pytest.mark.parametrize("name", ["gt_atc", "relay_sgd_chain"])
def test_poisoned_data_may_be_learned_from(name):
    """Attackers that send what the method says are possible where others are not."""
    attack = pj.attacks.label_flip((0,), num_classes=2)
    world = world_of(
        [
            {"a": x, "b": y, "y": np.zeros(3, np.int32)}
            for x, y in zip(A, B, strict=True)
        ]
    )
    states, _ = ran(built(name, attack=attack), 3, world=world)
    assert np.isfinite(states.variables.params["x"]).all()
