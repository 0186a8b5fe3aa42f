"""Tables of `experiments.virtual`: the paper's, and what posteriors have learned."""

from collections.abc import Sequence
from pathlib import Path

from experiments.engine import reading
from experiments.engine.row_kinds import Row
from experiments.virtual.config import Config
from experiments.virtual.paper import DATASETS, STEPS_KNOWN

# Columns of rows, see `evaluation.posteriors`.
OBSERVED = (
    "server_stddev",
    "server_stddev_low",
    "server_stddev_high",
    "client_stddev",
    "gate",
    "server_divergence",
    "client_divergence",
    "cavity_divergence",
    "factor_precision",
)
# Of the clients that come first in a pass, when they were refined and at its end.
EARLY = ("early_accuracy_before", "early_accuracy")
_STUDY = "study"


def print_table(config: Config, folder: Path) -> None:
    """Mean accuracy and stddev over runs, and mean steps of a client.

    On the paper's own data, those of its Table 2 are beside them; on a stand-in or on
    data of one's own they would not mean anything. Its steps are those of the authors'
    code on the data that can be had.

    Args:
      config: of the experiment.
      folder: of its results.
    """
    own = DATASETS.get(config.study) if config.dataset == "public" else None
    printed = own.printed if own else {}
    taken = {
        reading.key_of(row): row["mean"]
        for row in reading.summary_rows(folder, "steps", ("mean",))
    }
    heading = f"{'method':<14} {'accuracy, mean (std)':<22} {'steps':>7}"
    print(f"{heading}  paper's accuracy  steps" if own else heading)
    for row in reading.summary_rows(folder, "accuracy", ("mean", "std")):
        accuracy = f"{row['mean']:.4f} ({row['std']:.4f})"
        paper = printed.get(row["scheme"])
        shown = ""
        if own and paper is not None:
            shown = f"{paper[0]:.4f} ({paper[1]:.4f})"
            shown += f"  {own.steps:>7}" if row["scheme"] in STEPS_KNOWN else ""
        steps = taken.get(reading.key_of(row))
        counted = "" if steps is None else f"{steps:.0f}"
        line = f"{row['scheme']:<14} {accuracy:<22} {counted:>7}  {shown}"
        print(f"{line.rstrip()}{_said(row)}")


def print_observed(folder: Path) -> None:
    """What posteriors have learned, means over clients and runs; nothing if none has.

    Where the server's deviations are all the same, no data have informed them.

    Args:
      folder: of the run.
    """
    found: dict[str, dict[str, float]] = {}
    rows: dict[str, Row] = {}
    for name in OBSERVED:
        for row in reading.summary_rows(folder, name, ("mean",)):
            rows.setdefault(reading.key_of(row), row)
            found.setdefault(reading.key_of(row), {})[name] = row["mean"]
    if not found:
        return
    print(
        f"{'method':<14} {'server deviation (5% to 95%)':<30} {'client':>7} "
        f"{'gate':>6} {'KL server':>10} {'client':>10} {'to cavity':>10} "
        f"{'factor precision':>17}"
    )
    for key, row in rows.items():
        values = found[key]
        server = ""
        if "server_stddev" in values:
            server = "{:.4f} ({:.4f} to {:.4f})".format(*_some(values, OBSERVED[:3]))
        cells = [
            f"{row['scheme']:<14} {server:<30}",
            _cell(values, "client_stddev", 7, ".4f"),
            _cell(values, "gate", 6, ".3f"),
            _cell(values, "server_divergence", 10, ".4g"),
            _cell(values, "client_divergence", 10, ".4g"),
            _cell(values, "cavity_divergence", 10, ".4g"),
            _cell(values, "factor_precision", 17, ".4g"),
        ]
        print(f"{' '.join(cells).rstrip()}{_said(row)}")


def with_settings(rows: Sequence[Row]) -> list[Row]:
    """The same rows, whose schemes also say of which combination of a design they are.

    Args:
      rows: of a run folder.
    """
    return [row | {"scheme": f"{row['scheme']}{_said(row)}"} for row in rows]


def _said(row: Row) -> str:
    """What of a design a row is of."""
    own = [f"{k} {v}" for k, v in row["setting"].items() if k != _STUDY]
    return f"  {', '.join(own)}" if own else ""


def _some(values: dict[str, float], names: Sequence[str]) -> list[float]:
    return [values[name] for name in names]


def _cell(values: dict[str, float], name: str, width: int, form: str) -> str:
    known = format(values[name], form) if name in values else ""
    return known.rjust(width)
