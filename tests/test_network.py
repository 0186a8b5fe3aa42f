"""Networks of any kind train rightly, and what would go wrong in silence is refused."""

import subprocess
import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from p2pjax.datasets import stacking
from p2pjax.nn import gru, lstm
from p2pjax.nn.encoder import Encoder
from p2pjax.tasks import (
    Network,
    classification,
    losses,
    masked_token,
    next_token,
)
from p2pjax.tasks.network import as_network
from p2pjax.types import FederatedData, InputError, Variables

SHAPE = (4, 4, 1)


class LinenNet(nn.Module):
    """Convolution, batch norm, dropout, dense."""

    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Conv(3, (3, 3), name="conv")(x)
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        x = nn.relu(x).reshape(x.shape[0], -1)
        x = nn.Dropout(self.rate, deterministic=not train)(x)
        return nn.Dense(2, name="dense")(x)


class NNXNet(nnx.Module):
    """The same."""

    def __init__(self, rngs, rate=0.0):
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.dense = nnx.Linear(48, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x))).reshape(x.shape[0], -1)
        return self.dense(self.dropout(x))


def plain_net():
    """The same without flax."""

    def apply(variables, x, key, train):
        del key
        params, stats = variables.params, variables.stats["batch_stats"]["norm"]
        x = jax.lax.conv_general_dilated(
            *(x, params["conv"]["kernel"], (1, 1), "SAME"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = x + params["conv"]["bias"].reshape(1, 1, 1, -1)
        if train:
            mean = x.mean((0, 1, 2))
            var = jnp.square(x).mean((0, 1, 2)) - mean**2
            stats = {
                "mean": 0.99 * stats["mean"] + 0.01 * mean,
                "var": 0.99 * stats["var"] + 0.01 * var,
            }
        else:
            mean, var = stats["mean"], stats["var"]
        mean, var, scale, bias = (
            v.reshape(1, 1, 1, -1)
            for v in (mean, var, params["norm"]["scale"], params["norm"]["bias"])
        )
        x = (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias
        x = jax.nn.relu(x).reshape(x.shape[0], -1)
        logits = x @ params["dense"]["kernel"] + params["dense"]["bias"][None]
        return logits, {"batch_stats": {"norm": stats}}

    def init(key):
        return classification(LinenNet(), SHAPE).init(key)

    return Network(init, apply, norm=frozenset({"norm"}))


def batch_of(shape, *, num_classes=2, num_valid=5, size=6):
    rng = np.random.default_rng(0)
    return {
        "x": jnp.asarray(rng.normal(size=(size, *shape)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, num_classes, size), jnp.int32),
        "valid": jnp.arange(size) < num_valid,
    }


def close(found, wanted, **tolerance):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(
        partial(np.testing.assert_allclose, **({"atol": 1e-6} | tolerance)),
        found,
        wanted,
    )


@pytest.mark.parametrize("twin", [NNXNet, plain_net()], ids=["nnx", "plain"])
def test_twins_agree(twin):
    """Loss, gradients, new statistics, evaluation and prediction."""
    batch = batch_of(SHAPE, num_valid=6)
    first, second = classification(LinenNet(), SHAPE), classification(twin, SHAPE)
    variables = first.init(jax.random.key(0))
    assert first.norm == second.norm == {"norm"}

    @partial(jax.jit, static_argnums=0)
    def learn(task, variables):
        def loss(params):
            return task.loss(variables._replace(params=params), batch, key)

        key = jax.random.key(1)
        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(
            variables.params
        )
        trained = Variables(variables.params, stats)
        judged = task.evaluate(trained, batch), task.predict(trained, batch)
        return value, stats, gradients, judged

    close(learn(second, variables), learn(first, variables), rtol=1e-5)
    made = jax.eval_shape(second.init, jax.random.key(0))
    assert jax.tree.structure(made) == jax.tree.structure(variables)


@pytest.mark.parametrize(
    "network",
    [LinenNet(0.5), lambda rngs: NNXNet(rngs, 0.5), partial(NNXNet, rate=0.5)],
    ids=["linen", "nnx", "partial"],
)
def test_training_by_hand(network):
    """Statistics move, dropout depends on the key, losses fall, evaluation is fixed."""
    task, batch = classification(network, SHAPE), batch_of(SHAPE)
    start = variables = task.init(jax.random.key(0))
    optimizer = optax.sgd(0.1)
    opt_state = optimizer.init(variables.params)

    @jax.jit
    def step(variables, opt_state, key):
        def loss(params):
            return task.loss(variables._replace(params=params), batch, key)

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(variables.params)
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(variables.params, updates)
        return Variables(params, stats), opt_state, value

    one, two = (step(start, opt_state, jax.random.key(k))[2] for k in (1, 2))
    assert one != two
    values = []
    for t in range(40):
        variables, opt_state, value = step(variables, opt_state, jax.random.key(t))
        values.append(value)
    assert np.mean(values[-5:]) < 0.7 * np.mean(values[:5])
    means = (v.stats["batch_stats"]["norm"]["mean"] for v in (start, variables))
    assert not np.array_equal(*means)
    probabilities = task.predict(variables, batch)
    close(probabilities.sum(-1), np.ones(6), rtol=1e-5)
    nobody = {**batch, "valid": jnp.zeros(6, bool)}
    value, stats = task.loss(variables, nobody, jax.random.key(0))
    assert value == 0
    close(stats, variables.stats)


@pytest.mark.parametrize(
    "name", ["train", "training", "is_training", "deterministic", "use_running_average"]
)
@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_names_of_the_mode(name, kind):
    value_in_training = name.endswith(("train", "training"))
    body = f"""
def call(self, x, {name}):
    return self.norm(x, use_running_average={name} != {value_in_training})
"""
    scope = {}
    exec(body, scope)  # signatures are what is tested
    if kind == "linen":

        class Net(nn.Module):
            def setup(self):
                self.norm = nn.BatchNorm()

            __call__ = scope["call"]

        network = Net()
    else:

        class Net(nnx.Module):
            def __init__(self, *, rngs):
                self.norm = nnx.BatchNorm(3, rngs=rngs)

            __call__ = scope["call"]

        network = Net
    classification(network, (3,)).check()


def test_norm_is_found_by_class():
    class OwnNorm(nn.LayerNorm):
        pass

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.GroupNorm(2)(OwnNorm(name="own")(nn.Dense(4)(x)))
            return nn.WeightNorm(nn.Dense(2))(x)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Block()(nn.RMSNorm()(Block(name="named")(x)))

    task = classification(Net(), (4,))
    layers = {"own", "GroupNorm_0", "WeightNorm_0"}
    blocks = {f"{block}/{layer}" for block in ("named", "Block_0") for layer in layers}
    assert task.norm == blocks | {"RMSNorm_0"}
    task.check()

    class Layers(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List(
                [nnx.Linear(4, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)]
            )

        def __call__(self, x):
            return self.layers[1](self.layers[0](x))

    task = classification(Layers, (4,))
    assert task.norm == {"layers/1"}
    assert task.init(jax.random.key(0)).params["layers"]["1"]["scale"].shape == (4,)
    encoder = Encoder(9, 4, (1,), (2,), 4, num_positions=5)
    names = ("embedding_norm", "layer_1_attention_norm", "layer_1_feed_forward_norm")
    task = masked_token(encoder, 5, mask_id=2)
    assert task.norm == {f"encoder/{name}" for name in names}


class Counter(nn.Module):
    """Has a collection of its own, and random numbers of its own."""

    @nn.compact
    def __call__(self, x, train=False):
        steps = self.variable("steps", "number", jnp.zeros, (), jnp.int32)
        if train:
            steps.value += 1
            x = x + jax.random.normal(self.make_rng("noise"), x.shape)
            x = x + jax.random.normal(self.make_rng("more"), x.shape)
        return nn.Dense(2)(x)


class NNXCounter(nnx.Module):
    """The same."""

    def __init__(self, rngs):
        self.number = nnx.Variable(jnp.zeros((), jnp.int32))
        self.dense = nnx.Linear(3, 2, rngs=rngs)
        self.scale = 1.0

    def __call__(self, x, *, train, rngs=None):
        if train:
            self.number[...] += 1
            x = x + jax.random.normal(rngs.noise(), x.shape)
        return self.dense(x)


@pytest.mark.parametrize(
    "network, name", [(Counter(), "steps"), (NNXCounter, "Variable")]
)
def test_other_collections_and_streams(network, name):
    task = classification(network, (3,))
    variables = task.init(jax.random.key(0))
    assert variables.stats.keys() == {name}
    found = [
        task.loss(variables, batch_of((3,)), jax.random.key(seed)) for seed in (0, 1)
    ]
    assert found[0][0] != found[1][0]
    assert found[0][1][name]["number"] == 1
    # What is not the network's own stays where it is.
    more = variables._replace(stats={**variables.stats, "mine": {"x": jnp.ones(2)}})
    _, stats = task.loss(more, batch_of((3,)), jax.random.key(0))
    assert stats["mine"]["x"].tolist() == [1, 1]


def test_agents_side_by_side():
    """As the engine calls a task: scanned steps of agents in one array."""
    task, batch = classification(partial(NNXNet, rate=0.5), SHAPE), batch_of(SHAPE)

    def learn(variables, key):
        def step(variables, key):
            value, stats = task.loss(variables, batch, key)
            return variables._replace(stats=stats), value

        return jax.lax.scan(step, variables, jax.random.split(key, 2))

    keys = jax.random.split(jax.random.key(0), 3)
    agents = jax.vmap(task.init)(keys)
    together = jax.jit(jax.vmap(learn))(agents, keys)
    alone = jax.jit(learn)(jax.tree.map(lambda leaf: leaf[1], agents), keys[1])
    close(jax.tree.map(lambda leaf: leaf[1], together), alone, rtol=1e-4)


class TestInputs:
    def test_layer_norm_without_a_mode(self):
        network = nn.Sequential([nn.LayerNorm(), nn.Dense(2)])
        task = classification(network, (3,), loss=losses.binary_cross_entropy)
        batch = batch_of((3,))
        value, stats = task.loss(task.init(jax.random.key(0)), batch, jax.random.key(0))
        assert np.isfinite(value) and stats == {}
        other = {**batch, "x": batch["x"].at[5].set(99.0)}  # padding
        again, _ = task.loss(task.init(jax.random.key(0)), other, jax.random.key(0))
        assert value == again

    def test_half_precision(self):
        data = data_of(np.zeros((2, 4, 3), jnp.bfloat16), np.zeros((2, 4), np.int32))
        network = nn.Dense(2, dtype=jnp.bfloat16)
        task = classification(network, data)
        task.check()
        batch = {**batch_of((3,)), "x": jnp.ones((6, 3), jnp.bfloat16)}
        assert task.predict(task.init(jax.random.key(0)), batch).dtype == jnp.bfloat16

    def test_tokens(self):
        x = np.arange(24, dtype=np.int16).reshape(2, 4, 3) % 9
        data = data_of(x, np.zeros((2, 4), np.int32))
        module = lstm.SequenceClassifier(9, 4, 5, 3)
        for given in (data, (3,)):
            task = classification(module, given)
            batch = {**batch_of((3,)), "x": jnp.ones((6, 3), jnp.int16)}
            variables = jax.jit(task.init)(jax.random.key(0))
            value, _ = jax.jit(task.loss)(variables, batch, jax.random.key(0))
            assert np.isfinite(value)
        small = lstm.SequenceClassifier(5, 4, 5, 3)
        with pytest.raises(InputError, match="random tokens up to 8"):
            classification(small, data).check()
        words = data_of(x, x[..., 0])
        task = next_token(gru.NextWord(9, 3, 3, 3), words, ignore_token=1)
        task.check()
        with pytest.raises(InputError, match="labels from 0 to 5"):
            next_token(gru.NextWord(6, 3, 3, 3), words)

    def test_momentum_is_part_of_the_variables(self):
        module = gru.NextWord(9, 3, 3, 3, batch_norm=True)
        task = next_token(module, 4, ignore_token=1, momentum=0.7)
        variables = jax.jit(task.init)(jax.random.key(0))
        assert variables.stats["momentum"] == np.float32(0.7)
        batch = {**batch_of((4,)), "x": jnp.ones((6, 4), jnp.int32)}
        kept = variables._replace(stats={**variables.stats, "momentum": jnp.ones(())})
        close(jax.jit(task.loss)(kept, batch, jax.random.key(0))[1], kept.stats)
        without = next_token(module, 4, momentum=None)
        without = jax.eval_shape(without.init, jax.random.key(0))
        assert without.stats.keys() == {"batch_stats"}

    def test_one_output(self):
        task = classification(nn.Dense(1), (3,), losses.binary_cross_entropy)
        batch = batch_of((3,))
        assert task.predict(task.init(jax.random.key(0)), batch).shape == (6, 2)
        with pytest.raises(InputError, match="two outputs or more"):
            classification(nn.Dense(1), (3,))


def data_of(x, y):
    split = stacking.stack_agents(
        [{"x": own, "y": labels} for own, labels in zip(x, y, strict=True)]
    )
    return FederatedData(split, split, split, np.zeros(len(x), np.int32))


class HiddenMode(nn.Module):
    @nn.compact
    def __call__(self, x, **kwargs):
        average = not kwargs.get("train", False)
        return nn.BatchNorm(use_running_average=average, name="norm")(nn.Dense(2)(x))


class Convolves(nn.Module):
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(2, (3, 3), padding=self.padding)(x)
        return nn.Dense(2, kernel_init=nn.initializers.zeros)(x.mean((1,)))


class AlwaysRandom(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(2)(x))


class Sows(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.sow("losses", "size", x.sum())
        return nn.Dense(2)(x)


class NeedsMask(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        return nn.Dense(2)(x * mask)


class BareArray(nnx.Module):
    def __init__(self, rngs):
        self.table = jax.random.normal(rngs(), (3, 2))

    def __call__(self, x):
        return x @ self.table


class LateVariable(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        self.last = nnx.Cache(x)
        return self.dense(x)


def zeros(key):
    del key
    return {"w": jnp.zeros((3, 2))}


def ones(key):
    return jax.tree.map(jnp.ones_like, zeros(key))


def product(params, x):
    return x @ params["w"]


def random_evaluation(variables, x, key, train):
    del train
    output = x @ variables.params["w"] + jax.random.normal(key, (x.shape[0], 2))
    return output, variables.stats


@pytest.mark.parametrize(
    "network, shape, message",
    [
        (HiddenMode(), (3,), r"statistics that move.*'norm'.*argument for the mode"),
        (
            nn.Sequential([nn.Dense(2), nn.BatchNorm(use_running_average=False)]),
            (3,),
            r"no statistics in evaluation.*Cannot update variable.*`train`",
        ),
        (
            Network(ones, lambda p, x: (x - x.mean(0, keepdims=True)) @ p["w"]),
            (3,),
            r"depend on the other examples.*normalise by the batch in evaluation",
        ),
        (Convolves(), (4, 4), r"depend on the other.* channel axis, \[M, H, W, 1\]"),
        (Convolves("VALID"), (4, 4), r"outputs `\[B, k\]`.*channel axis"),
        (
            AlwaysRandom(),
            (3,),
            r"no random numbers.*PRNG for \"dropout\"\).*deterministic=not train",
        ),
        (Network(zeros, random_evaluation), (3,), "depend on the key"),
        (
            nn.Dense(2, bias_init=nn.initializers.constant(np.inf)),
            (3,),
            "finite outputs at initialisation",
        ),
        (Sows(), (3,), "keep their structure.*'losses'"),
        (NeedsMask(), (3,), r"also needs \['mask'\]"),
        (nn.Dense(2), (4, 3), r"outputs `\[B, k\]`.*got \[3, 4, 2\]"),
        (nn.Dense, (3,), "got the class Dense"),
        ("mlp", (3,), "Need a Linen module.*got 'mlp'"),
        (lambda rngs: nn.Dense(2), (3,), "a function that makes Dense"),
        (BareArray, (3,), "bare array `table`"),
        (LateVariable, (3,), r"\['last'\] made or deleted by a call"),
        (Network(zeros, lambda p, x, key: x), (3,), r"got apply\(p, x, key\)"),
        (Network(zeros, lambda p, *x: x), (3,), r"got apply\(p, \*x\)"),
        (
            Network(lambda key: Variables(zeros(key), {"n": jnp.ones(())}), product),
            (3,),
            "statistics would never change",
        ),
        (
            Network(zeros, lambda v, x, key, train: x @ v.params["w"]),
            (3,),
            r"returns \(output, stats\)",
        ),
        (
            Network(zeros, product, norm=frozenset({"norm"})),
            (3,),
            "'norm', which is none of",
        ),
        (nn.Dense(2), ("a", 3), "shape of one example"),
    ],
)
def test_refuses(network, shape, message):
    with pytest.raises(InputError, match=message):
        classification(network, shape).check()


def test_refuses_a_network_that_exists():
    with pytest.raises(InputError, match=r"lambda rngs: NNXNet\(..., rngs=rngs\)"):
        classification(NNXNet(nnx.Rngs(0)), SHAPE)


def test_refuses_labels_without_an_output():
    x, y = np.zeros((2, 4, 3), np.float32), np.full((2, 4), 2)
    with pytest.raises(InputError, match="labels from 0 to 1.*got 2 to 2"):
        classification(nn.Dense(2), data_of(x, y))
    classification(nn.Dense(3), data_of(x, y)).check()
    with pytest.raises(InputError, match="whole numbers"):
        classification(nn.Dense(3), data_of(x, y.astype(np.float32)))


def test_errors_of_the_network_say_what_it_was_given():
    with pytest.raises(ValueError) as caught:
        classification(NNXNet, (3, 3, 7))
    assert "[1, 3, 3, 7] of float32" in caught.value.__notes__[-1]


def test_init_checks_once_and_outside_of_traces_only():
    task, key = classification(HiddenMode(), (3,)), jax.random.key(0)
    jax.eval_shape(task.init, key)
    jax.jit(lambda: task.init(key))()  # not traced itself, in a trace
    jax.vmap(task.init)(jax.random.split(key, 2))
    for _ in range(2):
        with pytest.raises(InputError, match="move in training"):
            task.init(key)
    calls = []

    def init(key):
        calls.append(key)
        return zeros(key)

    task = classification(Network(init, product), (3,))
    task.check()
    num_calls = len(calls)
    task.check()
    assert len(calls) == num_calls
    task.init(key)
    assert len(calls) == num_calls + 1


def test_a_network_stays_a_network():
    x = jax.ShapeDtypeStruct((1, 3), np.dtype(np.float32))
    once = as_network(nn.Dense(2), x)
    marked = once._replace(norm=frozenset({"kernel"}))
    twice = as_network(marked, x)
    assert twice.norm == {"kernel"}
    variables = twice.init(jax.random.key(0))
    inputs = jnp.ones((4, 3))
    close(
        twice.apply(variables, inputs, None, False),
        once.apply(variables, inputs, None, False),
    )


def test_no_backend_starts_at_construction():
    program = """
import flax.linen as nn, jax
from flax import nnx
from p2pjax.nn import cnn, gru
from p2pjax.tasks import classification, next_token
class Net(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
    def __call__(self, x):
        return self.dropout(self.norm(x))
classification(Net, (3,))
classification(cnn.CNN((2,), (3,), 2, kernel_size=3), (8, 8))
next_token(gru.NextWord(9, 3, 3, 3, batch_norm=True), 4)
assert not jax._src.xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
