"""Partial models, owners and their classes: the vectors and properties of the spec."""

import itertools
import json
import tracemalloc
from pathlib import Path

import jax
import networkx as nx
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import assert_networks_close, random_networks, stacked, unstacked

from p2pjax.exchange import mixing, owner_classes
from p2pjax.graphs import mixing_matrices, topology
from p2pjax.nn import mlp
from p2pjax.partial import averaging, ownership, placement, schemes
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.types import InputError

VECTORS = json.loads(
    (Path(__file__).parent / "vectors" / "partial_averaging.json").read_text()
)
NUM_CLASSES = {
    "A-V1a": 1,
    "A-V1b": 2,
    "A-V1c": 3,
    "A-V1d": 3,
    "A-V1e": 2,
    "A-V2": 3,
    "A-V3": 5,
    "A-V3x": 5,
}


def plan_of(cells, depends, num_models, params, **options):
    scheme = Scheme((), (PartialModel((), ()),) * num_models, depends, **options)
    shapes = jax.tree.map(lambda p: np.zeros(p.shape[1:]), params)
    return ownership.mix_plan(scheme, cells, mlp.wiring(len(params)), shapes)


def exact_mix(params, plan, weight=None):
    with jax.enable_x64(True):
        mixed = jax.jit(
            lambda p: mixing.mix(
                p, plan, lambda owner: mixing.by_group_mean(owner, weight)
            )
        )(params)
        return jax.tree.map(np.asarray, mixed)


def cells_of(vector):
    parts = zip(*[peer["mu"] for peer in vector["peers"]], strict=True)
    return tuple(np.asarray(part) for part in parts)


def networks_of(vector, kernel, bias):
    return [
        [
            (np.asarray(k, float), np.asarray(b, float))
            for k, b in zip(peer[kernel], peer[bias], strict=True)
        ]
        for peer in vector["peers"]
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_spec_vectors(vector):
    depends = tuple(map(tuple, vector["deps_a_depends_on_b"]))
    num_models = len(vector["LOW"]) - 1
    below = schemes.dependency_closure(depends, num_models)
    table = ownership.lowest_owner(below, vector["cross"])
    np.testing.assert_array_equal(table, vector["LOW"])
    np.testing.assert_array_equal(table, table.T)  # A-T6

    cells, order = placement.align(cells_of(vector))
    wiring = mlp.wiring(2)
    own = stacked(networks_of(vector, "W_in", "b_in"))
    params = ownership.permute_cells(own, order, wiring)
    plan = plan_of(cells, depends, num_models, params, cross_model=vector["cross"])
    assert len(plan.classes) == NUM_CLASSES[vector["name"]]

    aligned_owners = owner_classes.owner_arrays(
        plan, jax.tree.map(lambda p: np.zeros(p.shape[1:]), params)
    )
    expected = stacked(networks_of(vector, "owner_W", "owner_b"))
    jax.tree.map(
        np.testing.assert_array_equal,
        ownership.permute_cells(aligned_owners, order, wiring, inverse=True),
        expected,
    )
    weight = None if vector["weights"] is None else np.asarray(vector["weights"], float)
    mixed = exact_mix(params, plan, weight)
    assert_networks_close(
        unstacked(ownership.permute_cells(mixed, order, wiring, inverse=True)),
        networks_of(vector, "W_out", "b_out"),
        rtol=1e-12,
    )


def vector_b():
    vector = next(v for v in VECTORS if v["name"] == "A-V1b")
    params = stacked(networks_of(vector, "W_in", "b_in"))
    return params, plan_of(cells_of(vector), ((1, 0),), 2, params)


def test_spec_vector_gossip_on_a_path():
    params, plan = vector_b()
    graph = topology.from_graph(nx.path_graph(3))
    with jax.enable_x64(True):
        mixed = mixing.mix(
            params,
            plan,
            lambda owner: mixing.by_peers(mixing_matrices.metropolis(graph, owner)),
        )
    kernel = np.asarray(mixed["layer_1"]["kernel"])
    np.testing.assert_allclose(kernel[:, 0, 0], [4 / 3, 3, 14 / 3], rtol=1e-12)
    np.testing.assert_allclose(kernel[:, 0, 1], [3, 3, 12], rtol=1e-12)
    np.testing.assert_allclose(
        mixing.dense(mixing_matrices.metropolis(graph, np.zeros(3, int))),
        [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]],
        rtol=1e-6,
    )


def test_spec_vector_matching():
    params, plan = vector_b()
    partner = np.asarray([2, 1, 0], np.int32)
    with jax.enable_x64(True):
        mixed = mixing.mix(
            params,
            plan,
            lambda owner: mixing.by_peers(
                mixing_matrices.pairwise_weights(partner, owner)
            ),
        )
    base = jax.tree.map(lambda p: p[0], params)
    owner = owner_classes.owner_arrays(plan, base)
    multiplier = np.asarray([3.5, 2, 3.5])
    for after, before, one, who in zip(
        *map(jax.tree.leaves, (mixed, params, base, owner)), strict=True
    ):
        axes = (3,) + (1,) * one.ndim
        moved = multiplier.reshape(axes) * one
        np.testing.assert_allclose(after, np.where(who == 0, moved, before), rtol=1e-12)


@st.composite
def random_instances(draw):
    """Networks, models on a random poset, agents that implement closed sets."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_agents, num_models = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    sizes = rng.integers(0, 3, (num_models, 3))  # cells per part, maybe none
    sizes[:, 1] += 1
    edges = tuple(
        (a, b) for a in range(num_models) for b in range(a) if rng.random() < 0.4
    )
    below = np.zeros((num_models, num_models), bool)
    for a, b in edges:
        below[a, b] = True
    for k in range(num_models):
        below |= below[:, k, None] & below[None, k, :]
    implements = rng.random((num_agents, num_models)) < 0.6
    for agent in range(num_agents):
        for model in np.flatnonzero(implements[agent]):
            implements[agent] |= below[model]
    width = sizes.sum(0) + 1
    models = []
    for agent in range(num_agents):
        parts = []
        for part in range(3):
            row = np.full(width[part], -1)
            filled = np.repeat(np.arange(num_models), sizes[:, part])
            row[: len(filled)] = np.where(implements[agent][filled], filled, -1)
            # Only hidden cells may stand in any order.
            parts.append(rng.permutation(row) if part == 1 else row)
        models.append(parts)
    networks = random_networks(rng, num_agents, width)
    return networks, models, edges, below, rng.uniform(0.5, 2, num_agents)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(random_instances(), st.booleans())
@pytest.mark.filterwarnings("ignore:Dependency", "ignore:No agent implements")
def test_batched_equals_literal_algorithm(instance, cross_model):
    """A-T8, and with it A-T1 to A-T4."""
    check_against_literal_algorithm(instance, cross_model)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(random_instances(), st.booleans())
@pytest.mark.filterwarnings("ignore:Dependency", "ignore:No agent implements")
def test_batched_equals_literal_algorithm_often(instance, cross_model):
    check_against_literal_algorithm(instance, cross_model)


def check_against_literal_algorithm(instance, cross_model):
    networks, models, edges, below, weight = instance
    depends_on = [set(np.flatnonzero(row).tolist()) for row in below]
    expected = reference.average(
        networks, models, depends_on, cross_model=cross_model, weight=weight
    )
    cells, order = placement.align(tuple(map(np.asarray, zip(*models, strict=True))))
    wiring = mlp.wiring(2)
    width_before = [
        part.shape[1] for part in map(np.asarray, zip(*models, strict=True))
    ]
    networks = widen(networks, placement.widths(cells))
    params = ownership.permute_cells(stacked(networks), order, wiring)
    plan = plan_of(cells, edges, len(below), params, cross_model=cross_model)
    mixed = exact_mix(params, plan, weight)
    back = unstacked(ownership.permute_cells(mixed, order, wiring, inverse=True))
    narrow = [
        [(k[:a, :b], bias[:b]) for (k, bias), a, b in _with_widths(net, width_before)]
        for net in back
    ]
    assert_networks_close(narrow, expected, rtol=1e-12, atol=1e-12)

    jax.tree.map(  # A-T1
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12),
        exact_mix(mixed, plan, weight),
        mixed,
    )
    shapes = jax.tree.map(lambda p: np.zeros(p.shape[1:]), params)
    owner = owner_classes.owner_arrays(plan, shapes)
    for after, before, who in zip(
        *map(jax.tree.leaves, (mixed, params, owner)), strict=True
    ):
        assert (after[who == -1] == before[who == -1]).all()  # A-T3, bit for bit
        flat = [array.reshape(len(weight), -1) for array in (after, before, who)]
        for column in range(flat[0].shape[1]):
            a, b, o = (array[:, column] for array in flat)
            for group in set(o) - {-1}:
                members = o == group
                assert np.ptp(a[members]) == 0  # A-T4
                np.testing.assert_allclose(  # A-T2
                    weight[members] @ a[members], weight[members] @ b[members]
                )


def widen(networks, widths):
    """Networks padded with zeros to the aligned widths."""
    return [
        [
            (
                np.pad(k, ((0, a - k.shape[0]), (0, b - k.shape[1]))),
                np.pad(bias, (0, b - len(bias))),
            )
            for (k, bias), a, b in _with_widths(network, widths)
        ]
        for network in networks
    ]


def _with_widths(network, widths):
    return zip(network, widths[:-1], widths[1:], strict=True)


@pytest.mark.parametrize("level", [0, 100])
def test_extreme_levels(level):
    """A-T7: nothing shared is the identity, everything shared is FedAvg."""
    width = (4, 3, 2)
    models = (PartialModel(width, tuple(range(5))),) if level else ()
    scheme = Scheme((width,) * 5, models)
    cells, _ = placement.align(placement.attach(scheme))
    params = stacked(random_networks(np.random.default_rng(0), 5, width))
    shapes = jax.tree.map(lambda p: np.zeros(p.shape[1:]), params)
    plan = ownership.mix_plan(scheme, cells, mlp.wiring(2), shapes)
    mixed = exact_mix(params, plan)
    for after, before in zip(*map(jax.tree.leaves, (mixed, params)), strict=True):
        if level:
            np.testing.assert_allclose(
                after, np.broadcast_to(before.mean(0), after.shape)
            )
        else:
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("outputs, totals", [(10, 266610), (47, 270347), (62, 271862)])
def test_shared_parameters_of_the_paper_levels(outputs, totals):
    """The table of spec A.5."""
    table = {
        15: {10: 40175, 47: 40767, 62: 41007},
        30: {10: 81840, 47: 82987, 62: 83452},
        60: {10: 169670, 47: 171927, 62: 172842},
        80: {10: 217140, 47: 220137, 62: 221352},
        100: {10: 266610, 47: 270347, 62: 271862},
    }
    hidden = {
        15: (50, 15),
        30: (100, 30),
        60: (200, 60),
        80: (250, 80),
        100: (300, 100),
    }
    network = (784, 300, 100, outputs)
    for level, shared in table.items():
        model = PartialModel((784, *hidden[level], outputs), (0, 1))
        scheme = Scheme((network,) * 2, (model,))
        cells, _ = placement.align(placement.attach(scheme))
        shapes = {
            f"layer_{i}": {"kernel": np.zeros((a, b)), "bias": np.zeros(b)}
            for i, (a, b) in enumerate(itertools.pairwise(network), 1)
        }
        plan = ownership.mix_plan(scheme, cells, mlp.wiring(3), shapes)
        assert sum(c.size for c in plan.classes) == totals
        assert sum(c.size for c in plan.classes if c.is_shared) == shared[outputs]


def test_placement_shares_slots_between_disjoint_models():
    """P-M5: semi-local models of other agents use the same columns."""
    network = (4, 10, 6, 3)
    scheme = Scheme(
        (network,) * 4,
        (
            PartialModel((4, 6, 3, 3), (0, 1, 2, 3)),
            PartialModel((0, 4, 3, 0), (0, 1)),
            PartialModel((0, 2, 1, 0), (2, 3)),
        ),
        ((1, 0), (2, 0)),
    )
    cells = placement.attach(scheme)
    np.testing.assert_array_equal(cells[1][0], [0] * 6 + [1] * 4)
    np.testing.assert_array_equal(cells[1][2], [0] * 6 + [2] * 2 + [-1] * 2)
    assert placement.widths(cells) == network


def test_hundreds_of_groups_stay_small():
    """Pairs of agents, a model each: what is computed must not grow as N * M * D."""
    network = (784, 300, 10)
    pairs = tuple(PartialModel(network, (i, i + 1)) for i in range(0, 300, 2))
    scheme = Scheme((network,) * 300, pairs)
    tracemalloc.start()
    cells, _ = placement.align(placement.attach(scheme))
    shapes = {
        "layer_1": {"kernel": np.zeros((784, 300)), "bias": np.zeros(300)},
        "layer_2": {"kernel": np.zeros((300, 10)), "bias": np.zeros(10)},
    }
    plan = ownership.mix_plan(scheme, cells, mlp.wiring(2), shapes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan.classes) == 1
    assert (plan.classes[0].owner == np.repeat(np.arange(150), 2)).all()
    assert peak < 40e6


def test_neutral_input_shares_input_weights_without_dependency():
    network = (3, 4, 2)
    models = (PartialModel((3, 2, 2), (0, 1, 2)), PartialModel((0, 2, 0), (0, 1)))
    shapes = {
        "layer_1": {"kernel": np.zeros((3, 4)), "bias": np.zeros(4)},
        "layer_2": {"kernel": np.zeros((4, 2)), "bias": np.zeros(2)},
    }
    for neutral, expected in ((False, -1), (True, 1)):
        scheme = Scheme((network,) * 3, models, neutral_input=neutral)
        cells, _ = placement.align(placement.attach(scheme))
        plan = ownership.mix_plan(scheme, cells, mlp.wiring(2), shapes)
        kernel = owner_classes.owner_arrays(plan, shapes)["layer_1"]["kernel"]
        assert (kernel[:2, :, 2:] == expected).all()
        assert (kernel[2, :, 2:] == -1).all()
        assert (kernel[:, :, :2] == 0).all()


def test_neutral_input_stays_neutral_through_a_lacking_part():
    """Links from the input straight to the output belong to the output's model."""
    models = (PartialModel((4, 0, 0), (0, 1)), PartialModel((0, 0, 2), (0, 1)))
    shapes = {
        "layer_1": {"kernel": np.zeros((4, 4)), "bias": np.zeros(4)},
        "layer_2": {"kernel": np.zeros((4, 2)), "bias": np.zeros(2)},
    }
    for neutral, expected in ((False, -1), (True, 1)):
        scheme = Scheme(((4, 0, 2),) * 2, models, neutral_input=neutral)
        cells, _ = placement.align(placement.attach(scheme))
        plan = ownership.mix_plan(scheme, cells, mlp.wiring(2), shapes)
        owner = owner_classes.owner_arrays(plan, shapes)
        assert (owner["layer_2"]["kernel"] == expected).all()
        assert (owner["layer_1"]["kernel"] == -1).all()


def test_flops_do_not_grow_with_the_number_of_models():
    """A-T10."""
    num_agents, network = 8, (16, 64, 8)
    params = stacked(random_networks(np.random.default_rng(0), num_agents, network))
    params = jax.tree.map(lambda p: p.astype(np.float32), params)
    shapes = jax.tree.map(lambda p: np.zeros(p.shape[1:]), params)

    def flops(num_models):
        everyone = tuple(range(num_agents))
        cells_each = 64 // num_models
        models = [
            PartialModel((16 * (i == 0), cells_each, 8 * (i == 0)), everyone)
            for i in range(num_models)
        ]
        # A chain, so that every parameter is shared whatever the number of models.
        depends = tuple((i + 1, i) for i in range(num_models - 1))
        scheme = Scheme((network,) * num_agents, tuple(models), depends)
        cells, _ = placement.align(placement.attach(scheme))
        plan = ownership.mix_plan(scheme, cells, mlp.wiring(2), shapes)
        assert all(c.is_shared for c in plan.classes)
        compiled = (
            jax.jit(lambda p: mixing.mix(p, plan, mixing.by_group_mean))
            .lower(params)
            .compile()
        )
        return compiled.cost_analysis()["flops"]

    assert flops(8) <= 1.1 * flops(1)


def test_gossip_reports_groups_the_graph_splits():
    _params, plan = vector_b()
    star = topology.from_graph(nx.Graph([(0, 2), (2, 1)]))
    with pytest.warns(UserWarning, match="1 groups of agents fall into 2 parts"):
        assert averaging.warn_if_split(topology.stack([star]), plan) == 1
    path = topology.from_graph(nx.path_graph(3))  # links 0 and 1 in the second round
    assert averaging.warn_if_split(topology.stack([star, path]), plan) == 0


NETWORKS = ((4, 3, 2),) * 3
EVERYONE = (0, 1, 2)


@pytest.mark.parametrize(
    "scheme, message",
    [
        (
            Scheme(NETWORKS, (PartialModel((4, 2, 2), EVERYONE),) * 1, ((0, 0),)),
            r"without cycles, but models \[0\]",
        ),
        (
            Scheme(
                NETWORKS,
                (PartialModel((4, 1, 2), EVERYONE), PartialModel((0, 1, 0), EVERYONE)),
                ((0, 1), (1, 0)),
            ),
            r"without cycles, but models \[0, 1\]",
        ),
        (
            Scheme(
                NETWORKS,
                (PartialModel((4, 1, 2), (0, 1)), PartialModel((0, 1, 0), (1, 2))),
                ((1, 0),),
            ),
            r"Model 1 depends on model 0, but agents \[2\] implement 1 and not 0",
        ),
        (
            Scheme(NETWORKS, (PartialModel((4, 5, 2), EVERYONE),)),
            "do not add up: agent 0 has 3 cells in part 1, but .* need 5",
        ),
        (
            Scheme(NETWORKS, (PartialModel((4, 2), EVERYONE),)),
            "do not add up: model 0 is 4-2, 2 parts, but the networks have 3",
        ),
        (
            Scheme(NETWORKS, (PartialModel((4, 2, 2), (0, 7)),)),
            r"members of model 0 among agents 0 to 2, got \[7\]",
        ),
        (
            Scheme(NETWORKS, (PartialModel((4, 2, 2), (0, 0)),)),
            "names a member twice",
        ),
        (
            Scheme(
                NETWORKS,
                (
                    PartialModel((0, 2, 0), (0, 1), ((0, 0, 0), (0, 0, 0))),
                    PartialModel((0, 1, 0), (1, 2), ((0, 1, 0), (0, 0, 0))),
                ),
            ),
            "Model 1 overlaps model 0 in part 1 of agent 1",
        ),
        (
            Scheme(NETWORKS, (PartialModel((0, 2, 0), (0, 1), ((0, 2, 0),) * 2),)),
            "cover columns 2 to 3 of part 1 of agent 0, which has 3 cells",
        ),
        (
            Scheme(NETWORKS, (PartialModel((0, 2, 0), (0, 1), ((0, 1, 0),)),)),
            "an offset per member and part of model 0",
        ),
        (
            Scheme(
                ((4, 3, 2), (4, 3, 4), (4, 3, 4)),
                (PartialModel((0, 0, 2), (1, 2)), PartialModel((0, 0, 1), (0, 2))),
            ),
            "cover columns 2 to 2 of part 2 of agent 0, which has 2 cells",
        ),
        (
            Scheme(NETWORKS, (PartialModel((0, 2, 0), (0, 1), ((0, 1), (0, 1))),)),
            "an offset per member and part of model 0",
        ),
        (
            Scheme(
                NETWORKS,
                (
                    PartialModel((0, 2, 0), (0, 1), ((0, 1, 0), (0, 0, 0))),
                    PartialModel((0, 1, 0), EVERYONE),
                ),
            ),
            "offsets for all models or for none",
        ),
        (Scheme(NETWORKS, (PartialModel((4, -1, 2), EVERYONE),)), "negative number"),
        (Scheme(((4, 3, 2), (3, 3, 2))), "same inputs for all agents, got 4"),
        (Scheme(((4, 3, 2), (4, -3, 2))), "networks of 3 parts"),
        (Scheme(((4, 3, 2), (4, 2)), ()), "networks of 3 parts"),
        (Scheme((), ()), "at least one agent"),
        (Scheme(NETWORKS, (), ((0, 1),)), "among models 0 to -1, got 0 -> 1"),
    ],
)
def test_bad_schemes_are_refused(scheme, message):
    """A-T9 and its relatives."""
    with pytest.raises(InputError, match=message):
        placement.attach(scheme)


def test_bad_cells_are_refused():
    cells = (
        np.zeros((2, 1), int),
        np.asarray([[0, 0], [0, -1]]),
        np.zeros((2, 1), int),
    )
    with pytest.raises(InputError, match=r"agent 0 has 1-2-1 and agent 1 has 1-1-1"):
        placement.check_cells(cells, np.zeros((1, 1), bool))
    swapped = (np.asarray([[0, -1], [-1, 0]]),) * 2
    with pytest.raises(InputError, match="order of inputs and outputs"):
        placement.align(swapped)


@pytest.mark.parametrize(
    "text", ["784", "784-300", "784==10", "784=a", "", "=", "7.5=1"]
)
def test_bad_network_layouts(text):
    with pytest.raises(InputError, match=r"a network such as 784=300=100=62"):
        schemes.network_layout(text)


def test_layouts():
    assert schemes.network_layout("784=300=100=62") == (784, 300, 100, 62)
    assert schemes.model_layout("784-250-80-0") == (784, 250, 80, 0)
    with pytest.raises(InputError, match="a partial model such as"):
        schemes.model_layout("784=250")


def test_warnings():
    with pytest.warns(UserWarning, match="2 -> 0 is implied"):
        schemes.dependency_closure(((2, 1), (1, 0), (2, 0)), 3)
    with pytest.warns(UserWarning, match="Only one agent implements model 0"):
        placement.attach(Scheme(NETWORKS, (PartialModel((4, 1, 1), (2,)),)))
    with pytest.warns(UserWarning, match="No agent implements model 0"):
        placement.attach(Scheme(NETWORKS, (PartialModel((4, 1, 1), ()),)))
