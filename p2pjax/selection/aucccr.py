"""AUCCCR: group agents so that each agent gains from its group, on the host, once.

Bouchra Pilet, Frey, Taiani, "AUCCCR: Agent utility centered clustering for cooperation
recommendation", https://hal.science/hal-03181696. A group is worth more the larger it
is and the nearer its members are to each other; an agent that no group is worth more to
than itself stays alone. How many groups there are follows. Sajina (2025) compares
agents by what their models, trained alone, say about common examples of every class:

    outputs = peer_evaluation.predictions(probe, models, agent_loop)
    group = groups(rng, profiles(outputs, labels))
    method = pull(task, learner, sparse(), topology(rng, group), ...)
"""

from collections.abc import Callable

import numpy as np

from p2pjax.graphs import generators
from p2pjax.graphs.generators import complete
from p2pjax.graphs.topology import Topology, from_edges
from p2pjax.tasks.profiles import profiles as profiles
from p2pjax.types import InputError

ALONE = -1


NUM_RESTARTS = 20


PATIENCE = 5  # numbers of groups without improvement


Value = Callable[[np.ndarray], np.ndarray]  # of groups by their sizes


def root_of_size(most: float = np.inf) -> Value:
    """The value of a group: the root of its size, which counts up to `most`.

    Without a limit all agents tend to end up in one group. The thesis has 40 for two
    true clusters and 20 for more, of 100 agents, which tells the method something about
    what it is to find out.

    Args:
      most: agents of a group that count.

    Example:
      >>> root_of_size(most=16)(np.array([4, 16, 100])).tolist()
      [2.0, 4.0, 4.0]
    """
    return lambda sizes: np.sqrt(np.minimum(sizes, most))


def utilities(features: np.ndarray, group: np.ndarray, value: Value) -> np.ndarray:
    """What its group is worth to every agent, `[N]`; 1 for those who are alone."""
    result = np.ones(len(features))
    for label in np.unique(group[group != ALONE]):
        members = group == label
        distance = np.linalg.norm(features[members] - features[members].mean(0), axis=1)
        result[members] = value(members.sum()) / (1 + distance)
    return result


def value_groups(
    rng: np.random.Generator,
    features: np.ndarray,
    value: Value = root_of_size(),
    num_restarts: int = NUM_RESTARTS,
) -> np.ndarray:
    """Group of every agent, `[N]`; `ALONE` where none is worth it.

    Args:
      rng: of the restarts.
      features: `[N, F]`; agents are compared by their distances.
      value: of a group by its size.
      num_restarts: for every number of groups.
    """
    features = np.asarray(features, float)
    if features.ndim != 2 or not np.isfinite(features).all() or num_restarts < 1:
        raise InputError(
            "Need finite features [agents, numbers] and one restart or more, got shape "
            f"{features.shape} and num_restarts={num_restarts}."
        )
    best_total, best = float(len(features)), np.full(len(features), ALONE)
    since = 0
    for num_groups in range(1, len(features) + 1):
        since += 1
        for _ in range(num_restarts):
            total, group = _climb(features, _seeds(rng, features, num_groups), value)
            if total > best_total + 1e-9:
                best_total, best, since = total, group, 0
        if since >= PATIENCE:
            break
    return _numbered(best)


def by_value(
    value: Value = root_of_size(), *, seed: int = 0, num_restarts: int = NUM_RESTARTS
) -> Callable[[np.ndarray], np.ndarray]:
    """A way to find groups while agents train, for `partial.by_predictions`.

    Args:
      value: of a group by its size.
      seed: of the restarts, the same whenever groups are found.
      num_restarts: for every number of groups.

    Returns:
      A function of features `[N, F]` to groups `[N]`, see `value_groups`.

    Example:
      >>> features = np.array([[0.0], [0.0], [9.0], [9.0]])
      >>> by_value(root_of_size(2))(features).tolist()
      [0, 0, 1, 1]
    """

    def find(features: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return value_groups(rng, features, value, num_restarts)

    return find


def group_graph(
    rng: np.random.Generator, group: np.ndarray, degree: int = 3
) -> Topology:
    """A directed graph of the given degree inside every group; `ALONE` has no edges.

    Groups with too few members for it are complete.
    """
    senders, receivers = [], []
    for label in np.unique(group[group != ALONE]):
        members = np.flatnonzero(group == label)
        if len(members) > degree:
            inside = generators.directed_regular(len(members), degree, seed=rng)
        else:
            inside = complete(len(members))
        slots = np.nonzero(inside.mask)
        senders.append(members[inside.neighbor[slots]])
        receivers.append(members[slots[0]])
    none = np.zeros(0, np.int64)
    return from_edges(
        len(group),
        np.concatenate([none, *senders]),
        np.concatenate([none, *receivers]),
    )


def _seeds(
    rng: np.random.Generator, features: np.ndarray, num_groups: int
) -> np.ndarray:
    """Centres far from each other, as k-means++ chooses them, `[groups, F]`."""
    chosen = [int(rng.integers(len(features)))]
    while len(chosen) < num_groups:
        squares = _distances(features, features[chosen]).min(1) ** 2
        if squares.sum() == 0:
            break
        chosen.append(int(rng.choice(len(features), p=squares / squares.sum())))
    return features[chosen]


def _climb(
    features: np.ndarray, centres: np.ndarray, value: Value
) -> tuple[float, np.ndarray]:
    """Moves agents to better groups while the sum of utilities rises."""
    group = _distances(features, centres).argmin(1)
    best_total, best = -np.inf, group
    while True:
        total = utilities(features, group, value).sum()
        if total <= best_total + 1e-9:
            return best_total, best
        best_total, best = total, group
        labels = np.unique(group[group != ALONE])
        if not len(labels):
            return best_total, best
        centres = np.stack([features[group == label].mean(0) for label in labels])
        sizes = np.array([(group == label).sum() for label in labels])
        group = _assigned(_distances(features, centres), sizes, value)


def _assigned(distances: np.ndarray, sizes: np.ndarray, value: Value) -> np.ndarray:
    """The best group of each agent `[N]`, given that sizes only shrink."""
    while True:
        worth = value(sizes) / (1 + distances)  # [N, groups]
        group = np.where(worth.max(1) > 1, worth.argmax(1), ALONE)
        found = np.bincount(group[group != ALONE], minlength=len(sizes))
        if (found >= sizes).all():
            return group
        sizes = np.minimum(sizes, found)


def _distances(features: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.linalg.norm(features[:, None] - centres[None], axis=2)


def _numbered(group: np.ndarray) -> np.ndarray:
    """Groups by their first members; an agent in a group of its own is alone."""
    result, number = np.full(len(group), ALONE), 0
    for label in dict.fromkeys(group[group != ALONE].tolist()):
        members = group == label
        if members.sum() > 1:
            result[members], number = number, number + 1
    return result
