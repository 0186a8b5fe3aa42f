"""What models say about the examples of every class, which tells who learns alike."""

import numpy as np

from p2pjax.types import InputError


def profiles(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean predictions for the examples of every class, `[N, k * k]`.

    Args:
      outputs: class probabilities of common examples, `[N, Q, k]`.
      labels: of these examples, `[Q]`; classes without examples give zeros.
    """
    outputs, labels = np.asarray(outputs, float), np.asarray(labels)
    if outputs.ndim != 3 or outputs.shape[1] != len(labels):
        raise InputError(
            f"Need outputs [agents, {len(labels)}, classes] for {len(labels)} labels, "
            f"got shape {outputs.shape}."
        )
    num_agents, _, num_classes = outputs.shape
    is_class = labels == np.arange(num_classes)[:, None]  # [k, Q]
    share = is_class / np.maximum(is_class.sum(1, keepdims=True), 1)
    return np.einsum("cq,nqk->nck", share, outputs).reshape(num_agents, -1)
