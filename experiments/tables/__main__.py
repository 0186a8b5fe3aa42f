"""Writes the tables of every experiment's RESULTS.md from the runs in results/.

    python -m experiments.tables [--check]

Each page has a part between two comments that this command writes; everything else is
left as it is. With --check it fails when a page is not what would be written.
"""

import dataclasses
from pathlib import Path

from experiments.engine import command
from experiments.engine.fields import RESULTS, switch
from experiments.tables import render
from p2pjax.types import InputError

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the tables."""

    check: bool = switch(False, "Write nothing, compare.", topic=RESULTS)


def main(options: Options, arguments: list[str]) -> None:
    """Writes all pages, or compares them."""
    if arguments:
        raise InputError(f"Need no arguments but --check, got '{arguments[0]}'.")
    pages = render.pages(ROOT)
    for path, text in pages.items():
        if options.check and render.text_of(path) != text:
            raise InputError(
                f"{path} is not what the results say: run python -m experiments.tables "
                "and commit what it writes."
            )
        path.write_text(text)
    print(f"{len(pages)} pages have the tables of the results.")


if __name__ == "__main__":
    command.tool(Options, main)
