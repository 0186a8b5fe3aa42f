"""The best combination of a design, as flags: what other runs then judge."""

from collections.abc import Mapping
from pathlib import Path

from experiments.engine import reading
from experiments.engine.row_kinds import Row


def print_chosen(folder: Path, flags: Mapping[str, str]) -> None:
    """The best combination of each scheme of which a design has several.

    Best is the highest accuracy in the end, in the mean over the runs of this folder
    and over what else varies, such as data: other runs must judge it (`--first_run`).

    Args:
      folder: of a finished run.
      flags: names of flags by those of factors of the design.
    """
    tried: dict[str, dict[str, list[float]]] = {}
    for row in reading.summary_rows(folder, "accuracy", ("mean",)):
        named = _as_flags(row, flags)
        tried.setdefault(row["scheme"], {}).setdefault(named, []).append(row["mean"])
    for scheme, found in tried.items():
        if len(found) > 1:
            best = max(found, key=lambda named: sum(found[named]) / len(found[named]))
            print(f"{scheme}: chosen by accuracy, {best}")


def _as_flags(row: Row, flags: Mapping[str, str]) -> str:
    own = {flags[k]: v for k, v in row["setting"].items() if k in flags}
    return " ".join(f"--{name}={value}" for name, value in own.items())
