"""Keeps finished runs as a study of `results/`.

    python -m experiments.keep STUDY WORKDIR [WORKDIR...] [--replace]
    python -m experiments.keep --update

STUDY is called after its flagfile, such as mnist.level. Several work folders are parts
of one study: they differ in runs, methods, levels and other lists of what was tried. A
study that is kept can be one of the parts, so that runs are added to it later:

    python -m experiments.keep STUDY results/STUDY WORKDIR --replace

The second form adds to the summaries of all kept studies what is computed of their runs
and they lack.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from experiments.engine import command
from experiments.engine.fields import RESULTS, switch, text
from experiments.keep import kept_study
from p2pjax.types import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of keeping runs."""

    results: str = text("results", "Where studies are kept.", topic=RESULTS)
    replace: bool = switch(False, "Replace what was kept before.", topic=RESULTS)
    update: bool = switch(
        False,
        "Instead of keeping runs, add to the summaries of all studies that are kept "
        "what is computed of their runs and they lack.",
        topic=RESULTS,
    )


def main(options: Options, arguments: Sequence[str]) -> None:
    """Reads the folders and writes the study."""
    if options.update:
        if arguments:
            raise InputError(
                f"Need no study with --update, which is for all, got {arguments[0]}."
            )
        for path in sorted(Path(options.results).glob("[!.]*/runs.jsonl")):
            kept_study.update_summary(path.parent)
        return
    if len(arguments) < 2:
        raise InputError(
            "Need the name of a study and its work folders, got "
            f"'{' '.join(arguments)}': python -m experiments.keep STUDY WORKDIR..."
        )
    name, *folders = arguments
    paths = [Path(folder) for folder in folders]
    folder = kept_study.keep(name, paths, Path(options.results), options.replace)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size // 1000} kB")


if __name__ == "__main__":
    command.tool(Options, main)
