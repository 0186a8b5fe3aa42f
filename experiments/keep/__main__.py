"""Keeps finished runs as a study of `results/`.

    python -m experiments.keep STUDY WORKDIR [WORKDIR...] [--replace]

STUDY is called after its flagfile, such as mnist.level. Several work folders are parts
of one study: they differ in runs, methods, levels and other lists of what was tried.
"""

import argparse
import sys
from pathlib import Path

from experiments.keep import kept_study
from p2pjax.types import InputError


def main() -> int:
    """Reads the folders and writes the study."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.keep", description="Keeps finished runs."
    )
    parser.add_argument("study", help="what it is called, such as mnist.level")
    parser.add_argument("workdir", nargs="+", type=Path, help="its parts")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where studies are kept"
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace what was kept before"
    )
    given = parser.parse_args()
    try:
        folder = kept_study.keep(
            given.study, given.workdir, given.results, given.replace
        )
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
