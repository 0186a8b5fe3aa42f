"""Partial averaging among compared methods: at levels, or with the scheme of a file."""

from typing import TYPE_CHECKING

from experiments.averaging.schemes import file_schemes
from experiments.compare.entrants import Entrant
from experiments.compare.methods import Problem
from p2pjax.partial import placement
from p2pjax.partial.levels import level
from p2pjax.partial.sharing import compile_scheme, known_cells, layout_of
from p2pjax.types import InputError

if TYPE_CHECKING:
    from experiments.compare.config import Config

AVERAGING = "partial_averaging"


def entrants_of(config: "Config", problem: Problem) -> list[Entrant]:
    """All methods that the config names, partial averaging with each of its schemes.

    Args:
      config: of the experiment.
      problem: of all methods.
    """
    if config.scheme_file is not None and AVERAGING not in config.methods:
        raise InputError(
            f"Need {AVERAGING} among --methods for --scheme_file, got "
            f"{', '.join(config.methods)}: add it, or leave the file out."
        )
    found: list[Entrant] = []
    for name in config.methods:
        if name != AVERAGING:
            found.append(Entrant(name, problem))
        elif config.scheme_file is not None:
            found.append(_of_file(config, config.scheme_file, problem))
        else:
            same = at_levels(problem, config.level or (80,))
            # Settings tell several from each other.
            found += [same[0]._replace(setting={})] if len(same) == 1 else same
    return found


def at_levels(problem: Problem, levels: tuple[int, ...]) -> list[Entrant]:
    """Partial averaging at levels, which are its settings.

    Args:
      problem: of all methods.
      levels: in percent.
    """
    return [
        Entrant(
            AVERAGING,
            problem._replace(scheme=level(percent / 100)),
            {"level": percent},
        )
        for percent in levels
    ]


def _of_file(config: "Config", path: str, problem: Problem) -> Entrant:
    if config.level is not None:
        raise InputError(
            "Need --level or --scheme_file, which stands in its place, got both: leave "
            "out one of them."
        )
    cells = known_cells(problem.task)()
    network = layout_of(cells, problem.task)
    (one,) = file_schemes(path, network, config.num_agents)
    widths = placement.widths(placement.align(placement.attach(one.scheme))[0])
    if widths != network:
        raise InputError(
            f"Need networks as wide as {'='.join(map(str, network))}, the cells of "
            f"this --network, in {path}, got {'='.join(map(str, widths))}: leave "
            "network out of the file, or change --hidden or --channels."
        )
    compile_scheme(one.scheme, cells, problem.task)  # refuses what does not fit
    said = {"scheme_file": f"{one.name} {one.setting['scheme_file']}"}
    return Entrant(AVERAGING, problem._replace(scheme=one.scheme), said)
