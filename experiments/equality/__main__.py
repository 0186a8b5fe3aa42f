"""Runs the package beside implementations that others wrote.

    python -m experiments.equality [--kinds=methods,...] [--packages=torch,...]
    python -m experiments.equality --check

Prints the largest difference of each comparison, keeps them in results/equality.json
and writes docs/equality.md. What needs a package that is not installed is skipped, and
its row is kept from the last time it ran. With --check nothing runs, and it fails when
the page is not what the results say.
"""

import dataclasses
import json
import warnings
from pathlib import Path

from experiments.engine import command
from experiments.engine.fields import RESULTS, names, switch, text
from experiments.equality import page, registry
from experiments.equality.comparison import (
    KINDS,
    PACKAGES,
    VECTORS,
    Comparison,
    Row,
    compared,
    missing,
)
from p2pjax.types import InputError

COMMAND = "python -m experiments.equality"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the equality table."""

    kinds: tuple[str, ...] = names(KINDS, "What is compared.", among=KINDS)
    packages: tuple[str, ...] = names(
        (*PACKAGES, "vectors"),
        "With what; vectors are published numbers.",
        among=(*PACKAGES, "vectors"),
    )
    check: bool = switch(False, "Run nothing, compare the page.", topic=RESULTS)
    results: str = text("results", "Where the rows are kept.", topic=RESULTS)
    docs: str = text("docs", "Where the page goes.", topic=RESULTS)


def main(options: Options, arguments: list[str]) -> None:
    """Runs comparisons, or compares the page."""
    if arguments:
        raise InputError(f"Need no arguments but flags, got '{arguments[0]}'.")
    kept = Path(options.results) / "equality.json"
    shown = Path(options.docs) / "equality.md"
    rows = page.load(kept)
    if options.check:
        if not shown.exists() or shown.read_text() != page.render(rows):
            raise InputError(
                f"{shown} is not what {kept} says: run {COMMAND} and commit what it "
                "writes."
            )
        return
    wrong = []
    for one in chosen(options):
        reason = missing(one.package)
        if reason:
            print(f"skipped  {one.name}: {reason}", flush=True)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of others
            row = compared(one)
        rows[row.name] = row
        wrong += [] if row.holds else [row.name]
        print(f"{row.difference:8.1e} {one.name}", flush=True)
        save(kept, rows)
    shown.write_text(page.render(rows))
    if wrong:
        raise InputError(f"Need equal numbers, got others: {'; '.join(wrong)}.")


def chosen(options: Options) -> list[Comparison]:
    """Those of the kinds and packages that are asked for."""
    packages = [VECTORS if name == "vectors" else name for name in options.packages]
    return [
        one
        for one in registry.COMPARISONS
        if one.kind in options.kinds and one.package in packages
    ]


def save(path: Path, rows: dict[str, Row]) -> None:
    """Writes the rows of all comparisons that there are, in their order."""
    known = [one.name for one in registry.COMPARISONS]
    found = [rows[name]._asdict() for name in known if name in rows]
    lines = ",\n".join(json.dumps(row) for row in found)
    path.write_text(f'{{"command": "{COMMAND}", "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    command.tool(Options, main)
