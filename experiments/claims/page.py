"""`docs/claims.md`: every claim with its verdict, and the rule."""

from collections.abc import Sequence
from pathlib import Path

from experiments.claims.verdicts import NAMES, Verdict
from experiments.engine.untrusted_files import text_of
from p2pjax.types import InputError

BEGIN, END = "<!-- totals of claims -->", "<!-- end of totals -->"

RULE = """# Claims of the sources, and what our runs say

Written by `python -m experiments.claims` from the ledger `results/claims.toml` and
the runs kept in `results/`; `python -m experiments.claims ID` prints all parts of a
claim. Statements are ours, not quotations.

![All claims by source, coloured by verdict](claims.svg)

## The rule

A claim is a list of **parts**: comparisons of schemes, in every column, size and
point in time that the source speaks of. For each part:

- The unit is a run. Runs of the same number have the same data and first weights in
  all schemes, so differences are taken run by run; a part has their mean and 95% t
  interval, widened by **Holm's** correction over the parts of its claim. Intervals
  below are the corrected ones.
- `a > b`: the interval is clear of 0. `a ~ b`: it lies inside a margin fixed
  beforehand (.01 where the claim has no other). `a = x`: it has x, as rounded in
  print, and is no wider than the margin; the spread of the source's own runs counts
  as well, since a printed number is a draw like ours. A trend is the change over the
  range by a straight line through equal steps, run by run.
- The **best of** several schemes is picked, for each run, by the mean of the *other*
  runs (leave one out) and then judged on this run: picked on the same runs it would
  be flattered by its own luck.
- **Readings**: where a source leaves open the loss, the first weights or how the data
  are prepared, every reading should be run, and the parts of all readings count.

The verdict, in this order:

- **not testable here**: the data cannot be had, or their ceiling or majority rate
  alone decides. **not run**: no kept runs; with the core-hours that they would take.
- **under-run**: fewer than 3 runs; or curves that move, in the last quarter of
  training, by more than the difference seen (or the margin); or less than a fifth of
  the source's training, and curves that move by more than .01 there. Waived at the
  source's own full budget and where it speaks of the very moment; where it prints no
  number of rounds, curves may also move by .01.
- **supported**: every part, in every reading, is so. **partly supported**: some are;
  or all that were run, while a size, a reading or a piece of the statement is
  missing, or the data are not the source's.
- **contradicted**: none is, one or more is clearly not so, no reading is missing and
  the data are the source's.
- **inconclusive**: none is clear; or clear against it, while a reading is missing or
  the data are not the source's.

Exact statements name the tests that show or refute them: supported if tests show all
of it, contradicted if they only refute it, else partly supported. What came out of the
tests is in `results/tests.json`; `python -m experiments.claims --run_tests` runs them
again.

## Changed after a first look

These choices were made when results were known already, and each made a verdict
stronger. Until new runs repeat them, read these verdicts as exploratory:

- The spread of the source's own runs counts for printed numbers: `jsd-order` is
  supported, and the two printed values in it were clearly not so without that.
- Movement in the last quarter of training is that of a line through the mean curve, and
  where a source prints no rounds curves may move by .01: `fedcurv-senteval-sgd-order`
  is partly supported, and was under-run before.
- `combination-less-communication` was inconclusive with 5 runs; 15 were then made, and
  it is partly supported.
- `partial-mnist-convergence-close` is judged at all 30 mini-batches, 11 of them at
  first; the readings of 'start' and 'end' in `partial-mnist-convergence-order` are
  ours.
- `robust-averaging-agreement-to-the-limit` and `robust-averaging-gts-breaks-earlier`
  were written down, with their thresholds, when the table of their study was known.
"""


def render(verdicts: Sequence[Verdict]) -> str:
    """The whole page."""
    sources = list(dict.fromkeys(v.claim.source for v in verdicts))
    pieces = [RULE, "## Totals\n", _totals(verdicts, sources)]
    for source in sources:
        pieces += [
            f"## {source}\n",
            _table([v for v in verdicts if v.claim.source == source]),
        ]
    return "\n".join(pieces)


def front_page(path: Path, verdicts: Sequence[Verdict]) -> str:
    """README.md with other totals between its two comments."""
    text = text_of(path, "the page with the totals", remedy="choose another --readme")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError(f"Need '{BEGIN}' and '{END}' once each in {path}.")
    before, rest = text.split(BEGIN)
    names = [verdict.name for verdict in verdicts]
    totals = ", ".join(f"{names.count(name)} {name}" for name in NAMES if name in names)
    return f"{before}{BEGIN}{totals}{END}{rest.split(END)[1]}"


def _totals(verdicts: Sequence[Verdict], sources: Sequence[str]) -> str:
    rows = [["source", *NAMES, "claims"]]
    for source in (*sources, "all"):
        own = [v.name for v in verdicts if source in (v.claim.source, "all")]
        rows.append([source, *(str(own.count(name)) for name in NAMES), str(len(own))])
    return _markdown(rows)


def _table(verdicts: Sequence[Verdict]) -> str:
    rows = [["claim", "place", "verdict", "evidence", "study"]]
    rows += [
        [
            f"`{v.claim.id}`: {v.claim.statement}",
            v.claim.place,
            f"**{v.name}**",
            v.reason,
            ", ".join(v.studies),
        ]
        for v in verdicts
    ]
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ("| " + " | ".join(map(_cell, row)) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
