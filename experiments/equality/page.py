"""The kept rows as a page of the documentation."""

from collections.abc import Sequence
from pathlib import Path

from experiments.engine import untrusted_files
from experiments.equality import registry
from experiments.equality.comparison import KINDS, VECTORS, Row

HEAD = """# Equality with implementations that others wrote

Written by `python -m experiments.equality` from `results/equality.json`. Each row runs
p2pjax and another implementation on the same small problem in float64 and has the
largest absolute difference. The command runs all that is installed, keeps the rows of
what is not, and writes this page; `--kinds` and `--packages` run a part, `--check`
compares. `pytest -m "slow or not slow" tests/test_equality.py` asserts every tolerance,
and skips with a reason where a package is missing.

The rows need two environments, because decent-bench needs Python 3.13 and torch is
pinned for ByzFL. Beside `pip install -e .[test]`:

```
pip install torch==2.13.0 statsmodels scikit-learn            # Python 3.11 or later
pip install --no-deps byzfl==0.0.11 gossipy-dfl==0.0.1 seqeval==1.2.2
python -m experiments.equality

pip install decent-bench==0.3.0                               # Python 3.13
python -m experiments.equality --packages=decent-bench
```

ByzFL and gossipy import torchvision for downloads only; an empty module stands in for
it where it is missing. The source "{published}" are iterates in `tests/vectors`, made
from the papers, where the authors' code cannot be installed; the column of the other
side says whose code gave the same when they were made. They have 9 or 12 digits, which
is all of the difference in those rows.

"Differs" marks a convention in which both are right and not equal, or an error of the
other side: the test asserts that the numbers are not equal, so that the row goes when
the other side changes.
"""

TITLES = {
    "methods": "Methods",
    "rules": "Robust rules",
    "attacks": "Attacks",
    "messages": "Compressed messages",
    "graphs": "Graphs and mixing matrices",
    "statistics": "Statistics",
    "networks": "Networks, losses and curvatures",
}


def load(path: Path) -> dict[str, Row]:
    """Kept rows by name; none where there is no file.

    Args:
      path: of equality.json.
    """
    if not path.exists():
        return {}
    found = untrusted_files.document_of(path, "the rows of the equality table")
    rows = [Row(**one) for one in found["rows"]]
    return {row.name: row for row in rows}


def render(rows: dict[str, Row]) -> str:
    """The page.

    Args:
      rows: by name; those of comparisons that are no more are left out.
    """
    known = [rows[one.name] for one in registry.COMPARISONS if one.name in rows]
    equal = [row for row in known if not row.differs]
    ran = [row for row in equal if row.package != VECTORS]
    most = max((row.difference for row in ran), default=0.0)
    lines = [
        HEAD.format(published=VECTORS),
        f"{len(known)} of {len(registry.COMPARISONS)} comparisons were run: "
        f"{len(ran)} are equal to code that was run beside them (largest difference "
        f"{most:.1e}), {len(equal) - len(ran)} to published numbers, and "
        f"{len(known) - len(equal)} differ for a reason that is given.",
        "",
        *_versions(known),
    ]
    for kind in KINDS:
        own = [row for row in known if row.kind == kind]
        if own:
            lines += [f"\n## {TITLES[kind]}\n", *_table(own)]
    lines += ["\n## Without a comparison\n", "| name | reason |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in registry.WITHOUT.items()]
    missing = [one for one in registry.COMPARISONS if one.name not in rows]
    if missing:
        lines += ["\n## Not run yet\n"]
        lines += [f"- {one.subject}: {one.other} ({one.package})" for one in missing]
    return "\n".join(lines) + "\n"


def _versions(rows: Sequence[Row]) -> list[str]:
    found = sorted(
        {
            (row.package, row.version, row.python, row.jax, row.date)
            for row in rows
            if row.package != VECTORS
        }
    )
    return [
        "| package | version | Python | jax | date |",
        "|---" * 5 + "|",
        *(f"| {' | '.join(one)} |" for one in found),
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| p2pjax | other | source | problem | largest difference | convention |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        said = f"**differs:** {row.differs}" if row.differs else row.convention
        source = f"{row.package} {row.version}".strip()
        cells = (row.subject, row.other, source, row.problem)
        lines.append(f"| {' | '.join(cells)} | {row.difference:.1e} | {said} |")
    return lines
