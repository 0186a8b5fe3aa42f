"""Compressed messages beside decent-bench, torch and numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.equality import decent_bench_runs
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.quadratics import vectors
from p2pjax.exchange import compression

KEY = 0
KNOWN = vectors("adversity_compression")


def _message() -> np.ndarray:
    return np.random.default_rng(4).normal(size=40)


def _compressed(format_: compression.Format, message: np.ndarray) -> np.ndarray:
    return np.asarray(format_.compress(jax.random.key(KEY), jnp.asarray(message)))


def _top_k() -> tuple[Any, Any]:
    ours = _compressed(compression.top_k(0.25), _message())
    return ours, decent_bench_runs.compressed("TopK", _message(), k=0.25)


def _top_k_of_torch() -> tuple[Any, Any]:
    import torch

    message = torch.from_numpy(_message())
    kept = torch.topk(message.abs(), 10).indices
    theirs = torch.zeros_like(message)
    theirs[kept] = message[kept]
    return _compressed(compression.top_k(0.25), _message()), theirs.numpy()


def _uniform8() -> tuple[Any, Any]:
    import torch

    message = _message().astype(np.float32)
    scale = float(np.abs(message).max() / np.float32(127))
    quantized = torch.quantize_per_tensor(
        torch.from_numpy(message), scale, 0, torch.qint8
    )
    ours = _compressed(compression.uniform8(), message)
    return ours, quantized.dequantize().numpy()


def _quantization() -> tuple[Any, Any]:
    message = _message()
    step = np.abs(message).max() / 127
    theirs = decent_bench_runs.compressed(
        "Quantization", message, quantization_step=step
    )
    return _compressed(compression.uniform8(), message), theirs


def _half() -> tuple[Any, Any]:
    import torch

    theirs = torch.from_numpy(_message()).half().double()
    return _compressed(compression.half(), _message()), theirs.numpy()


def _sign() -> tuple[Any, Any]:
    ours = _compressed(compression.sign(), np.array(KNOWN["x"]))
    return ours, np.array(KNOWN["sign"]["out"])


def _row(
    subject: str, other: str, package: str, run: Any, **options: Any
) -> Comparison:
    return Comparison(
        subject, "messages", other, package, "one message of 40 numbers", run, **options
    )


FLOORS = "where ratio times size is no whole number decent-bench rounds up, p2pjax down"
COMPARISONS = [
    _row("top_k", "TopK", "decent-bench", _top_k, convention=FLOORS, tolerance=0.0),
    _row("top_k", "topk", "torch", _top_k_of_torch, tolerance=0.0),
    _row(
        "uniform8",
        "quantize_per_tensor, qint8",
        "torch",
        _uniform8,
        tolerance=1e-6,
        convention="float32 in torch",
    ),
    _row(
        "uniform8",
        "Quantization",
        "decent-bench",
        _quantization,
        convention="its step is the largest number / 127",
    ),
    _row("half", "half", "torch", _half, tolerance=0.0),
    _row(
        "sign",
        "Karimireddy et al. (2019) by its text",
        VECTORS,
        _sign,
        tolerance=1e-8,
    ),
]
