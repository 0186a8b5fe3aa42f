"""Computes the verdict on every claim of the ledger.

    python -m experiments.claims [ID...] [--check] [--run_tests]

Prints a line per claim, writes docs/claims.md, the claims on docs/methods/*.md and the
totals of README.md, and draws docs/claims.svg and .png. With names of claims it prints
their parts and writes nothing; with --check it fails when a page is not what would be
written. --run_tests first runs the tests that show or refute claims, and keeps what
came out in results/tests.json.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from experiments.claims import (
    evidence,
    figure,
    ledger,
    method_pages,
    outcomes,
    page,
    verdicts,
)
from experiments.claims.verdicts import Verdict
from experiments.engine import command
from experiments.engine.fields import RESULTS, switch, text
from p2pjax.types import InputError

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the ledger."""

    check: bool = switch(False, "Write nothing, compare.", topic=RESULTS)
    run_tests: bool = switch(
        False, "Run the tests that claims name, and keep their outcomes.", topic=RESULTS
    )
    results: str = text("results", "Where runs and ledger are kept.", topic=RESULTS)
    docs: str = text("docs", "Where the page goes.", topic=RESULTS)
    readme: str = text("README.md", "The page with the totals.", topic=RESULTS)


def main(options: Options, ids: Sequence[str]) -> None:
    """Reads the ledger and the results."""
    results = Path(options.results)
    found = ledger.load(results / "claims.toml")
    if options.run_tests:
        tests = [t for c in found.claims for t in (*c.shown_by, *c.refuted_by)]
        outcomes.save(results, outcomes.run(tests, ROOT))
    every = verdicts.judge_all(found, evidence.load(results), outcomes.load(results))
    unknown = set(ids) - {verdict.claim.id for verdict in every}
    if unknown:
        raise InputError(f"No claims are called {', '.join(sorted(unknown))}.")
    pages = {
        Path(options.docs) / "claims.md": page.render(every),
        Path(options.readme): page.front_page(Path(options.readme), every),
        **method_pages.filled(Path(options.docs) / "methods", every),
    }
    if options.check:
        _check(pages)
        return
    for verdict in every:
        if not ids or verdict.claim.id in ids:
            _say(verdict, with_parts=bool(ids))
    if not ids:
        for path, written in pages.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written)
        figure.draw(every, Path(options.docs))


def _check(pages: dict[Path, str]) -> None:
    for path, expected in pages.items():
        if not path.exists() or path.read_bytes() != expected.encode():
            raise InputError(
                f"{path} is not what the ledger and the results say: run python -m "
                "experiments.claims and commit what it writes."
            )


def _say(verdict: Verdict, *, with_parts: bool) -> None:
    print(f"{verdict.claim.id}: {verdict.name}: {verdict.reason}")
    for judged in verdict.parts if with_parts else ():
        print(f"  {judged.state}: {judged.text}")


if __name__ == "__main__":
    command.tool(Options, main)
