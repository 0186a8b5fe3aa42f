"""Library calls that would go wrong in silence are refused in a sentence."""

import functools

import jax
import networkx as nx
import numpy as np
import optax
import pytest

import p2pjax as pj
from p2pjax.asynchronous.task_groups import joined_world
from p2pjax.datasets import partition
from p2pjax.datasets.label_sets import label_set
from p2pjax.graphs import Topology, mixing_matrices, topology
from p2pjax.types import InputError, Peers

ROWS = np.array([[0.5, 0.5, 0, 0], [0.2, 0.6, 0.2, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]])
P2P = functools.partial(pj.p2p_bn, fine_tuning=False)
ONE_WAY = [(0, 1), (0, 2), (3, 0)]


def split(num_examples, num_agents=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_agents, num_examples, 5)).astype(np.float32)
    y = rng.integers(3, size=(num_agents, num_examples)).astype(np.int32)
    return pj.Split({"x": x, "y": y}, np.full(num_agents, num_examples, np.int32))


DATA = pj.FederatedData(split(6), split(2), split(3), np.zeros(4, np.int32))


def task():
    return pj.classification(pj.nn.MLP((4, 3)), (5,))


def changed(name="train", **leaves):
    """The data with other sizes, or other examples `x` or `y`."""
    part = getattr(DATA, name)
    if "size" in leaves:
        return DATA._replace(
            **{name: part._replace(size=np.asarray(leaves.pop("size")))}
        )
    return DATA._replace(**{name: part._replace(examples={**part.examples, **leaves})})


def planned(data=DATA, graph=None, method=pj.dpsgd, batch_size=2, **options):
    graph = pj.graphs.ring(4) if graph is None else graph
    made = method(task(), optax.sgd(0.1), graph, batch_size=batch_size, **options)
    return made.plan(np.random.default_rng(0), data, 2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(size=[9, 6, 6, 6]), "training examples from 0 to 6"),
        (changed(size=[6, -1, 6, 6]), "got -1 of agent 1"),
        (changed("test", size=[3, 3, 3, 9]), "test examples from 0 to 3"),
        (changed("valid", size=[3, 2, 2, 2]), "validation examples from 0 to 2"),
        (changed(size=[6.0] * 4), "whole numbers"),
        (changed(size=[[6]] * 4), "one whole number per agent"),
        (changed(size=[6] * 3), "examples of 3 agents"),
        (changed(size=[0, 6, 0, 6]), "training example of each agent, got none of .*0"),
        (changed("test", size=[3, 3, 0, 3]), "test example of each agent"),
        (changed(y=np.full((4, 6), 7, np.int32)), "labels from 0 to 2"),
        (changed(y=np.full((4, 6), -1, np.int32)), "labels from 0 to 2"),
        (changed("test", y=np.full((4, 3), 3, np.int32)), "labels from 0 to 2"),
        (changed(y=np.full((4, 6), 0.5)), "labels .* whole numbers"),
        (changed(y=np.zeros((4, 4), np.int32)), "one shape"),
        (DATA._replace(test=split(3, num_agents=5)), "each of 4 agents"),
        (DATA._replace(cluster=np.zeros(3, np.int32)), "cluster for each of 4 agents"),
        (DATA._replace(cluster=np.zeros(4)), "cluster for each of 4 agents"),
    ],
)
def test_item_6_data_that_do_not_fit_together(data, said):
    for method in (pj.dpsgd, P2P):
        with pytest.raises(InputError, match=said):
            planned(data, method=method)
    local = pj.local_only(task(), optax.sgd(0.1), batch_size=2)
    with pytest.raises(InputError, match=said):
        pj.simulate(jax.random.key(0), local, data, 1)


def test_item_6_data_without_tests_or_validation_are_taken():
    planned(changed("test", size=[0] * 4))
    planned(changed("valid", size=[0, 1, 2, 0]))


@pytest.mark.parametrize(
    ("graph", "options", "said"),
    [
        (pj.graphs.ring(5), {}, "as many agents"),
        (pj.graphs.weights(np.eye(5)), {}, "as many agents"),
        (Peers(np.array([[0, 9], [1, 0]]), np.full((2, 2), 0.5)), {}, "agents 0 to 1"),
        (Peers(np.array([[0, 1], [1, 0]]), np.full((2, 2), 0.4)), {}, "sum to 1"),
        (
            Topology(np.array([[1, 1], [0, 2], [0, 1], [0, 1]]), np.ones((4, 2), bool)),
            {},
            "each neighbour once",
        ),
        (
            pj.graphs.as_graph(ONE_WAY, directed=True),
            {"mixing_weights": pj.graphs.metropolis_hastings},
            "undirected",
        ),
        (
            pj.graphs.star(4),
            {"mixing_weights": pj.graphs.uniform_send},
            "rows sum to 1, got one of 1.75",
        ),
        (pj.graphs.weights(ROWS.T, push_sum=True), {}, "rows sum to 1"),
        (pj.graphs.weights(ROWS), {"method": pj.sgp}, "columns sum to 1"),
        (pj.graphs.weights(ROWS), {"method": pj.d2}, "symmetric"),
        (
            pj.graphs.ring(4),
            {"mixing_weights": lambda g: half(pj.graphs.uniform_receive(g), 0.5)},
            "rows sum to 1, got one of 0.5",
        ),
        (
            pj.graphs.ring(4),
            {"mixing_weights": lambda g: half(pj.graphs.uniform_receive(g), np.nan)},
            "rows sum to 1",
        ),
        ([(0.5, 1), (1, 2), (2, 3)], {}, "not whole"),
        (np.full((4, 4), 0.25), {}, "zeros and ones"),
        (None, {"batch_size": -1}, "batch size of 1 or more"),
        (None, {"batch_size": 2.5}, "batch size of 1 or more"),
        (None, {"batch_size": -1, "method": P2P}, "batch size of 1 or more"),
        (None, {"batch_size": -1, "method": pj.gosgd}, "batch size of 1 or more"),
    ],
)
def test_item_6_graphs_weights_and_batches(graph, options, said):
    with pytest.raises(InputError, match=said):
        planned(graph=graph, **options)


def half(peers, factor):
    return peers._replace(weight=peers.weight * np.float32(factor))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: pj.graphs.metropolis_hastings(
                pj.graphs.as_graph(ONE_WAY, directed=True)
            ),
            "undirected",
        ),
        (
            lambda: pj.graphs.uniform_receive(
                Topology(np.array([[9], [0]]), np.ones((2, 1), bool))
            ),
            "agents 0 to 1",
        ),
        (lambda: pj.graphs.size_weighted(pj.graphs.ring(3), [1, 2]), "each of 3"),
        (lambda: pj.graphs.size_weighted(pj.graphs.ring(3), [1, -2, 3]), "0 or more"),
        (lambda: pj.graphs.lazy(np.ones((4, 4))), "got ndarray"),
        (lambda: pj.graphs.is_doubly_stochastic(np.ones((4, 4))), "got ndarray"),
        (lambda: pj.graphs.uniform_send(np.full((4, 4), 0.25)), "zeros and ones"),
        (lambda: topology.from_edges(3, np.array([0.5]), np.array([1.7])), "float64"),
        (lambda: pj.graphs.oracle([0.0, 0.0, np.nan], 1, seed=0), "whole numbers"),
        (lambda: pj.graphs.oracle([[0, 0], [1, 1]], 1, seed=0), "cluster of each"),
        (
            lambda: mixing_matrices.pairwise_weights(np.array([9, 0]), np.zeros(2)),
            "matching",
        ),
        (
            lambda: mixing_matrices.pairwise_weights(np.array([1, 2, 0]), np.zeros(3)),
            "matching",
        ),
        (
            lambda: partition.permute_features(DATA, np.tile([0, 0, 1, 2, 3], (4, 1))),
            "each of 0 to 4 is there once",
        ),
        (
            lambda: partition.permute_features(DATA, np.tile([0, 1, 2, 3, 9], (4, 1))),
            "each of 0 to 4 is there once",
        ),
        (
            lambda: partition.permute_features(DATA, np.arange(5)[None]),
            "inputs for every agent",
        ),
        (lambda: pj.steps(1.5), "whole number"),
        (lambda: pj.epochs(0.5), "whole number"),
    ],
)
def test_item_6_parts_of_the_library(call, said):
    with pytest.raises(InputError, match=said):
        call()


@pytest.mark.parametrize(
    ("rows", "cluster", "said"),
    [
        ([np.array([0, 1, -1]), np.array([2, 3, 4])], None, "rows 0 to 8"),
        ([np.array([0.0, 1, 5]), np.array([2, 3, 4])], None, "rows 0 to 8"),
        ([np.array([0, 1, 9]), np.array([2, 3, 4])], None, "rows 0 to 8"),
        ([np.array([0, 1, 5]), np.array([2, 3, 4])], [0, 0, 1], "each of 2 agents"),
    ],
)
def test_item_6_splits_of_ones_own(rows, cluster, said):
    def own(request, rng):
        return pj.split.Assignment(rows, cluster)

    with pytest.raises(InputError, match=said):
        pj.federate(np.ones((9, 2)), np.zeros(9, int), num_agents=2, split=own)


@pytest.mark.parametrize(
    ("layout", "wiring", "said"),
    [
        ((5, 4, 3), pj.nn.mlp.wiring(3), "layer_3"),
        ((5, 4, 3), pj.nn.mlp.wiring(1), "layer_2"),
        ((5, 4, 4, 3), pj.nn.mlp.wiring(2), "wiring of the 4 parts"),
    ],
)
def test_item_6_a_wiring_with_another_number_of_layers(layout, wiring, said):
    scheme = pj.partial.level(0.5)(layout, 4)
    with pytest.raises(InputError, match=said):
        pj.partial.compile_scheme(scheme, wiring, task())
    by_level = pj.partial_averaging(
        task(), optax.sgd(0.1), pj.partial.level(0.5), batch_size=2, wiring=wiring
    )
    if "parts" not in said:
        with pytest.raises(InputError, match=said):
            by_level.plan(np.random.default_rng(0), DATA, 1)


def test_item_6_graphs_of_other_kinds_are_read_everywhere():
    circle = nx.cycle_graph(4)
    matrix = nx.to_numpy_array(circle)
    ring = pj.graphs.ring(4)
    for same in (circle, matrix, list(circle.edges)):
        for weigh in (
            pj.graphs.uniform_receive,
            pj.graphs.uniform_send,
            pj.graphs.metropolis_hastings,
        ):
            np.testing.assert_array_equal(weigh(same).ids, weigh(ring).ids)
        assert pj.graphs.spectral_gap(same) == pj.graphs.spectral_gap(ring)
        assert pj.graphs.report(same) == pj.graphs.report(ring)
        planned(graph=same)


def test_item_6_nothing_is_checked_inside_of_traces():
    """A traced graph is not looked at: weights of it are what they were."""
    one_way = pj.graphs.as_graph(ONE_WAY, directed=True)
    peers = jax.jit(pj.graphs.metropolis_hastings)(one_way)
    assert float(peers.weight.sum()) == 4


LABELS = label_set(["O", "B-PER", "I-PER"])  # six with its own four
ENCODER = pj.nn.encoder.Encoder(9, 4, (1,), (4,), 4, num_positions=5)


def sentences(**leaves):
    """Of four agents: tokens with the words' labels; numbers in padding are wrong."""
    tokens = np.ones((4, 3, 5), np.int16)
    examples = {
        "tokens": tokens,
        "positions": np.broadcast_to(np.arange(5), tokens.shape).copy(),
        "labels": np.full(tokens.shape, 5, np.int8),
    }
    for leaf in examples.values():
        leaf[:, 2] = 99
    for name, value in leaves.items():
        examples[name] = examples[name].astype(np.asarray(value).dtype)
        examples[name][3, 1, 4] = value
    part = pj.Split(examples, np.full(4, 2, np.int32))
    return pj.FederatedData(part, part, part, np.zeros(4, np.int32))


def gaps(**leaves):
    """Of four agents: tokens, of which 4 is the mask, and what it stands for."""
    data = sentences(**leaves)
    examples = {
        "tokens": data.train.examples["tokens"],
        "y": np.full((4, 3), leaves.get("y", 8), np.int32),
    }
    part = pj.Split(examples, np.full(4, 2, np.int32))
    return pj.FederatedData(part, part, part, np.zeros(4, np.int32))


TAGGING = functools.partial(pj.tagging, ENCODER, 5, LABELS)
MASKED = functools.partial(pj.masked_token, ENCODER, 5, 4)


@pytest.mark.parametrize(
    ("make_task", "good", "bad", "said"),
    [
        (TAGGING, sentences(), sentences(labels=6), "labels from 0 to 5.*got 5 to 6"),
        (TAGGING, sentences(), sentences(labels=-1), "labels from 0 to 5.*got -1 to 5"),
        (TAGGING, sentences(), sentences(labels=0.5), "labels .*N, M, P.* whole"),
        (TAGGING, sentences(), sentences(positions=5), "positions of words from 0 to"),
        (TAGGING, sentences(), sentences(tokens=9), "tokens from 0 to 8, got 1 to 9"),
        (TAGGING, sentences(), gaps(), "examples' `positions`, got .* tokens, y"),
        (MASKED, gaps(), gaps(tokens=-2), "tokens from 0 to 8, got -2 to 1"),
    ],
)
def test_item_6_labels_of_words(make_task, good, bad, said):
    ring, rng = pj.graphs.ring(4), np.random.default_rng(0)
    alone = pj.dpsgd(make_task(), optax.sgd(0.1), ring, batch_size=2)
    groups = pj.task_groups([make_task(), make_task()], [4, 4])
    both = pj.multi_task(groups, optax.sgd(0.1), pj.graphs.ring(8), batch_size=2)
    alone.plan(rng, good, 1)
    both.plan(rng, joined_world([good, good]), 1)
    with pytest.raises(InputError, match=said):
        alone.plan(rng, bad, 1)
    with pytest.raises(InputError, match=said):
        both.plan(rng, joined_world([good, bad]), 1)


def test_item_6_data_of_tasks_in_another_order():
    groups = pj.task_groups([TAGGING(), MASKED()], [4, 4])
    method = pj.multi_task(groups, optax.sgd(0.1), pj.graphs.ring(8), batch_size=2)
    plan = functools.partial(method.plan, np.random.default_rng(0))
    plan(joined_world([sentences(), gaps()]), 1)
    with pytest.raises(InputError, match="examples' `positions`"):
        plan(joined_world([gaps(), sentences()]), 1)
    few = jax.tree.map(lambda leaf: leaf[:3], sentences())
    many = jax.tree.map(lambda leaf: leaf[[0, 0, 1, 2, 3]], gaps())
    with pytest.raises(InputError, match=r"of \[4, 4\] agents.* got \[3, 5\]"):
        plan(joined_world([few, many]), 1)
