"""The studies of Bouchra Pilet et al. 2021 on MNIST: cases and figure of each.

Names and settings are those of V.3; the permutation of labels that makes two agents
differ is the swap (8 9), a cycle of the last r digits, or one of all six permutations
of the last three digits.
"""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from experiments import figures
from experiments.averaging_schemes import (
    level_layout,
    one_model,
    rest_of,
    within_groups,
)
from experiments.averaging_study import Case, level_cases
from p2pjax.datasets import partition
from p2pjax.partial.schemes import PartialModel, Scheme, auto
from p2pjax.types import FederatedData, InputError, Layout


class Setup(NamedTuple):
    """What the flags say."""

    network: Layout
    num_agents: int
    num_permuted: int
    train_size: int
    levels: tuple[int, ...]
    neutral_input: bool
    blocks: "Blocks"


class Blocks(Protocol):
    """Images of so many agents, by run; no agent's labels are permuted yet."""

    def __call__(
        self, num_agents: int, train_size: int, turns: tuple[int, ...] | None = None
    ) -> Callable[[int], FederatedData]:
        """With `turns`, the images of agent n are rotated by `turns[n]` quarters."""
        ...


class Study(NamedTuple):
    """One study of the paper."""

    cases: Callable[[Setup, tuple[int, ...]], list[Case]]
    values: tuple[int, ...]  # of what it varies, in the paper
    figure: Callable[[Path], None]


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


def permuted_worlds(
    setup: Setup, tables: np.ndarray, train_size: int | None = None
) -> Callable[[int], FederatedData]:
    """Data by run, in which agent n has the labels `tables[n]`."""
    blocks = setup.blocks(len(tables), train_size or setup.train_size)
    return lambda run: partition.relabel(blocks(run), tables)


def some_permuted(
    setup: Setup, length: int, num_agents: int, num_permuted: int
) -> np.ndarray:
    """Tables `[N, k]`: the first agents have the last classes in a cycle."""
    if not 0 <= num_permuted <= num_agents:
        raise InputError(
            f"Need 0 to {num_agents} agents with permuted labels, got {num_permuted}."
        )
    num_classes = setup.network[-1]
    tables = np.tile(np.arange(num_classes), (num_agents, 1))
    tables[:num_permuted] = cycle(num_classes, length)
    return tables


def at_levels(
    setup: Setup,
    setting: dict,
    tables: np.ndarray,
    *,
    train_size: int | None = None,
    batch_size: int | None = None,
) -> list[Case]:
    """One global model of growing size."""
    worlds = permuted_worlds(setup, tables, train_size)
    return level_cases(
        setup.network, setup.levels, len(tables), worlds, setting, batch_size
    )


def level(setup: Setup, batch_sizes: tuple[int, ...]) -> list[Case]:
    """P-M1: levels for several sizes of the mini-batch."""
    tables = some_permuted(setup, 2, setup.num_agents, setup.num_permuted)
    return [
        case
        for size in batch_sizes
        for case in at_levels(setup, {"batch_size": size}, tables, batch_size=size)
    ]


def convergence(setup: Setup, values: tuple[int, ...]) -> list[Case]:
    """P-M2: accuracy over time."""
    del values
    tables = some_permuted(setup, 2, setup.num_agents, setup.num_permuted)
    return at_levels(setup, {}, tables)


def peers(setup: Setup, sizes: tuple[int, ...]) -> list[Case]:
    """P-M3: more agents; a quarter of them are permuted."""
    return [
        case
        for size in sizes
        for case in at_levels(
            setup, {"num_agents": size}, some_permuted(setup, 2, size, size // 4)
        )
    ]


def all_orders(setup: Setup) -> tuple[np.ndarray, np.ndarray]:
    """Tables `[N, k]` and groups `[N]`: all permutations of the last three classes.

    As many agents, with neighbouring numbers, have each of the six.
    """
    num_classes = setup.network[-1]
    orders = list(itertools.permutations(range(num_classes - 3, num_classes)))
    if setup.num_agents % len(orders):
        raise InputError(
            f"Need a multiple of {len(orders)} agents, as many for every permutation, "
            f"got {setup.num_agents}."
        )
    groups = np.repeat(np.arange(len(orders)), setup.num_agents // len(orders))
    tables = np.tile(np.arange(num_classes), (setup.num_agents, 1))
    tables[:, -3:] = np.asarray(orders)[groups]
    return tables, groups


def semi_local(setup: Setup, batch_sizes: tuple[int, ...]) -> list[Case]:
    """P-M4: agents with the same permutation can share a semi-local model."""
    tables, groups = all_orders(setup)
    shared = level_layout(setup.network, 80)
    scheme = auto(setup.network, shared, groups)
    return _compare(setup, tables, groups, 80, scheme.models[1:], batch_sizes)


def semi_local_local(setup: Setup, batch_sizes: tuple[int, ...]) -> list[Case]:
    """P-M5: four agents; 2 and 3 swap the last two classes, 3 two others as well."""
    if setup.num_agents != 4:
        raise InputError(f"Need 4 agents for this study, got {setup.num_agents}.")
    num_classes = setup.network[-1]
    one = cycle(num_classes, 2)
    two = swap(one, num_classes - 4, num_classes - 3)
    tables = np.stack([np.arange(num_classes)] * 2 + [one, two])
    shared = level_layout(setup.network, 70)
    semi_local_models = (
        PartialModel(rest_of(setup.network, shared), (0, 1)),
        PartialModel(rest_of(setup.network, shared, 2), (2, 3)),
    )
    groups = np.asarray([0, 0, 1, 2])  # agents with identical labels
    return _compare(setup, tables, groups, 70, semi_local_models, batch_sizes)


def _compare(
    setup: Setup,
    tables: np.ndarray,
    groups: np.ndarray,
    level_beside: int,
    semi_local_models: tuple[PartialModel, ...],
    batch_sizes: tuple[int, ...],
) -> list[Case]:
    """Nothing, everything, groups, level 80, and semi-local models beside a level."""
    network, num_agents = setup.network, len(tables)
    one_group = np.zeros(num_agents, int)
    shared = PartialModel(level_layout(network, level_beside), tuple(range(num_agents)))
    beside = Scheme(
        (network,) * num_agents,
        (shared, *semi_local_models),
        neutral_input=setup.neutral_input,
    )
    on_shared = tuple((m, 0) for m in range(1, len(beside.models)))
    schemes = {
        "none": Scheme((network,) * num_agents),
        "full": within_groups(network, network, one_group),
        "full_in_groups": within_groups(network, network, groups),
        "level_80": within_groups(network, level_layout(network, 80), one_group),
        f"level_{level_beside}_semi_local": beside,
        f"level_{level_beside}_semi_local_depends": beside._replace(depends=on_shared),
    }
    worlds = permuted_worlds(setup, tables)
    return [
        Case(name, {"batch_size": size}, scheme, worlds, size)
        for size in batch_sizes
        for name, scheme in schemes.items()
    ]


def difference(setup: Setup, lengths: tuple[int, ...]) -> list[Case]:
    """P-M6: some agents have the last r classes in a cycle."""
    return [
        case
        for r in lengths
        for case in at_levels(
            setup,
            {"cycle": r},
            some_permuted(setup, r, setup.num_agents, setup.num_permuted),
        )
    ]


def permuted(setup: Setup, counts: tuple[int, ...]) -> list[Case]:
    """P-M7: more and more agents have the last two classes swapped."""
    return [
        case
        for count in counts
        for case in at_levels(
            setup,
            {"num_permuted": count},
            some_permuted(setup, 2, setup.num_agents, count),
        )
    ]


def train_size(setup: Setup, sizes: tuple[int, ...]) -> list[Case]:
    """P-M8: more training examples."""
    tables = some_permuted(setup, 2, setup.num_agents, setup.num_permuted)
    return [
        case
        for size in sizes
        for case in at_levels(setup, {"train_size": size}, tables, train_size=size)
    ]


def layouts(setup: Setup, lengths: tuple[int, ...]) -> list[Case]:
    """P-M9: networks with and without one more layer; the last layer can be local."""
    deeper = (*setup.network, setup.network[-1])
    cases = []
    for r, network in itertools.product(lengths, (setup.network, deeper)):
        part_of_hidden = level_layout(setup.network, 80) + network[4:]
        tables = some_permuted(setup, r, setup.num_agents, setup.num_permuted)
        all_but_outputs = (*network[:-1], 0)
        for cells in ((0,) * len(network), network, part_of_hidden, all_but_outputs):
            cases.append(
                Case(
                    "-".join(map(str, cells)),
                    {"cycle": r},
                    one_model(network, cells, setup.num_agents, setup.num_agents),
                    permuted_worlds(setup, tables),
                )
            )
    return cases


def drift(setup: Setup, hundredths: tuple[int, ...]) -> list[Case]:
    """Dynamic averaging: agents average when they have drifted that far."""
    tables = some_permuted(setup, 2, setup.num_agents, setup.num_permuted)
    return [
        case._replace(drift=value / 100)
        for value in hundredths
        for case in at_levels(setup, {"drift": value / 100}, tables)
    ]


def _against(setting: str, label: str) -> Callable[[Path], None]:
    return partial(figures.accuracy_by_setting, setting=setting, label=label)


_BATCHES = _against("batch_size", "examples of a mini-batch")
_CYCLES = _against("cycle", "classes in the cycle")
STUDIES = {
    "level": Study(level, (50, 100, 200, 500, 1000, 3000), figures.accuracy_by_level),
    "convergence": Study(convergence, (), figures.accuracy_by_round),
    "peers": Study(peers, (4, 8, 12, 16), _against("num_agents", "agents")),
    "semi_local": Study(semi_local, (25, 50, 100, 150), _BATCHES),
    "semi_local_local": Study(semi_local_local, (100, 200, 400, 800), _BATCHES),
    "difference": Study(difference, (0, 2, 4, 6, 8, 10), _CYCLES),
    "permuted": Study(
        permuted, (0, 2, 4, 6, 8), _against("num_permuted", "permuted agents")
    ),
    "train_size": Study(
        train_size,
        (250, 500, 1000, 2000, 3500),
        _against("train_size", "training examples per agent"),
    ),
    "layouts": Study(layouts, (0, 2, 4, 6, 8, 10), _CYCLES),
    "drift": Study(
        drift,
        (0, 1, 10, 100, 1000),
        _against("drift", "squared drift before averaging"),
    ),
}
