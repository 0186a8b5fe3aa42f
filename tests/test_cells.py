"""Cells of every kind of layer can be permuted, averaged and left out (A.1 to A.7)."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slow_cases import slow

from p2pjax import paths
from p2pjax.exchange import mixing
from p2pjax.nn import cnn, encoder, gru, lstm, mlp
from p2pjax.nn.cells import ABSENT_LOGIT
from p2pjax.partial import ownership, placement
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.tasks.task import Task
from p2pjax.training import agent_loop, local_training
from p2pjax.training.learner import gradient_descent
from p2pjax.training.samplers import cyclic_window
from p2pjax.types import ABSENT, LOCAL, InputError, Split, Variables


class Kind(NamedTuple):
    """A network some of whose parts are of the kind of cells under test."""

    layout: tuple[int, ...]
    parts: tuple[int, ...]  # of the kind under test
    build: Callable  # widths of all parts -> module
    wiring: Callable
    example_shape: tuple[int, ...]
    num_tokens: int | None = None  # inputs are tokens, 0 is padding
    call: Callable = lambda module, collections, x: module.apply(collections, x)


def batch_normed(module, collections, x):
    return module.apply(collections, x, train=True, mutable=["batch_stats"])[0]


def at_second_token(module, collections, x):
    where = jnp.ones(x.shape[0], jnp.int32)
    return module.apply(collections, x, attention_mask=x > 0, positions=where)


def tiny_encoder(widths):
    body = encoder.Encoder(
        vocab_size=7,
        hidden_size=widths[0],
        num_heads=widths[1:-1:2],
        mlp_dim=widths[2:-1:2],
        head_dim=2,
        num_positions=5,
    )
    return encoder.TokenModel(body, encoder.TokenHead(widths[-1]))


KINDS = {
    "dense": Kind(
        layout=(6, 5, 6, 4),
        parts=(1, 2),
        build=lambda widths: mlp.MLP(widths[1:]),
        wiring=lambda module: mlp.wiring(len(module.features)),
        example_shape=(6,),
    ),
    "conv": Kind(
        layout=(2, 5, 6, 5, 4),
        parts=(1, 2, 3),
        build=lambda w: cnn.CNN(w[1:3], w[3:4], w[4], kernel_size=2, pool=2),
        wiring=cnn.wiring,
        example_shape=(12, 11, 2),
    ),
    "gru": Kind(
        layout=(3, 6, 5, 7),
        parts=(1, 2),
        build=lambda w: gru.NextWord(w[3], w[0], w[1], w[2]),
        wiring=gru.wiring,
        example_shape=(5,),
        num_tokens=7,
    ),
    "gru_batch_norm": Kind(
        layout=(3, 6, 5, 7),
        parts=(1, 2),
        build=lambda w: gru.NextWord(w[3], w[0], w[1], w[2], batch_norm=True),
        wiring=gru.wiring,
        example_shape=(5,),
        num_tokens=7,
        call=batch_normed,
    ),
    "lstm": Kind(
        layout=(3, 6, 4),
        parts=(1,),
        build=lambda w: lstm.SequenceClassifier(7, *w),
        wiring=lstm.wiring,
        example_shape=(5,),
        num_tokens=7,
    ),
    "heads": Kind(
        layout=(6, 5, 5, 6, 5, 4),
        parts=(1, 3),
        build=tiny_encoder,
        wiring=encoder.wiring,
        example_shape=(5,),
        num_tokens=7,
        call=at_second_token,
    ),
    "feed_forward": Kind(
        layout=(6, 5, 5, 6, 5, 4),
        parts=(2, 4),
        build=tiny_encoder,
        wiring=encoder.wiring,
        example_shape=(5,),
        num_tokens=7,
        call=at_second_token,
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# Where all parts are tested at once: networks whose parameters differ.
NETWORKS = KINDS.keys() - {"gru_batch_norm", "feed_forward"}
every_network = pytest.mark.parametrize(
    "kind", [KINDS[name] for name in sorted(NETWORKS)], ids=sorted(NETWORKS)
)
# One layer of the encoder learns like two and compiles in half the time.
every_shallow_kind = pytest.mark.parametrize(
    "kind",
    [
        kind._replace(layout=(6, 5, 5, 4), parts=kind.parts[:1])
        if kind.build is tiny_encoder
        else kind
        for kind in KINDS.values()
    ],
    ids=KINDS,
)


def random_inputs(rng, kind, *leading):
    shape = (*leading, *kind.example_shape)
    if kind.num_tokens is None:
        return rng.normal(size=shape).astype(np.float32)
    tokens = rng.integers(1, kind.num_tokens, shape)
    tokens[..., -1] *= rng.integers(0, 2, leading)  # some sequences are shorter
    return tokens.astype(np.int32)


def parameter_shapes(kind, module):
    inputs = random_inputs(np.random.default_rng(0), kind, 1)
    return jax.eval_shape(module.init, jax.random.key(0), inputs)["params"]


def random_params(rng, kind, module, num_agents=2):
    """Stacked parameters, biases too; different in every agent."""
    return jax.tree.map(
        lambda leaf: (rng.normal(size=(num_agents, *leaf.shape)) * 0.7).astype("f4"),
        parameter_shapes(kind, module),
    )


# Nearly all the time is compilation: programs serve several tests and may be slow.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


@functools.cache
def forward_of(call, module):
    """`(stacked variables, inputs [B, ...]) -> logits [N, B, k]`."""

    def one(variables, x):
        return call(module, {"params": variables.params, **variables.stats}, x)

    return quick_jit(jax.vmap(one, (0, None)))


@functools.cache
def training_of(call, module):
    """`(stacked variables, data) -> stacked parameters` after three steps."""

    def loss(variables, batch, key):
        del key
        collections = {"params": variables.params, **variables.stats}
        logits = call(module, collections, batch["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return losses.mean(), variables.stats

    learner = gradient_descent(Task(None, loss, None), optax.sgd(0.1))
    train = local_training.local_training(learner, cyclic_window(4), 3, agent_loop.VMAP)

    def after(variables, data):
        opt_state = jax.vmap(learner.init)(variables)
        start = jnp.zeros((), jnp.int32)
        return train(jax.random.key(0), start, variables, opt_state, data)[0].params

    return quick_jit(after)


def forward(kind, module, variables, inputs):
    return np.array(forward_of(kind.call, module)(variables, inputs))


def trained(kind, module, variables, data):
    return jax.tree.map(np.asarray, training_of(kind.call, module)(variables, data))


def with_masks(params, cells):
    """Variables of agents that have these cells, masked even where they have all."""
    masks = placement.cell_masks(cells)
    if not masks:
        absent = tuple(np.full_like(models, ABSENT) for models in cells)
        masks = jax.tree.map(np.ones_like, placement.cell_masks(absent))
    return Variables(params, {"cells": masks})


def all_cells(kind):
    return tuple(np.full((2, width), LOCAL) for width in kind.layout)


def random_data(rng, kind):
    x = random_inputs(rng, kind, 2, 8)
    y = rng.integers(0, kind.layout[-1], (2, 8)).astype(np.int32)
    return Split({"x": x, "y": y}, np.full(2, 8, np.int32))


def random_order(rng, kind):
    """Both agents permute the cells under test, each in its own way."""
    order = [np.tile(np.arange(width), (2, 1)) for width in kind.layout]
    for part in kind.parts:
        order[part] = rng.permuted(order[part], axis=1)
    return tuple(order)


def assert_trees_close(actual, expected, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **tolerance), actual, expected
    )


@every_network
def test_wiring_names_every_leaf(kind):
    module = kind.build(kind.layout)
    wiring = kind.wiring(module)
    leaves = dict(paths.leaves_with_paths(parameter_shapes(kind, module)))
    assert wiring.keys() == leaves.keys()
    for path, leaf in leaves.items():
        for part, length in zip(wiring[path], leaf.shape, strict=True):
            assert part is None or kind.layout[part] == length


@every_kind
def test_permuted_cells_compute_the_same(kind):
    """A-T5 (a); every leaf has to be permuted, or the outputs change."""
    rng = np.random.default_rng(1)
    module = kind.build(kind.layout)
    wiring = kind.wiring(module)
    params = random_params(rng, kind, module)
    order, inputs = random_order(rng, kind), random_inputs(rng, kind, 4)

    def outputs(params):
        return forward(kind, module, with_masks(params, all_cells(kind)), inputs)

    expected = outputs(params)
    actual = outputs(ownership.permute_cells(params, order, wiring))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    for path, axes in wiring.items():
        # A key bias adds the same to all scores of a query: softmax ignores it. Batch
        # norm in turn takes the bias of the layer before it out again.
        ignored = "key/bias" in path or (
            path == "dense/bias" and getattr(module, "batch_norm", False)
        )
        if set(axes) & set(kind.parts) and not ignored:
            incomplete = wiring | {path: (None,) * len(axes)}
            wrong = outputs(ownership.permute_cells(params, order, incomplete))
            assert np.abs(wrong - expected).max() > 1e-3, path


@every_shallow_kind
def test_permuted_cells_learn_the_same(kind):
    """A-T5 (b)."""
    rng = np.random.default_rng(2)
    module = kind.build(kind.layout)
    wiring = kind.wiring(module)
    params = random_params(rng, kind, module)
    order, data = random_order(rng, kind), random_data(rng, kind)

    def learned(params):
        return trained(kind, module, with_masks(params, all_cells(kind)), data)

    after = learned(params)
    assert_trees_close(
        learned(ownership.permute_cells(params, order, wiring)),
        ownership.permute_cells(after, order, wiring),
        rtol=1e-4,
        atol=1e-5,
    )
    pairs = zip(*map(jax.tree.leaves, (after, params)), strict=True)
    assert max(np.abs(new - old).max() for new, old in pairs) > 1e-2


# Members of every model, and (a, b) where model a depends on model b.
ONE_PAIR = ((0, 1), (0, 1), (0, 1)), ((1, 0),)  # model 2 is comparable with none
TWO_PAIRS = ((0, 1, 2, 3), (0, 1), (2, 3)), ((1, 0), (2, 0))  # each has its own lower


def models_of(layout, groups, depends):
    """Model 0 has two cells of every hidden part, the others one; a few stay local."""
    hidden = len(layout) - 2
    sizes = [(layout[0] - 1, *(2,) * hidden, 2), (1, *(1,) * hidden, 1)]
    sizes += [(0, *(1,) * hidden, 0)] * (len(groups) - 2)
    models = tuple(map(PartialModel, sizes, groups))
    return Scheme((layout,) * (1 + max(groups[0])), models, depends)


def shuffled(rng, cells, parts):
    """Orders in which the k-th cell of a model is the same cell in all members."""
    order = [np.tile(np.arange(part.shape[1]), (len(part), 1)) for part in cells]
    for part in parts:
        models = cells[part]
        within = {m: rng.permutation((models == m).sum(1).max()) for m in range(9)}
        for agent, row in enumerate(models):
            labels = rng.permutation(row)
            for model in np.unique(row):
                columns = np.flatnonzero(row == model)
                mixed = (
                    within[model] if model != LOCAL else rng.permutation(len(columns))
                )
                order[part][agent, labels == model] = columns[mixed]
    return tuple(order)


def ordered(cells, order):
    return tuple(map(lambda c, o: np.take_along_axis(c, o, 1), cells, order))


def exact_mean(params, plan):
    with jax.enable_x64(True):
        mixed = quick_jit(lambda p: mixing.mix(p, plan, mixing.by_group_mean))(params)
        return jax.tree.map(np.asarray, mixed)


def aligned_mean(own, own_cells, scheme, wiring):
    """The package's average of networks in their own column order."""
    cells, order = placement.align(own_cells)
    params = ownership.permute_cells(own, order, wiring)
    shapes = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:]), params)
    plan = ownership.mix_plan(scheme, cells, wiring, shapes)
    mixed = exact_mean(params, plan)
    return ownership.permute_cells(mixed, order, wiring, inverse=True)


@every_shallow_kind
def test_permuted_cells_mix_the_same(kind):
    """A-T5 (c): a global and two semi-local models, local cells, own column orders."""
    rng = np.random.default_rng(3)
    module = kind.build(kind.layout)
    wiring = kind.wiring(module)
    scheme = models_of(kind.layout, *TWO_PAIRS)
    cells = placement.attach(scheme)
    assert placement.widths(cells) == kind.layout
    params = jax.tree.map(np.float64, random_params(rng, kind, module, 4))
    mixed = aligned_mean(params, cells, scheme, wiring)
    assert not jax.tree.all(jax.tree.map(np.array_equal, mixed, params))

    order = shuffled(rng, cells, kind.parts)
    own_cells = ordered(cells, order)
    assert any((a != b).any() for a, b in zip(cells, own_cells, strict=True))
    own = ownership.permute_cells(params, order, wiring)
    actual = aligned_mean(own, own_cells, scheme, wiring)
    expected = ownership.permute_cells(mixed, order, wiring)
    assert_trees_close(actual, expected, rtol=1e-12)


def literal_average(params, cells, wiring, lower):
    """Partial average, one parameter at a time.

    Args:
      params: stacked, every agent in its own column order.
      cells: the model of every cell, likewise.
      wiring: of the network.
      lower: pairs of models of which one is lower, and owns what lies between them.
    """
    result = []
    for path, leaf in paths.leaves_with_paths(params):
        places = {}  # what a parameter is -> where the agents keep it
        for agent, *index in np.ndindex(leaf.shape):
            what, models = [], set()
            for part, i in zip(wiring[path], index, strict=True):
                row = None if part is None else cells[part][agent].tolist()
                what.append(i if part is None else (row[i], row[:i].count(row[i])))
                models |= set() if part is None else {row[i]}
            is_local = LOCAL in models or (
                len(models) > 1 and frozenset(models) not in lower
            )
            name = (tuple(what), agent) if is_local else tuple(what)
            places.setdefault(name, []).append((agent, *index))
        averaged = leaf.copy()
        for where in places.values():
            values = [leaf[at] for at in where]
            for at in where:
                averaged[at] = sum(values) / len(values)
        result.append(averaged)
    return jax.tree.unflatten(jax.tree.structure(params), result)


@every_network
@pytest.mark.parametrize(
    "groups", [slow(ONE_PAIR), TWO_PAIRS], ids=["one_pair", "two_pairs"]
)
def test_average_is_that_of_every_parameter_alone(kind, groups):
    """Owner = the lower of source's and target's model; incomparable models: local."""
    rng = np.random.default_rng(4)
    module = kind.build(kind.layout)
    wiring = kind.wiring(module)
    scheme = models_of(kind.layout, *groups)
    cells = placement.attach(scheme)
    own_cells = ordered(cells, shuffled(rng, cells, range(1, len(cells) - 1)))
    num_agents = len(scheme.networks)
    params = jax.tree.map(np.float64, random_params(rng, kind, module, num_agents))
    lower = set(map(frozenset, scheme.depends))
    expected = literal_average(params, own_cells, wiring, lower)
    actual = aligned_mean(params, own_cells, scheme, wiring)
    assert_trees_close(actual, expected, rtol=1e-12)
    kept = jax.tree.leaves(jax.tree.map(np.equal, actual, params))
    assert 0.1 < np.mean(np.concatenate([leaf.ravel() for leaf in kept])) < 0.9


def with_holes(rng, kind):
    """Agent 0 has every cell, agent 1 lacks two, anywhere, of every part under test."""
    cells = all_cells(kind)
    for part in kind.parts:
        missing = rng.choice(kind.layout[part], 2, replace=False)
        cells[part][1, missing] = ABSENT
    return cells


def without_holes(params, cells, wiring):
    """The parameters that agent 1 has, as a smaller network (stack of one)."""
    leaves = []
    for path, leaf in paths.leaves_with_paths(params):
        leaf = leaf[1:]
        for axis, part in enumerate(wiring[path], start=1):
            if part is not None:
                columns = np.flatnonzero(cells[part][1] != ABSENT)
                leaf = np.take(leaf, columns, axis)
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


@every_shallow_kind
def test_an_agent_with_fewer_cells_is_a_smaller_network(kind):
    rng = np.random.default_rng(5)
    module = kind.build(kind.layout)
    wiring = kind.wiring(module)
    cells = with_holes(rng, kind)
    params = random_params(rng, kind, module)  # not zero where cells are absent
    variables = with_masks(params, cells)
    data, inputs = random_data(rng, kind), random_inputs(rng, kind, 4)
    logits = forward(kind, module, variables, inputs)
    after = trained(kind, module, variables, data)

    small = kind.build(tuple(int((part[1] != ABSENT).sum()) for part in cells))
    own = Variables(without_holes(params, cells, wiring), {})
    expected = forward(kind, small, own, inputs)
    np.testing.assert_allclose(logits[1], expected[0], rtol=1e-4, atol=1e-5)
    own_data = jax.tree.map(lambda leaf: leaf[1:], data)
    assert_trees_close(
        without_holes(after, cells, wiring),
        trained(kind, small, own, own_data),
        rtol=1e-4,
        atol=1e-5,
    )
    has = ownership.presence(cells, wiring, parameter_shapes(kind, module))
    for new, old, there in zip(
        *map(jax.tree.leaves, (after, params, has)), strict=True
    ):
        there = np.broadcast_to(there, new.shape)
        np.testing.assert_array_equal(new[~there], old[~there])


@every_network
def test_an_absent_output_never_wins(kind):
    rng = np.random.default_rng(6)
    module = kind.build(kind.layout)
    params, inputs = random_params(rng, kind, module), random_inputs(rng, kind, 4)
    expected = forward(kind, module, with_masks(params, all_cells(kind)), inputs)
    expected[1, :, 2] = ABSENT_LOGIT
    cells = all_cells(kind)
    cells[-1][1, 2] = ABSENT
    actual = forward(kind, module, with_masks(params, cells), inputs)
    np.testing.assert_array_equal(actual, expected)


def test_only_an_mlp_can_lack_a_part():
    cells = placement.attach(Scheme(((3, 2, 2, 2), (3, 2, 0, 2))))
    ownership.check_parts(cells, mlp.wiring(3))
    recurrent = gru.wiring(gru.NextWord())
    with pytest.raises(InputError, match=r"none of part 2 in agents \[1\]"):
        ownership.check_parts(cells, recurrent)
    fewer = placement.attach(Scheme(((3, 2, 2, 2), (3, 2, 1, 2))))
    ownership.check_parts(fewer, recurrent)
