"""Convolutions and GRUs of normal weights: against plain networks and plain loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slow_cases import marked, slow

from p2pjax.algorithms._virtual import virtual
from p2pjax.datasets import partition
from p2pjax.datasets.stacking import Examples
from p2pjax.nn import gaussian
from p2pjax.nn.cnn import CNN
from p2pjax.nn.gru import NextWord
from p2pjax.nn.variational import draw
from p2pjax.nn.variational_cnn import ColumnsCNN, VariationalCNN
from p2pjax.nn.variational_gru import ColumnsGRU, VariationalGRU
from p2pjax.tasks import bayesian
from p2pjax.tasks._examples import as_tokens
from p2pjax.tasks.task import as_float
from p2pjax.types import InputError

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
    },
)
CNNS = {
    "cnn": VariationalCNN((2, 3), (4, 3), kernel_size=2),
    "columns of cnn": ColumnsCNN((2, 3), (4, 3), kernel_size=2, gates=(0.5, 1.0)),
}
GRUS = {
    "gru": VariationalGRU(6, 3, 2, 4),
    "columns of gru": ColumnsGRU(6, 3, 2, 4, gates=(0.5, 1.0)),
}
MODULES = CNNS | GRUS
RNG = np.random.default_rng(0)
IMAGES = jnp.asarray(RNG.normal(size=(3, 8, 8)), jnp.float32)
TOKENS = jnp.asarray([[0, 0, 3, 1], [5, 5, 2, 4], [0, 1, 0, 2]], jnp.int32)


def inputs_of(name):
    return TOKENS if name in GRUS else IMAGES


def posterior(name):
    """Means that are not 0 anywhere, and deviations of all sizes."""
    made = MODULES[name].init(jax.random.key(1), inputs_of(name))["params"]
    rng = np.random.default_rng(1)

    def mean_of(path, leaf):
        # What is read of the server is not cut off by the ReLU.
        shift = 2.0 if path[-1].key == "lateral_bias" else 0.0
        return jnp.asarray(rng.normal(shift, 0.5, leaf.shape), jnp.float32)

    def stddev_of(leaf):
        return jnp.asarray(rng.uniform(0.1, 0.5, leaf.shape), jnp.float32)

    mean = jax.tree_util.tree_map_with_path(mean_of, made)
    return gaussian.Gaussian(mean, jax.tree.map(stddev_of, made))


def test_mean_weights_are_the_plain_convolutional_network():
    plain = CNN((2, 3), (4,), 3, kernel_size=2)
    params = posterior("cnn").mean
    shaped = {k: dict(layer) for k, layer in params.items()}
    kernel = shaped["layer_3"]["kernel"]
    shaped["layer_3"]["kernel"] = kernel.reshape(-1, 3, 4)  # [positions, channels, 4]
    expected = plain.apply({"params": shaped}, IMAGES)
    close(MODULES["cnn"].apply({"params": params}, IMAGES), expected)


def test_mean_weights_are_the_plain_next_word_network():
    plain = NextWord(6, 3, 2, 4)
    params = posterior("gru").mean
    gates = {
        **params["layer_2"],
        **{k: v for k, v in params["recurrence"].items()},
    }
    shaped = {
        "embedding": {"embedding": params["layer_1"]["kernel"]},
        "gru": {k: v.reshape(*v.shape[:-1], 3, 2) for k, v in gates.items()},
        "dense": params["layer_3"],
        "output": params["layer_4"],
    }
    expected = plain.apply({"params": shaped}, TOKENS)
    close(MODULES["gru"].apply({"params": params}, TOKENS), expected)


def of_example(collections, n):
    """The weights that example n sees, one matrix after the other."""

    def weights(mean, perturbation, signs):
        if mean.ndim == 1:
            return mean + perturbation
        inputs = mean.shape[-2]
        pattern = jnp.outer(signs[n, :inputs], signs[n, inputs:])
        return mean + perturbation * pattern.reshape(
            (1,) * (mean.ndim - 2) + pattern.shape
        )

    return jax.tree.map(
        weights,
        collections["params"],
        collections["perturbation"],
        collections["signs"],
    )


@pytest.mark.parametrize("name", marked(MODULES, *list(MODULES)[1:3]))
def test_flipout_and_its_gradients_are_those_of_a_loop_over_examples(name):
    module, x, q = MODULES[name], inputs_of(name), posterior(name)
    key = jax.random.key(3)
    drawn = draw(key, q, len(x), flipout=True, dropout=0.0)
    noise = jax.tree.map(jnp.divide, drawn["perturbation"], q.stddev)

    def together(q):
        own = draw(key, q, len(x), flipout=True, dropout=0.0)
        return jnp.square(module.apply(own, x)).sum()

    def one_by_one(q):
        own = {
            "params": q.mean,
            "perturbation": jax.tree.map(jnp.multiply, q.stddev, noise),
            "signs": drawn["signs"],
        }
        outputs = [
            module.apply({"params": of_example(own, n)}, x[n : n + 1])
            for n in range(len(x))
        ]
        return jnp.square(jnp.concatenate(outputs)).sum()

    found, expected = (jit(jax.value_and_grad(fn))(q) for fn in (together, one_by_one))
    close(found[0], expected[0])
    jax.tree.map(partial(close, rtol=1e-3, atol=1e-3), found[1], expected[1])
    for leaf in jax.tree.leaves(found[1].stddev):  # noise reaches all weights
        assert jnp.abs(leaf).max() > 0


@pytest.mark.parametrize("name", ["columns of cnn", "columns of gru"])
def test_without_flipout_all_examples_see_the_same_weights(name):
    module, x, q = MODULES[name], inputs_of(name), posterior(name)
    drawn = draw(jax.random.key(3), q, len(x), flipout=False, dropout=0.0)
    weights = jax.tree.map(jnp.add, drawn["params"], drawn["perturbation"])
    close(module.apply(drawn, x), module.apply({"params": weights}, x))


@pytest.mark.parametrize("name", MODULES)
def test_dropout_is_of_dense_layers(name):
    module, x, q = MODULES[name], inputs_of(name), posterior(name)
    kept = draw(jax.random.key(3), q, len(x), flipout=False, dropout=0.5)["kept"]
    path_of = jax.tree_util.keystr
    for path, leaf in jax.tree_util.tree_leaves_with_path(kept):
        weights = q.mean
        for entry in path:
            weights = weights[entry.key]
        rows = weights.shape[0] if weights.ndim == 2 else 0
        assert leaf.shape == (len(x), rows), path_of(path)
    plain = module.apply({"params": q.mean}, x)
    ones = jax.tree.map(jnp.ones_like, kept)
    close(module.apply({"params": q.mean, "kept": ones}, x), plain)
    dropped = module.apply({"params": q.mean, "kept": kept}, x)
    assert jnp.isfinite(dropped).all() and jnp.abs(dropped - plain).max() > 0


@pytest.mark.parametrize("name", ["columns of cnn", "columns of gru"])
def test_shut_gates_leave_the_client_alone_and_open_ones_read_the_server(name):
    module, x, q = MODULES[name], inputs_of(name), posterior(name)

    def logits(gate, server):
        def changed(path, leaf):
            name = path[-1].key
            if name == "gate":
                return jnp.full_like(leaf, gate)
            return leaf * server if path[0].key == "server" else leaf

        params = jax.tree_util.tree_map_with_path(changed, q.mean)
        return module.apply({"params": params}, x)

    close(logits(0.0, 1.0), logits(0.0, 3.0))
    assert jnp.abs(logits(1.0, 1.0) - logits(1.0, 3.0)).max() > 1e-3


@pytest.mark.parametrize("name", ["columns of cnn", slow("columns of gru")])
def test_refinements_take_them_and_every_weight_is_in_the_divergence(name):
    x = np.concatenate([np.asarray(inputs_of(name))] * 4)
    y = (np.arange(12) % 3).astype(np.int32)
    examples = Examples(x, y, np.zeros(12, np.int32), 3)
    rows = np.split(np.arange(12), 2)
    data = partition.federated_data(examples, rows, rows)
    task = bayesian.variational_classification(
        MODULES[name],
        x.shape[1:],
        num_samples=1,
        dropout=0.2,
        as_inputs=as_tokens if name in GRUS else as_float,
    )
    method = virtual(task, optax.adam(0.05), batch_size=4, synchronous=True)
    state = jit(method.init)(jax.random.key(0), data)
    inputs = method.plan(np.random.default_rng(0), data, 1)[0]
    new, info = jit(method.round)(
        jax.random.key(1), jnp.int32(0), jnp.asarray(inputs), state, data
    )
    sizes = [leaf[0].size for leaf in jax.tree.leaves(state.server.mean)]
    assert float(info.payload[0]) == 2 * sum(sizes)
    for leaf in jax.tree.leaves(new.factors.precision):
        assert (leaf > 0).all() and jnp.isfinite(leaf).all()
    for before, after in zip(
        jax.tree.leaves((state.clients, state.server)),
        jax.tree.leaves((new.clients, new.server)),
        strict=True,
    ):
        assert jnp.isfinite(after).all() and (before != after).any()
    # The divergence of one agent from the prior, weight by weight.
    one = jax.tree.map(lambda leaf: leaf[0], new.clients)
    found = gaussian.kl_divergence(one, gaussian.centered(1.0, one.mean))
    m, s = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in one
    )
    close(found, (np.square(m) + np.square(s) - 1).sum() / 2 - np.log(s).sum())


@pytest.mark.parametrize("module", [VariationalCNN((2,), (3,)), ColumnsCNN((2,), (3,))])
def test_what_is_no_image_is_refused(module):
    for shape, message in (((1, 30), "images of height"), ((1, 5, 9), "6 x 6 posit")):
        with pytest.raises(InputError, match=message):
            module.init(jax.random.key(0), jnp.zeros(shape))


def test_a_label_that_is_not_counted():
    task = bayesian.variational_classification(
        VariationalGRU(6, 3, 2, 4),
        (4,),
        num_samples=1,
        as_inputs=as_tokens,
        ignore_label=1,
    )
    batch = {
        "x": TOKENS,
        "y": jnp.asarray([1, 2, 1]),
        "valid": jnp.ones(3, bool),
    }
    found = jit(task.evaluate)(task.init(jax.random.key(0)), batch)
    assert (float(found["accuracy"].weight), float(found["loss"].weight)) == (1, 3)
