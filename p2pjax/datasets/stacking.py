"""Examples of all agents in one padded stack.

Host side: `Examples`, flat arrays as a loader returns them. Device side: `Split`
and `FederatedData`, stacked over agents; padding never contributes to anything.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.host_memory import check_room
from p2pjax.types import Array, FederatedData, Split


class Examples(NamedTuple):
    """Labelled examples of many users, flat and on the host."""

    x: np.ndarray  # [E, ...] in a compact dtype: images are uint8, ink is 255
    y: np.ndarray  # [E] int32, 0 .. num_classes - 1
    user: np.ndarray  # [E] int32, who produced the example
    num_classes: int
    is_test: np.ndarray | None = None  # [E] bool where the source has an own split


def stack_agents(agents: Sequence[Mapping[str, np.ndarray]]) -> Split:
    """Pads each agent's examples (leaves `[M_n, ...]`) to the longest and stacks."""
    sizes = [len(next(iter(examples.values()))) for examples in agents]
    parts = {name: [examples[name] for examples in agents] for name in agents[0]}
    kinds = {name: np.result_type(*leaves) for name, leaves in parts.items()}
    like = {name: leaf[:0].astype(kinds[name]) for name, leaf in agents[0].items()}
    return _stacked(sizes, like, parts)


def stack_rows(arrays: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> Split:
    """Stacks rows of flat arrays, agent n's `rows[n]`, padded to the most of any agent.

    Args:
      arrays: leaves `[E, ...]`.
      rows: of each agent.
    """
    return _stacked(
        [len(own) for own in rows],
        arrays,
        {name: map(leaf.__getitem__, rows) for name, leaf in arrays.items()},
    )


def _stacked(
    sizes: Sequence[int],
    like: Mapping[str, np.ndarray],
    parts: Mapping[str, Iterable[np.ndarray]],
) -> Split:
    """What is filled in is made first, whole: padded parts are never there together.

    Args:
      sizes: examples of each agent.
      like: leaves with the shapes and dtypes of all parts, but for their first axis.
      parts: of each agent, by leaf.
    """
    num_agents, longest = len(sizes), max(sizes)
    example = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in like.values())
    check_room(
        num_agents * longest * example,
        f"{longest} examples for each of {num_agents} agents",
    )
    stacked = {}
    for name, leaf in like.items():
        whole = np.zeros((num_agents, longest, *leaf.shape[1:]), leaf.dtype)
        for place, part in zip(whole, parts[name], strict=True):
            place[: len(part)] = part
        stacked[name] = whole
    return Split(stacked, np.asarray(sizes, np.int32))


def pad_split(split: Split, num_examples: int) -> Split:
    """The same examples with more padding, to have the shape of other data."""

    def pad(leaf: Array) -> np.ndarray:
        more = num_examples - leaf.shape[1]
        return np.pad(leaf, [(0, 0), (0, more)] + [(0, 0)] * (leaf.ndim - 2))

    if all(leaf.shape[1] == num_examples for leaf in split.examples.values()):
        return split
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
