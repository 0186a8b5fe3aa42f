"""Studies of semi-local models, which groups of agents share beside a global one."""

import numpy as np

from experiments.averaging.cases import Case
from experiments.averaging.schemes import (
    FileScheme,
    file_schemes,
    level_layout,
    rest_of,
    within_groups,
)
from experiments.mnist.config import Config
from experiments.mnist.data import Blocks, relabelled
from experiments.mnist.labels import all_orders, cycle, swap
from p2pjax.partial.schemes import PartialModel, Scheme, auto
from p2pjax.types import InputError, Layout


def semi_local(
    config: Config, network: Layout, blocks: Blocks, batch_sizes: tuple[int, ...]
) -> list[Case]:
    """Figure 20: agents with the same permutation can share a semi-local model."""
    tables, groups = all_orders(network[-1], config.num_agents)
    scheme = auto(network, level_layout(network, 80), groups)
    schemes = _schemes(config, network, groups, 80, scheme.models[1:])
    return _cases(config, blocks, tables, schemes, batch_sizes)


def semi_local_local(
    config: Config, network: Layout, blocks: Blocks, batch_sizes: tuple[int, ...]
) -> list[Case]:
    """Figure 21: four agents; 2 and 3 swap the last two classes, 3 two others too."""
    if config.num_agents != 4:
        raise InputError(f"Need 4 agents for this study, got {config.num_agents}.")
    num_classes = network[-1]
    one = cycle(num_classes, 2)
    two = swap(one, num_classes - 4, num_classes - 3)
    tables = np.stack([np.arange(num_classes)] * 2 + [one, two])
    shared = level_layout(network, 70)
    models = (
        PartialModel(rest_of(network, shared), (0, 1)),
        PartialModel(rest_of(network, shared, 2), (2, 3)),
    )
    groups = np.asarray([0, 0, 1, 2])  # agents with identical labels
    schemes = _schemes(config, network, groups, 70, models)
    return _cases(config, blocks, tables, schemes, batch_sizes)


def _schemes(
    config: Config,
    network: Layout,
    groups: np.ndarray,
    level_beside: int,
    semi_local_models: tuple[PartialModel, ...],
) -> dict[str, Scheme]:
    """Nothing, everything, groups, level 80, and semi-local models beside a level."""
    num_agents = len(groups)
    one_group = np.zeros(num_agents, int)
    shared = PartialModel(level_layout(network, level_beside), tuple(range(num_agents)))
    beside = Scheme(
        (network,) * num_agents,
        (shared, *semi_local_models),
        neutral_input=config.neutral_input,
    )
    on_shared = tuple((m, 0) for m in range(1, len(beside.models)))
    return {
        "none": Scheme((network,) * num_agents),
        "full": within_groups(network, network, one_group),
        "full_in_groups": within_groups(network, network, groups),
        "level_80": within_groups(network, level_layout(network, 80), one_group),
        f"level_{level_beside}_semi_local": beside,
        f"level_{level_beside}_semi_local_depends": beside._replace(depends=on_shared),
    }


def _cases(
    config: Config,
    blocks: Blocks,
    tables: np.ndarray,
    schemes: dict[str, Scheme],
    batch_sizes: tuple[int, ...],
) -> list[Case]:
    data = relabelled(blocks(len(tables), config.train_size), tables)
    network = schemes["none"].networks[0]
    files = file_schemes(config.scheme_file, network, len(tables))
    named = [FileScheme(name, scheme, {}) for name, scheme in schemes.items()]
    return [
        Case(one.name, {"batch_size": size} | one.setting, one.scheme, data, size)
        for size in batch_sizes
        for one in (*named, *files)
    ]
