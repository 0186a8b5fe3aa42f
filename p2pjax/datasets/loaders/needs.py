"""What a data set must have for what is to be done with it, in a sentence if not.

Each function returns the examples that it was given.
"""

import numpy as np

from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError


def need_users(examples: Examples, name: str, num_users: int = 2) -> Examples:
    """Refuses data that does not tell who produced which example.

    Args:
        examples: of all users; loaders of data without users number all of them 0.
        name: of the data set, for the message.
        num_users: how many there must be.
    """
    found = len(np.unique(examples.user))
    if found < num_users:
        raise InputError(
            f"{name}: at least {num_users} users are needed, the people or devices "
            f"that examples are from, found {found} of all {len(examples.y)} examples: "
            "choose data by user, or a split that deals examples to agents"
        )
    return examples


def need_images(
    examples: Examples, name: str, shape: tuple[int, ...] | None = None
) -> Examples:
    """Refuses data that is not images, or not of the size that is needed.

    Args:
        examples: of any data set.
        name: of the data set, for the message.
        shape: (height, width), or (height, width, channels) with more than one
            channel; None is any.
    """
    x = examples.x
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise InputError(
            f"{name}: images are needed, uint8 [examples, height, width] or [examples, "
            f"height, width, channels], found {x.dtype} {list(x.shape)}: choose a data "
            "set of images, or save pixels of 0 to 255 as bytes"
        )
    found = x.shape[1:-1] if x.ndim == 4 and x.shape[-1] == 1 else x.shape[1:]
    if shape is not None and found != shape:
        raise InputError(
            f"{name}: images of {' x '.join(map(str, shape))} pixels are needed, found "
            f"{' x '.join(map(str, found))}: choose another data set or resize them"
        )
    return examples


def need_classes(examples: Examples, name: str, num_classes: int) -> Examples:
    """Refuses data of another number of classes.

    Args:
        examples: of any data set.
        name: of the data set, for the message.
        num_classes: how many there must be.
    """
    if examples.num_classes != num_classes:
        raise InputError(
            f"{name}: {num_classes} classes are needed, found "
            f"{examples.num_classes}: choose another data set"
        )
    return examples
