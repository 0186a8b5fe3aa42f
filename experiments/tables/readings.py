"""What a source leaves open, as tables: how many claims hold in every combination."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.claims import ledger, readings
from experiments.claims.evidence import Study
from experiments.claims.readings import Cell, Score
from experiments.tables.markdown import markdown

ABOUT = (
    "A source leaves some things open; each row is one combination of them, held "
    "against all claims whose sizes and schemes the designs have, by the rule of the "
    "ledger ([docs/claims.md](../../docs/claims.md)). A claim is so if all of its "
    "parts are, not so if none is and one is clearly not; best first.\n"
)


def sections(root: Path, studies: Mapping[str, Study], experiment: str) -> list[str]:
    """The tables of an experiment's designs; none without one.

    Args:
      root: of the repository.
      studies: kept runs, by name.
      experiment: its name.
    """
    repeated = readings.designs(studies, experiment)
    if not repeated:
        return []
    found = ledger.load(root / "results" / "claims.toml")
    scores = readings.score(found, repeated)
    names = ", ".join(study.name for study in repeated.values())
    lines = [f"### Combinations of {names}", "", ABOUT, *of_cells(scores), ""]
    lines += [conclusion(scores), ""]
    lines += ["Each claim, over all combinations:", "", *of_claims(scores), ""]
    return ["\n".join(lines)]


def of_cells(scores: Mapping[Cell, Sequence[Score]]) -> list[str]:
    """A row for each combination, best first.

    Args:
      scores: see `readings.score`.
    """
    names = list(dict.fromkeys(name for cell in scores for name, _ in cell))
    head = [*names, *readings.STATES, "parts so"]
    rows = []
    for cell, own in readings.best_first(scores):
        values = [str(dict(cell).get(name, "")).replace("_", " ") for name in names]
        states = [one.state for one in own]
        counts = [str(states.count(state)) for state in readings.STATES]
        parts = sum(one.num_parts for one in own)
        so = f"{sum(one.num_so for one in own)} of {parts}"
        rows.append([*values, *counts, so])
    return markdown(head, rows)


def conclusion(scores: Mapping[Cell, Sequence[Score]]) -> str:
    """Whether one combination satisfies all claims.

    Args:
      scores: see `readings.score`.
    """
    whole = [
        cell for cell, own in scores.items() if all(one.state == "so" for one in own)
    ]
    if whole:
        return f"All claims are so in {len(whole)} of {len(scores)} combinations."
    return "In no combination are all claims so."


def of_claims(scores: Mapping[Cell, Sequence[Score]]) -> list[str]:
    """A row for each claim: in how many combinations it is so, and so on.

    Args:
      scores: see `readings.score`.
    """
    by_claim: dict[str, list[str]] = {}
    for own in scores.values():
        for one in own:
            by_claim.setdefault(one.claim, []).append(one.state)
    rows = [
        [f"`{claim}`", *(str(states.count(state)) for state in readings.STATES)]
        for claim, states in by_claim.items()
    ]
    return markdown(["claim", *readings.STATES], rows)
