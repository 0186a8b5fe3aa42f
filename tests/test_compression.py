"""Formats of messages, what senders make of them, and how receivers combine them."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_protocols import jit

from p2pjax.exchange import compression, encoding, forms, mixing
from p2pjax.exchange.compression import (
    half,
    qsgd,
    quantize,
    random_k,
    sign,
    top_k,
    uniform8,
)
from p2pjax.exchange.largest import largest
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass, whole_model
from p2pjax.graphs import generators, mixing_matrices
from p2pjax.types import LOCAL, InputError, Peers

VECTORS = json.loads(
    (Path(__file__).parent / "vectors/adversity_compression.json").read_text()
)
X = np.array(VECTORS["x"], np.float32)
KEY = jax.random.key(0)
FORMATS = {
    "top_k": top_k(0.3),
    "random_k": random_k(0.3),
    "random_k_unbiased": random_k(0.6, unbiased=True),
    "half": half(),
    "uniform8": uniform8(),
    "uniform8_stochastic": uniform8(stochastic=True),
    "qsgd": qsgd(4),
    "qsgd_biased": qsgd(2, biased=True),
    "sign": sign(),
}
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
equal = np.testing.assert_array_equal


def draws_are(monkeypatch, values):
    values = jnp.asarray(values, jnp.float32)
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape, dtype: values)


def decoded(format, values, key=KEY):
    return np.asarray(jit(format.compress)(key, jnp.asarray(values, jnp.float32)))


def many(format, values, num_draws):
    """Decoded with as many keys, `[draws, size]`."""
    keys = jax.random.split(KEY, num_draws)
    compress = jit(jax.vmap(format.compress, (0, None)))
    return np.asarray(compress(keys, jnp.asarray(values, jnp.float32)), np.float64)


def compiled(encode, format, plan):
    """Of a key, a message and a memory."""
    return jit(lambda *given: encode(format, plan, *given))


def bits(format, *sizes):
    """Of a message with leaves of these sizes."""
    message = {"params": [np.zeros(size, np.float32) for size in sizes]}
    return encoding.message_bits(format, whole_model(3, message), message)


class TestVectors:
    def test_top_k(self):
        expected = VECTORS["top_k k=2"]
        found = decoded(top_k(0.34), X)
        close(found, expected["out"])
        equal(np.flatnonzero(found), expected["indices"])
        assert bits(top_k(0.34), 6) == expected["bits"]
        assert encoding.num_bytes(bits(top_k(0.34), 6)) == expected["bytes"]
        wide = bits(top_k(0.34, index_bits=32), 6)
        assert encoding.num_bytes(wide) == expected["bytes with 32-bit indices"]

    def test_random_k(self, monkeypatch):
        expected = VECTORS["rand_k k=2 indices 1,4"]
        draws_are(monkeypatch, [0.1, 0.9, 0.2, 0.3, 0.8, 0.4])
        close(decoded(random_k(0.34), X), expected["biased"])
        close(decoded(random_k(0.34, unbiased=True), X), expected["unbiased"])
        seeded = bits(random_k(0.34), 6)
        assert encoding.num_bytes(seeded) == expected["bytes with shared seed"]
        listed = bits(random_k(0.34, shared_seed=False), 6)
        assert encoding.num_bytes(listed) == expected["bytes with indices"]

    def test_qsgd(self, monkeypatch):
        expected = VECTORS["qsgd s=4"]
        draws_are(monkeypatch, expected["uniforms"])
        found = decoded(qsgd(4), X)
        close(found, expected["unbiased"])
        levels = np.abs(found) * 4 / expected["norm"]
        close(levels, expected["levels"])
        close(decoded(qsgd(4, biased=True), X), expected["biased (divided by tau)"])
        delta = qsgd(4, biased=True).contraction(6)
        assert delta == pytest.approx(1 / expected["tau"])
        assert bits(qsgd(4), 6) == bits(qsgd(4, biased=True), 6) == expected["bits"]
        assert encoding.num_bytes(bits(qsgd(4), 6)) == expected["bytes"]

    def test_sign(self):
        expected = VECTORS["sign"]
        close(decoded(sign(), X), expected["out"])
        assert bits(sign(), 6) == expected["bits"]
        assert encoding.num_bytes(bits(sign(), 6)) == expected["bytes"]

    def test_uniform8(self):
        expected = VECTORS["uniform8"]
        found = decoded(uniform8(), X)
        close(found, expected["out"])
        close(found / expected["scale"], expected["levels"])
        assert encoding.num_bytes(bits(uniform8(), 6)) == expected["bytes"]

    def test_bytes_of_the_convolutional_network(self):
        expected = VECTORS["bytes of one message of the 31530-parameter CNN"]
        found = {
            "dense": None,
            "top_k 1% per leaf": top_k(0.01),
            "rand_k 1% shared seed": random_k(0.01),
            "qsgd s=15 per leaf": qsgd(15),
            "sign per leaf": sign(),
            "uniform8 per leaf": quantize(8),
            "half": quantize(16),
        }
        for name, format in found.items():
            size = encoding.num_bytes(bits(format, *expected["leaves"]))
            assert size == expected[name], name
        assert set(found) | {"leaves"} == set(expected)

    def test_error_feedback(self):
        plan, memory = whole_model(1, {"params": X}), None
        encode = compiled(encoding.encode_update, top_k(0.1), plan)
        for expected in VECTORS["error_feedback top_1"]:
            message = {"params": jnp.asarray(expected["in"], jnp.float32)}
            if memory is None:
                memory = encoding.init_feedback(top_k(0.1), plan, message)
            sent, memory, _ = encode(KEY, message, memory)
            close(sent["params"], expected["sent"])
            close(memory[0], expected["memory"])

    def test_sparse_sharing(self):
        expected = VECTORS["sparse_sharing"]
        models = np.array([expected["own"], expected["sender"]], np.float32)
        mask = np.array([[0] * 4, expected["mask"]], bool)
        weight = expected["weight"]
        peers = Peers(
            np.array([[0, 1], [1, 0]], np.int32),
            np.array([[1 - weight, weight]] * 2, np.float32),
        )
        mix_others = mixing.by_peers(forms.without_self(peers))
        found = forms.sparse_form(mix_others, models, mask * models, mask)
        close(found[0], expected["out"])
        close(found[1], expected["sender"])  # it got nothing
        # The sender finds this mask if it last sent what the other one has.
        plan, message = whole_model(2, {"params": X[:4]}), {"params": models[1]}
        memory = (jnp.asarray([1.0, 0, 1, 1]),)
        encode = compiled(encoding.encode_sparse, top_k(0.5), plan)
        sent, memory, size = encode(KEY, message, memory)
        equal(sent.mask["params"], mask[1])
        close(sent.values["params"], mask[1] * models[1])
        close(memory[0], [3, 0, 1, 5])
        assert size == 2 * (32 + 2)


@pytest.mark.parametrize("name", FORMATS)
class TestContract:
    def test_a_leaf_of_zeros_arrives_as_zeros(self, name):
        equal(decoded(FORMATS[name], np.zeros((4, 5))), np.zeros((4, 5)))

    def test_shape_and_dtype_stay(self, name):
        for leaf in (jnp.ones(()), jnp.ones((2, 3, 4)), jnp.ones(5, jnp.bfloat16)):
            found = jax.eval_shape(FORMATS[name].compress, KEY, leaf)
            assert (found.shape, found.dtype) == (leaf.shape, leaf.dtype)

    def test_of_one_number_nothing_is_lost(self, name):
        shrunk = 1.25 if name == "qsgd_biased" else 1  # by 1 + min(1 / 4, 1 / 2)
        close(decoded(FORMATS[name], [-0.75]), [-0.75 / shrunk])

    def test_what_is_left_out_is_less_than_there_was(self, name):
        """In the mean over draws, by as much as is claimed."""
        format = FORMATS[name]
        if format.contraction is None:
            assert name.startswith(("half", "uniform8"))
            return
        rng = np.random.default_rng(0)
        one = np.zeros(20)
        one[7] = 3.0
        leaves = [rng.normal(size=20), rng.normal(size=20) ** 5, one, np.ones(20)]
        compress = jax.vmap(jax.vmap(format.compress, (0, None)), (None, 0))
        keys = jax.random.split(KEY, 300)
        found = jit(compress)(keys, jnp.asarray(leaves, jnp.float32))
        for values, sent in zip(leaves, np.asarray(found), strict=True):
            left = np.square(sent - values).sum(1).mean()
            delta = format.contraction(20)
            assert left <= (1 - delta) * 1.1 * np.square(values).sum() + 1e-9

    def test_scales_with_the_message(self, name):
        values = np.random.default_rng(1).normal(size=16)
        format = FORMATS[name]
        close(decoded(format, 4 * values), 4 * decoded(format, values), atol=1e-5)

    def test_keys_decide(self, name):
        """Or formats without a draw would be random."""
        values = np.random.default_rng(1).normal(size=16)
        first, second = many(FORMATS[name], values, 2)
        is_drawn = name.startswith(("random_k", "qsgd")) or "stochastic" in name
        assert (first != second).any() == is_drawn


@pytest.mark.parametrize("name", ["random_k_unbiased", "qsgd", "uniform8_stochastic"])
def test_the_mean_over_draws_is_the_message(name):
    values = np.random.default_rng(3).normal(size=12)
    found = many(FORMATS[name], values, 4000)
    error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - values) <= 4.5 * error + 1e-6).all()
    assert found.std(0).max() > 1e-3
    # The claim of QSGD, E|C(x)|^2 <= tau |x|^2.
    if name == "qsgd":
        tau = 1 + min(12 / 16, np.sqrt(12) / 4)
        assert np.square(found).sum(1).mean() <= 1.02 * tau * np.square(values).sum()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_largest_are_those_of_a_sort(dtype):
    rng = np.random.default_rng(4)
    scores = rng.integers(0, 5, (40, 33)) * 10.0 ** rng.integers(-30, 30, (40, 1))
    scores = jnp.asarray(scores, dtype)
    for num_kept in (1, 7, 33):
        found = jit(jax.vmap(partial(largest, num_kept=num_kept)))(scores)
        order = np.argsort(-np.asarray(scores, np.float64), axis=1, kind="stable")
        expected = np.zeros((40, 33), bool)
        np.put_along_axis(expected, order[:, :num_kept], True, axis=1)
        equal(found, expected)


class TestAgainstNumpy:
    """Written another way, in float64."""

    VALUES = np.random.default_rng(5).normal(size=257).astype(np.float32)

    def test_top_k_takes_the_lowest_of_equal_numbers(self):
        equal(decoded(top_k(0.5), [1.0, -2, 2, 1, -1, 2]), [0, -2, 2, 0, 0, 2])
        equal(decoded(top_k(0.5), [3.0, -3, 3, -3]), [3, -3, 0, 0])
        equal(decoded(top_k(0.5), np.ones((2, 3))), [[1, 1, 1], [0, 0, 0]])

    @pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5, 1.0])
    def test_top_k(self, ratio):
        kept = max(1, int(ratio * 257))
        order = np.lexsort((np.arange(257), -np.abs(self.VALUES)))
        expected = np.zeros(257, np.float32)
        expected[order[:kept]] = self.VALUES[order[:kept]]
        equal(decoded(top_k(ratio), self.VALUES), expected)

    def test_shares_are_as_they_were_written(self):
        assert np.count_nonzero(decoded(top_k(0.29), np.arange(1.0, 101))) == 29

    def test_random_k_draws_without_replacement_and_evenly(self):
        found = many(random_k(0.25), np.ones(12), 4000)
        equal(found.sum(1), np.full(4000, 3.0))
        assert np.abs(found.mean(0) - 0.25).max() < 0.035

    def test_half(self):
        rng = np.random.default_rng(6)
        wide = rng.normal(size=2000) * 10.0 ** rng.uniform(-10, 6, 2000)
        values = np.float32([*wide, 65519, 65520, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 0])
        with np.errstate(over="ignore"):
            expected = values.astype(np.float16).astype(np.float32)
        # Compiled, because XLA leaves out conversions there and back.
        equal(jax.jit(half().compress)(KEY, values), expected)

    def test_uniform8(self):
        scale = np.abs(self.VALUES).max() / np.float32(127)
        expected = np.rint(self.VALUES / scale) * scale
        close(decoded(uniform8(), self.VALUES), expected)

    def test_pieces_of_a_leaf_are_decoded_as_the_whole(self):
        pieces = self.VALUES[:100], self.VALUES[100:]
        for format in (half(), uniform8()):
            measure = max(format.measure(piece) for piece in pieces)
            found = np.concatenate([format.decode(measure, p) for p in pieces])
            equal(found, decoded(format, self.VALUES))

    def test_qsgd(self):
        draws = np.asarray(jax.random.uniform(KEY, (257,)))
        values = self.VALUES.astype(np.float64)
        norm = np.sqrt((values**2).sum())
        low = np.floor(8 * np.abs(values) / norm)
        level = low + (draws < 8 * np.abs(values) / norm - low)
        expected = np.sign(values) * norm * level / 8
        close(decoded(qsgd(8), values), expected, atol=1e-5)
        shrunk = expected / (1 + min(257 / 64, np.sqrt(257) / 8))
        close(decoded(qsgd(8, biased=True), values), shrunk, atol=1e-5)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: quantize(4), r"16 or 8 bits.*got 4.*qsgd\(levels\) or sign\(\)"),
        (lambda: quantize(16, stochastic=True), "8 bits for stochastic rounding"),
        (lambda: top_k(0), "above 0 and up to 1, got 0"),
        (lambda: random_k(1.5), "above 0 and up to 1, got 1.5"),
        (lambda: top_k(float("nan")), "above 0 and up to 1, got nan"),
        (lambda: qsgd(0), "1 or more levels for qsgd, got 0"),
        (lambda: qsgd(2.5), "1 or more levels for qsgd, got 2.5"),
    ],
)
def test_refuses(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_which_formats_carry_models():
    carrying = {name for name, f in FORMATS.items() if f.carries_models}
    assert carrying == {"half", "uniform8", "uniform8_stochastic"}
    assert qsgd(15).carries_models and not qsgd(14).carries_models
    assert not qsgd(15, biased=True).carries_models


# Of ONE sender: a kernel of which rows 0 and 3 are of one class and the middle of
# another, a local bias, and statistics.
MESSAGE = {
    "params": {
        "bias": jnp.asarray([7.0, -8.0]),
        "kernel": jnp.asarray(np.random.default_rng(8).normal(size=(4, 3)), np.float32),
    },
    "batch_stats": {"mean": jnp.asarray([0.3, 0.123456])},
}
BIAS, KERNEL, STATISTICS = 1, 2, 0  # dicts are sorted
ENDS = (Block(KERNEL, (0, 0), (1, 3)), Block(KERNEL, (3, 0), (4, 3)))
PLAN = MixPlan(
    (
        OwnerClass(np.zeros(2, int), (*ENDS, Block(STATISTICS, (0,), (2,)))),
        OwnerClass(np.full(2, LOCAL), (Block(BIAS, (0,), (2,)),)),
        OwnerClass(np.array([1, LOCAL]), (Block(KERNEL, (1, 0), (3, 3)),)),
    )
)


def split_kernel(message):
    """What the two classes have of the kernel, `[6]` each."""
    kernel = np.asarray(message["params"]["kernel"])
    return kernel[[0, 3]].reshape(-1), kernel[1:3].reshape(-1)


class TestParts:
    @pytest.mark.parametrize("name", FORMATS)
    def test_bits(self, name):
        format = FORMATS[name]
        each = (format.bits(6) + 2 * 32, 0, format.bits(6))
        assert encoding.class_bits(format, PLAN, MESSAGE) == each
        total = encoding.message_bits(format, PLAN, MESSAGE)
        assert total == sum(each) + (32 if name.startswith("random_k") else 0)

    def test_bits_of_numbers_as_they_are(self):
        assert encoding.class_bits(None, PLAN, MESSAGE) == (8 * 32, 0, 6 * 32)
        assert encoding.message_bits(None, PLAN, MESSAGE) == 14 * 32

    @pytest.mark.parametrize(
        "encode, name",
        [
            (encoding.encode_models, "uniform8"),
            (encoding.encode_models, "half"),
            (encoding.encode_update, "sign"),
            (encoding.encode_update, "top_k"),
        ],
    )
    def test_each_class_is_compressed_by_itself(self, encode, name):
        format = FORMATS[name]
        found, memory, size = compiled(encode, format, PLAN)(KEY, MESSAGE)
        assert memory == () and size == encoding.message_bits(format, PLAN, MESSAGE)
        for part, given in zip(split_kernel(found), split_kernel(MESSAGE), strict=True):
            close(part, decoded(format, given))
            assert (part != given).any()
        self.check_rest(found)

    def check_rest(self, found):
        """Neither what stays nor statistics have changed."""
        equal(found["params"]["bias"], MESSAGE["params"]["bias"])
        equal(found["batch_stats"]["mean"], MESSAGE["batch_stats"]["mean"])

    def test_parts_have_keys_of_their_own(self):
        same = jax.tree.map(jnp.ones_like, MESSAGE)
        encode = compiled(encoding.encode_update, random_k(0.5), PLAN)
        found, _, _ = encode(KEY, same)
        ends, middle = split_kernel(found)
        assert ends.sum() == middle.sum() == 3
        assert (ends != middle).any()

    def test_clip(self):
        norms = [np.linalg.norm(part) for part in split_kernel(MESSAGE)]
        highest = float(sum(norms) / 2)
        assert min(norms) < highest < max(norms)
        clipped = jit(partial(encoding.clipped, highest, PLAN))
        found = clipped(MESSAGE)
        after = [np.linalg.norm(part) for part in split_kernel(found)]
        close(after, np.minimum(norms, highest), atol=1e-5)
        before, after = split_kernel(MESSAGE)[0], split_kernel(found)[0]
        close(after / np.linalg.norm(after), before / np.linalg.norm(before))
        self.check_rest(found)
        nothing = jax.tree.map(jnp.zeros_like, MESSAGE)
        equal(clipped(nothing)["params"]["kernel"], np.zeros((4, 3)))

    def test_noise(self):
        keys = jax.random.split(KEY, 2000)
        noised = jit(jax.vmap(lambda key: encoding.noised(0.5, PLAN, key, MESSAGE)))
        found = noised(keys)
        change = np.asarray(found["params"]["kernel"]) - np.asarray(
            MESSAGE["params"]["kernel"]
        )
        change = change.reshape(2000, 12)
        close(np.cov(change.T), 0.25 * np.eye(12), atol=0.04)
        close(change.mean(0), np.zeros(12), atol=0.05)
        first = jax.tree.map(lambda leaf: leaf[0], found)
        self.check_rest(first)

    def test_error_feedback_loses_nothing(self):
        """What was sent and what is remembered is all that there was."""
        rng = np.random.default_rng(9)
        for format in (top_k(0.2), sign(), random_k(0.4), qsgd(3, biased=True)):
            encode = compiled(encoding.encode_update, format, PLAN)
            memory = encoding.init_feedback(format, PLAN, MESSAGE)
            assert [part.shape for part in memory] == [(6,), (6,)]
            given = sent = np.zeros(12)
            for t in range(6):
                kernel = rng.normal(size=(4, 3)).astype(np.float32)
                update = jax.tree.map(jnp.asarray, MESSAGE)
                update["params"]["kernel"] = jnp.asarray(kernel)
                found, memory, _ = encode(jax.random.fold_in(KEY, t), update, memory)
                given = given + np.concatenate(split_kernel(update))
                sent = sent + np.concatenate(split_kernel(found))
                close(sent + np.concatenate(memory), given, atol=1e-5)
            assert np.abs(np.concatenate(memory)).max() > 0.01

    @pytest.mark.parametrize("format", [qsgd(1), random_k(0.4, unbiased=True)])
    def test_error_feedback_that_may_grow_is_said(self, format):
        with pytest.warns(UserWarning, match="error feedback may diverge"):
            encoding.init_feedback(format, PLAN, MESSAGE)

    def test_sparse_messages(self):
        """The numbers that moved most since they were sent, class by class."""
        encode = compiled(encoding.encode_sparse, top_k(0.34), PLAN)
        memory = encoding.init_sparse(top_k(0.34), PLAN, MESSAGE)
        kernel = np.array(MESSAGE["params"]["kernel"])
        last = kernel.copy()
        rng = np.random.default_rng(10)
        for _ in range(5):
            kernel = kernel + rng.normal(size=(4, 3)).astype(np.float32)
            message = jax.tree.map(jnp.asarray, MESSAGE)
            message["params"]["kernel"] = jnp.asarray(kernel)
            sent, memory, size = encode(KEY, message, memory)
            mask = np.zeros((4, 3), bool)
            for rows in ([0, 3], [1, 2]):
                moved = np.abs(kernel - last)[rows]
                highest = np.sort(moved, axis=None)[-2]
                mask[rows] = moved >= highest
            equal(sent.mask["params"]["kernel"], mask)
            equal(sent.values["params"]["kernel"], np.where(mask, kernel, 0))
            last = np.where(mask, kernel, last)
            close(
                np.concatenate(memory), np.concatenate([last[[0, 3]], last[1:3]], None)
            )
            assert size == 2 * 2 * (32 + 3) + 64
        equal(sent.mask["params"]["bias"], [False, False])  # it stays
        equal(sent.mask["batch_stats"]["mean"], [True, True])
        equal(sent.values["batch_stats"]["mean"], MESSAGE["batch_stats"]["mean"])

    def test_random_sparse_messages_need_no_memory(self):
        memory = encoding.init_sparse(random_k(0.5), PLAN, MESSAGE)
        assert memory == ()
        encode = compiled(encoding.encode_sparse, random_k(0.5), PLAN)
        sent, memory, size = encode(KEY, MESSAGE, memory)
        assert memory == ()
        kernel, mask = MESSAGE["params"]["kernel"], sent.mask["params"]["kernel"]
        assert mask[jnp.array([0, 3])].sum() == mask[1:3].sum() == 3
        equal(sent.values["params"]["kernel"], np.where(mask, kernel, 0))
        assert size == 6 * 32 + 64 + 32


class TestForms:
    """On a graph with different degrees, by dense matrices in float64."""

    PEERS = mixing_matrices.metropolis_hastings(generators.star(5))
    MODELS = np.random.default_rng(11).normal(size=(5, 2, 3)).astype(np.float32)
    RECEIVED = np.random.default_rng(12).normal(size=(5, 2, 3)).astype(np.float32)

    def matrix(self):
        return np.asarray(mixing.dense(self.PEERS), np.float64)

    def mixed(self, matrix, models):
        return np.einsum("ij,j...->i...", matrix, np.asarray(models, np.float64))

    def others(self):
        return mixing.by_peers(forms.without_self(self.PEERS))

    def test_weights(self):
        matrix = self.matrix()
        close(forms.own_weight(self.PEERS), np.diag(matrix))
        others = mixing.dense(forms.without_self(self.PEERS))
        close(others, matrix - np.diag(np.diag(matrix)))

    @pytest.mark.parametrize("format", [uniform8(), half(), qsgd(15)])
    def test_differences_keep_the_mean(self, format):
        keys = jax.random.split(KEY, 5)
        seen = jit(jax.vmap(format.compress))(keys, self.MODELS)
        found = forms.difference_form(mixing.by_peers(self.PEERS), self.MODELS, seen)
        matrix = self.matrix()
        expected = self.MODELS + self.mixed(matrix - np.eye(5), seen)
        close(found, expected)
        close(found.mean(0), self.MODELS.mean(0))
        plain = self.mixed(matrix, seen)
        plain += np.diag(matrix)[:, None, None] * (self.MODELS - np.asarray(seen))
        if format.name != "half":
            assert np.abs(plain.mean(0) - self.MODELS.mean(0)).max() > 1e-5

    def test_own_exact(self):
        matrix = self.matrix()
        own = np.diag(np.diag(matrix))
        found = forms.own_exact_form(
            self.others(), forms.own_weight(self.PEERS), self.MODELS, self.RECEIVED
        )
        expected = self.mixed(own, self.MODELS)
        close(found, expected + self.mixed(matrix - own, self.RECEIVED))

    def test_late_differences(self):
        weight, others = forms.own_weight(self.PEERS), self.others()
        seen = np.round(self.MODELS, 1)
        found = forms.late_difference_form(others, weight, self.MODELS, seen, seen)
        mix = mixing.by_peers(self.PEERS)
        close(found, forms.difference_form(mix, self.MODELS, seen))
        found = forms.late_difference_form(
            others, weight, self.MODELS, seen, self.RECEIVED
        )
        matrix = self.matrix()
        for i in range(5):
            expected = self.MODELS[i].astype(np.float64)
            for j in range(5):
                if i != j:
                    expected = expected + matrix[i, j] * (self.RECEIVED[j] - seen[i])
            close(found[i], expected)

    def test_sparse(self):
        mask = np.random.default_rng(13).random(self.MODELS.shape) < 0.4
        found = forms.sparse_form(
            self.others(), self.MODELS, np.where(mask, self.MODELS, 0), mask
        )
        matrix = self.matrix()
        for i in range(5):
            expected = matrix[i, i] * self.MODELS[i].astype(np.float64)
            for j in range(5):
                if i != j:
                    heard = np.where(mask[j], self.MODELS[j], self.MODELS[i])
                    expected = expected + matrix[i, j] * heard
            close(found[i], expected)


def test_formats_work_in_compiled_programs_of_all_senders():
    """As engines call them; each sender has draws of its own."""
    messages = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), MESSAGE)

    @jit
    def encode(keys, messages):
        return jax.vmap(
            lambda key, message: encoding.encode_update(qsgd(2), PLAN, key, message)
        )(keys, messages)

    found, _, size = encode(jax.random.split(KEY, 3), messages)
    assert size.tolist() == [encoding.message_bits(qsgd(2), PLAN, MESSAGE)] * 3
    kernels = np.asarray(found["params"]["kernel"])
    assert (kernels[0] != kernels[1]).any()
    alone, _, _ = compiled(encoding.encode_update, qsgd(2), PLAN)(
        jax.random.split(KEY, 3)[1], MESSAGE
    )
    close(kernels[1], alone["params"]["kernel"])


def test_names_of_formats():
    assert {f.name for f in FORMATS.values()} == {
        "top_k",
        "random_k",
        "half",
        "uniform8",
        "qsgd",
        "sign",
    }
    assert quantize(8).name == "uniform8" and quantize(16).name == "half"
    assert compression.FEWEST_LEVELS == 15
