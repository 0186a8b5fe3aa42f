"""Writes the tables of every RESULTS.md, and the leaderboard, from runs in results/.

    python -m experiments.tables [--check]

Each page has a part between two comments that this command writes; everything else is
left as it is; docs/leaderboard.md is written whole. With --check it fails when a page
is not what would be written.
"""

import dataclasses
from pathlib import Path

from experiments.engine import command
from experiments.engine.fields import RESULTS, switch
from experiments.tables import leaderboard, render
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
    pages = render.pages(ROOT) | {ROOT / leaderboard.PAGE: leaderboard.page(ROOT)}
    for path, text in pages.items():
        is_same = path.exists() and render.text_of(path) == text
        if options.check and not is_same:
            raise InputError(
                f"{path} is not what the results say: run python -m experiments.tables "
                "and commit what it writes."
            )
        if not is_same:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    print(f"{len(pages)} pages have the tables of the results.")


if __name__ == "__main__":
    command.tool(Options, main)
