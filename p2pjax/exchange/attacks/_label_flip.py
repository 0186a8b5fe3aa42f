"""Label flipping: Byzantine agents follow the protocol on wrong labels.

Tolpegin et al. (2020), "Data poisoning attacks against federated learning systems",
https://arxiv.org/abs/2007.08432; each label y becomes C - 1 - y.
"""

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack
from p2pjax.types import Batch, InputError, Key


def label_flip(byzantine: Who, num_classes: int) -> Attack:
    """Byzantine agents train on labels `C - 1 - y` in place of y.

    Args:
      byzantine: numbers of agents.
      num_classes: C.

    Example:
      >>> import numpy as np
      >>> attack = label_flip(byzantine=(0, 3), num_classes=10)
      >>> attack.poison(None, {"y": np.array([0, 1, 9])})["y"].tolist()
      [9, 8, 0]
    """
    if num_classes < 2:
        raise InputError(f"Need two classes or more to flip labels, got {num_classes}.")

    def poison_fn(key: Key, batch: Batch) -> Batch:
        del key
        if "y" not in batch:
            raise InputError(
                f"Need examples with labels y to flip, got {sorted(batch)}: use a task "
                "that classifies."
            )
        return {**batch, "y": num_classes - 1 - batch["y"]}

    attack = Attack("label_flip", poison=poison_fn, needs_others=False)
    return placed(attack, byzantine)
