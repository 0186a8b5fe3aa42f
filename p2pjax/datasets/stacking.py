"""Examples of all agents in one padded stack.

Host side: `Examples`, flat arrays as a loader returns them. Device side: `Split`
and `FederatedData`, stacked over agents; padding never contributes to anything.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.types import Array, FederatedData, Split


class Examples(NamedTuple):
    """Labelled examples of many users, flat and on the host."""

    x: np.ndarray  # [E, ...] in a compact dtype: images are uint8, ink is 255
    y: np.ndarray  # [E] int32, 0 .. num_classes - 1
    user: np.ndarray  # [E] int32, who produced the example
    num_classes: int
    is_test: np.ndarray | None = None  # [E] bool where the source has an own split


def stack_agents(agents: list[dict[str, np.ndarray]]) -> Split:
    """Pads each agent's examples (leaves `[M_n, ...]`) to the longest and stacks."""
    sizes = [len(next(iter(examples.values()))) for examples in agents]
    longest = max(sizes)

    def pad(leaf: np.ndarray) -> np.ndarray:
        widths = [(0, longest - len(leaf))] + [(0, 0)] * (leaf.ndim - 1)
        return np.pad(leaf, widths)

    stacked = {
        name: np.stack([pad(examples[name]) for examples in agents])
        for name in agents[0]
    }
    return Split(stacked, np.asarray(sizes, np.int32))


def pad_split(split: Split, num_examples: int) -> Split:
    """The same examples with more padding, to have the shape of other data."""

    def pad(leaf: Array) -> np.ndarray:
        more = num_examples - leaf.shape[1]
        return np.pad(leaf, [(0, 0), (0, more)] + [(0, 0)] * (leaf.ndim - 2))

    examples = {name: pad(leaf) for name, leaf in split.examples.items()}
    return Split(examples, split.size)


def label_histograms(split: Split, num_classes: int) -> Array:
    """How often each agent has each label, `[N, num_classes]`."""
    labels = jnp.asarray(split.examples["y"])  # [N, M]
    is_real = jnp.arange(labels.shape[1])[None] < jnp.asarray(split.size)[:, None]
    labels = jnp.where(is_real, labels, num_classes)  # dropped
    rows = jnp.arange(labels.shape[0])[:, None]
    none = jnp.zeros((labels.shape[0], num_classes), jnp.int32)
    return none.at[rows, labels].add(1, mode="drop")


def pad_to_same_size(worlds: Sequence[FederatedData]) -> list[FederatedData]:
    """The same data sets with so much padding that their shapes are equal."""

    def pad(splits: Sequence[Split]) -> list[Split]:
        longest = max(next(iter(s.examples.values())).shape[1] for s in splits)
        return [pad_split(split, longest) for split in splits]

    train = pad([data.train for data in worlds])
    valid = pad([data.valid for data in worlds])
    test = pad([data.test for data in worlds])
    return list(
        map(FederatedData, train, valid, test, [data.cluster for data in worlds])
    )


def over_splits(
    fn: Callable[..., Split], worlds: Sequence[FederatedData], cluster: Array
) -> FederatedData:
    """`fn` of the training parts of all data sets, and so for validation and test."""
    return FederatedData(
        fn(*(data.train for data in worlds)),
        fn(*(data.valid for data in worlds)),
        fn(*(data.test for data in worlds)),
        cluster,
    )
