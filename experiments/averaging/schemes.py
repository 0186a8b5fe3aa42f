"""The partial models of the studies: how the cells of the networks are cut up."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.engine.fields import text
from p2pjax.partial.scheme_files import read_scheme
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.types import InputError, Layout

# Bouchra Pilet et al. round in their own way; their levels on 100=50=20=1 are called
# 7, 15, 30 and 40, after the cells of the first hidden layer.
PAPER_HIDDEN: dict[Layout, dict[int, Layout]] = {
    (300, 100): {
        15: (50, 15),
        30: (100, 30),
        60: (200, 60),
        70: (220, 70),
        80: (250, 80),
    },
    (50, 20): {15: (7, 3), 30: (15, 6), 60: (30, 12), 80: (40, 16)},
}


def level_layout(network: Layout, level: int) -> Layout:
    """Cells of the global model at an averaging level, in percent of a hidden layer.

    The input and output cells are global, except at level 0, where nothing is.
    """
    if not 0 <= level <= 100:
        raise InputError(f"Need levels from 0 to 100, got {level}.")
    if level == 0:
        return (0,) * len(network)
    inputs, *hidden, outputs = network
    rounded = tuple(round(cells * level / 100) for cells in hidden)
    in_paper = PAPER_HIDDEN.get(tuple(hidden), {})
    return (inputs, *in_paper.get(level, rounded), outputs)


def one_model(
    network: Layout, cells: Layout, num_agents: int, group_size: int
) -> Scheme:
    """All agents have the same network; each group of agents shares one model."""
    if group_size < 1 or num_agents % group_size:
        raise InputError(
            f"Need groups that divide the {num_agents} agents evenly, got groups of "
            f"{group_size}."
        )
    if len(cells) == len(network) and any(np.greater(cells, network)):
        raise InputError(
            f"Layouts do not add up: {'-'.join(map(str, cells))} has more cells than "
            f"{'='.join(map(str, network))}."
        )
    groups = np.arange(num_agents) // group_size
    return within_groups(network, cells, groups)


def within_groups(
    network: Layout, cells: Layout, groups: np.ndarray | Sequence[int]
) -> Scheme:
    """Agents `[N]` with the same group share one model; who is alone shares nothing."""
    models = tuple(
        PartialModel(cells, tuple(np.flatnonzero(np.equal(groups, group)).tolist()))
        for group in np.unique(groups)
    )
    shared = tuple(model for model in models if len(model.members) > 1 and any(cells))
    return Scheme((network,) * len(groups), shared)


def scheme_file_field(studies: Sequence[str] = ()) -> Any:
    """A field for a file with a scheme that is compared too.

    Args:
      studies: that compare schemes, where an experiment has several studies.
    """
    where = f"; for --study={', '.join(studies)}" if studies else ""
    return text(
        None,
        "TOML file with partial models, members and dependencies, a scheme that is "
        f"compared too{where}.",
    )


class FileScheme(NamedTuple):
    """A scheme from a file."""

    name: str  # of the file
    scheme: Scheme
    setting: dict[str, str]  # what the file contains, as a number that tells it


def file_schemes(
    scheme_file: str | None, network: Layout, num_agents: int
) -> list[FileScheme]:
    """The scheme of a file, if there is one.

    Args:
      scheme_file: its path, or None.
      network: of the study, where the file has none.
      num_agents: of the study.
    """
    if scheme_file is None:
        return []
    path = Path(scheme_file)
    scheme = read_scheme(path, network=network, num_agents=num_agents)
    # A run that is resumed after the file has changed is another one.
    return [FileScheme(path.stem, scheme, {"scheme_file": f"{hash_of(scheme):08x}"})]


def hash_of(scheme: Scheme) -> int:
    """A number of 32 bits that differs where schemes differ.

    Args:
      scheme: of numbers and names only.
    """
    return zlib.crc32(repr(scheme).encode())


def check_scheme_file(
    scheme_file: str | None, study: str, studies: Sequence[str]
) -> None:
    """Refuses a file with a scheme where schemes are not compared.

    Args:
      scheme_file: its path, or None.
      study: of the experiment.
      studies: that compare schemes.
    """
    if scheme_file is not None and study not in studies:
        raise InputError(
            f"Need --study={' or '.join(studies)} for --scheme_file, got "
            f"--study={study}, which does not compare schemes."
        )


def rest_of(network: Layout, cells: Layout, parts: int = 1) -> Layout:
    """A `parts`-th of the hidden cells that a model leaves over."""
    hidden = np.subtract(network, cells)[1:-1] // parts
    return (0, *hidden.tolist(), 0)
