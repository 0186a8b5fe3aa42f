"""Adapters: published products, a NumPy loop, equal starts, what is sent, refusals."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_front_door
from quadratics import VECTORS, in_64_bits

import p2pjax as pj
from p2pjax.nn.encoder import Encoder
from p2pjax.types import FederatedData, Ratio, Split

EXPECTED = VECTORS["lora"]
SIZE, INPUTS, OUTPUTS, RANK, SCALE, RATE = 4, 3, 2, 1, 1.5, 0.05
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(SIZE, 5, INPUTS)), RNG.normal(size=(SIZE, 5, OUTPUTS))
BASE = pj.Variables({"dense": {"kernel": RNG.normal(size=(INPUTS, OUTPUTS))}}, {})


def regression():
    """Half the squared error of a linear map."""

    def loss_fn(variables, batch, key):
        del key
        rest = batch["x"] @ variables.params["dense"]["kernel"] - batch["y"]
        return (rest * rest).sum() / 2, variables.stats

    def evaluate_fn(variables, batch):
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    return pj.Task(lambda key: jax.tree.map(jnp.zeros_like, BASE), loss_fn, evaluate_fn)


def world():
    split = Split({"x": X, "y": Y}, np.full(SIZE, 5, np.int32))
    return FederatedData(split, split, split, np.zeros(SIZE, np.int32))


def rounds(task, num_rounds):
    """D-PSGD on a ring, all examples in a step: models at first and last, infos."""
    data = jax.tree.map(jnp.asarray, world())
    method = pj.dpsgd(task, optax.sgd(RATE), pj.graphs.ring(SIZE), batch_size=5)
    state = method.init(jax.random.key(0), data)
    start = state.variables
    inputs = method.plan(np.random.default_rng(0), data, num_rounds)
    step, infos = jax.jit(method.round), []
    for t in range(num_rounds):
        one = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        state, info = step(jax.random.key(t), t, one, state, data)
        infos.append(info)
    return start, state.variables, infos


def adapters(variables):
    kernel = variables.params["dense"]["kernel"]
    a = kernel.get("A")
    if a is None:
        a = variables.stats["lora"]["dense"]["kernel"]["A"]
    return np.asarray(a), np.asarray(kernel["B"])


@pytest.mark.parametrize("freeze_a", [False, True])
def test_a_plain_loop(freeze_a):
    """Local steps on A and B, then each of them averaged by itself."""
    with in_64_bits():
        task = pj.lora(
            regression(), BASE, rank=RANK, scale=SCALE, freeze_a=freeze_a, seed=3
        )
        start, variables, infos = rounds(task, 6)
        residual = float(pj.lora_residual(variables))
    a, b = adapters(start)
    assert np.ptp(a, axis=0).max() == 0 and not b.any() and a.all()
    weight = np.array([[(i - j) % 4 != 2 for j in range(4)] for i in range(4)]) / 3
    for _ in range(6):
        kernel = BASE.params["dense"]["kernel"] + SCALE * a @ b
        slope = np.einsum("nmi,nmo->nio", X, X @ kernel - Y)
        new_b = b - RATE * SCALE * np.einsum("nir,nio->nro", a, slope)
        if not freeze_a:
            a = a - RATE * SCALE * np.einsum("nio,nro->nir", slope, b)
            a = np.einsum("nm,mir->nir", weight, a)
        b = np.einsum("nm,mro->nro", weight, new_b)
    close(adapters(variables)[0], a)
    close(adapters(variables)[1], b)
    assert np.abs(b).max() > 0.01
    sent = RANK * OUTPUTS + (0 if freeze_a else RANK * INPUTS)
    for info in infos:
        assert info.payload.tolist() == [2 * sent] * SIZE
    assert residual < 1e-12 if freeze_a else residual > 1e-9


def test_published_products():
    """Kernels are inputs by outputs, so published matrices are transposed."""
    a, b = (np.array(EXPECTED[name], float).transpose(0, 2, 1) for name in "AB")
    with in_64_bits():
        variables = pj.Variables(
            {"kernel": {"A": jnp.asarray(a), "B": jnp.asarray(b)}}, {}
        )
        found = pj.lora_residual(variables, np.array(EXPECTED["weights"]))
        base = pj.Variables({"kernel": np.zeros((2, 2))}, {})

        def product(variables):
            return pj.lora_merged(base, variables).params["kernel"]

        products = np.asarray(jax.vmap(product)(variables))
        means = product(jax.tree.map(lambda leaf: leaf.mean(0), variables))
    mean_of_products = np.array(EXPECTED["mean_of_products"]).T
    product_of_means = np.array(EXPECTED["product_of_means"]).T
    close(products.mean(0), mean_of_products)
    close(means, product_of_means)
    close(mean_of_products - product_of_means, np.array(EXPECTED["residual"]).T)
    norm = np.linalg.norm
    close(found, norm(EXPECTED["residual"]) / norm(EXPECTED["product_of_means"]))


def test_averaging_is_apart():
    """Of agents that do not train: the product of means, on a complete graph."""
    a, b = (np.array(EXPECTED[name], np.float32).transpose(0, 2, 1) for name in "AB")
    variables = pj.Variables({"kernel": {"A": a, "B": b}}, {})
    data = jax.tree.map(lambda leaf: leaf[:2, ..., :2], (X, Y))
    split = Split({"x": data[0], "y": data[1]}, np.full(2, 5, np.int32))
    both = FederatedData(split, split, split, np.zeros(2, np.int32))
    flat = regression()._replace(
        init=lambda key: pj.Variables({"kernel": jnp.zeros((2, 2))}, {}),
        loss=lambda variables, batch, key: (variables.params["kernel"].sum(), {}),
    )
    base = pj.Variables({"kernel": np.zeros((2, 2), np.float32)}, {})
    task = pj.lora(flat, base, rank=1)
    method = pj.dpsgd(task, optax.sgd(0.0), pj.graphs.complete(2), batch_size=5)
    state = method.init(jax.random.key(0), both)._replace(variables=variables)
    one = jax.tree.map(
        lambda leaf: leaf[0], method.plan(np.random.default_rng(1), both, 1)
    )
    state, _ = method.round(jax.random.key(0), 0, one, state, both)
    merged = jax.vmap(partial(pj.lora_merged, base))(state.variables).params["kernel"]
    expected = np.array(EXPECTED["product_of_means"]).T
    np.testing.assert_allclose(merged, [expected, expected], atol=1e-6)
    assert pj.lora_residual(state.variables) < 1e-6


ENCODER = Encoder(9, hidden_size=6, num_heads=(2,), mlp_dim=(4,), head_dim=4)
TOKENS = pj.masked_token(ENCODER, 5, 1)
READS = ("params/encoder/.*/(query|value|output)/kernel",)


def sentences():
    rng = np.random.default_rng(2)
    tokens = rng.integers(2, 9, (SIZE, 12, 5)).astype(np.int32)
    tokens[..., 3] = 1
    split = Split({"tokens": tokens, "y": tokens[..., 0]}, np.full(SIZE, 12, np.int32))
    return FederatedData(split, split, split, np.zeros(SIZE, np.int32))


@pytest.fixture(scope="module")
def encoder_base():
    return jax.jit(TOKENS.init)(jax.random.key(0))


def adapted_encoder(base, **options):
    trained = ("params/head/.*",)
    return pj.lora(TOKENS, base, rank=2, kernels=READS, trained=trained, **options)


def test_encoder_starts_as_its_base(encoder_base):
    task, data = adapted_encoder(encoder_base), sentences()
    start = task.init(jax.random.key(1))
    attention = start.params["encoder"]["layer_1_attention"]
    shapes = {
        k: {n: m.shape for n, m in v["kernel"].items()} for k, v in attention.items()
    }
    assert shapes == {
        "query": {"A": (6, 2), "B": (2, 8)},  # of outputs [2, 4]
        "value": {"A": (6, 2), "B": (2, 8)},
        "output": {"A": (8, 2), "B": (2, 6)},
    }
    assert set(start.params["encoder"]) == {
        "layer_1_attention",
        "layer_1_feed_forward",
    }
    batch = {k: v[0] for k, v in data.train.examples.items()}
    batch["valid"] = np.ones(12, bool)
    for ours, theirs in (
        (task.evaluate(start, batch), TOKENS.evaluate(encoder_base, batch)),
        (task.predict(start, batch), TOKENS.predict(encoder_base, batch)),
    ):
        for one, other in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
            np.testing.assert_array_equal(one, other)


def test_through_the_front_door():
    rng = np.random.default_rng(3)  # its own: others may run before it, or not
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    iid = pj.split.iid()
    data = pj.federate(x, y, num_agents=4, split=iid, test_fraction=0.2)
    task = pj.classification(pj.nn.MLP((4, 2)), data)
    small = pj.lora(task, task.init(jax.random.key(0)), rank=1, scale=2.0)
    ring = pj.graphs.ring(4)
    method = pj.dpsgd(small, optax.sgd(0.2), ring, batch_size=8)
    (last,) = pj.simulate(jax.random.key(0), method, data, 40, eval_every=40)
    assert last.metrics["accuracy"].mean() > 0.9
    assert last.used.bytes == 4 * (3 + 4 + 4 + 2) * last.used.messages > 0
    assert 0 < pj.lora_residual(method.models(last.state).reported) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", test_front_door.ORDINARY)
def test_every_method_takes_adapters(name):
    task = test_front_door.TASK
    base = task.init(jax.random.key(0))
    small = pj.lora(task, base, rank=1, trained=("params/.*(norm|Norm).*",))
    state, new_state, _ = test_front_door.shapes_of_round(
        test_front_door.build(name, small)
    )
    assert jax.tree.structure(state) == jax.tree.structure(new_state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, freeze_a", [("dpsgd", True), ("dpsgd", False), ("ad_psgd", False)]
)
def test_encoder_through_the_front_door(encoder_base, name, freeze_a):
    before = jax.tree.map(np.array, encoder_base)
    task, data = adapted_encoder(encoder_base, freeze_a=freeze_a), sentences()
    ring = pj.graphs.ring(SIZE)
    method = getattr(pj, name)(task, optax.sgd(0.5), ring, batch_size=4)
    (last,) = pj.simulate(jax.random.key(0), method, data, 6, eval_every=6)
    start = TOKENS.evaluate(encoder_base, _whole(data))["loss"]
    assert last.metrics["loss"].mean() < start.total / start.weight - 0.05
    one_message = sum(
        leaf.size
        for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)).params)
    )
    assert last.used.bytes == 4 * one_message * last.used.messages > 0
    for old, new in zip(*map(jax.tree.leaves, (before, encoder_base)), strict=True):
        np.testing.assert_array_equal(old, new)


def _whole(data):
    examples = {k: v.reshape(-1, *v.shape[2:]) for k, v in data.train.examples.items()}
    return {**examples, "valid": np.ones(len(examples["y"]), bool)}


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        return nn.Dense(2)(x.reshape(x.shape[0], -1))


def test_any_network_with_statistics():
    """Convolutions too; statistics move and are sent, norms can be trained whole."""
    task = pj.classification(Normalised(), (4, 4, 1))
    base = task.init(jax.random.key(0))
    small = pj.lora(task, base, rank=2)
    assert small.norm == frozenset()
    start = small.init(jax.random.key(1))
    kernel = start.params["Conv_0"]["kernel"]
    assert kernel["A"].shape == (9, 2) and kernel["B"].shape == (2, 4)
    batch = {"x": np.ones((3, 4, 4, 1), np.float32), "y": np.zeros(3, int)}
    batch["valid"] = np.ones(3, bool)
    _, stats = small.loss(start, batch, jax.random.key(0))
    assert (stats["batch_stats"]["BatchNorm_0"]["mean"] != 0).any()
    whole = pj.lora(task, base, rank=1, trained=("params/BatchNorm_0/.*",))
    assert whole.norm == task.norm
    frozen = pj.lora(task, base, rank=1, freeze_a=True)
    ones = [frozen.init(jax.random.key(seed)).stats["lora"] for seed in (0, 1)]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), *ones))


def refused(**options):
    task, base = regression(), options.pop("base", BASE)
    return pj.lora(task, base, **{"rank": 1, **options})


STACKED = jax.tree.map(lambda leaf: np.stack([leaf] * SIZE), BASE)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rank": 0}, "rank of adapters of 1 or more, got 0"),
        ({"rank": 1.5}, "rank of adapters of 1 or more, got 1.5"),
        ({"rank": 3}, "at most 2 for the adapter of dense/kernel, which has 3 inputs"),
        ({"kernels": ("params/other/.*",)}, "which matches none"),
        ({"kernels": "params/.*"}, "Need a sequence of patterns"),
        ({"kernels": ()}, "patterns of kernels that get adapters, got none"),
        ({"trained": ("params/dense/.*",)}, "got dense/kernel as both"),
        ({"scale": 0.0}, "a finite scale other than 0"),
        ({"base": BASE.params}, "as Variables, such as task.init"),
        ({"base": STACKED}, "for ONE agent, .*give one agent's row"),
        ({"base": pj.Variables({}, {})}, r"of shape \(3, 2\), got None"),
    ],
)
def test_refused(options, message):
    with pytest.raises(pj.InputError, match=message):
        refused(**options)


def test_vectors_have_no_adapters():
    task = pj.classification(pj.nn.MLP((4, 2)), (3,))
    with pytest.raises(pj.InputError, match="two axes or more"):
        pj.lora(task, task.init(jax.random.key(0)), rank=1, kernels=(".*/bias",))
    with pytest.raises(pj.InputError, match="got no adapters"):
        pj.lora_residual(pj.Variables({"kernel": jnp.zeros((2, 2))}, {}))
