"""Computes the verdict on every claim of the ledger.

    python -m experiments.claims [ID...] [--check]

Prints a line per claim, writes docs/claims.md and draws docs/claims.svg and .png. With
names of claims it prints their parts and writes nothing; with --check it fails when
docs/claims.md is not what would be written.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.claims import evidence, figure, ledger, page, verdicts
from p2pjax.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the ledger and the results."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.claims", description="Verdicts on claims."
    )
    parser.add_argument("id", nargs="*", help="claims whose parts to print")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    given = parser.parse_args(arguments)
    try:
        found = ledger.load(given.results / "claims.toml")
        every = verdicts.judge_all(found, evidence.load(given.results))
        return _answer(given, every)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


def _answer(given: argparse.Namespace, every: list[verdicts.Verdict]) -> int:
    path = given.docs / "claims.md"
    text = page.render(every)
    if given.check:
        if not path.exists() or path.read_text() != text:
            raise InputError(
                f"{path} is not what the ledger and the results say: run python -m "
                "experiments.claims and commit what it writes."
            )
        return 0
    unknown = set(given.id) - {verdict.claim.id for verdict in every}
    if unknown:
        raise InputError(f"No claims are called {', '.join(sorted(unknown))}.")
    for verdict in every:
        if not given.id or verdict.claim.id in given.id:
            print(f"{verdict.claim.id}: {verdict.name}: {verdict.reason}")
        if verdict.claim.id in given.id:
            for judged in verdict.parts:
                print(f"  {judged.state}: {judged.text}")
    if not given.id:
        given.docs.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        figure.draw(every, given.docs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
