"""Local, partial and global averaging over several tasks, in one figure.

    python -m experiments.overview WORKDIR [WORKDIR...] [--figure=FILE]

The summary figure of Bouchra Pilet et al. 2021: for every run folder, and every value
of what its study varied, nothing shared, one model shared by all, and the best of the
other schemes, which the same runs choose, so that it is a little flattered.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure

from experiments.engine import command, reading
from experiments.engine.fields import RESULTS, text
from experiments.engine.row_kinds import Row
from experiments.engine.untrusted_files import refusal, shown
from p2pjax.types import InputError

FIGURE = "overview.png"

# What a setting says about the scheme; the rest says which task it is.
SCHEME_SETTINGS = ("level", "hidden", "warm_up")


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the overview."""

    figure: str = text(
        FIGURE, "Where it goes; the ending says in which format.", topic=RESULTS
    )


class Bar(NamedTuple):
    """Accuracy of one scheme: median and the paper's bars."""

    name: str
    median: float
    low: float
    high: float


class Comparison(NamedTuple):
    """One task."""

    name: str
    local: Bar
    partial: Bar
    everything: Bar


def comparisons(folder: Path) -> list[Comparison]:
    """The tasks of a finished run that have all three."""
    tasks: dict[str, list[Row]] = {}
    for row in reading.summary_rows(folder, "accuracy", ("median", "p40", "p60")):
        varied = [
            f"{name.replace('_', ' ')} {value}"
            for name, value in row["setting"].items()
            if name not in SCHEME_SETTINGS
        ]
        if not row["p40"] <= row["median"] <= row["p60"]:
            wrong = f"has {row['scheme']} with its median outside of them"
            raise refusal(folder / reading.SUMMARY, "percentiles of accuracy", wrong)
        tasks.setdefault(", ".join([shown(folder.name), *varied]), []).append(row)
    rows = reading.rows(folder, numbers=("bytes",))
    sent = {row["scheme"]: row["bytes"] for row in rows}
    unknown = {row["scheme"] for same in tasks.values() for row in same} - sent.keys()
    if unknown:
        needed = "rows of every scheme of the summary"
        raise refusal(folder / reading.METRICS, needed, f"has none of {min(unknown)}")
    return [
        found
        for name, rows in tasks.items()
        if (found := _comparison(name, rows, sent)) is not None
    ]


def _comparison(
    name: str, rows: list[Row], sent: dict[str, float]
) -> Comparison | None:
    """Nothing is what sends nothing; everything is the first that sends most."""
    local = [row for row in rows if sent[row["scheme"]] == 0]
    everything = max(rows, key=lambda row: sent[row["scheme"]])
    partial = [
        row
        for row in rows
        if row not in (everything, *local) and not row["scheme"].startswith("full")
    ]
    if not (local and partial):
        return None
    best = max(partial, key=lambda row: row["median"])
    return Comparison(name, *map(_bar, (local[0], best, everything)))


def _bar(row: Row) -> Bar:
    return Bar(row["scheme"], row["median"], row["p40"], row["p60"])


def draw(found: Sequence[Comparison], output: Path) -> None:
    """Three points per task, with bars from the 40th to the 60th percentile."""
    figure = Figure(figsize=(8, 0.45 * len(found) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    kinds = {
        "nothing shared": ("s", 0.2, [one.local for one in found]),
        "best partial": ("o", 0.55, [one.partial for one in found]),
        "everything shared": ("D", 0.95, [one.everything for one in found]),
    }
    for label, (marker, shade, bars) in kinds.items():
        axes.errorbar(
            [bar.median for bar in bars],
            range(len(found)),
            xerr=[
                [bar.median - bar.low for bar in bars],
                [bar.high - bar.median for bar in bars],
            ],
            fmt=marker,
            color=matplotlib.colormaps["viridis_r"](shade),
            capsize=2,
            label=label,
        )
    axes.set_yticks(
        range(len(found)),
        [f"{one.name}: {one.partial.name}".replace("_", " ") for one in found],
        fontsize="small",
        parse_math=False,
    )
    axes.invert_yaxis()
    axes.set_xlabel("accuracy, mean over agents")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize="small", loc="outside upper center", ncols=3)
    figure.savefig(output, dpi=150)


def main(arguments: Sequence[str], figure: str = FIGURE) -> None:
    """Draws the figure for the work folders given."""
    if not arguments:
        raise InputError(
            "Need the work folder of at least one run, got none: "
            "python -m experiments.overview WORKDIR [WORKDIR...]"
        )
    found = [one for folder in arguments for one in comparisons(Path(folder))]
    if not found:
        raise InputError(
            "Need runs with nothing shared, a part shared and everything shared, got "
            f"none in {shown(', '.join(arguments))}."
        )
    try:
        draw(found, Path(figure))
    except (OSError, ValueError) as error:  # a folder that is not there, a format
        raise InputError(
            f"Need a file that can be written for --figure, got {figure} ({error})."
        ) from error
    print(f"Figure is in {shown(figure)}")


if __name__ == "__main__":
    command.tool(Options, lambda options, folders: main(folders, options.figure))
