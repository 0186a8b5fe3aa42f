"""Which reading of what a source leaves open agrees best with all of its claims.

A study called `design_NAME` repeats the study NAME of the same experiment in every
combination of what the source leaves open. Each combination is held against all parts
of claims that ask about NAME, as far as the design has their sizes and schemes, by the
rule of the ledger.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.claims import evidence, verdicts
from experiments.claims.evidence import Study
from experiments.claims.ledger import Budget, Claim, Ledger, Part

PREFIX = "design_"
FACTORS = ("loss", "init", "weights", "update")  # what Bouchra Pilet et al. leave open
STATES = ("so", "partly so", "not so", "open", "under-run")

Cell = tuple[tuple[str, Any], ...]  # a combination: values of the factors


class Score(NamedTuple):
    """A claim in one combination."""

    claim: str  # its id
    state: str
    num_so: int  # of its parts
    num_parts: int  # that the design has


def designs(studies: Mapping[str, Study], experiment: str) -> dict[str, Study]:
    """Kept designs of an experiment, by the study that they repeat.

    Args:
      studies: kept runs, by name.
      experiment: its name.
    """
    start = f"{experiment}.{PREFIX}"
    return {
        f"{experiment}.{name.removeprefix(start)}": study
        for name, study in studies.items()
        if name.startswith(start)
    }


def cells_of(study: Study) -> list[Cell]:
    """The combinations of a design, in the order of its rows.

    Args:
      study: kept runs.
    """
    settings = [next(iter(group.values()))["setting"] for group in study.groups]
    cells = [
        tuple((name, setting[name]) for name in FACTORS if name in setting)
        for setting in settings
    ]
    return list(dict.fromkeys(cells))


def score(
    found: Ledger, repeated: Mapping[str, Study]
) -> dict[Cell, tuple[Score, ...]]:
    """Every combination against all claims that a design can judge.

    Args:
      found: the ledger.
      repeated: designs by the study that they repeat, see `designs`.
    """
    cells = dict.fromkeys(cell for one in repeated.values() for cell in cells_of(one))
    studies = {study.name: study for study in repeated.values()}
    budgets = _budgets(found.budgets, repeated)
    return {
        cell: tuple(
            _scored(claim, parts, budgets, studies)
            for claim in found.claims
            if (parts := _parts_in(claim, cell, repeated, studies))
        )
        for cell in cells
    }


def _budgets(
    known: Mapping[str, Budget], repeated: Mapping[str, Study]
) -> dict[str, Budget]:
    """A design is held to what the source spent on the study that it repeats."""
    own = {design.name: known[name] for name, design in repeated.items()}
    return {**own, **known}


def _parts_in(
    claim: Claim,
    cell: Cell,
    repeated: Mapping[str, Study],
    studies: Mapping[str, Study],
) -> list[Part]:
    """Parts of the claim's first reading for which the design has runs."""
    moved = [
        part._replace(
            study=repeated[part.study].name,
            left=evidence.with_setting(part.left, dict(cell)),
            right=part.right and evidence.with_setting(part.right, dict(cell)),
        )
        for part in claim.parts
        if part.study in repeated and part.reading == claim.readings[0]
    ]
    return [part for part in moved if evidence.sample(studies[part.study], part)]


def _scored(
    claim: Claim,
    parts: Sequence[Part],
    budgets: Mapping[str, Budget],
    studies: Mapping[str, Study],
) -> Score:
    judged = [one.state for one in verdicts.judge_parts(parts, budgets, studies)]
    num_so = judged.count("for")
    if "under-run" in judged:
        state = "under-run"
    elif num_so == len(judged):
        state = "so"
    elif num_so:
        state = "partly so"
    else:
        state = "not so" if "against" in judged else "open"
    return Score(claim.id, state, num_so, len(judged))


def best_first(
    scores: Mapping[Cell, Sequence[Score]],
) -> list[tuple[Cell, Sequence[Score]]]:
    """Combinations by the claims that are so, then by their parts.

    Args:
      scores: of every combination.
    """

    def merit(item: tuple[Cell, Sequence[Score]]) -> tuple[int, int]:
        _, own = item
        return -sum(one.state == "so" for one in own), -sum(one.num_so for one in own)

    return sorted(scores.items(), key=merit)
