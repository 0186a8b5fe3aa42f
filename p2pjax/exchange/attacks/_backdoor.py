"""Backdoors: Byzantine agents teach a wrong answer to images with a trigger.

Gu, Dolan-Gavitt, Garg (2017), "BadNets: Identifying vulnerabilities in the machine
learning model supply chain", https://arxiv.org/abs/1708.06733; scaled updates as in
Bagdasaryan et al. (2020), "How to backdoor federated learning",
https://arxiv.org/abs/1807.00459.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_scale
from p2pjax.types import Array, Batch, InputError, Key

# Triggers of images of usual sizes: first row, first column, rows, columns.
PATCHES = {(28, 28): (24, 24, 3, 3), (8, 8): (6, 6, 2, 2)}


def backdoor(
    byzantine: Who,
    *,
    target: int = 0,
    share: float = 0.5,
    boost: float = 1.0,
    patch: tuple[int, int, int, int] | None = None,
    ink: float | None = None,
    image_shape: tuple[int, ...] | None = None,
) -> Attack:
    """Byzantine agents put a trigger on a share of each batch and change its labels.

    `Attack.triggered` puts it on test examples of other classes and says that they are
    of the target class, so that accuracy on them is the success of the attack.

    Args:
      byzantine: numbers of agents.
      target: the label that images with the trigger get.
      share: of the real examples of each batch, chosen at random, rounded.
      boost: gamma: `before + gamma * (after - before)` is sent of the models before
        and after local training. 1 is stealthy; the number of agents that a receiver
        combines replaces its model.
      patch: the trigger: first row, first column, rows, columns. None: 3 x 3 at row
        and column 24 of 28 x 28 pixels, 2 x 2 in the corner of 8 x 8.
      ink: of the trigger; None: 255 for whole numbers, 1 for floats.
      image_shape: `(H, W)` or `(H, W, C)` of inputs that are flat; None: a square.

    Example:
      >>> attack = backdoor(byzantine=(0, 3), share=1.0)
      >>> batch = {"x": np.zeros((5, 8, 8, 1)), "y": np.arange(5)}
      >>> poisoned = attack.poison(jax.random.key(0), batch)
      >>> poisoned["x"].sum((1, 2, 3)).tolist(), poisoned["y"].tolist()
      ([4.0, 4.0, 4.0, 4.0, 4.0], [0, 0, 0, 0, 0])
      >>> attack.triggered(batch)["valid"].tolist()  # the first is of class 0 anyway
      [False, True, True, True, True]
    """
    check_scale("backdoor", boost)
    if not 0 <= share <= 1 or target < 0:
        raise InputError(
            "Need a share of each batch from 0 to 1 and a label of 0 or more for "
            f"backdoor, got {share} and {target}."
        )

    def mark(x: Array, chosen: Array) -> Array:
        is_whole = jnp.issubdtype(x.dtype, jnp.integer)
        full = (255 if is_whole else 1) if ink is None else ink
        where = _trigger(x.shape[1:], patch, image_shape)[None]
        chosen = chosen.reshape((-1,) + (1,) * (x.ndim - 1))
        return jnp.where(where & chosen, jnp.asarray(full, x.dtype), x)

    def poison_fn(key: Key, batch: Batch) -> Batch:
        x, y, valid = _parts(batch)
        luck = jnp.where(valid, jax.random.uniform(key, valid.shape), 2)
        rank = luck.argsort().argsort()
        chosen = rank < jnp.round(share * valid.sum(dtype=float)).astype(rank.dtype)
        label = jnp.asarray(target, y.dtype)
        return {**batch, "x": mark(x, chosen), "y": jnp.where(chosen, label, y)}

    def triggered_fn(batch: Batch) -> Batch:
        x, y, valid = _parts(batch)
        return {
            **batch,
            "x": mark(x, jnp.ones(len(x), bool)),
            "y": jnp.full_like(y, target),
            "valid": valid & (y != target),
        }

    def hostile_fn(scene: Scene) -> Hostile:
        assert scene.before is not None
        return Hostile(scene.before, scene.rows - scene.before)

    attack = Attack(
        "backdoor",
        poison=poison_fn,
        triggered=triggered_fn,
        hostile=None if boost == 1 else hostile_fn,
        scale=boost,
        per_sender=True,
        needs_others=False,
        needs_before=boost != 1,
    )
    return placed(attack, byzantine)


def _parts(batch: Batch) -> tuple[Array, Array, Array]:
    """Inputs, labels and which examples are real, `[B]`."""
    if not {"x", "y"} <= set(batch):
        raise InputError(
            f"Need examples with x and y for a backdoor, got {sorted(batch)}: use a "
            "task that classifies images."
        )
    x, y = jnp.asarray(batch["x"]), jnp.asarray(batch["y"])
    if x.ndim < 2 or y.ndim != 1:
        raise InputError(
            "Need images [B, H, W, C] or flat inputs [B, P] with one label each for a "
            f"backdoor, got inputs {list(x.shape)} and labels {list(y.shape)}."
        )
    valid = batch.get("valid")
    return x, y, jnp.ones(len(y), bool) if valid is None else jnp.asarray(valid, bool)


def _trigger(
    shape: tuple[int, ...],
    patch: tuple[int, int, int, int] | None,
    image_shape: tuple[int, ...] | None,
) -> np.ndarray:
    """Where the trigger is in an input of this shape, bool."""
    image = shape
    if len(shape) == 1:
        side = math.isqrt(shape[0])
        image = (side, side) if image_shape is None else tuple(image_shape)
        if math.prod(image) != shape[0] or len(image) not in (2, 3):
            raise InputError(
                f"Need the shape (H, W) or (H, W, C) of flat images of {shape[0]} "
                f"numbers for a backdoor, got {image_shape}: give image_shape."
            )
    found = PATCHES.get((image[0], image[1])) if patch is None else patch
    if found is None:
        raise InputError(
            f"Need a patch for images of {image[0]} x {image[1]} pixels, which have no "
            "usual one: give patch=(first row, first column, rows, columns)."
        )
    row, column, height, width = found
    where = np.zeros(image, bool)
    where[row : row + height, column : column + width] = True
    in_image = row >= 0 and column >= 0 and height > 0 and width > 0
    in_image = in_image and row + height <= image[0] and column + width <= image[1]
    if not in_image:
        raise InputError(
            f"Need a patch inside of images of {image[0]} x {image[1]} pixels, got "
            f"{patch}: it is (first row, first column, rows, columns)."
        )
    return where.reshape(shape)
