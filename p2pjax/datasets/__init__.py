"""Data of agents: public data sets, arrays of your own, and how they are split.

`digits`, `glyphs`, `mnist`, ... return `FederatedData`; `federate` makes it of arrays,
and `split` says who gets which examples. The readers of files, and data for which there
is no function here (texts, entities), are in `loaders`.
"""

from p2pjax.datasets import split
from p2pjax.datasets._catalogue import (
    cifar10,
    digits,
    femnist,
    glyphs,
    har,
    mnist,
    npz,
    tfds,
    vsn,
)
from p2pjax.datasets._federate import federate

__all__ = [
    "cifar10",
    "digits",
    "federate",
    "femnist",
    "glyphs",
    "har",
    "mnist",
    "npz",
    "split",
    "tfds",
    "vsn",
]
