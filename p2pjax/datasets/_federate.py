"""Arrays of your own -> the data of agents: `federate`."""

from typing import Any

import numpy as np

from p2pjax.datasets import split as splits
from p2pjax.datasets.checking import check_data
from p2pjax.datasets.own_arrays import as_inputs, as_labels, as_users
from p2pjax.datasets.split import Assignment, Request, Splitter
from p2pjax.datasets.stacking import Examples, stack_agents
from p2pjax.types import FederatedData, InputError

Seed = int | np.random.Generator


def federate(
    x: Any,
    y: Any,
    users: Any = None,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Splits labelled examples among agents, and each agent's into its parts.

    >>> import numpy as np
    >>> import p2pjax.datasets as datasets
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(100, 5)), rng.integers(3, size=100)
    >>> data = datasets.federate(x, y, num_agents=4, split=datasets.split.iid())
    >>> data.train.examples["x"].shape, data.test.examples["x"].shape
    ((4, 20, 5), (4, 5, 5))

    Args:
      x: inputs `[E, ...]` as numbers, images `[E, H, W, C]`. Bytes (uint8) are pixels
        and stay bytes; other floats and booleans become float32, whole numbers int32.
      y: the class of each example `[E]`, whole numbers from 0, booleans, or names,
        which are numbered in sorted order: `np.unique(y)` has them.
      users: who produced each example `[E]`, whole numbers or names.
      num_agents: N; None makes each user an agent.
      split: one of `pj.split`; None is `split.by_user()`.
      test_fraction: part of each agent's examples that is tested, at least one.
      valid_fraction: part of each agent's examples that is held out for validation, at
        least one unless it is 0.
      seed: of all that is random: the same seed gives the same data.

    Returns:
      Arrays on the host; `cluster` has the ground truth of splits that make clusters,
      zeros otherwise. Agents with fewer examples than others are padded.

    Raises:
      InputError: in a sentence that says what to change.
    """
    y = as_labels(y)
    return federate_examples(
        Examples(as_inputs(x), y, np.zeros_like(y), int(y.max(initial=0)) + 1),
        None if users is None else as_users(users),
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def federate_examples(
    examples: Examples,
    users: np.ndarray | None,
    *,
    num_agents: int | None,
    split: Splitter | None,
    test_fraction: float | None,
    valid_fraction: float,
    seed: Seed,
) -> FederatedData:
    """As `federate`; `test_fraction` None keeps to `examples.is_test`."""
    x, y = examples.x, examples.y
    is_test = examples.is_test if test_fraction is None else None
    _check_lengths(x, y, users)
    _check_fractions(test_fraction, valid_fraction, is_test)
    rng = generator(seed)
    request = Request(
        y, users, x.shape[1:], _count(num_agents), min_size=3 if valid_fraction else 2
    )
    assignment = _checked(_splitter(split, users)(request, rng), request)
    parts = [
        _cut(agent, rng.permutation(rows), is_test, test_fraction or 0, valid_fraction)
        for agent, rows in enumerate(assignment.rows)
    ]
    train, valid, test = (
        stack_agents([{"x": x[rows], "y": y[rows]} for rows in same])
        for same in zip(*parts, strict=True)
    )
    data = FederatedData(train, valid, test, np.zeros(len(parts), np.int32))
    if assignment.transform is not None:
        data = assignment.transform(data)
    if assignment.cluster is not None:
        data = data._replace(cluster=np.asarray(assignment.cluster, np.int32))
    check_data(data)
    return data


def with_channels(examples: Examples) -> Examples:
    """Images `[E, H, W]` become `[E, H, W, 1]`."""
    x = examples.x
    return examples._replace(x=x[..., None]) if x.ndim == 3 else examples


def generator(seed: Seed) -> np.random.Generator:
    """The source of everything random, checked."""
    is_seed = isinstance(seed, int | np.integer) and seed >= 0
    if not is_seed and not isinstance(seed, np.random.Generator):
        raise InputError(
            f"Need a whole number of 0 or more, or a numpy Generator, as seed, got "
            f"{seed!r}: give for example seed=0."
        )
    return np.random.default_rng(seed)


def _cut(
    agent: int,
    own: np.ndarray,
    is_test: np.ndarray | None,
    test_fraction: float,
    valid_fraction: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An agent's shuffled rows to train, to validate and to test with."""

    def size(fraction: float, num_others: int) -> int:
        # At least one, but so few that the other parts can have one each.
        return max(1, min(round(fraction * len(own)), len(own) - num_others))

    if is_test is None:
        num_test = size(test_fraction, 2 if valid_fraction else 1)
        test, rest = own[:num_test], own[num_test:]
    else:
        test, rest = own[is_test[own]], own[~is_test[own]]
    num_valid = size(valid_fraction, len(test) + 1) if valid_fraction else 0
    valid, train = rest[:num_valid], rest[num_valid:]
    needed = {"test": test, "training": train}
    if valid_fraction:
        needed["validation"] = valid
    for name, rows in needed.items():
        if not len(rows):
            raise InputError(
                f"Need at least one {name} example of each agent, got none of agent "
                f"{agent}, which has {len(own)} examples: lower num_agents, choose "
                "another split or give more data."
            )
    return train, valid, test


def _splitter(split: Splitter | None, users: np.ndarray | None) -> Splitter:
    if split is None and users is None:
        raise InputError(
            "Need a split, or users of whom each becomes an agent, got neither: give "
            "for example split=pj.split.iid()."
        )
    if split is None:
        return splits.by_user()
    if not callable(split) or split in splits.CONSTRUCTORS:
        name = getattr(split, "__name__", repr(split))
        raise InputError(
            f"Need a split such as pj.split.dirichlet(0.3), got {name}: call one of "
            "pj.split's functions, with parentheses."
        )
    return split


def _count(num_agents: int | None) -> int | None:
    if num_agents is None:
        return None
    if not isinstance(num_agents, int | np.integer) or num_agents < 1:
        raise InputError(
            f"Need one agent or more, a whole number, got {num_agents}: raise "
            "num_agents."
        )
    return int(num_agents)


def _check_fractions(
    test: float | None, valid: float, is_test: np.ndarray | None
) -> None:
    if is_test is None and (test is None or not 0 < test < 1):
        raise InputError(
            f"Need a test_fraction above 0 and below 1, got {test}: agents are judged "
            "by their test examples, try 0.2."
        )
    if not 0 <= valid < 1:
        raise InputError(
            f"Need a valid_fraction of at least 0 and below 1, got {valid}: try 0.1."
        )
    if (test or 0) + valid >= 1:
        raise InputError(
            f"Need fractions that leave something to train on, got a test_fraction of "
            f"{test} and a valid_fraction of {valid}: lower one of them."
        )


def _check_lengths(x: np.ndarray, y: np.ndarray, users: np.ndarray | None) -> None:
    lengths = {"x": len(x), "y": len(y)}
    if users is not None:
        lengths["users"] = len(users)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise InputError(
            f"Need one entry per example in {', '.join(lengths)}, got {found}: give "
            "arrays of the same length."
        )
    if not x.size:
        raise InputError(
            f"Need examples to split, got x of shape {list(x.shape)}: give more data."
        )


def _checked(assignment: Assignment, request: Request) -> Assignment:
    """What a split of the user's own must fulfil."""
    if not isinstance(assignment, Assignment):
        raise InputError(
            f"Need a split that returns an Assignment, got "
            f"{type(assignment).__name__}: see pj.split."
        )
    found = len(assignment.rows)
    if found != (request.num_agents or found) or not found:
        raise InputError(
            f"Need rows of {request.num_agents or 'some'} agents from the split, got "
            f"{found}: return one array of rows per agent."
        )
    rows = np.concatenate(assignment.rows)
    num_examples = len(request.y)
    whole = rows.dtype.kind in "iu"
    if len(rows) and (not whole or rows.min() < 0 or rows.max() >= num_examples):
        raise InputError(
            f"Need a split that returns rows 0 to {num_examples - 1}, whole numbers, "
            f"got {rows.dtype} from {rows.min()} to {rows.max()}."
        )
    if len(np.unique(rows)) < len(rows):
        raise InputError(
            "Need a split that gives each example to one agent at most, got examples "
            "that two agents share: test examples of one would train another."
        )
    return assignment
