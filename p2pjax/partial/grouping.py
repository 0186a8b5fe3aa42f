"""Which agents learn alike: groups found in their updates, without knowing any.

Bouchra Pilet, Frey, Taiani (2021), "Simple, efficient and convenient decentralized
multi-task learning for neural networks", leave open how slices are chosen when it is
not known which agents have a task in common. Here all agents train on their own data
for a few rounds; those whose networks moved in the same direction form a group, and
`schemes.auto` gives each group a partial model:

    similarity = update_similarity(start, params)
    scheme = auto(network, shared, find_groups(similarity))

Two to five passes over an agent's examples worked best where we tried (12 agents, 150
to 200 digits each): with fewer, differences drown in how often each class was drawn;
with more, agents differ by the examples they know by heart. Groups that see different
inputs (rotated digits) were found every time, groups that name some of the same inputs
differently (permuted labels, two agents each) only in part or not at all.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np

from p2pjax.paths import leaves_with_paths
from p2pjax.types import LOCAL, InputError, PyTree

_BLOCK = 1 << 22  # numbers of one leaf that are looked at together


def update_similarity(start: PyTree, params: PyTree) -> np.ndarray:
    """Cosines of the agents' updates `params - start`, `[N, N]`.

    Two things are taken out first. The mean update of all agents: what each agent
    learns says nothing about groups. And for every cell the mean over the weights that
    it reads, as in Yong et al. (2020), "Gradient centralization",
    https://arxiv.org/abs/2004.01461: that mean moves like the cell's bias, which
    follows how often an agent happens to see each class. Biases and other vectors are
    left out for the same reason. Give a part of the tree, such as `params["layer_1"]`,
    to compare only that part.

    Args:
      start: parameters before training, leaves `[N, ...]`, or `[1, ...]` if all agents
        started from the same.
      params: parameters after training, leaves `[N, ..., cells]`.

    Returns:
      Similarities from -1 to 1; agents that did not move differently from the mean are
      not similar to any other (0).

    Example:
      >>> start = {"w": np.zeros((1, 2, 2))}
      >>> moved = np.array([[[1, 0], [0, 1]]] * 2 + [[[0, 1], [1, 0]]] * 2)
      >>> update_similarity(start, {"w": moved}).round(1)[0].tolist()
      [1.0, 1.0, -1.0, -1.0]
    """
    leaves_before, leaves_after = leaves_with_paths(start), leaves_with_paths(params)
    paths_before, paths_after = (
        [path for path, _ in leaves] for leaves in (leaves_before, leaves_after)
    )
    if paths_before != paths_after:
        raise InputError(
            "Need the same leaves before and after training, got "
            f"{paths_before} and {paths_after}."
        )
    pairs = [
        (path, before, after)
        for (path, before), (_, after) in zip(leaves_before, leaves_after, strict=True)
        if np.ndim(after) > 2
    ]
    if not pairs:
        raise InputError(
            "Need at least one leaf of weights [N, inputs, cells], got only vectors "
            "and scalars per agent."
        )
    num_agents = len(pairs[0][2])
    gram = np.zeros((num_agents, num_agents))
    for path, before, after in pairs:
        _check_leaf(path, before.shape, after.shape, num_agents)
        for update in _update_blocks(np.asarray(before), np.asarray(after)):
            gram += update @ update.T
    length = np.sqrt(gram.diagonal())
    scale = np.divide(1, length, out=np.zeros_like(length), where=length > 0)
    similarity = np.clip(gram * np.outer(scale, scale), -1, 1)
    np.fill_diagonal(similarity, 1)
    return similarity


def find_groups(
    similarity: np.ndarray,
    *,
    min_silhouette: float = 0.25,
    min_similarity: float = 0.1,
) -> np.ndarray:
    """Group of every agent, `[N]`, numbered from 0 in the order of their first members.

    Average linkage joins the agents into a tree. Of all the ways to cut the tree, the
    one with the best mean silhouette counts (Rousseeuw 1987,
    https://doi.org/10.1016/0377-0427(87)90125-7): how much nearer an agent is to its
    own group than to the next, 0 if it is alone. An agent that is like no other stays
    alone. Mean silhouettes up to 0.25 tell of no substantial structure
    (Kaufman and Rousseeuw 1990): all are then in one group, 0.

    Agents without the mean update of all look alike if they differ from the same
    majority: beside a group with most of the agents the others may end up in one group,
    and of several agents that are like no other, two may be paired.

    Args:
      similarity: `[N, N]`, symmetric, such as from `update_similarity`.
      min_silhouette: mean silhouette that a division into groups must exceed.
      min_similarity: mean similarity that two branches must exceed to be joined.
        Not 0, because taking out the mean makes unrelated agents a little alike.

    Example:
      >>> similarity = np.kron(np.eye(2), np.full((3, 3), 0.8)) + 0.2 * np.eye(6)
      >>> find_groups(similarity).tolist()
      [0, 0, 0, 1, 1, 1]
    """
    similarity = np.asarray(similarity, np.float64)
    if (
        similarity.ndim != 2
        or len(similarity) == 0
        or len(similarity) != len(similarity.T)
        or not np.allclose(similarity, similarity.T)  # also refuses nan
    ):
        raise InputError(
            "Need a symmetric matrix of finite similarities, one row per agent, got "
            f"shape {similarity.shape}: see `update_similarity`."
        )
    best, labels = min_silhouette, np.zeros(len(similarity), int)
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0)
    for silhouette, cut in _cuts(np.maximum(distance, 0), 1 - min_similarity):
        if silhouette.mean() > best:
            best, labels = silhouette.mean(), cut.copy()
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def alike(features: np.ndarray) -> np.ndarray:
    """Group of every agent, `[N]`: those who differ from the mean in the same way.

    Args:
      features: of every agent, `[N, ...]`, such as its predictions.

    Example:
      >>> alike(np.array([[1.0, 0], [0.9, 0], [0, 1.0], [0, 0.8]])).tolist()
      [0, 0, 1, 1]
    """
    flat = np.asarray(features, np.float64).reshape(len(features), -1)
    centred = flat - flat.mean(0)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = centred / np.where(length > 0, length, 1)
    similarity = np.clip(unit @ unit.T, -1, 1)
    np.fill_diagonal(similarity, 1)
    return find_groups(similarity)


def nested_groups(
    find: Callable[[PyTree], np.ndarray], features: PyTree, depth: int
) -> np.ndarray:
    """Groups, groups within these, and so on, `[N, depth]`; LOCAL for none.

    Who is alone is in no group, and where all would be in one, none is found.

    Args:
      find: features of some agents -> their groups, negative for none.
      features: of every agent, leaves `[N, ...]`.
      depth: how many times groups are looked for.

    Example:
      >>> language = np.repeat([[9.0, 0], [0, 9]], 4, 0)
      >>> dialect = np.tile(np.repeat(np.eye(2), 2, 0), (2, 1))
      >>> features = np.hstack([language, dialect, np.eye(8)])  # and each its own
      >>> nested_groups(alike, features, 2).T.tolist()
      [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3]]
    """
    size = len(jax.tree.leaves(features)[0])
    found = np.full((size, depth), LOCAL)
    within = np.zeros(size, int)  # the group in which groups are looked for
    for level in range(depth):
        number = 0
        for group in np.unique(within[within != LOCAL]):
            members = np.flatnonzero(within == group)
            if len(members) < 2:
                continue
            own = jax.tree.map(lambda leaf, at=members: np.asarray(leaf)[at], features)
            labels = np.asarray(find(own))
            kept = [label for label in np.unique(labels) if label >= 0]
            for label in kept:
                some = members[labels == label]
                if 1 < len(some) < len(members):
                    found[some, level] = number
                    number += 1
        within = found[:, level]
    return found


def _update_blocks(before: np.ndarray, after: np.ndarray) -> Iterator[np.ndarray]:
    """What is left of a leaf's updates `[N, numbers]`, a few cells at a time."""
    num_agents, *_, num_cells = after.shape
    before = before.reshape(len(before), -1, num_cells)
    after = after.reshape(num_agents, -1, num_cells)
    width = max(1, _BLOCK // max(1, num_agents * after.shape[1]))
    for first in range(0, num_cells, width):
        cells = slice(first, first + width)
        update = after[..., cells].astype(np.float64) - before[..., cells]
        update -= update.mean(0)
        update -= update.mean(1, keepdims=True)
        yield update.reshape(num_agents, -1).astype(np.float32)


def _cuts(
    distance: np.ndarray, highest: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Silhouettes and groups of all agents, `[N]`, for every cut below `highest`.

    The groups are valid until the next cut. A join changes the nearest other group only
    for agents to whom one of the two joined ones was nearest, so that the whole walk
    takes about as long as a few passes over the distances.
    """
    from scipy.cluster.hierarchy import average
    from scipy.spatial.distance import squareform

    num_agents = len(distance)
    if num_agents < 3:  # of two agents it cannot be said whether they are alike
        return
    agents = np.arange(num_agents)
    labels, sizes = agents.copy(), np.ones(num_agents)
    totals = distance.copy()  # [N, groups], to all members of a group
    nearest, away = np.full(num_agents, -1), np.zeros(num_agents)  # other groups
    group_of = agents.tolist()  # node of the tree -> group
    for left, right, height, _ in average(squareform(distance, checks=False))[:-1]:
        if height >= highest:
            return
        kept, gone = group_of[int(left)], group_of[int(right)]
        group_of.append(kept)
        totals[:, kept] += totals[:, gone]
        totals[:, gone] = np.inf
        sizes[kept] += sizes[gone]
        labels[labels == gone] = kept
        stale = np.flatnonzero((nearest == kept) | (nearest == gone) | (nearest < 0))
        means = totals[stale] / sizes
        means[np.arange(len(stale)), labels[stale]] = np.inf
        nearest[stale], away[stale] = means.argmin(1), means.min(1)
        within = totals[agents, labels] / np.maximum(sizes[labels] - 1, 1)
        larger = np.maximum(np.maximum(within, away), np.finfo(float).tiny)
        yield np.where(sizes[labels] > 1, (away - within) / larger, 0), labels


def _check_leaf(
    path: str, before: tuple[int, ...], after: tuple[int, ...], num_agents: int
) -> None:
    if after[0] != num_agents or before not in (after, (1, *after[1:])):
        raise InputError(
            f"Need {path} of {num_agents} agents after training and of as many or of "
            f"one before, got shapes {after} and {before}."
        )
