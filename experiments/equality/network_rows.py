"""Networks, losses and curvatures beside torch, in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import p2pjax as pj
from experiments.equality.comparison import Comparison
from p2pjax.nn import gru


def drawn() -> np.random.Generator:
    return np.random.default_rng(21)


def _variables(module: Any, *inputs: Any, **options: Any) -> Any:
    """Random values for all leaves, so that none is at its start."""
    rng = drawn()
    shapes = module.init(jax.random.key(0), *inputs, **options)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape)), shapes
    )


def tensor(values: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(values, float))


def _linear(leaves: Any) -> Any:
    """A dense layer of torch with our numbers: its kernels are [out, in]."""
    import torch

    kernel = np.asarray(leaves["kernel"], float)
    kernel = kernel.reshape(-1, kernel.shape[-1])
    layer = torch.nn.Linear(*kernel.shape, dtype=torch.float64)
    _set(layer.weight, kernel.T)
    _set(layer.bias, np.asarray(leaves["bias"]).ravel())
    return layer


def _set(target: Any, values: Any) -> None:
    import torch

    with torch.no_grad():
        target.copy_(tensor(values).reshape(target.shape))


def _gradients(module: Any, variables: Any, x: Any) -> tuple[Any, Any]:
    """Outputs, and the gradient of the sum of their squares by the first kernel."""

    def total(params: Any) -> Any:
        return jnp.square(module.apply({**variables, "params": params}, x)).sum()

    output = module.apply(variables, x)
    return output, jax.grad(total)(variables["params"])["layer_1"]["kernel"]


def _mlp() -> tuple[Any, Any]:
    import torch

    x = drawn().normal(size=(5, 7))
    module = pj.nn.MLP((6, 4, 3))
    variables = _variables(module, jnp.asarray(x))
    layers = [_linear(variables["params"][f"layer_{n}"]) for n in (1, 2, 3)]
    sigmoid = torch.nn.Sigmoid()
    network = torch.nn.Sequential(layers[0], sigmoid, layers[1], sigmoid, layers[2])
    output = network(tensor(x))
    output.square().sum().backward()
    theirs = output.detach().numpy(), layers[0].weight.grad.numpy().T
    return _gradients(module, variables, jnp.asarray(x)), theirs


def _convolution(leaves: Any, padding: int) -> Any:
    """Kernels are [height, width, in, out] here, [out, in, height, width] there."""
    import torch

    kernel = np.asarray(leaves["kernel"])
    layer = torch.nn.Conv2d(
        kernel.shape[2],
        kernel.shape[3],
        kernel.shape[0],
        padding=padding,
        bias="bias" in leaves,
        dtype=torch.float64,
    )
    _set(layer.weight, kernel.transpose(3, 2, 0, 1))
    if "bias" in leaves:
        _set(layer.bias, leaves["bias"])
    return layer


def _flat(images: Any) -> Any:
    """`[B, channels, H, W]` to the order in which our first dense layer reads."""
    return images.permute(0, 2, 3, 1).flatten(1)


def _cnn() -> tuple[Any, Any]:
    import torch

    x = drawn().normal(size=(4, 12, 12, 2))
    module = pj.nn.CNN((3,), (5,), 4, kernel_size=3)
    variables = _variables(module, jnp.asarray(x))
    params = variables["params"]
    first = _convolution(params["layer_1"], 0)
    hidden = torch.relu(first(tensor(x).permute(0, 3, 1, 2)))
    hidden = _flat(torch.nn.functional.max_pool2d(hidden, 2))
    hidden = torch.relu(_linear(params["layer_2"])(hidden))
    output = _linear(params["layer_3"])(hidden)
    output.square().sum().backward()
    theirs = output.detach().numpy(), first.weight.grad.numpy().transpose(2, 3, 1, 0)
    return _gradients(module, variables, jnp.asarray(x)), theirs


def _batch_norm_cnn() -> tuple[Any, Any]:
    """Logits in training and after it, and the running mean."""
    import torch

    x = drawn().normal(size=(6, 8, 8, 2))
    module = pj.nn.BatchNormCNN((3,), (), 4)
    variables = _variables(module, jnp.asarray(x))
    params, images = variables["params"], jnp.asarray(x)
    # flax starts them in float32 whatever the width.
    fresh = {"layer_1_norm": {"mean": jnp.zeros(3), "var": jnp.ones(3)}}
    state = {"params": params, "batch_stats": fresh}
    trained, new = module.apply(state, images, train=True, mutable=["batch_stats"])
    after = module.apply({"params": params, **new}, images)
    norm = torch.nn.BatchNorm2d(3, momentum=0.1, eps=1e-5, dtype=torch.float64)
    _set(norm.weight, params["layer_1_norm"]["scale"])
    _set(norm.bias, params["layer_1_norm"]["bias"])
    conv, last = _convolution(params["layer_1"], 1), _linear(params["layer_2"])

    def forward() -> Any:
        hidden = torch.relu(norm(conv(tensor(x).permute(0, 3, 1, 2))))
        return last(_flat(torch.nn.functional.max_pool2d(hidden, 2))).detach().numpy()

    during = forward()
    count = 6 * 8 * 8
    mean = norm.running_mean.numpy().copy()
    # torch's running variance divides by n - 1, flax's by n.
    biased = 0.9 + (norm.running_var.numpy() - 0.9) * (count - 1) / count
    norm.eval()
    _set(norm.running_var, biased)
    stats = new["batch_stats"]["layer_1_norm"]
    ours = (trained, after, stats["mean"], stats["var"])
    return ours, (during, forward(), mean, biased)


def _running_variance() -> tuple[Any, Any]:
    """After one batch of eight."""
    import torch

    x = drawn().normal(size=(8, 3))
    module = gru.BatchNorm()
    state = module.init(jax.random.key(0), jnp.asarray(x), train=False, momentum=0.9)
    _, new = module.apply(
        state, jnp.asarray(x), train=True, momentum=0.9, mutable=["batch_stats"]
    )
    norm = torch.nn.BatchNorm1d(3, momentum=0.1, dtype=torch.float64)
    norm(tensor(x))
    return new["batch_stats"]["var"], norm.running_var.numpy()


def _tokens() -> np.ndarray:
    return drawn().integers(1, 9, size=(5, 6)).astype(np.int32)


def _embedded(params: Any, tokens: np.ndarray) -> Any:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    table = next(v for p, v in leaves if "embedding" in jax.tree_util.keystr(p))
    return tensor(np.asarray(table)[tokens])


def _next_word() -> tuple[Any, Any]:
    import torch

    tokens, module = _tokens(), pj.nn.NextWord(9, 4, 5, 3)
    variables = _variables(module, tokens)
    params = variables["params"]
    cell = torch.nn.GRU(4, 5, batch_first=True, dtype=torch.float64)
    order = [1, 0, 2]  # update, reset, candidate here; reset, update, new there
    own = {name: np.asarray(leaf) for name, leaf in params["gru"].items()}
    _set(cell.weight_ih_l0, own["kernel"][:, order].reshape(4, -1).T)
    _set(cell.weight_hh_l0, own["recurrent_kernel"][:, order].reshape(5, -1).T)
    _set(cell.bias_ih_l0, own["bias"][order])
    _set(cell.bias_hh_l0, own["recurrent_bias"][order])
    last = cell(_embedded(params, tokens))[1][0]
    theirs = _linear(params["output"])(_linear(params["dense"])(last))
    return module.apply(variables, tokens), theirs.detach().numpy()


def _sequence() -> tuple[Any, Any]:
    import torch

    tokens, module = _tokens(), pj.nn.SequenceClassifier(9, 4, 5, 3)
    variables = _variables(module, tokens)
    params = variables["params"]
    cell = torch.nn.LSTM(4, 5, batch_first=True, dtype=torch.float64)
    own = {name: np.asarray(leaf) for name, leaf in params["lstm"].items()}
    _set(cell.weight_ih_l0, own["kernel"].reshape(4, -1).T)
    _set(cell.weight_hh_l0, own["recurrent_kernel"].reshape(5, -1).T)
    _set(cell.bias_ih_l0, own["bias"])
    _set(cell.bias_hh_l0, np.zeros(20))
    last = cell(_embedded(params, tokens))[1][0][0]
    theirs = _linear(params["output"])(last)
    return module.apply(variables, tokens), theirs.detach().numpy()


def _encoder() -> tuple[Any, Any]:
    import torch

    tokens = _tokens()
    module = pj.nn.Encoder(
        vocab_size=9,
        num_positions=6,
        num_segments=0,
        hidden_size=6,
        num_heads=(3, 3),
        mlp_dim=(7, 7),
        head_dim=2,
        norm_epsilon=1e-5,
    )
    variables = _variables(module, tokens)
    params = jax.tree.map(np.asarray, variables["params"])
    mask = np.arange(6)[None] < np.array([6, 3, 4, 6, 5])[:, None]
    layer = torch.nn.TransformerEncoderLayer(
        6, 3, 7, 0.0, "gelu", batch_first=True, dtype=torch.float64
    )
    stack = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for number, one in enumerate(stack.layers, start=1):
        attention = params[f"layer_{number}_attention"]
        three = [attention[name] for name in ("query", "key", "value")]
        _set(
            one.self_attn.in_proj_weight,
            np.concatenate([part["kernel"].reshape(6, 6).T for part in three]),
        )
        _set(one.self_attn.in_proj_bias, [part["bias"] for part in three])
        _set(
            one.self_attn.out_proj.weight, attention["output"]["kernel"].reshape(6, 6).T
        )
        _set(one.self_attn.out_proj.bias, attention["output"]["bias"])
        dense = params[f"layer_{number}_feed_forward"]
        for target, name in ((one.linear1, "hidden"), (one.linear2, "output")):
            _set(target.weight, dense[name]["kernel"].T)
            _set(target.bias, dense[name]["bias"])
        for target, name in ((one.norm1, "attention"), (one.norm2, "feed_forward")):
            norm = params[f"layer_{number}_{name}_norm"]
            _set(target.weight, norm["scale"])
            _set(target.bias, norm["bias"])
    first = torch.nn.LayerNorm(6, 1e-5, dtype=torch.float64)
    _set(first.weight, params["embedding_norm"]["scale"])
    _set(first.bias, params["embedding_norm"]["bias"])
    x = params["tokens"]["embedding"][tokens] + params["positions"]["embedding"][None]
    found = stack(first(tensor(x)), src_key_padding_mask=torch.from_numpy(~mask))
    ours = np.asarray(module.apply(variables, tokens, attention_mask=mask))
    return ours[mask], found.detach().numpy()[mask]


def beside_torch(
    subject: str,
    other: str,
    problem: str,
    run: Callable[[], tuple[Any, Any]],
    convention: str = "",
    differs: str = "",
) -> Comparison:
    return Comparison(
        subject,
        "networks",
        other,
        "torch",
        problem,
        run,
        1e-9,
        convention,
        differs,
        is_slow=True,
    )


VARIANCE = "torch's running variance divides by n - 1, flax's and p2pjax's by n"
COMPARISONS = [
    beside_torch(
        "nn.MLP",
        "nn.Linear, nn.Sigmoid",
        "5 inputs of 7, layers 6-4-3: logits and a gradient",
        _mlp,
    ),
    beside_torch(
        "nn.CNN",
        "nn.Conv2d, max_pool2d, nn.Linear",
        "4 images of 12 x 12 x 2: logits and a gradient",
        _cnn,
        "the first dense layer reads [H, W, channels] here",
    ),
    beside_torch(
        "nn.BatchNormCNN",
        "nn.Conv2d, nn.BatchNorm2d",
        "6 images of 8 x 8 x 2: logits in training and after, statistics",
        _batch_norm_cnn,
        f"{VARIANCE}: corrected; what torch calls momentum is 1 - ours",
    ),
    beside_torch(
        "nn.gru.BatchNorm (running variance)",
        "nn.BatchNorm1d",
        "one batch of 8 inputs of 3",
        _running_variance,
        differs=VARIANCE,
    ),
    beside_torch(
        "nn.NextWord",
        "nn.GRU, nn.Linear",
        "5 sequences of 6 tokens",
        _next_word,
        "gates are in another order: update, reset, candidate here",
    ),
    beside_torch(
        "nn.SequenceClassifier",
        "nn.LSTM, nn.Linear",
        "5 sequences of 6 tokens",
        _sequence,
        "one bias here, two there of which one is 0",
    ),
    beside_torch(
        "nn.Encoder",
        "nn.TransformerEncoder",
        "5 padded sequences of 6 tokens, 2 layers, 3 heads",
        _encoder,
        "norm after each part, exact gelu",
    ),
]
