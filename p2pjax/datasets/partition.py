"""Host-side splits: labelled examples -> the agents' data."""

from collections.abc import Callable

import numpy as np

from p2pjax.datasets.stacking import Examples, stack_agents, stack_rows
from p2pjax.types import FederatedData, InputError, Split


def by_user(
    examples: Examples,
    rng: np.random.Generator,
    *,
    num_agents: int,
    train_size: int,
    test_size: int,
) -> FederatedData:
    """One user per agent: the users with most examples, all cut to the same size.

    Users are sorted by their number of examples (ties in the order of their ids), each
    user's examples are shuffled; the first `train_size` train and the next `test_size`
    test. Where the data has a split of its own, each part comes from its side of it.
    The validation set is empty.

    Args:
      examples: of all users.
      rng: source of everything random.
      num_agents: N.
      train_size: training examples of each agent.
      test_size: test examples of each agent.
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
    largest = users[np.argsort(-sizes, kind="stable")[:num_agents]]
    train, test = [], []
    for user in largest:
        own = rng.permutation(np.flatnonzero(examples.user == user))
        if examples.is_test is None:
            to_train, to_test = own[:train_size], own[train_size:]
        else:
            to_train, to_test = own[~examples.is_test[own]], own[examples.is_test[own]]
        if len(to_train) < train_size or len(to_test) < test_size:
            raise InputError(
                f"Need {train_size} training and {test_size} test examples of each of "
                f"{num_agents} users, but user {user} has only {len(own)}"
                f"{_split_note(examples, len(to_train))} "
                f"({(sizes >= train_size + test_size).sum()} users have "
                f"{train_size + test_size}): lower the sizes or the number of agents."
            )
        train.append(to_train[:train_size])
        test.append(to_test[:test_size])
    return federated_data(examples, train, test)


def sample_users(
    examples: Examples,
    rng: np.random.Generator,
    *,
    num_agents: int,
    test_share: float,
    min_size: int = 2,
) -> FederatedData:
    """One user per agent, drawn from those with enough examples, each with all it has.

    Agents are in the order of the users' ids. A user's examples are shuffled and the
    share of them that is tested, rounded and at least one, is cut off. A split that the
    data has is ignored.

    Args:
      examples: of all users.
      rng: source of everything random.
      num_agents: N.
      test_share: part of every user's examples that is tested, between 0 and 1.
      min_size: examples that a user needs.
    """
    if num_agents < 1 or not 0 < test_share < 1 or min_size < 2:
        raise InputError(
            "Need one agent or more, a test share between 0 and 1 and users of 2 "
            f"examples or more, got {num_agents}, {test_share} and {min_size}."
        )
    users, sizes = np.unique(examples.user, return_counts=True)
    large = users[sizes >= min_size]
    if num_agents > len(large):
        raise InputError(
            f"Need {num_agents} users of {min_size} examples or more, one per agent, "
            f"but the data has {len(large)}: lower the number of agents or the size."
        )
    train, test = [], []
    for user in np.sort(rng.choice(large, num_agents, replace=False)):
        own = rng.permutation(np.flatnonzero(examples.user == user))
        num_test = num_tested(len(own), test_share)
        test.append(own[:num_test])
        train.append(own[num_test:])
    return federated_data(examples, train, test)


def num_tested(size: int, test_share: float) -> int:
    """Of a user's examples, two or more, those for its test: one or more, not all."""
    return min(max(1, round(size * test_share)), size - 1)


def assign_random_users(
    examples: Examples, rng: np.random.Generator, *, num_users: int, size: int
) -> Examples:
    """Examples drawn at random and dealt to users, who so differ by chance only.

    Args:
      examples: whose users do not matter.
      rng: source of everything random.
      num_users: how many users.
      size: examples of each.
    """
    if num_users < 1 or size < 1 or num_users * size > len(examples.y):
        raise InputError(
            f"Need users and examples to deal, at most {len(examples.y)} in all, got "
            f"{num_users} users of {size} examples each: lower one of them."
        )
    rows = rng.permutation(len(examples.y))[: num_users * size]
    return Examples(
        examples.x[rows],
        examples.y[rows],
        np.repeat(np.arange(num_users, dtype=np.int32), size),
        examples.num_classes,
    )


def _split_note(examples: Examples, num_train: int) -> str:
    given = examples.is_test is not None
    return (
        f", {num_train} of them for training by the data's own split" if given else ""
    )


def federated_data(
    examples: Examples,
    train: list[np.ndarray],
    test: list[np.ndarray],
    cluster: np.ndarray | None = None,
) -> FederatedData:
    """Data of which agent n trains on rows `train[n]` and is tested on `test[n]`.

    Agents may have different numbers of rows. No rows are held out for validation.

    Args:
      examples: of all agents, flat.
      train: rows that each agent trains on.
      test: rows that each agent is tested on.
      cluster: `[N]` ground-truth groups; zeros if None.
    """
    for name, rows_of_agents in (("training", train), ("test", test)):
        without = [n for n, rows in enumerate(rows_of_agents) if len(rows) == 0]
        if without:
            raise InputError(
                f"Need at least one {name} example of each agent, got none of agents "
                f"{without}: lower the number of agents or split the data otherwise."
            )

    arrays = {"x": examples.x, "y": examples.y.astype(np.int32, copy=False)}
    if cluster is None:
        cluster = np.zeros(len(train), np.int32)
    return FederatedData(
        train=stack_rows(arrays, train),
        valid=stack_rows(arrays, [np.zeros(0, int)] * len(train)),
        test=stack_rows(arrays, test),
        cluster=cluster,
    )


def iid_blocks(
    examples: Examples,
    rng: np.random.Generator,
    *,
    num_agents: int,
    train_size: int,
    test_size: int,
) -> FederatedData:
    """Disjoint consecutive blocks of the shuffled training examples, one test set.

    Users play no role. All agents are tested on the same examples: the first of the
    data's own test part or, where it has none, the last of the data.
    """
    is_test = examples.is_test
    if is_test is None:
        is_test = np.arange(len(examples.y)) >= len(examples.y) - test_size
    test = np.flatnonzero(is_test)[:test_size]
    train = rng.permutation(np.flatnonzero(~is_test))[: num_agents * train_size]
    if len(test) < test_size or len(train) < num_agents * train_size:
        raise InputError(
            f"Need {num_agents} x {train_size} training and {test_size} test examples, "
            f"got {np.count_nonzero(~is_test)} and {np.count_nonzero(is_test)}: lower "
            "the sizes or the number of agents."
        )
    blocks = list(train.reshape(num_agents, train_size))
    return federated_data(examples, blocks, [test] * num_agents)


def relabel(data: FederatedData, tables: np.ndarray) -> FederatedData:
    """Every agent's label y becomes `tables[n, y]`, in training and in tests.

    Agents with the same table are one cluster.
    """
    tables = np.asarray(tables, np.int32)  # [N, k]

    def changed(split: Split) -> Split:
        y = np.take_along_axis(tables, np.asarray(split.examples["y"]), axis=1)
        return split._replace(examples={**split.examples, "y": y})

    return _every_split(changed, data, number_rows(tables))


def rotate(data: FederatedData, quarter_turns: np.ndarray) -> FederatedData:
    """Turns the images of agent n by `quarter_turns[n]` times 90 degrees to the left.

    Agents with the same turn are one cluster.
    """
    turns = np.asarray(quarter_turns) % 4  # [N]

    def changed(split: Split) -> Split:
        x = np.asarray(split.examples["x"])  # [N, M, height, width, ...]
        if x.ndim < 4 or x.shape[2] != x.shape[3]:
            raise InputError(f"Need square images to rotate, got {x.shape[2:]}.")
        turned = [np.rot90(own, k, (1, 2)) for own, k in zip(x, turns, strict=True)]
        return split._replace(examples={**split.examples, "x": np.stack(turned)})

    return _every_split(changed, data, number_rows(turns[:, None]))


def permute_features(data: FederatedData, orders: np.ndarray) -> FederatedData:
    """Input i of agent n becomes its input `orders[n, i]`: pixels change places.

    Examples keep their shape. Agents with the same order are one cluster.
    """
    orders = np.asarray(orders)  # [N, inputs]
    num_agents, _, *shape = np.shape(data.train.examples["x"])
    inputs = np.arange(np.prod(shape, dtype=int))
    if (
        orders.shape != (num_agents, len(inputs))
        or orders.dtype.kind not in "iu"
        or (np.sort(orders, axis=1) != inputs).any()
    ):
        raise InputError(
            f"Need an order of the {len(inputs)} inputs for every agent, in which each "
            f"of 0 to {len(inputs) - 1} is there once, got {list(orders.shape)}: "
            "rng.permutation draws one."
        )

    def changed(split: Split) -> Split:
        x = np.asarray(split.examples["x"])
        flat = x.reshape(*x.shape[:2], orders.shape[1])  # [N, M, inputs]
        x = np.take_along_axis(flat, orders[:, None], axis=2).reshape(x.shape)
        return split._replace(examples={**split.examples, "x": x})

    return _every_split(changed, data, number_rows(orders))


def _every_split(
    changed: Callable[[Split], Split], data: FederatedData, cluster: np.ndarray
) -> FederatedData:
    return FederatedData(
        changed(data.train), changed(data.valid), changed(data.test), cluster
    )


def number_rows(rows: np.ndarray) -> np.ndarray:
    """`[N]`: equal rows get equal numbers, in the order of first appearance."""
    first: dict[bytes, int] = {}
    keys = [row.tobytes() for row in np.ascontiguousarray(rows)]
    return np.asarray([first.setdefault(key, len(first)) for key in keys], np.int32)


def hold_out(data: FederatedData, share: float) -> FederatedData:
    """Moves a share of every agent's training examples to its validation set.

    The last ones of every class, rounded: shuffle beforehand, as the splits do. An
    agent keeps at least one example to train on and one to validate.
    """
    if not 0 < share < 1:
        raise InputError(f"Need a share above 0 and below 1 to hold out, got {share}.")
    kept, held = [], []
    for n, size in enumerate(np.asarray(data.train.size)):
        if size < 2:
            raise InputError(
                f"Need two training examples or more to hold some out, got {size} of "
                f"agent {n}."
            )
        own = {
            name: np.asarray(leaf)[n, :size]
            for name, leaf in data.train.examples.items()
        }
        is_held = np.zeros(size, bool)
        for label in np.unique(own["y"]):
            rows = np.flatnonzero(own["y"] == label)
            is_held[rows[len(rows) - round(share * len(rows)) :]] = True
        if is_held.all() or not is_held.any():
            is_held = np.arange(size) == size - 1
        kept.append({name: leaf[~is_held] for name, leaf in own.items()})
        held.append({name: leaf[is_held] for name, leaf in own.items()})
    return data._replace(train=stack_agents(kept), valid=stack_agents(held))


def subsample_train(
    data: FederatedData, train_size: int, *, proportional: bool = False
) -> FederatedData:
    """Fewer training examples of every agent, the first ones: shuffle beforehand.

    As in Sajina (2025) as many of every class that the agent has, so a little less than
    `train_size` where that is no multiple of its classes, or where it has fewer.

    Args:
      data: whose validation and test sets stay as they are.
      train_size: examples of an agent.
      proportional: keep the first ones of all, whatever their classes, so that classes
        keep about their shares.
    """
    if train_size < 1:
        raise InputError(f"Need one training example or more, got {train_size}.")
    kept = []
    for n, size in enumerate(np.asarray(data.train.size)):
        own = {
            name: np.asarray(leaf)[n, :size]
            for name, leaf in data.train.examples.items()
        }
        classes, label = np.unique(own["y"], return_inverse=True)
        if proportional:
            is_kept = np.arange(size) < train_size
        else:
            place = [(label[:row] == label[row]).sum() for row in range(size)]
            is_kept = np.asarray(place) < train_size // len(classes)
        if not is_kept.any():
            raise InputError(
                f"Need a training example of each of the {len(classes)} classes of "
                f"agent {n}, got a size of {train_size}: raise it."
            )
        kept.append({name: leaf[is_kept] for name, leaf in own.items()})
    return data._replace(train=stack_agents(kept))
