"""Host-side splits: labelled examples -> the agents' worlds."""

import numpy as np

from p2pjax.data import Examples, World, stack_agents
from p2pjax.types import InputError


def by_user(
    examples: Examples,
    rng: np.random.Generator,
    *,
    num_agents: int,
    train_size: int,
    test_size: int,
) -> World:
    """One user per agent: the users with most examples, all cut to the same size.

    Users are sorted by their number of examples (ties in the order of their ids), each
    user's examples are shuffled; the first `train_size` train and the next `test_size`
    test. The validation set is the test set's twin in shape and empty.
    """
    if num_agents < 1 or train_size < 1 or test_size < 1:
        raise InputError(
            "Need at least one agent, one training and one test example, got "
            f"{num_agents} agents with {train_size} training and {test_size} test "
            "examples each."
        )
    users, sizes = np.unique(examples.user, return_counts=True)
    if num_agents > len(users):
        raise InputError(
            f"Need {num_agents} users, one per agent, but the data has {len(users)}: "
            "lower the number of agents."
        )
    order = np.argsort(-sizes, kind="stable")[:num_agents]
    needed, smallest = train_size + test_size, int(sizes[order].min())
    if smallest < needed:
        enough = int((sizes >= needed).sum())
        raise InputError(
            f"Need {train_size} training and {test_size} test examples of each of "
            f"{num_agents} users, but user {users[order[-1]]} has only {smallest} "
            f"({enough} users have {needed}): lower the sizes to {smallest} in all or "
            "the number of agents."
        )
    train, test = [], []
    for user in users[order]:
        own = rng.permutation(np.flatnonzero(examples.user == user))[:needed]
        train.append(own[:train_size])
        test.append(own[train_size:])
    return world_of(examples, train, test)


def world_of(
    examples: Examples,
    train: list[np.ndarray],
    test: list[np.ndarray],
    cluster: np.ndarray | None = None,
) -> World:
    """The world in which agent n trains on rows `train[n]` and is tested on `test[n]`.

    Agents may have different numbers of rows. No rows are held out for validation.
    """

    def take(rows: np.ndarray) -> dict[str, np.ndarray]:
        return {"x": examples.x[rows], "y": examples.y[rows].astype(np.int32)}

    empty = np.zeros(0, int)
    if cluster is None:
        cluster = np.zeros(len(train), np.int32)
    return World(
        train=stack_agents([take(rows) for rows in train]),
        valid=stack_agents([take(empty) for _ in train]),
        test=stack_agents([take(rows) for rows in test]),
        cluster=cluster,
    )
