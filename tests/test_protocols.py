"""Synchronous methods: published numbers, a plain loop, invariants, one contract."""

import json
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import marked

from p2pjax.algorithms._central import central
from p2pjax.algorithms._d2 import d2_protocol
from p2pjax.algorithms._extra import extra_protocol
from p2pjax.algorithms._gosgd import gosgd_protocol, halving, prepare_graph
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._qg_dsgdm import qg_dsgdm_protocol
from p2pjax.algorithms._relay_sgd import relay_protocol
from p2pjax.algorithms._sgp import sgp_protocol
from p2pjax.datasets import stacking
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.server import server_rounds
from p2pjax.engines.stepwise import gossip
from p2pjax.engines.tracking_protocol import tracking
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange import channel
from p2pjax.exchange.push_sum import push_sum_step
from p2pjax.exchange.shared import FED_BN, FULL, SILO_BN
from p2pjax.graphs import analysis, generators, mixing_matrices, topology
from p2pjax.graphs.topology import Topology
from p2pjax.graphs.trees import bfs_tree
from p2pjax.nn import gru
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.task import Task
from p2pjax.training import epochs, local_updates, samplers
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.learner import Learner, gradient_descent
from p2pjax.types import FederatedData, InputError, Peers, Ratio, Variables

VECTORS = json.loads((Path(__file__).parent / "vectors/protocols.json").read_text())
TARGETS = [0.0, 2.0, 4.0, 10.0]
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
# Compilation is all the time these tests take; the programs run for milliseconds.
jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
    },
)


def toy_task():
    """Half the mean squared distance of a scalar to the agent's targets."""

    def loss_fn(variables, batch, key):
        del key
        valid = batch["valid"].astype(jnp.float32)
        losses = jnp.square(variables.params["x"] - batch["c"]) / 2
        return (losses * valid).sum() / jnp.maximum(valid.sum(), 1), variables.stats

    def evaluate_fn(variables, batch):
        loss, _ = loss_fn(variables, batch, None)
        return {"loss": Ratio(loss, jnp.ones(()))}

    return Task(lambda key: Variables({"x": jnp.ones(())}, {}), loss_fn, evaluate_fn)


TOY = toy_task()
evaluate_toy = on_test_sets(TOY)
TOY_LEARNER = gradient_descent(TOY, optax.sgd(0.5))


def world_of(agents):
    train = stacking.stack_agents(agents)
    return FederatedData(train, train, train, np.zeros(len(agents), np.int32))


def toy_world(targets=TARGETS, sizes=None):
    sizes = [1] * len(targets) if sizes is None else sizes
    return world_of(
        [
            {"c": np.full(size, c, np.float32)}
            for c, size in zip(targets, sizes, strict=True)
        ]
    )


def run(algorithm, world, num_rounds, *, seed=0, inputs=None):
    """States and infos of all rounds, leaves `[R, ...]`."""
    if inputs is None:
        inputs = algorithm.plan(np.random.default_rng(seed), world, num_rounds)

    @jit
    def rounds(key, inputs, world):
        def one(state, scanned):
            t, inputs = scanned
            key_round = jax.random.fold_in(key, t)
            state, info = algorithm.round(key_round, t, inputs, state, world)
            return state, (state, info)

        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        return jax.lax.scan(one, algorithm.init(key, world), (numbers, inputs))[1]

    world = jax.tree.map(jnp.asarray, world)
    return rounds(jax.random.key(seed), inputs, world)


def toy(protocol, graph, *, batch_size=1, learner=TOY_LEARNER, **options):
    options = {"batch_size": batch_size, "agent_loop": VMAP, **options}
    return gossip(TOY, learner, protocol, graph, **options)


def started(algorithm, variables):
    """The algorithm with other models at the start."""

    def init(key, world):
        return algorithm.init(key, world)._replace(variables=variables)

    return algorithm._replace(init=init)


def toy_run(*args, world=None, num_rounds=3, **options):
    states, info = run(toy(*args, **options), world or toy_world(), num_rounds)
    return np.asarray(states.variables.params["x"]), states.protocol_state, info


def digraph(num_agents, *ends):
    sender, receiver = np.array(ends).T
    return topology.from_edges(num_agents, sender, receiver)


# Degrees differ, in and out, and everybody reaches everybody.
IRREGULAR = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3), (1, 4))


class TestVectors:
    def test_local_only(self):
        states, _ = run(local_only(TOY, TOY_LEARNER, batch_size=1), toy_world(), 2)
        x = states.variables.params["x"]
        close(x, [VECTORS["local"]["r1"], VECTORS["local"]["r2"]])

    def test_central(self):
        algorithm = central(TOY, TOY_LEARNER, batch_size=8)
        states, _ = run(algorithm, toy_world(), 2)
        close(states.variables.params["x"][:, 0], VECTORS["central"])
        last = jax.tree.map(lambda leaf: leaf[-1], states)
        close(algorithm.models(last).reported.params["x"], VECTORS["central"][-1:] * 4)

    @pytest.mark.parametrize(
        "name, sizes, chosen",
        [
            ("equal", [1, 1, 1, 1], [True] * 4),
            ("n=1,1,2,4", [1, 1, 2, 4], [True] * 4),
            ("clients 0,3 equal", [1, 1, 1, 1], [True, False, False, True]),
        ],
    )
    def test_fedavg(self, name, sizes, chosen):
        algorithm = server_rounds(
            TOY, TOY_LEARNER, batch_size=4, num_clients=sum(chosen)
        )
        world = toy_world(sizes=sizes)
        states, info = run(algorithm, world, 1, inputs=np.array([chosen]))
        close(states.variables.params["x"][0], [VECTORS["fedavg"][name]] * 4)
        assert info.sent.sum() + info.received.sum() == 2 * sum(chosen)
        assert info.payload.tolist() == [np.float32(chosen).tolist()]

    @pytest.mark.parametrize(
        "name, protocol, directed",
        [
            ("dpsgd_ring_u", neighbor_averaging(), False),
            ("dpsgd_ring_d", neighbor_averaging(), True),
            ("dpsgd_mix_first_ring_u", neighbor_averaging(mix_first=True), False),
            # On regular graphs the three matrices are one, and SGP is D-PSGD.
            ("dpsgd_ring_d", sgp_protocol(), True),
            (
                "dpsgd_ring_u",
                neighbor_averaging(mixing_matrices.metropolis_hastings),
                False,
            ),
        ],
    )
    def test_dpsgd(self, name, protocol, directed):
        expected = np.array(VECTORS[name])
        graph = generators.ring(4, directed=directed)
        x, _, _ = toy_run(protocol, graph, num_rounds=len(expected))
        close(x, expected)

    def test_d2_agrees_where_dpsgd_keeps_a_bias(self):
        def half_and_quarters(graph):
            peers = mixing_matrices.metropolis_hastings(graph)
            weight = jnp.asarray([0.5, 0.25, 0.25])
            return Peers(peers.ids, jnp.broadcast_to(weight, peers.weight.shape))

        learner = gradient_descent(TOY, optax.sgd(0.2))
        options = {"num_rounds": 300, "learner": learner}
        ring = generators.ring(4)
        x, _, _ = toy_run(d2_protocol(half_and_quarters), ring, **options)
        close(x[:3], VECTORS["d2"]["first3"])
        close(x[-1], VECTORS["d2"]["r300"])
        biased, _, _ = toy_run(neighbor_averaging(half_and_quarters), ring, **options)
        close(biased[-1], VECTORS["d2"]["dpsgd_r300"])

    def test_sgp(self):
        graph = digraph(3, (0, 1), (0, 2), (1, 2), (2, 0))
        z, w, info = toy_run(sgp_protocol(), graph, world=toy_world([0.0, 3, 6]))
        for r, expected in enumerate(VECTORS["sgp"]):
            close(z[r], expected["z"])
            close(w[r], expected["w"])
            close(w[r] * z[r], expected["x"])
        assert info.sent.tolist() == [[2, 1, 1]] * 3
        assert info.received.tolist() == [[1, 1, 2]] * 3

    @pytest.mark.parametrize(
        "name, directed, senders",
        [
            ("directed ring, 0 and 2 send", True, [0, 2]),
            ("undirected ring, 3 sends to 0,2", False, [3]),
        ],
    )
    def test_gosgd(self, name, directed, senders):
        wires = wires_of_first(generators.ring(4, directed=directed))
        sends = wires.has_receiver & np.isin(np.arange(4), senders)[:, None]
        stepped = np.array([0.5, 1.5, 2.5, 5.5])
        means, w = merge(wires, sends, np.full(4, 0.25, np.float32))
        x = analysis.dense_matrix(means) @ stepped
        close(x, VECTORS["gosgd"][name]["x"])
        close(w, VECTORS["gosgd"][name]["w"])
        close((w * x).sum(), 2.5)

    @pytest.mark.parametrize(
        "name, local",
        [
            ("full", FULL),
            ("fed_bn", FED_BN),
            ("silo_bn", SILO_BN),
        ],
    )
    def test_masks(self, name, local):
        receiver, sender, expected = (
            np.array(VECTORS["masks"][key], np.float32)
            for key in ("receiver", "sender", name)
        )
        both = jnp.asarray(np.stack([receiver, sender]))
        idle = Learner(
            lambda variables: (),
            lambda key, variables, opt, batch, extra: (variables, opt, jnp.zeros(())),
        )
        world = toy_world([0.0, 1])
        variables = Variables(
            {
                "dense": {"kernel": both[:, :1]},
                "norm": {"scale": both[:, 1:2], "bias": both[:, 2:3]},
            },
            {"batch_stats": {"norm": {"mean": both[:, 3:4], "var": both[:, 4:]}}},
        )
        one_agent = jax.tree.map(lambda leaf: leaf[0], variables)
        task = TOY._replace(init=lambda key: one_agent, norm=frozenset({"norm"}))
        algorithm = gossip(
            task,
            idle,
            neighbor_averaging(),
            generators.ring(2),
            batch_size=1,
            local_patterns=local,
            agent_loop=VMAP,
        )
        states, info = run(started(algorithm, variables), world, 1)
        params, stats = states.variables
        norm, moments = params["norm"], stats["batch_stats"]["norm"]
        found = [params["dense"]["kernel"], norm["scale"], norm["bias"]]
        found += [moments["mean"], moments["var"]]
        close(np.concatenate(found, axis=2)[0, 0], expected)
        shared = {"full": 5, "fed_bn": 1, "silo_bn": 3}[name]
        assert info.payload.tolist() == [[shared, shared]]


PAIRS = [(i, j) for i in range(5) for j in range(5) if i != j]


def wires_of_first(*graphs):
    wires = prepare_graph(topology.stack(graphs))
    return jax.tree.map(lambda leaf: leaf[0], wires)


@jax.jit
def merge(wires, sends, weight):
    return push_sum_step(halving(wires, sends), weight)


class TestAgainstAPlainLoop:
    """Ragged agents, several steps per epoch, a graph that changes."""

    sizes = (1, 3, 5, 8, 2)
    num_rounds = 4
    batch_size = 2
    rate = 0.3

    @cached_property
    def world(self):
        rng = np.random.default_rng(5)
        return world_of([{"c": rng.normal(size=n).astype("f4")} for n in self.sizes])

    def graphs(self, directed):
        ends = np.array(IRREGULAR)
        if not directed:
            ends = np.concatenate([ends, ends[:, ::-1]])
        other = (ends + 2) % 5
        return topology.stack([digraph(5, *ends), digraph(5, *other)])

    def batches(self):
        """Targets of every agent in every step of every round, as nested lists."""
        num_steps = epochs.steps_of_epochs(
            np.array(self.sizes), self.batch_size, self.num_rounds
        )
        sampler = samplers.shuffled_epochs(self.batch_size, max(self.sizes))
        key = jax.random.key(0)
        steps = jnp.arange(num_steps.sum(), dtype=jnp.int32)
        sizes = jnp.asarray(self.sizes, jnp.int32)
        of_agents = jax.vmap(sampler, (None, None, 0))
        draws = jit(jax.vmap(of_agents, (None, 0, None)))(key, steps, sizes)
        drawn = [
            [
                self.world.train.examples["c"][n][indices[valid]]
                for n, (indices, valid) in enumerate(zip(*step, strict=True))
            ]
            for step in zip(*map(np.asarray, draws), strict=True)
        ]
        ends = np.cumsum(num_steps)
        return [drawn[e - n : e] for e, n in zip(ends, num_steps, strict=True)]

    @staticmethod
    def matrix(graph, rule):
        """Row = receiver, one entry at a time."""
        links = np.zeros((5, 5))
        for sender, receiver in zip(*topology.edges(graph), strict=True):
            links[receiver, sender] = 1
        result = np.zeros((5, 5))
        degrees = links.sum(1)
        for i in range(5):
            for j in range(5):
                if links[i, j] or (i == j and rule != "metropolis"):
                    result[i, j] = {
                        "receive": 1 / (1 + links[i].sum()),
                        "send": 1 / (1 + links[:, j].sum()),
                        "metropolis": 1 / (1 + max(degrees[i], degrees[j])),
                    }[rule]
        return result + np.diag(1 - result.sum(1)) if rule == "metropolis" else result

    def reference(self, method, directed):
        rule = {"sgp": "send", "d2": "metropolis"}.get(method, "receive")
        graphs = topology.unstack(self.graphs(directed))
        x, w, old = np.ones(5), np.ones(5), None
        for r, batches in enumerate(self.batches()):
            matrix = self.matrix(graphs[r // 2 % 2], rule)
            for batch in batches:
                model = x / w if method == "sgp" else x
                gradient = np.array(
                    [(model[n] - c).mean() for n, c in enumerate(batch)]
                )
                step = self.rate * gradient
                if method == "mix_first":
                    x = matrix @ x - step
                elif method == "d2" and old is not None:
                    x, old = matrix @ (2 * x - old[0] - step + old[1]), (x, step)
                else:
                    x, old = matrix @ (x - step), (x, step)
                w = matrix @ w if method == "sgp" else w
        return x / w

    @pytest.mark.parametrize(
        "method, protocol, directed",
        [
            ("dpsgd", neighbor_averaging(), True),
            ("mix_first", neighbor_averaging(mix_first=True), True),
            ("d2", d2_protocol(), False),
            ("sgp", sgp_protocol(), True),
        ],
    )
    def test_stepwise(self, method, protocol, directed):
        learner = gradient_descent(TOY, optax.sgd(self.rate))
        x, _, _ = toy_run(
            protocol,
            self.graphs(directed),
            rewire_every=2,
            world=self.world,
            num_rounds=self.num_rounds,
            batch_size=self.batch_size,
            learner=learner,
        )
        close(x[-1], self.reference(method, directed))

    @given(st.sets(st.sampled_from(PAIRS), min_size=1), st.integers(0, 1000))
    def test_gosgd_is_the_sequential_merge(self, ends, seed):
        rng = np.random.default_rng(seed)
        x, w = rng.normal(size=5), rng.dirichlet(np.ones(5))
        own, inbox = w.copy(), [[] for _ in range(5)]
        sends = np.zeros((5, 4), bool)  # [sender, place]
        places = np.zeros(5, int)
        for sender, receiver in sorted(ends):
            is_active = rng.random() < 0.7
            sends[sender, places[sender]] = is_active
            places[sender] += 1
            if is_active:
                own[sender] /= 2
                inbox[receiver].append((own[sender], x[sender]))
        merged = x.copy()
        for n in range(5):
            for weight, model in inbox[n]:
                total = own[n] + weight
                merged[n] = (own[n] * merged[n] + weight * model) / total
                own[n] = total

        # Beside a complete graph every graph has tables of one width.
        wires = wires_of_first(digraph(5, *ends), generators.complete(5))
        means, after = merge(wires, sends, w.astype("f4"))
        close(analysis.dense_matrix(means) @ x, merged)
        close(after, own)


class TestInvariants:
    def test_sgp_weights_sum_to_the_number_of_agents_unless_messages_are_lost(self):
        graph = digraph(5, *IRREGULAR)
        world = toy_world([0.0, 1, 2, 3, 4])
        _, kept, info = toy_run(sgp_protocol(), graph, world=world, num_rounds=20)
        close(kept.sum(1), np.full(20, 5.0), atol=1e-4)
        assert np.ptp(kept[-1]) > 0.1  # or SGP would be D-PSGD here
        _, leaking, lossy = toy_run(
            sgp_protocol(),
            graph,
            world=world,
            num_rounds=20,
            channel=channel.drop(0.3),
        )
        sums = np.asarray(lossy.weight.sum(1))
        close(sums, leaking.sum(1))
        assert (np.diff(sums) < 1e-6).all()
        assert 0 < sums[-1] < 4
        assert (lossy.sent == info.sent).all()
        assert 0.5 < lossy.received.sum() / info.received.sum() < 0.9

    def test_sgp_without_gradients_reaches_the_mean_and_dpsgd_does_not(self):
        start = jnp.asarray([8.0, 1, 5, -2, 0])
        found = {}
        for name, protocol in {
            "sgp": sgp_protocol(),
            "dpsgd": neighbor_averaging(),
        }.items():
            still = gradient_descent(TOY, optax.sgd(0.0))
            algorithm = toy(protocol, digraph(5, *IRREGULAR), learner=still)
            algorithm = started(algorithm, Variables({"x": start}, {}))
            states, _ = run(algorithm, toy_world([0.0] * 5), 100)
            found[name] = states.variables.params["x"][-1]
        close(found["sgp"], np.full(5, start.mean()), atol=1e-4)
        assert np.ptp(found["dpsgd"]) < 1e-4
        assert abs(found["dpsgd"][0] - start.mean()) > 0.1

    @pytest.mark.parametrize("per_edge", [False, True])
    def test_gosgd_keeps_the_weighted_mean(self, per_edge):
        still = gradient_descent(TOY, optax.sgd(0.0))
        algorithm = toy(
            gosgd_protocol(0.5, per_edge=per_edge),
            digraph(5, *IRREGULAR),
            learner=still,
        )
        start = jnp.asarray([0.0, 1, 5, -2, 8])
        algorithm = started(algorithm, Variables({"x": start}, {}))
        states, info = run(algorithm, toy_world([0.0] * 5), 30)
        x, w = states.variables.params["x"], states.protocol_state
        close((w * x).sum(1), np.full(30, start.mean()), atol=1e-4)
        close(w.sum(1), np.ones(30))
        assert np.ptp(w[-1]) > 0.01
        assert np.ptp(x[-1]) < np.ptp(start) / 2
        to_all_or_none = set(np.unique(info.sent[:, 0])) == {0, 3}
        assert to_all_or_none != per_edge

    def test_gosgd_weights_survive_long_lists_of_receivers(self):
        # Half of the weight 200 times over is below what a float32 can hold.
        star = topology.from_graph(
            nx.DiGraph([(0, n) for n in range(1, 201)]),
        )
        x, w, info = toy_run(gosgd_protocol(1.0), star, world=toy_world([3.0] * 201))
        assert np.isfinite(x).all()
        assert (np.asarray(w) >= 1e-30).all()
        assert info.sent[:, 0].tolist() == [200] * 3

    def test_local_only_depends_on_own_data_only(self):
        algorithm = local_only(TOY, TOY_LEARNER, batch_size=2)
        worlds = toy_world(sizes=[1, 2, 3, 5]), toy_world([9.0, 2, -1, 3], [4, 2, 1, 5])
        one, other = (
            run(algorithm, world, 3)[0].variables.params["x"] for world in worlds
        )
        assert (one[:, 1] == other[:, 1]).all()
        assert (one[:, 0] != other[:, 0]).all()

    def test_without_links_steps_are_local_training(self):
        alone = Topology(np.arange(4, dtype=np.int32)[:, None], np.zeros((4, 1), bool))
        expected = run(local_only(TOY, TOY_LEARNER, batch_size=1), toy_world(), 3)[0]
        for protocol in (d2_protocol(), sgp_protocol(), gosgd_protocol(1.0)):
            x, _, info = toy_run(protocol, alone)
            close(x, expected.variables.params["x"])
            assert info.sent.sum() == info.received.sum() == 0

    def test_leaves_that_stay_learn_alone(self):
        expected = run(local_only(TOY, TOY_LEARNER, batch_size=1), toy_world(), 3)[0]
        for protocol in (
            neighbor_averaging(mix_first=True),
            d2_protocol(),
            sgp_protocol(),
        ):
            graph = digraph(4, (0, 1), (1, 2), (2, 0), (2, 3), (3, 0), (1, 0))
            protocol = protocol._replace(  # directed, no warning
                prepare_graph=sgp_protocol().prepare_graph
            )
            x, _, info = toy_run(protocol, graph, local_patterns=("params/x",))
            close(x, expected.variables.params["x"])
            assert info.payload.sum() == 0

    def test_server_optimizer_of_rate_one_is_the_mean(self):
        make = partial(server_rounds, TOY, TOY_LEARNER, batch_size=2, num_clients=2)
        world = toy_world(sizes=[1, 2, 3, 5])
        twice = partial(make, local_updates=local_updates.epochs(2))
        plain, _ = run(twice(), world, 4)
        sgd, _ = run(twice(server_opt=optax.sgd(1.0)), world, 4)
        close(plain.variables.params["x"], sgd.variables.params["x"])
        with jax.numpy_dtype_promotion("standard"):
            adam, _ = run(make(server_opt=optax.adam(0.25)), world, 1)
        close(abs(adam.variables.params["x"] - 1), np.full((1, 4), 0.25), atol=1e-4)


class TestMessages:
    sizes = (1, 3, 5, 8, 2)
    graph = digraph(5, *IRREGULAR)

    def info(self, algorithm, num_rounds=12):
        world = toy_world([0.0] * 5, self.sizes)
        return run(algorithm, world, num_rounds)[1]

    @pytest.mark.parametrize("protocol", [neighbor_averaging(), sgp_protocol()])
    def test_every_step_costs_a_message_per_link(self, protocol):
        info = self.info(toy(protocol, self.graph, batch_size=2))
        info = jax.tree.map(np.asarray, info)
        sizes = np.array(self.sizes)
        mean_batch = sizes / -(-sizes // 2)
        per_epoch = sizes.sum() / mean_batch.sum() * len(IRREGULAR)
        assert info.sent.sum() / 12 == pytest.approx(per_epoch, rel=0.05)
        steps = info.sent[:, 4]  # agent 4 sends to one other
        assert (info.sent == steps[:, None] * np.float32([3, 2, 1, 1, 1])).all()
        assert (info.received == steps[:, None] * np.float32([1, 1, 2, 2, 2])).all()
        assert (info.payload == info.sent).all()  # one parameter
        passes, rest = np.divmod(steps.cumsum()[:, None], -(-sizes // 2))
        trained = passes * sizes + np.minimum(2 * rest, sizes)
        np.testing.assert_array_equal(info.examples.cumsum(0), trained)
        pairs = np.zeros((5, 5))
        for sender, count in zip(*info.links, strict=True):
            np.add.at(pairs, (np.arange(5)[:, None], sender), count)
        expected = np.zeros((5, 5))
        expected[tuple(np.transpose(IRREGULAR)[::-1])] = steps.sum()
        np.testing.assert_array_equal(pairs, expected)

    def test_d2(self):
        info = self.info(toy(d2_protocol(), generators.ring(5), batch_size=2))
        steps = epochs.steps_of_epochs(np.array(self.sizes), 2, 12)
        assert (info.sent == 2 * steps[:, None].astype("f4")).all()
        assert (info.received == info.sent).all()

    @pytest.mark.parametrize("per_edge", [False, True])
    def test_gosgd_sends_with_its_probability(self, per_edge):
        algorithm = toy(
            gosgd_protocol(0.1, per_edge=per_edge), self.graph, batch_size=2
        )
        some = self.info(algorithm, 300)
        steps = epochs.steps_of_epochs(np.array(self.sizes), 2, 300)
        ratio = float(some.sent.sum()) / (steps.sum() * len(IRREGULAR))
        assert ratio == pytest.approx(0.1, rel=0.15)  # about four deviations
        assert some.sent.sum() == some.received.sum() == some.links.arrived.sum()

    def test_references_send_nothing_and_clients_one_each_way(self):
        for algorithm in (
            local_only(TOY, TOY_LEARNER, batch_size=2),
            central(TOY, TOY_LEARNER, batch_size=2),
        ):
            info = self.info(algorithm, 2)
            assert not any(map(np.any, (info.sent, info.received, info.payload)))
            assert (np.asarray(info.examples) == self.sizes).all()
        info = self.info(server_rounds(TOY, TOY_LEARNER, batch_size=2, num_clients=3))
        assert (info.sent.sum(1) == 3).all()
        assert (info.sent == info.received).all()
        assert set(np.unique(info.sent)) == {0, 1}
        assert len(np.unique(info.sent, axis=0)) > 1
        trained = np.asarray(info.sent) * self.sizes
        np.testing.assert_array_equal(info.examples, trained)


class TestWarnings:
    def test_d2_is_lazy_on_rings_of_even_length(self):
        with pytest.warns(UserWarning, match="lazy matrix .* 1 of 1 graphs"):
            x, _, _ = toy_run(d2_protocol(), generators.ring(4), num_rounds=1)
        lazy = (
            np.eye(4) * 2 / 3
            + (np.roll(np.eye(4), 1, 0) + np.roll(np.eye(4), -1, 0)) / 6
        )
        close(x[0], lazy @ [0.5, 1.5, 2.5, 5.5])

    def test_d2_is_lazy_only_where_needed(self):
        graphs = topology.stack([generators.complete(4), generators.ring(4)])
        with pytest.warns(UserWarning, match="-0.333.* 1 of 2 graphs"):
            x, _, _ = toy_run(d2_protocol(), graphs, num_rounds=1, rewire_every=1)
        close(x[0], np.full(4, 2.5))

    def test_d2_warns_of_directed_graphs(self):
        with pytest.warns(UserWarning, match="outside theory"):
            x, _, _ = toy_run(
                d2_protocol(), generators.ring(4, directed=True), num_rounds=1
            )
        close(x[0], VECTORS["dpsgd_ring_d"][0])


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: channel.drop(1.0), "losing a message from 0 to below 1, got 1.0"),
        (lambda: gosgd_protocol(1.5), "probability from 0 to 1, got 1.5"),
        (
            lambda: central(TOY, TOY_LEARNER, batch_size=0),
            "batch size of 1 or more, got 0",
        ),
        (
            lambda: server_rounds(TOY, TOY_LEARNER, batch_size=1, num_clients=0),
            "one client or more",
        ),
        (
            lambda: toy(neighbor_averaging(), generators.ring(4), rewire_every=2),
            "rewire_every=2 and one graph",
        ),
        (
            lambda: toy(neighbor_averaging(), topology.stack([generators.ring(4)] * 2)),
            "Need rewire_every for a sequence",
        ),
        (
            lambda: toy_run(neighbor_averaging(), generators.ring(5)),
            "as the data have, 4, got one of 5",
        ),
        (
            lambda: run(
                server_rounds(TOY, TOY_LEARNER, batch_size=1, num_clients=5),
                toy_world(),
                1,
            ),
            "at most 4 clients",
        ),
    ],
)
def test_refuses(build, message):
    with pytest.raises(InputError, match=message):
        build()


class Setting(NamedTuple):
    task: Task
    learner: Learner
    batch_size: int
    agent_loop: int = IN_PLACE

    def stepwise(self, protocol, graph, **options):
        rewire_every = 1 if callable(graph) else None
        options = {"rewire_every": rewire_every, **options, **self.rest}
        return gossip(*self[:2], protocol, graph, **options)

    @property
    def rest(self):
        return {"batch_size": self.batch_size, "agent_loop": self.agent_loop}


def changing(rng):
    """Undirected, five agents, all eigenvalues above -1/3."""
    return generators.random_regular(5, 2, seed=rng)


DIRECTED = digraph(5, *IRREGULAR)
RING = generators.ring(5)
METHODS = {
    "local_only": lambda s: local_only(s.task, s.learner, **s.rest),
    "central": lambda s: central(s.task, s.learner, batch_size=s.batch_size),
    "fedavg": lambda s: server_rounds(
        s.task,
        s.learner,
        num_clients=3,
        local_updates=local_updates.epochs(2),
        server_opt=optax.adam(0.01),
        **s.rest,
    ),
    "dpsgd": lambda s: s.stepwise(neighbor_averaging(), changing),
    "mix_first": lambda s: s.stepwise(neighbor_averaging(mix_first=True), DIRECTED),
    "d2": lambda s: s.stepwise(d2_protocol(), changing),
    "sgp": lambda s: s.stepwise(sgp_protocol(), DIRECTED, channel=channel.drop(0.1)),
    "gosgd": lambda s: s.stepwise(gosgd_protocol(0.5), DIRECTED),
    "gradient_tracking": lambda s: s.stepwise(tracking(), changing),
    "extra": lambda s: s.stepwise(extra_protocol(), RING),
    "qg_dsgdm": lambda s: s.stepwise(qg_dsgdm_protocol(), changing),
    "relay_sgd": lambda s: s.stepwise(relay_protocol(bfs_tree(RING)), bfs_tree(RING)),
}
RAGGED = (1, 4, 3, 5, 2)


def vector_task():
    """`TOY` of three numbers, with a random start."""
    return TOY._replace(
        init=lambda key: Variables({"x": jax.random.normal(key, (3,))}, {}),
        loss=lambda variables, batch, key: (
            jnp.square(variables.params["x"][None] - batch["c"]).sum(1)
            @ batch["valid"].astype(jnp.float32),
            variables.stats,
        ),
    )


def vector_setting(agent_loop):
    learner = gradient_descent(vector_task(), optax.sgd(0.1, momentum=0.9))
    return Setting(vector_task(), learner, 2, agent_loop)


def vector_world():
    rng = np.random.default_rng(0)
    return world_of([{"c": rng.normal(size=(n, 3)).astype("f4")} for n in RAGGED])


def next_word_world():
    rng = np.random.default_rng(0)
    return world_of(
        [
            {
                "x": rng.integers(0, 20, (n, 4)).astype("i2"),
                "y": rng.integers(2, 20, n).astype("i2"),
            }
            for n in RAGGED
        ]
    )


@pytest.fixture
def loose_dtypes():
    """Adam divides floats by integers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("loose_dtypes")
@pytest.mark.parametrize(
    "method", marked(METHODS, "central", "mix_first", "extra", "qg_dsgdm", "d2")
)
class TestContract:
    def test_seeds_side_by_side_and_agents_in_place_give_the_same(self, method):
        world = vector_world()
        keys = jax.random.split(jax.random.key(3), 2)
        results = []
        for agent_loop in (VMAP, IN_PLACE):
            algorithm = METHODS[method](vector_setting(agent_loop))
            inputs = algorithm.plan(np.random.default_rng(0), world, 2)

            def two_rounds(key, algorithm=algorithm, inputs=inputs):
                def one(state, scanned):
                    return algorithm.round(key, *scanned, state, world)

                numbers = jnp.arange(2, dtype=jnp.int32)
                state = algorithm.init(key, world)
                return jax.lax.scan(one, state, (numbers, inputs))

            if agent_loop == VMAP:
                results.append(jit(jax.vmap(two_rounds))(keys))
            else:
                alone = list(map(jit(two_rounds), keys))
                results.append(jax.tree.map(lambda *s: np.stack(s), *alone))
        for one, other in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        x = results[0][0].variables.params["x"]
        assert (x[0] != x[1]).any()

    def test_traces_once_and_optimizers_stay_private(self, method):
        """After one step from the same start only own data shape an optimizer."""
        learner = gradient_descent(TOY, optax.sgd(0.5, momentum=0.9))
        targets = np.array([0.0, 2, 4, 10, -3])
        algorithm = METHODS[method](Setting(TOY, learner, 1))
        traces, momenta = [], []

        def counted(*args):
            traces.append(None)
            return algorithm.round(*args)

        counting = algorithm._replace(round=counted)
        for seed in range(2):
            for snapshot in simulate(
                jax.random.key(seed),
                counting,
                toy_world(targets),
                3,
                eval_every=1,
                evaluate=evaluate_toy,
            ):
                momenta.append(np.asarray(jax.tree.leaves(snapshot.state.opt_state)[0]))
                assert snapshot.metrics["loss"].shape == (5,)
        assert len(traces) == 1
        gradients = 1 - targets
        if method == "fedavg":  # two steps of three clients
            second = gradients - 0.5 * gradients
            is_chosen = momenta[0] != 0
            assert is_chosen.sum() == 3
            gradients = np.where(is_chosen, 0.9 * gradients + second, 0)
        if method != "central":
            close(momenta[0], gradients)

    @pytest.mark.slow
    def test_next_word_networks_with_batch_norm(self, method):
        module = gru.NextWord(20, 3, 4, 3, batch_norm=True)
        task = next_token(module, 4, ignore_token=1)
        learner = gradient_descent(task, optax.adam(0.01))
        algorithm = METHODS[method](Setting(task, learner, 2))
        states, info = run(algorithm, next_word_world(), 10)
        losses = info.train_loss.mean(1)
        assert losses[-1] < losses[0]
        stats = states.variables.stats
        for norm in stats["batch_stats"].values():
            assert (norm["mean"] != 0).any()
            assert (norm["var"] > 0).all() and (norm["var"] != 1).all()
        close(stats["momentum"], 0.9)
        for leaf in jax.tree.leaves(states.variables):
            assert np.isfinite(leaf).all()


@pytest.mark.parametrize("is_wide", [False, True])
def test_push_sum_weights_have_the_present_width(is_wide):
    with jax.enable_x64(is_wide):
        found = [
            protocol.init({"params": {"x": jnp.zeros((3, 2))}})
            for protocol in (sgp_protocol(), gosgd_protocol())
        ]
    width = np.float64 if is_wide else np.float32
    np.testing.assert_array_equal(found[0], np.ones(3, width))
    np.testing.assert_array_equal(found[1], np.full(3, 1 / 3, width))
    assert {weight.dtype for weight in found} == {np.dtype(width)}
