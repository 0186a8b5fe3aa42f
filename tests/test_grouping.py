"""Groups found in updates, and the schemes made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, silhouette_samples, silhouette_score

from p2pjax.datasets import partition
from p2pjax.datasets.loaders import digits
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.exchange import owner_classes
from p2pjax.nn import mlp
from p2pjax.partial import averaging, grouping, ownership, placement, schemes
from p2pjax.partial.grouping import find_groups, update_similarity
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.simulation._simulate import initial_state, simulate
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.training import samplers
from p2pjax.training.learner import gradient_descent, per_sample
from p2pjax.types import InputError

NETWORK = (784, 300, 100, 10)
SHARED = (784, 250, 80, 10)
SHAPES = {"kernel": (30, 20), "conv": (3, 3, 4, 5), "bias": (20,)}


def planted(rng, labels, noise=1.0):
    """Updates of agents: their group's own direction, and noise."""
    num_groups = max(labels) + 1
    return {
        name: (
            rng.normal(size=(num_groups, *shape))[labels]
            + noise * rng.normal(size=(len(labels), *shape))
        ).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def found(update, **options):
    start = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:])), update)
    return find_groups(update_similarity(start, update), **options)


def plain_similarity(start, params):
    """One agent and one cell after the other, in the words of the docstring."""
    num_agents = len(params["bias"])
    vectors = []
    for agent in range(num_agents):
        parts = []
        for name in ("kernel", "conv"):
            updates = params[name].astype(float) - start[name]
            difference = updates[agent] - sum(updates) / num_agents
            for cell in range(difference.shape[-1]):
                weights = difference[..., cell].ravel()
                parts.append(weights - weights.sum() / len(weights))
        vectors.append(np.concatenate(parts))
    return np.array(
        [
            [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in vectors]
            for a in vectors
        ]
    )


@pytest.mark.parametrize("block", [1, 1000, 1 << 22])
def test_similarity_is_the_plain_cosine_whatever_the_blocks(monkeypatch, block):
    monkeypatch.setattr(grouping, "_BLOCK", block)
    rng = np.random.default_rng(0)
    start = planted(rng, np.arange(7))
    params = planted(rng, [0, 0, 1, 1, 2, 2, 2])
    similarity = update_similarity(start, params)
    np.testing.assert_allclose(similarity, plain_similarity(start, params), atol=1e-6)
    assert (similarity == similarity.T).all()
    # arrays of JAX are as good
    on_device = update_similarity(*jax.tree.map(jnp.asarray, (start, params)))
    np.testing.assert_allclose(on_device, similarity, atol=1e-6)


def test_what_all_learn_and_what_biases_do_says_nothing():
    rng = np.random.default_rng(1)
    start, params = planted(rng, np.arange(6)), planted(rng, [0, 0, 1, 1, 2, 2])
    expected = update_similarity(start, params)
    common = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    shifted = {name: params[name] + 3 * common[name] for name in SHAPES}
    np.testing.assert_allclose(update_similarity(start, shifted), expected, atol=1e-5)
    like_biases = params | {
        "bias": rng.normal(size=(6, 20)),
        "kernel": params["kernel"] + rng.normal(size=(6, 1, 20)),  # all inputs alike
    }
    np.testing.assert_allclose(
        update_similarity(start, like_biases), expected, atol=1e-5
    )


def test_a_common_start_may_be_given_once_and_does_not_matter():
    rng = np.random.default_rng(2)
    params = planted(rng, [0, 0, 1, 1])
    once = {name: rng.normal(size=(1, *shape)) for name, shape in SHAPES.items()}
    often = {name: np.repeat(leaf, 4, axis=0) for name, leaf in once.items()}
    nothing = jax.tree.map(np.zeros_like, once)
    expected = update_similarity(often, params)
    np.testing.assert_allclose(update_similarity(once, params), expected, atol=1e-6)
    np.testing.assert_allclose(update_similarity(nothing, params), expected, atol=1e-6)


def test_agents_that_did_not_move_are_like_nobody():
    start = planted(np.random.default_rng(3), np.arange(5))
    np.testing.assert_array_equal(update_similarity(start, start), np.eye(5))
    assert find_groups(np.eye(5)).tolist() == [0] * 5


@given(
    st.integers(3, 6), st.integers(2, 6), st.integers(0, 1), st.integers(0, 2**32 - 1)
)
def test_planted_groups_and_a_loner_are_found_in_any_order(
    num_groups, size, num_alone, seed
):
    rng = np.random.default_rng(seed)
    sizes = [size] * num_groups + [1] * num_alone
    truth = np.repeat(np.arange(len(sizes)), sizes)
    order = rng.permutation(len(truth))
    update = planted(rng, truth, noise=0.5)
    np.testing.assert_array_equal(found(update), truth)  # numbered by first members
    shuffled = found({name: leaf[order] for name, leaf in update.items()})
    assert adjusted_rand_score(truth[order], shuffled) == 1
    first = [shuffled.tolist().index(label) for label in range(shuffled.max() + 1)]
    assert first == sorted(first)


def test_groups_of_unequal_sizes():
    truth = np.repeat(np.arange(4), [3, 5, 7, 4])
    assert found(planted(np.random.default_rng(5), truth)).tolist() == truth.tolist()


@pytest.mark.parametrize("num_agents", [1, 2, 3, 12, 60])
def test_without_structure_everybody_is_in_one_group(num_agents):
    rng = np.random.default_rng(num_agents)
    independent = planted(rng, np.zeros(num_agents, int))
    assert found(independent).tolist() == [0] * num_agents


def test_equal_agents_are_one_group():
    assert find_groups(np.ones((5, 5))).tolist() == [0] * 5


def test_a_division_must_be_as_clear_as_asked():
    rng = np.random.default_rng(4)
    truth = np.repeat(np.arange(3), 4)
    update = planted(rng, truth, noise=1.0)
    assert found(update).tolist() == truth.tolist()
    distance = 1 - update_similarity(jax.tree.map(np.zeros_like, update), update)
    np.fill_diagonal(distance, 0)
    clear = silhouette_score(distance, truth, metric="precomputed")
    assert found(update, min_silhouette=clear - 1e-4).tolist() == truth.tolist()
    assert found(update, min_silhouette=clear + 1e-4).tolist() == [0] * 12


@pytest.mark.parametrize("seed", range(5))
def test_silhouettes_of_all_cuts(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(25, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    distance = 1 - points @ points.T
    distance = np.maximum((distance + distance.T) / 2, 0)
    np.fill_diagonal(distance, 0)
    num_groups = []
    for silhouette, labels in grouping._cuts(distance, 1.0):
        expected = silhouette_samples(distance, labels, metric="precomputed")
        np.testing.assert_allclose(silhouette, expected, atol=1e-12)
        num_groups.append(len(np.unique(labels)))
    assert num_groups == list(range(24, num_groups[-1] - 1, -1))  # each join is seen
    assert 1 < num_groups[-1] < 12


def test_branches_must_be_as_alike_as_asked_to_be_joined():
    similarity = np.kron(np.eye(3), np.full((2, 2), 0.2)) + 0.8 * np.eye(6)
    assert len(list(grouping._cuts(1 - similarity, 1.0))) == 3  # pairs, nothing above
    pairs = find_groups(similarity, min_silhouette=0.1, min_similarity=0.19)
    assert pairs.tolist() == [0, 0, 1, 1, 2, 2]
    none = find_groups(similarity, min_silhouette=0.1, min_similarity=0.21)
    assert none.tolist() == [0] * 6


def rotated_digits(seed, quarter_turns, size):
    examples = digits.load()
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(examples.y))[: len(quarter_turns) * size]
    world = partition.federated_data(examples, *[list(rows.reshape(-1, size))] * 2)
    x = np.stack(
        [
            np.rot90(own, turns, axes=(1, 2))
            for own, turns in zip(world.train.examples["x"], quarter_turns, strict=True)
        ]
    )
    return world._replace(
        train=world.train._replace(examples=world.train.examples | {"x": x})
    )


@pytest.mark.slow
def test_agents_with_digits_of_the_same_rotation_find_each_other():
    truth = np.repeat(np.arange(3), 3)
    scheme = Scheme(((64, 30, 20, 10),) * 9)
    task = classification(mlp.MLP((30, 20, 10)), (8, 8), losses.squared_error)
    learner = per_sample(gradient_descent(task, optax.sgd(0.1)))
    algorithm = partial_rounds(
        task,
        learner,
        samplers.cyclic_window(50),
        compile_scheme(scheme, mlp.wiring(3), task),
        averaging.server(9),
    )
    key = jax.random.key(7)
    for turns, expected in ((truth, truth), (np.zeros(9, int), np.zeros(9, int))):
        world = rotated_digits(7, turns, size=190)
        start = initial_state(key, algorithm, world).variables.params
        *_, last = simulate(
            key, algorithm, world, 10, eval_every=10, evaluate=lambda *_: {}
        )
        labels = find_groups(update_similarity(start, last.state.variables.params))
        np.testing.assert_array_equal(labels, expected)


def test_auto_writes_the_scheme_of_the_paper():
    labels = np.array([0, 0, 1, 2, 1, 3, 1])
    everybody = tuple(range(7))
    by_hand = Scheme(
        (NETWORK,) * 7,
        (
            PartialModel(SHARED, everybody),
            PartialModel((0, 50, 20, 0), (0, 1)),
            PartialModel((0, 50, 20, 0), (2, 4, 6)),
        ),
        depends=((1, 0), (2, 0)),
    )
    assert schemes.auto(NETWORK, SHARED, labels) == by_hand
    independent = schemes.auto(NETWORK, SHARED, labels, depends=False)
    assert independent == by_hand._replace(depends=())
    # nothing is left over, or nobody to share it with
    only_global = (PartialModel(NETWORK, everybody),)
    assert schemes.auto(NETWORK, NETWORK, labels).models == only_global
    alone = schemes.auto(NETWORK, SHARED, np.arange(7))
    assert (alone.models, alone.depends) == (by_hand.models[:1], ())


@pytest.mark.parametrize("depends", [True, False])
def test_who_owns_what_in_an_automatic_scheme(depends):
    labels = np.array([5, 3, 5, 3, 9])  # any labels will do
    scheme = schemes.auto((4, 5, 3, 2), (4, 3, 2, 2), labels, depends=depends)
    cells, _ = placement.align(placement.attach(scheme))
    assert placement.widths(cells) == (4, 5, 3, 2)
    np.testing.assert_array_equal(cells[1][:, 3:], [[2, 2], [1, 1]] * 2 + [[-1, -1]])
    params = {
        f"layer_{i}": {"kernel": np.zeros((a, b)), "bias": np.zeros(b)}
        for i, (a, b) in enumerate([(4, 5), (5, 3), (3, 2)], start=1)
    }
    plan = ownership.mix_plan(scheme, cells, mlp.wiring(3), params)
    owner = owner_classes.owner_arrays(plan, params)
    group = np.array([2, 1, 2, 1, -1])
    for agent in range(5):
        between = group[agent] if depends else -1  # global cell and the group's
        kernel = owner["layer_2"]["kernel"][agent]
        assert (kernel[:3, :2] == 0).all()
        assert (kernel[:3, 2:] == between).all()
        assert (kernel[3:, :2] == between).all()
        assert (kernel[3:, 2:] == group[agent]).all()
        assert (owner["layer_1"]["bias"][agent, 3:] == group[agent]).all()
        assert (owner["layer_3"]["bias"][agent] == 0).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            (NETWORK, SHARED, np.zeros((2, 2))),
            "one group label for each of two or more",
        ),
        ((NETWORK, SHARED, np.zeros(1)), r"two or more agents, got \(1,\)"),
        ((NETWORK, (784, 250, 10), np.zeros(4)), "784-250-10 must be a part of the"),
        ((NETWORK, (784, 250, 101, 10), np.zeros(4)), "network 784=300=100=10"),
        ((NETWORK, (0, 0, 0, 0), np.zeros(4)), "and not empty"),
    ],
)
def test_auto_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        schemes.auto(*arguments)


@pytest.mark.parametrize(
    "similarity",
    [
        np.zeros((0, 0)),
        np.zeros(4),
        np.zeros((3, 4)),
        np.array([[1, 0.5], [0.4, 1]]),
        np.full((3, 3), np.nan),
    ],
    ids=["empty", "vector", "not_square", "not_symmetric", "nan"],
)
def test_groups_refuses(similarity):
    with pytest.raises(InputError, match="Need a symmetric matrix of finite"):
        find_groups(similarity)


@pytest.mark.parametrize(
    "start, params, message",
    [
        ({"a": (4, 3, 2)}, {"b": (4, 3, 2)}, "Need the same leaves"),
        ({"a": (4, 3)}, {"a": (4, 3)}, "got only vectors"),
        ({"a": (3, 3, 2)}, {"a": (4, 3, 2)}, r"Need a of 4 agents .* and \(3, 3, 2\)"),
        ({"a": (4, 2, 3)}, {"a": (4, 3, 2)}, r"got shapes \(4, 3, 2\) and \(4, 2, 3\)"),
        (
            {"a": (4, 3, 2), "b": (5, 3, 2)},
            {"a": (4, 3, 2), "b": (5, 3, 2)},
            "Need b of 4 agents",
        ),
    ],
)
def test_update_similarity_refuses(start, params, message):
    start, params = (
        {name: np.zeros(shape) for name, shape in tree.items()}
        for tree in (start, params)
    )
    with pytest.raises(InputError, match=message):
        update_similarity(start, params)
