"""Data of agents: public data sets, arrays of your own, and how they are split.

`digits`, `glyphs`, `mnist`, ... return `FederatedData`, and so do `npz`, `leaf`, `tff`,
`idx` and `tfds`, of any data set in their format; `federate` makes it of arrays, and
`split` says who gets which examples. The readers of files, and data for which there is
no function here (texts, entities), are in `loaders`; `loaders.named` has all by name.
"""

from p2pjax.datasets import split
from p2pjax.datasets._catalogue import (
    cifar10,
    digits,
    femnist,
    glyphs,
    har,
    mnist,
    vsn,
)
from p2pjax.datasets._federate import federate
from p2pjax.datasets._formats import idx, leaf, npz, tfds, tff

__all__ = [
    "cifar10",
    "digits",
    "federate",
    "femnist",
    "glyphs",
    "har",
    "idx",
    "leaf",
    "mnist",
    "npz",
    "split",
    "tfds",
    "tff",
    "vsn",
]
