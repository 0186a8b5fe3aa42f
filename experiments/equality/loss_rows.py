"""Losses and curvatures beside torch, in float64."""

from typing import Any

import jax
import jax.numpy as jnp

import p2pjax as pj
from experiments.equality.network_rows import beside_torch, drawn, tensor
from p2pjax.tasks import losses


def _losses() -> tuple[Any, Any]:
    import torch
    from torch.nn import functional

    rng = drawn()
    logits, labels = rng.normal(size=(8, 5)), rng.integers(0, 5, 8)
    mine = jnp.asarray(logits), jnp.asarray(labels)
    there, classes = tensor(logits), torch.from_numpy(labels)
    target = functional.one_hot(classes, 5).double()
    none: dict[str, Any] = {"reduction": "none"}
    ours = (
        losses.softmax_cross_entropy(*mine),
        losses.binary_cross_entropy(*mine),
        losses.squared_error(*mine),
    )
    theirs = (
        functional.cross_entropy(there, classes, **none),
        functional.binary_cross_entropy_with_logits(there, target, **none).sum(1),
        functional.mse_loss(there.sigmoid(), target, **none).sum(1) / 2,
    )
    return ours, tuple(one.numpy() for one in theirs)


def _curvature(kind: str) -> tuple[Any, Any]:
    """Of a linear classifier: mean squares of gradients, or the Hessian's diagonal."""
    import torch
    from torch import func
    from torch.nn import functional

    rng = drawn()
    x, y, w = rng.normal(size=(6, 3)), rng.integers(0, 4, 6), rng.normal(size=(3, 4))
    network = pj.Network(lambda key: jnp.zeros((3, 4)), lambda w, x: x @ w)
    task = pj.classification(network, (3,))
    variables = task.init(jax.random.key(0))._replace(params=jnp.asarray(w))
    examples = {"x": jnp.asarray(x), "y": jnp.asarray(y, jnp.int32)}
    find = getattr(pj.curvature, kind)(task)
    ours = find(jax.random.key(0), variables, examples, jnp.int32(6))

    def loss(w: Any, x: Any, y: Any) -> Any:
        return functional.cross_entropy(x @ w, y)

    given = tensor(w), tensor(x), torch.from_numpy(y)
    if kind == "fisher":
        each = func.vmap(func.grad(loss), (None, 0, 0))(*given)
        return ours, each.square().mean(0).numpy()
    whole = func.hessian(loss)(*given).reshape(12, 12)
    return ours, whole.diagonal().clamp(min=0).reshape(3, 4).numpy()


COMPARISONS = [
    beside_torch(
        "tasks.losses",
        "cross_entropy, binary_cross_entropy_with_logits, mse_loss",
        "8 examples of 5 classes",
        _losses,
        "sums over outputs; half of the squared error",
    ),
    beside_torch(
        "curvature.fisher",
        "func.vmap(func.grad)",
        "6 examples, 12 weights",
        lambda: _curvature("fisher"),
        "the mean over examples, not the sum",
    ),
    beside_torch(
        "curvature.hessian",
        "func.hessian",
        "6 examples, 12 weights",
        lambda: _curvature("hessian"),
        "the diagonal, no entry below 0",
    ),
]
