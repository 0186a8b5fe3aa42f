"""Studies of one global model: cases of Bouchra Pilet et al. 2021, V.3."""

from typing import Any

import numpy as np

from experiments.averaging.cases import Case, MakeData, file_cases, level_cases
from experiments.averaging.schemes import level_layout, one_model
from experiments.mnist.config import Config
from experiments.mnist.data import Blocks, relabelled
from experiments.mnist.labels import some_permuted
from p2pjax.types import Layout


def _tables(config: Config, network: Layout, length: int = 2) -> np.ndarray:
    """Labels `[N, k]` where as many agents as the config says have a cycle."""
    return some_permuted(network[-1], length, config.num_agents, config.num_permuted)


def _data(config: Config, blocks: Blocks, tables: np.ndarray) -> MakeData:
    return relabelled(blocks(len(tables), config.train_size), tables)


def _level_cases(
    config: Config,
    network: Layout,
    data: MakeData,
    setting: dict[str, Any] | None = None,
    batch_size: int | None = None,
) -> list[Case]:
    """The levels, and the scheme of a file."""
    of, num_agents = setting, config.num_agents
    levels = level_cases(network, config.levels, num_agents, data, of, batch_size)
    file = config.scheme_file
    return levels + file_cases(file, network, num_agents, data, of, batch_size)


def level(
    config: Config, network: Layout, blocks: Blocks, batch_sizes: tuple[int, ...]
) -> list[Case]:
    """Figure 17: levels for several sizes of the mini-batch."""
    data = _data(config, blocks, _tables(config, network))
    return [
        case
        for size in batch_sizes
        for case in _level_cases(config, network, data, {"batch_size": size}, size)
    ]


def convergence(
    config: Config, network: Layout, blocks: Blocks, values: tuple[int, ...]
) -> list[Case]:
    """Figure 18: accuracy over time."""
    del values
    data = _data(config, blocks, _tables(config, network))
    return _level_cases(config, network, data)


def peers(
    config: Config, network: Layout, blocks: Blocks, sizes: tuple[int, ...]
) -> list[Case]:
    """Figure 19: more agents; a quarter of them are permuted."""
    cases = []
    for size in sizes:
        tables = some_permuted(network[-1], 2, size, size // 4)
        data = _data(config, blocks, tables)
        setting = {"num_agents": size}
        cases += level_cases(network, config.levels, size, data, setting)
    return cases


def difference(
    config: Config, network: Layout, blocks: Blocks, lengths: tuple[int, ...]
) -> list[Case]:
    """Figure 22: some agents have the last r classes in a cycle."""
    cases = []
    for r in lengths:
        data = _data(config, blocks, _tables(config, network, r))
        cases += _level_cases(config, network, data, {"cycle": r})
    return cases


def permuted(
    config: Config, network: Layout, blocks: Blocks, counts: tuple[int, ...]
) -> list[Case]:
    """Figure 23: more and more agents have the last two classes swapped."""
    cases = []
    for count in counts:
        tables = some_permuted(network[-1], 2, config.num_agents, count)
        data = _data(config, blocks, tables)
        cases += _level_cases(config, network, data, {"num_permuted": count})
    return cases


def train_size(
    config: Config, network: Layout, blocks: Blocks, sizes: tuple[int, ...]
) -> list[Case]:
    """Figure 24: more training examples."""
    tables = _tables(config, network)
    cases = []
    for size in sizes:
        data = relabelled(blocks(config.num_agents, size), tables)
        cases += _level_cases(config, network, data, {"train_size": size})
    return cases


def layouts(
    config: Config, network: Layout, blocks: Blocks, lengths: tuple[int, ...]
) -> list[Case]:
    """Figure 25: with and without one more layer; the last layer can be local."""
    num_agents = config.num_agents
    shallow, deeper = network, (*network, network[-1])
    cases = []
    for r in lengths:
        data = _data(config, blocks, _tables(config, shallow, r))
        for own in (shallow, deeper):
            part_of_hidden = level_layout(shallow, 80) + own[len(shallow) :]
            all_but_outputs = (*own[:-1], 0)
            for cells in ((0,) * len(own), own, part_of_hidden, all_but_outputs):
                scheme = one_model(own, cells, num_agents, num_agents)
                name = "-".join(map(str, cells))
                cases.append(Case(name, {"cycle": r}, scheme, data))
    return cases


def drift(
    config: Config, network: Layout, blocks: Blocks, hundredths: tuple[int, ...]
) -> list[Case]:
    """Dynamic averaging: agents average when they have drifted that far.

    Beside it, averaging after so many mini-batches whatever the drift.
    """
    data = _data(config, blocks, _tables(config, network))
    periodic = [
        case._replace(average_every=period)
        for period in config.periods or ()
        for case in level_cases(
            network, config.levels, config.num_agents, data, {"period": period}
        )
    ]
    return periodic + [
        case._replace(drift=value / 100)
        for value in hundredths
        for case in level_cases(
            network, config.levels, config.num_agents, data, {"drift": value / 100}
        )
    ]
