"""Figures of studies in several combinations of how agents learn and average."""

from collections.abc import Sequence
from pathlib import Path

from experiments.analysis import figures
from experiments.averaging.config import AveragingConfig
from experiments.averaging.design import WAYS, varied
from experiments.engine import reading
from experiments.engine.row_kinds import Row


def of_combinations(
    config: AveragingConfig,
    folder: Path,
    x: str,
    label: str,
    panels: Sequence[str] = ("batch_size",),
) -> None:
    """Figures where a config has several combinations.

    Where agents average in several ways: accuracy against cycles of gossip, and against
    what was sent. Where they only learn in several ways: a panel for each, with
    accuracy against what the study varies.

    Args:
      config: of the experiment.
      folder: of the run.
      x: what the study varies: "round", or a setting.
      label: of the axis.
      panels: other settings with a panel for each value, where they are not lines.
    """
    factors = varied(config)
    learning = [name for name in factors if name not in WAYS]
    if len(learning) == len(factors):
        of_levels = x in ("level", "hidden")
        rows = reading.rows(folder, ("accuracy",))
        if x != "round":  # schemes of files have no level
            rows = [row for row in rows if x in row["setting"]]
        others = [name for name in panels if name not in (x, "batch_size")]
        figures.accuracy_in_panels(
            folder,
            [*learning, *others],
            lambda row: row["round"] if x == "round" else row["setting"][x],
            label,
            line=_size if of_levels else _scheme,
            final=x != "round",
            rows=rows,
        )
        return
    figures.accuracy_by_traffic(folder, _way, WAYS)
    if "cycles" in factors:
        figures.accuracy_in_panels(
            folder,
            [*learning, *panels],
            lambda row: row["setting"].get("cycles", 0),  # alone: a level line
            "cycles of gossip",
            line=lambda row: f"{row['scheme']}, {_way(row)}",
            name="accuracy_by_cycles",
        )


def _scheme(row: Row) -> str:
    return row["scheme"]


def _size(row: Row) -> str:
    size = row["setting"].get("batch_size")
    return f"mini-batches of {size}" if size else f"{row['round']} mini-batches"


def _way(row: Row) -> str:
    setting = row["setting"]
    level = f" {setting['privacy_level']}" if "privacy_level" in setting else ""
    return f"{setting.get('averaging', 'averaging')}{level}"
