"""Other labels for the same digits: what makes agents differ.

The permutation of labels is the swap (8 9), a cycle of the last r digits, or one of all
six permutations of the last three digits.
"""

import itertools

import numpy as np

from p2pjax.types import InputError


def cycle(num_classes: int, length: int) -> np.ndarray:
    """Labels `[k]` after a cycle of the last `length` classes; (8 9) is length 2."""
    if not 0 <= length <= num_classes or length == 1:
        raise InputError(
            f"Need cycles of 0 or 2 to {num_classes} classes, got {length}."
        )
    table = np.arange(num_classes)
    table[num_classes - length :] = np.roll(table[num_classes - length :], -1)
    return table


def swap(table: np.ndarray, a: int, b: int) -> np.ndarray:
    """Labels `[k]` with two of them exchanged."""
    table = table.copy()
    table[[a, b]] = table[[b, a]]
    return table


def some_permuted(
    num_classes: int, length: int, num_agents: int, num_permuted: int
) -> np.ndarray:
    """Tables `[N, k]`: the first agents have the last classes in a cycle."""
    if not 0 <= num_permuted <= num_agents:
        raise InputError(
            f"Need 0 to {num_agents} agents with permuted labels, got {num_permuted}."
        )
    tables = np.tile(np.arange(num_classes), (num_agents, 1))
    tables[:num_permuted] = cycle(num_classes, length)
    return tables


def all_orders(num_classes: int, num_agents: int) -> tuple[np.ndarray, np.ndarray]:
    """Tables `[N, k]` and groups `[N]`: all permutations of the last three classes.

    As many agents, with neighbouring numbers, have each of the six.
    """
    orders = list(itertools.permutations(range(num_classes - 3, num_classes)))
    if num_agents % len(orders):
        raise InputError(
            f"Need a multiple of {len(orders)} agents, as many for every permutation, "
            f"got {num_agents}."
        )
    groups = np.repeat(np.arange(len(orders)), num_agents // len(orders))
    tables = np.tile(np.arange(num_classes), (num_agents, 1))
    tables[:, -3:] = np.asarray(orders)[groups]
    return tables, groups
