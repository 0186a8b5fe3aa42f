"""One contract for all ways of choosing peers: a new one is one more row of METHODS."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slow_cases import marked
from test_protocols import jit, next_word_world, run, vector_task, world_of

from p2pjax import sharding
from p2pjax.algorithms._d_cliques import d_cliques
from p2pjax.algorithms._diple import diple
from p2pjax.engines.pulling import pull
from p2pjax.graphs import topology
from p2pjax.nn import gru
from p2pjax.selection import peer_evaluation
from p2pjax.selection.dac import dac
from p2pjax.selection.diple import line_search
from p2pjax.selection.l2c import l2c
from p2pjax.selection.panm import panm
from p2pjax.selection.peer_sampling import partial_view
from p2pjax.selection.pens import pens
from p2pjax.selection.request_limits import limit_requests
from p2pjax.selection.similarity import agreement, update_cosine
from p2pjax.selection.sparse import sparse
from p2pjax.tasks._next_token import next_token
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.learner import gradient_descent
from p2pjax.types import Ratio


def of_the_guide():
    """The method that CONTRIBUTING.md writes, and the rows that it adds."""
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    section = guide.split("## Add a selection method in one file")[1]
    code, *rows = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    defined: dict = {"__name__": "alike"}
    exec(code, defined)
    return defined, rows


GUIDE, GUIDE_ROWS = of_the_guide()
# All stages of a method within NUM_ROUNDS rounds.
NUM_ROUNDS = 8
PENS = pens(num_peers=2, num_candidates=3, second_stage=4)
STAGES = {"num_peers": 2, "num_candidates": 3, "second_stage": 4, "matching_every": 2}
SLOW_STEPS = optax.sgd(0.5)
METHODS = {
    "sparse": sparse(),
    "pens": PENS,
    "dac": dac(num_peers=2, anneal=True),
    "dac_probe": dac(num_peers=2, similarity=agreement()),
    "panm_loss": panm(**STAGES),
    "panm_grad": panm(similarity=update_cosine(), **STAGES),
    "panm_probe": panm(similarity=agreement(), **STAGES),
    "l2c": l2c(num_kept=1, num_rounds_all=3, optimizer=SLOW_STEPS),
    "l2c_bilevel": l2c(
        bilevel=True, num_kept=1, num_rounds_all=3, optimizer=SLOW_STEPS
    ),
    "diple": line_search(num_peers=2),
    "panm_capped": limit_requests(panm(**STAGES), 2),
    "pens_with_views": partial_view(PENS, 2),
    "dac_capped_with_views": limit_requests(partial_view(dac(num_peers=2), 3), 2),
    "dac_with_views_that_forget": partial_view(dac(num_peers=2), 2, forgets=True),
    "sparse_capped": limit_requests(sparse(), 1),
    "pens_capped": limit_requests(PENS, 2),
    "l2c_capped_with_views": limit_requests(
        partial_view(l2c(num_kept=1, num_rounds_all=3, optimizer=SLOW_STEPS), 2), 2
    ),
    **eval(f"{{{GUIDE_ROWS[0]}}}", GUIDE),
}
# Whose programs take longest to compile, and others that share their parts.
SLOW = {"dac_probe", "panm_probe", "panm_capped", "pens_with_views", "l2c"}
SLOW |= {"pens_capped", "dac_capped_with_views", "l2c_capped_with_views"}
SLOW |= {"panm_grad", "sparse_capped", "dac_with_views_that_forget"}
CAPS = {
    "panm_capped": 2,
    "dac_capped_with_views": 2,
    "sparse_capped": 1,
    "pens_capped": 2,
    "l2c_capped_with_views": 2,
}


def evaluate_fn(variables, batch):
    valid = batch["valid"].astype(jnp.float32)
    squares = jnp.square(variables.params["x"][None] - batch["c"]).sum(1)
    return {"loss": Ratio(squares @ valid, valid.sum())}


TASK = vector_task()._replace(evaluate=evaluate_fn)
LEARNER = gradient_descent(TASK, optax.sgd(0.1, momentum=0.9))
PROBE = peer_evaluation.Probe(
    lambda variables, batch: jax.nn.softmax(batch["a"] * variables.params["x"][None]),
    {"a": np.array([[1.0, 0, 2], [0, 3, 1]], np.float32)},
)
# Everybody may ask two of three others.
GRAPH = topology.from_edges(
    4, np.array([1, 2, 2, 3, 3, 0, 0, 1]), np.repeat(np.arange(4), 2)
)


def random_world(num_agents, distance=5):
    """Two clusters so far apart; some agents have one example."""
    rng = np.random.default_rng(0)
    sizes = [1, *rng.integers(1, 4, num_agents - 1)]
    return jax.tree.map(
        jnp.asarray,
        world_of(
            [
                {"c": (rng.normal(size=(size, 3)) + distance * (n % 2)).astype("f4")}
                for n, size in enumerate(sizes)
            ]
        ),
    )


def build(name, graph, agent_loop):
    return pull(
        TASK,
        LEARNER,
        METHODS[name],
        graph,
        batch_size=2,
        probe=PROBE,
        agent_loop=agent_loop,
    )


def first_inputs(algorithm, world):
    inputs = algorithm.plan(np.random.default_rng(0), world, 1)
    return jax.tree.map(lambda leaf: leaf[0], inputs)


def stepped(algorithm, world, keys, rounds):
    """States and infos round by round, of all keys side by side."""
    inputs = first_inputs(algorithm, world)
    traces = []

    def step(key, t, state):
        traces.append(None)
        key_round = jax.random.fold_in(key, t)
        return algorithm.round(key_round, t, inputs, state, world)

    step = jit(jax.vmap(step, (0, None, 0)))
    state, results = jit(jax.vmap(algorithm.init, (0, None)))(keys, world), []
    for t in rounds:
        state, info = step(keys, jnp.int32(t), state)
        results.append(jax.tree.map(np.asarray, (state, info)))
    assert len(traces) == 1
    return results


def check_round(state, info, is_permitted, cap):
    """What every selection promises."""
    num_agents = len(is_permitted)
    own = np.arange(num_agents)[:, None]
    ids, weight = state.peers
    assert (ids[:, :1] == own).all()
    assert (weight >= 0).all()
    np.testing.assert_allclose(weight.sum(1), 1, atol=1e-5)
    assert ((weight > 0) | (ids == own)).all()  # padding is the agent itself
    fetched, merged = check_traffic(state, info, is_permitted)
    assert set(np.unique(fetched)) <= {0, 1}  # nobody twice
    assert (merged.sum(1) == ((weight > 0) & (ids != own)).sum(1)).all()
    assert fetched.sum(0).max() <= cap
    return merged


def check_traffic(state, info, is_permitted):
    """What every algorithm promises; how often was fetched and merged, `[N, N]`."""
    own = np.arange(len(is_permitted))[:, None]
    fetched, merged = np.zeros((2, *is_permitted.shape))
    for pairs, links in ((fetched, info.links), (merged, info.merged)):
        np.add.at(pairs, (own, links.sender), links.arrived)
    assert is_permitted[fetched > 0].all()
    assert (merged <= fetched).all()
    assert (info.sent == fetched.sum(0)).all()
    assert (info.received == fetched.sum(1)).all()
    assert ((info.payload > 0) == (info.sent > 0)).all()
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()
    return fetched, merged


def members(graph):
    mask = np.zeros((len(graph.mask),) * 2, bool)
    np.put_along_axis(mask, np.asarray(graph.neighbor), np.asarray(graph.mask), axis=1)
    return mask


def keys_and_one_again():
    """Two keys, and the first of them once more."""
    data = jax.random.key_data(jax.random.split(jax.random.key(3)))
    return jax.random.wrap_key_data(data[np.array([0, 1, 0])])


class TestContract:
    @pytest.mark.parametrize("name", marked(METHODS, *SLOW))
    def test_four_agents(self, name):
        """Traces once, seeds side by side, same key same peers."""
        world = random_world(4)
        algorithm = build(name, GRAPH, VMAP)
        for results in stepped(
            algorithm, world, keys_and_one_again(), range(NUM_ROUNDS)
        ):
            for seed in range(2):
                one = jax.tree.map(lambda leaf, seed=seed: leaf[seed], results)
                check_round(*one, members(GRAPH), CAPS.get(name, 4))
            for leaf in jax.tree.leaves(results):
                assert (leaf[0] == leaf[2]).all()

    @pytest.mark.parametrize("name", marked(METHODS, *{*METHODS} - {"pens", "dac"}))
    def test_a_hundred_agents(self, name):
        algorithm = build(name, None, VMAP)
        keys = jax.random.key(0)[None]
        rounds = (0, 1, 3, 4, 5)  # of all stages
        everybody = ~np.eye(100, dtype=bool)
        merged = np.zeros(everybody.shape)
        for results in stepped(algorithm, random_world(100), keys, rounds):
            one = jax.tree.map(lambda leaf: leaf[0], results)
            merged += check_round(*one, everybody, CAPS.get(name, 100))
        assert merged.any(1).mean() > 0.9

    @pytest.mark.slow
    @pytest.mark.parametrize("name", METHODS)
    def test_agents_in_place_and_side_by_side(self, name):
        world = random_world(4)
        results = [
            run(build(name, GRAPH, agent_loop), world, NUM_ROUNDS)
            for agent_loop in (VMAP, IN_PLACE, 3)
        ]
        for other in results[1:]:
            assert_same(results[0], other)


def assert_same(one, other):
    for mine, theirs in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


ALGORITHMS = {
    **{name: lambda name=name, **o: build_on(METHODS[name], **o) for name in METHODS},
    "diple_cycle": lambda agent_loop, **o: diple(
        TASK, LEARNER, batch_size=2, agent_loop=agent_loop, **o
    ),
    "d_cliques": lambda agent_loop, num_agents=8: d_cliques(
        TASK,
        optax.sgd(0.1, momentum=0.9),
        np.array([0, 1, 0, 1, 0, 0, 1, 1])[:num_agents],
        batch_size=2,
        agent_loop=agent_loop,
    ),
}
# More than a choice of peers: algorithms of their own, and with how many agents.
FOUR_AGENTS = {
    "diple_cycle": {"graph": GRAPH},
    "d_cliques": {"num_agents": 4},
}


def build_on(selection, agent_loop):
    return pull(
        TASK, LEARNER, selection, batch_size=2, probe=PROBE, agent_loop=agent_loop
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_several_devices_give_the_numbers_of_one(name):
    world = random_world(8)
    agent_loop = VMAP if name == "l2c_bilevel" else IN_PLACE
    results = []
    for num_devices in (1, 2, 4):
        algorithm = ALGORITHMS[name](agent_loop=agent_loop)
        with jax.set_mesh(sharding.agents_mesh(8, num_devices)):
            states, info = run(algorithm, sharding.place(world), 6)
            assert len(info.sent.sharding.device_set) == num_devices
            results.append(jax.tree.map(np.asarray, (states, info)))
    for other in results[1:]:
        assert_same(results[0], other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diple_cycle", "d_cliques"])
class TestOtherAlgorithms:
    def test_four_agents(self, name):
        """Traces once, seeds side by side, same key same numbers."""
        algorithm = ALGORITHMS[name](agent_loop=VMAP, **FOUR_AGENTS[name])
        graph = members(GRAPH) if name == "diple_cycle" else ~np.eye(4, dtype=bool)
        for results in stepped(
            algorithm, random_world(4), keys_and_one_again(), range(3)
        ):
            for seed in range(2):
                one = jax.tree.map(lambda leaf, seed=seed: leaf[seed], results)
                check_traffic(*one, graph)
            for leaf in jax.tree.leaves(results):
                assert (leaf[0] == leaf[2]).all()

    def test_agents_in_place_and_side_by_side(self, name):
        world = random_world(8)
        results = [
            run(ALGORITHMS[name](agent_loop=agent_loop), world, 3)
            for agent_loop in (VMAP, IN_PLACE)
        ]
        assert_same(*results)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pens", "panm_grad", "diple", "d_cliques", "fed_bn"])
def test_networks_with_batch_norm(name):
    """Statistics are sent or stay; losses fall; nothing becomes infinite."""
    module = gru.NextWord(20, 3, 4, 3, batch_norm=True)
    task = next_token(module, 4, ignore_token=1)
    world = next_word_world()
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optax.adam(0.01)
        learner = gradient_descent(task, optimizer)
        if name == "d_cliques":
            clique = np.array([0, 0, 1, 1, 1])
            algorithm = d_cliques(task, optimizer, clique, batch_size=2)
        elif name == "diple":
            algorithm = diple(task, learner, batch_size=2)
        else:
            selection = METHODS["pens" if name == "fed_bn" else name]
            local = ("batch_stats/.*",) if name == "fed_bn" else ()
            algorithm = pull(
                task, learner, selection, batch_size=2, local_patterns=local
            )
        states, info = run(algorithm, world, 10)
    losses = info.train_loss.mean(1)
    assert losses[-1] < losses[0]
    for leaf in jax.tree.leaves(states.variables):
        assert np.isfinite(leaf).all()
