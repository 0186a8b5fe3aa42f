"""Networks: sizes, and outputs against plain numpy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from p2pjax.nn import batch_norm_cnn, cnn, encoder, gru, lstm
from p2pjax.types import InputError

WORDS = jnp.zeros((1, 10), jnp.int32)

# Nearly all the time is compilation: what is compiled may be slow.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


def num_parameters(module, *inputs, **options):
    """Per collection, without allocating anything."""
    shapes = jax.eval_shape(
        lambda key: module.init(key, *inputs, **options), jax.random.key(0)
    )
    return {
        name: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
        for name, tree in shapes.items()
    }


def started(module, inputs):
    return quick_jit(module.init)(jax.random.key(0), inputs)


def randomized(rng, module, *inputs, **options):
    """Random numbers for every parameter, biases and scales too."""
    shapes = jax.eval_shape(
        lambda key: module.init(key, *inputs, **options), jax.random.key(0)
    )["params"]
    return jax.tree.map(
        lambda leaf: (rng.normal(size=leaf.shape) * 0.5).astype(np.float32), shapes
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    "module, size", [(cnn.cifar_cnn_code(), 52_202), (cnn.cifar_cnn_table(), 6_338)]
)
def test_cifar_networks_have_the_published_size(module, size):
    assert num_parameters(module, jnp.zeros((1, 32, 32, 3))) == {"params": size}


@pytest.mark.parametrize("shape", [(28, 28), (8, 8)])
def test_cnn_takes_images_without_channels(shape):
    module = cnn.CNN((3,), (), 5, kernel_size=3, pool=2)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, *shape)).astype(np.float32)
    variables = {"params": randomized(rng, module, images)}
    logits = module.apply(variables, images)
    assert logits.shape == (2, 5)
    np.testing.assert_array_equal(logits, module.apply(variables, images[..., None]))


def test_cnn_equals_plain_loops():
    rng = np.random.default_rng(1)
    module = cnn.CNN((3, 4), (5,), 2, kernel_size=2, pool=2)
    images = rng.normal(size=(2, 9, 11, 2)).astype(np.float32)
    params = randomized(rng, module, images)

    def convolved(x, kernel, bias):  # then pooled
        size = kernel.shape[0]
        height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
        out = np.zeros((len(x), height, width, kernel.shape[3]))
        for i, j in np.ndindex(height, width):
            patch = x[:, i : i + size, j : j + size]
            out[:, i, j] = np.tensordot(patch, kernel, 3) + bias
        out = np.maximum(out, 0)[:, : height // 2 * 2, : width // 2 * 2]
        return np.max([out[:, a::2, b::2] for a, b in np.ndindex(2, 2)], axis=0)

    hidden = images
    for layer in ("layer_1", "layer_2"):
        hidden = convolved(hidden, params[layer]["kernel"], params[layer]["bias"])
    flat = hidden.reshape(2, -1)  # row by row, channels last, as the kernel has it
    assert params["layer_3"]["kernel"].shape == (2, 4, 5)
    kernel = params["layer_3"]["kernel"].reshape(-1, 5)
    dense = np.maximum(flat @ kernel + params["layer_3"]["bias"], 0)
    expected = dense @ params["layer_4"]["kernel"] + params["layer_4"]["bias"]
    actual = module.apply({"params": params}, images)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_cnn_refuses_images_that_vanish():
    with pytest.raises(InputError, match="at least 6 x 6 positions before convolution"):
        num_parameters(cnn.cifar_cnn_code(), jnp.zeros((1, 8, 8)))


@pytest.mark.parametrize("network", [cnn.CNN, batch_norm_cnn.BatchNormCNN])
def test_convolutions_refuse_vectors(network):
    with pytest.raises(InputError, match=r"images of height and width .* shape \(6,\)"):
        num_parameters(network((2,), (4,), 10), jnp.zeros((1, 6)))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_next_word_network_has_the_published_size(batch_norm):
    sizes = num_parameters(gru.NextWord(batch_norm=batch_norm), WORDS)
    statistics = {"batch_stats": 400} if batch_norm else {}
    assert sizes == {"params": 2_081_102} | statistics


def test_next_word_network_starts_as_published():
    module = gru.NextWord(500, 20, 30, 25)
    params = started(module, WORDS)["params"]
    embedding = params["embedding"]["embedding"]
    assert 0.049 < embedding.max() < 0.05 and -0.05 < embedding.min() < -0.049
    limit = math.sqrt(6 / (20 + 3 * 30))  # Glorot, all gates as one matrix
    assert 0.95 * limit < np.abs(params["gru"]["kernel"]).max() <= limit
    recurrent = params["gru"]["recurrent_kernel"].reshape(30, 90)
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(30), atol=1e-5)
    for layer, name in [("gru", "bias"), ("gru", "recurrent_bias"), ("dense", "bias")]:
        assert not params[layer][name].any()


def test_gru_equals_a_loop():
    """The reset-after form, token by token; padding on the left changes nothing."""
    rng = np.random.default_rng(2)
    module = gru.NextWord(9, 4, 5, 3)
    tokens = rng.integers(1, 9, (3, 6)).astype(np.int32)
    params = randomized(rng, module, tokens)
    w, b = params["gru"]["kernel"], params["gru"]["bias"]
    u, c = params["gru"]["recurrent_kernel"], params["gru"]["recurrent_bias"]
    states = np.zeros((3, 5))
    for example, t in np.ndindex(tokens.shape):
        x, h = params["embedding"]["embedding"][tokens[example, t]], states[example]
        z = sigmoid(x @ w[:, 0] + h @ u[:, 0] + b[0] + c[0])
        r = sigmoid(x @ w[:, 1] + h @ u[:, 1] + b[1] + c[1])
        candidate = np.tanh(x @ w[:, 2] + b[2] + r * (h @ u[:, 2] + c[2]))
        states[example] = z * h + (1 - z) * candidate
    dense = states @ params["dense"]["kernel"] + params["dense"]["bias"]
    expected = dense @ params["output"]["kernel"] + params["output"]["bias"]
    check_with_padding(module, params, tokens, expected)


def test_lstm_equals_a_loop():
    rng = np.random.default_rng(3)
    module = lstm.SequenceClassifier(9, 4, 5, 3)
    tokens = rng.integers(1, 9, (3, 6)).astype(np.int32)
    params = randomized(rng, module, tokens)
    w, b = params["lstm"]["kernel"], params["lstm"]["bias"]
    u = params["lstm"]["recurrent_kernel"]
    states = np.zeros((3, 5))
    for example in range(3):
        h, memory = np.zeros(5), np.zeros(5)
        for token in tokens[example]:
            x = params["embedding"]["embedding"][token]
            i, f, g, o = (x @ w[:, k] + h @ u[:, k] + b[k] for k in range(4))
            memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(memory)
        states[example] = h
    expected = states @ params["output"]["kernel"] + params["output"]["bias"]
    check_with_padding(module, params, tokens, expected)
    start = started(module, tokens)["params"]["lstm"]["bias"]
    np.testing.assert_array_equal(start, np.tile([[0], [1], [0], [0]], (1, 5)))


def check_with_padding(module, params, tokens, expected):
    padding = np.zeros((len(tokens), 4), np.int32)
    for padded in (
        tokens,
        np.hstack([padding, tokens]),
        np.hstack([tokens, padding]),
    ):
        actual = quick_jit(module.apply)({"params": params}, padded)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def normalise(variables, x, **options):
    return gru.BatchNorm().apply(
        {"batch_stats": variables}, x, mutable=["batch_stats"], **options
    )


def test_batch_norm_spec_vector():
    """B.8: two batches, then inference."""
    stats = {"mean": np.zeros(1, np.float32), "var": np.ones(1, np.float32)}
    for batch, mean, var in [([1, 3], 0.2, 1.0), ([2, 6], 0.58, 1.3)]:
        x = np.asarray(batch, np.float32)[:, None]
        output, updated = normalise(stats, x, train=True, momentum=0.9)
        stats = updated["batch_stats"]
        np.testing.assert_allclose(stats["mean"], [mean], rtol=1e-6)
        np.testing.assert_allclose(stats["var"], [var], rtol=1e-6)
        expected = (x - x.mean()) / np.sqrt(x.var() + 1e-3)
        np.testing.assert_allclose(output, expected, rtol=1e-6)
    five = np.full((1, 1), 5, np.float32)
    output, updated = normalise(stats, five, train=False, momentum=0.9)
    np.testing.assert_allclose(output, [[3.875106]], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, updated["batch_stats"], stats)


def test_batch_norm_ignores_invalid_examples():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(6, 3)).astype(np.float32)
    valid = np.asarray([True, False, True, True, False, True])
    x[~valid] = 1e6
    stats = {"mean": np.ones(3, np.float32), "var": np.full(3, 2, np.float32)}

    @jax.jit
    def step(momentum, valid):
        return normalise(stats, x, train=True, momentum=momentum, valid=valid)

    for momentum in (0.9, 0.5):
        output, updated = step(jnp.float32(momentum), valid)
        mean, var = x[valid].mean(0), x[valid].var(0)
        expected = (x[valid] - mean) / np.sqrt(var + 1e-3)
        np.testing.assert_allclose(output[valid], expected, rtol=1e-4, atol=1e-5)
        new = updated["batch_stats"]
        expected_mean = momentum + (1 - momentum) * mean
        np.testing.assert_allclose(new["mean"], expected_mean, rtol=1e-5)
        expected_var = 2 * momentum + (1 - momentum) * var
        np.testing.assert_allclose(new["var"], expected_var, rtol=1e-5)
    assert step._cache_size() == 1  # momentum is traced

    output, updated = step(jnp.float32(0.9), np.zeros(6, bool))
    jax.tree.map(np.testing.assert_array_equal, updated["batch_stats"], stats)
    assert np.isfinite(output).all()


def test_next_word_network_normalises_where_the_paper_does():
    rng = np.random.default_rng(5)
    plain, normed = gru.NextWord(9, 4, 5, 3), gru.NextWord(9, 4, 5, 3, batch_norm=True)
    tokens = rng.integers(1, 9, (4, 6)).astype(np.int32)
    params = randomized(rng, plain, tokens)
    valid = np.asarray([True, True, True, False])
    options = {"train": True, "valid": valid, "momentum": 0.8}
    logits, updated = quick_jit(
        lambda p: normed.apply({"params": p}, tokens, mutable="batch_stats", **options)
    )(params)
    stats = updated["batch_stats"]

    embedded = params["embedding"]["embedding"][tokens]
    state = gru.GRU(5).apply({"params": params["gru"]}, embedded, tokens > 0)
    hidden = np.asarray(state)
    for layer, name in [("dense", "gru_norm"), ("output", "dense_norm")]:
        mean, var = hidden[valid].mean(0), hidden[valid].var(0)
        np.testing.assert_allclose(stats[name]["mean"], 0.2 * mean, atol=1e-5)
        np.testing.assert_allclose(stats[name]["var"], 0.8 + 0.2 * var, atol=1e-5)
        hidden = (hidden - mean) / np.sqrt(var + 1e-3)
        hidden = hidden @ params[layer]["kernel"] + params[layer]["bias"]
    np.testing.assert_allclose(logits[valid], hidden[valid], rtol=1e-4, atol=1e-4)


def test_batch_norm_trains_scale_and_bias_on_request():
    module, x = gru.BatchNorm(affine=True), np.arange(8, dtype=np.float32).reshape(4, 2)
    plain = gru.BatchNorm()
    options = {"train": True, "momentum": 0.9, "mutable": "batch_stats"}
    expected, stats = plain.apply({}, x, **options)
    variables = module.init(jax.random.key(0), x, train=False, momentum=0.9)
    found, same = module.apply({"params": variables["params"]}, x, **options)
    np.testing.assert_array_equal(found, expected)  # at first
    jax.tree.map(np.testing.assert_array_equal, same, stats)
    params = {"scale": np.float32([2, 3]), "bias": np.float32([1, -1])}
    found, _ = module.apply({"params": params}, x, **options)
    np.testing.assert_allclose(
        found, expected * params["scale"][None] + params["bias"][None], rtol=1e-6
    )


def test_bert_tiny_has_the_published_size_without_pooler():
    pooler = 128 * 128 + 128
    body = encoder.bert_tiny()
    assert num_parameters(body, WORDS) == {"params": 4_385_920 - pooler}
    masked_token = encoder.TokenModel(body, encoder.TokenHead(30_522))
    where = jnp.zeros(1, jnp.int32)
    sizes = num_parameters(masked_token, WORDS, positions=where)
    assert sizes == {"params": 8_323_258 - pooler}
    labels = encoder.TokenModel(body, encoder.TokenHead(12))
    assert num_parameters(labels, WORDS) == {"params": 4_387_468 - pooler}


def small_encoder(**options):
    sizes = {"vocab_size": 11, "hidden_size": 6, "head_dim": 2, "num_positions": 8}
    return encoder.Encoder(num_heads=(3, 3), mlp_dim=(7, 7), **sizes | options)


def layer_norm(x, params, epsilon):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + epsilon) * params["scale"] + params["bias"]


def plain_encoder(params, tokens, attention_mask, segments, epsilon):
    """One sequence, one head and one query at a time, in float64."""
    outputs = []
    for ids, mask, segment in zip(tokens, attention_mask, segments, strict=True):
        x = (
            params["tokens"]["embedding"][ids]
            + params["segments"]["embedding"][segment]
        )
        x = x + params["positions"]["embedding"][: len(ids)]
        x = layer_norm(x, params["embedding_norm"], epsilon)
        for layer in (1, 2):
            attention = params[f"layer_{layer}_attention"]
            result = np.tile(attention["output"]["bias"], (len(ids), 1))
            for head in range(3):
                query, key, value = (
                    x @ attention[name]["kernel"][:, head]
                    + attention[name]["bias"][head]
                    for name in ("query", "key", "value")
                )
                for position in range(len(ids)):
                    weights = np.exp(key @ query[position] / math.sqrt(2)) * mask
                    read = weights @ value / weights.sum()
                    result[position] += read @ attention["output"]["kernel"][head]
            norm = params[f"layer_{layer}_attention_norm"]
            x = layer_norm(x + result, norm, epsilon)
            dense = params[f"layer_{layer}_feed_forward"]
            hidden = x @ dense["hidden"]["kernel"] + dense["hidden"]["bias"]
            hidden = hidden / 2 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
            result = hidden @ dense["output"]["kernel"] + dense["output"]["bias"]
            norm = params[f"layer_{layer}_feed_forward_norm"]
            x = layer_norm(x + result, norm, epsilon)
        outputs.append(x)
    return np.stack(outputs)


def encoder_case(seed, **options):
    rng = np.random.default_rng(seed)
    module = small_encoder(**options)
    tokens = rng.integers(1, 11, (3, 5)).astype(np.int32)
    lengths = np.asarray([5, 3, 4])
    attention_mask = np.arange(5)[None] < lengths[:, None]
    return rng, module, tokens, attention_mask, randomized(rng, module, tokens)


def test_encoder_equals_plain_numpy():
    rng, module, tokens, mask, params = encoder_case(6, norm_epsilon=1e-5)
    segments = rng.integers(0, 2, tokens.shape).astype(np.int32)
    actual = module.apply(
        {"params": params}, tokens, attention_mask=mask, segments=segments
    )
    doubles = jax.tree.map(np.float64, params)
    expected = plain_encoder(doubles, tokens, mask, segments, 1e-5)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_encoder_equals_torch():
    torch = pytest.importorskip("torch", reason="torch is the independent encoder here")
    _, module, tokens, mask, params = encoder_case(7, norm_epsilon=1e-5, num_segments=0)
    layers = torch.nn.TransformerEncoderLayer(
        6, 3, 7, dropout=0.0, activation="gelu", layer_norm_eps=1e-5, batch_first=True
    )
    stack = torch.nn.TransformerEncoder(layers, 2, enable_nested_tensor=False).eval()

    def copy(target, value):  # kernels are [in, out] here, [out, in] there
        assert tuple(target.shape) == value.shape
        target.copy_(torch.from_numpy(np.ascontiguousarray(value)))

    with torch.no_grad():
        for number, layer in enumerate(stack.layers, start=1):
            attention = params[f"layer_{number}_attention"]
            three = [attention[name] for name in ("query", "key", "value")]
            kernels = [one["kernel"].reshape(6, 6).T for one in three]
            copy(layer.self_attn.in_proj_weight, np.concatenate(kernels))
            biases = [one["bias"].reshape(6) for one in three]
            copy(layer.self_attn.in_proj_bias, np.concatenate(biases))
            out = attention["output"]
            copy(layer.self_attn.out_proj.weight, out["kernel"].reshape(6, 6).T)
            copy(layer.self_attn.out_proj.bias, out["bias"])
            dense = params[f"layer_{number}_feed_forward"]
            for target, name in ((layer.linear1, "hidden"), (layer.linear2, "output")):
                copy(target.weight, dense[name]["kernel"].T)
                copy(target.bias, dense[name]["bias"])
            for target, name in (
                (layer.norm1, "attention"),
                (layer.norm2, "feed_forward"),
            ):
                norm = params[f"layer_{number}_{name}_norm"]
                copy(target.weight, norm["scale"])
                copy(target.bias, norm["bias"])
        x = params["tokens"]["embedding"][tokens]
        x = x + params["positions"]["embedding"][None, :5]
        x = layer_norm(x, params["embedding_norm"], 1e-5).astype(np.float32)
        padding = torch.from_numpy(~mask)  # True where torch must not look
        expected = stack(torch.from_numpy(x), src_key_padding_mask=padding).numpy()
    actual = module.apply({"params": params}, tokens, attention_mask=mask)
    np.testing.assert_allclose(actual[mask], expected[mask], rtol=1e-5, atol=1e-5)


def test_padded_tokens_do_not_influence_others():
    _, module, tokens, mask, params = encoder_case(8)
    forward = quick_jit(
        lambda tokens: module.apply({"params": params}, tokens, attention_mask=mask)
    )
    other = np.where(mask, tokens, tokens % 10 + 1)
    assert (other != tokens)[~mask].all()
    before, after = np.asarray(forward(tokens)), np.asarray(forward(other))
    np.testing.assert_array_equal(before[mask], after[mask])
    changed = np.where(mask, tokens % 10 + 1, tokens)
    assert (np.asarray(forward(changed))[mask] != before[mask]).any()


def test_heads_read_the_positions_they_are_given():
    rng, body, tokens, mask, _ = encoder_case(9)
    module = encoder.TokenModel(body, encoder.TokenHead(4))
    params = randomized(rng, module, tokens)
    assert params.keys() == {"encoder", "head"}
    hidden = body.apply({"params": params["encoder"]}, tokens, attention_mask=mask)
    head = params["head"]["output"]
    everywhere = np.asarray(hidden) @ head["kernel"] + head["bias"]

    def logits(positions=None):
        return module.apply(
            {"params": params}, tokens, attention_mask=mask, positions=positions
        )

    close = dict(rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logits(), everywhere, **close)
    one = np.asarray([4, 0, 2])
    np.testing.assert_allclose(logits(one), everywhere[range(3), one], **close)
    two = np.asarray([[4, 1], [0, 0], [2, 3]])
    expected = np.take_along_axis(everywhere, two[..., None], 1)
    np.testing.assert_allclose(logits(two), expected, **close)


def test_dropout_acts_only_in_training():
    _, module, tokens, _, params = encoder_case(10, dropout=0.5)
    variables = {"params": params}

    @quick_jit
    def noisy(key):
        return module.apply(
            variables, tokens, deterministic=False, rngs={"dropout": key}
        )

    plain = module.apply(variables, tokens)  # needs no key
    first, second = noisy(jax.random.key(0)), noisy(jax.random.key(1))
    assert np.abs(first - plain).max() > 1e-2
    assert np.abs(first - second).max() > 1e-2


def test_encoder_starts_truncated_normal():
    params = started(encoder.bert_tiny(vocab_size=300), WORDS)["params"]
    for layer in ("tokens", "positions"):
        table = params[layer]["embedding"]
        assert 0.039 < np.abs(table).max() <= 0.04
        np.testing.assert_allclose(table.std(), 0.88 * 0.02, rtol=0.02)
    query = params["layer_1_attention"]["query"]
    assert query["kernel"].shape == (128, 2, 64) and not query["bias"].any()
    assert 0.039 < np.abs(query["kernel"]).max() <= 0.04


def test_encoder_refuses_texts_that_are_too_long():
    with pytest.raises(InputError, match="at most 8 tokens .* got 10 tokens"):
        num_parameters(small_encoder(), WORDS)
