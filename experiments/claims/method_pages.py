"""What the ledger says of each method, on the method's page of the site.

A page names schemes, or those of one experiment where others have the same name:
`<!-- claims of schemes: dpsgd, combination.mean -->`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.claims.verdicts import Verdict
from experiments.engine.untrusted_files import text_of
from p2pjax.types import InputError

BLOCK = re.compile(
    r"<!-- claims of schemes: ([\w., ]+) -->\n(.*?)<!-- end of claims -->", re.S
)


def filled(folder: Path, verdicts: Sequence[Verdict]) -> dict[Path, str]:
    """Pages with a block of claims, as they should be.

    Args:
      folder: of the methods' pages; there may be none.
      verdicts: of all claims.
    """
    pages = {}
    for path in sorted(folder.glob("*.md")):
        text = text_of(path, "the page of a method", remedy="choose another --docs")
        if text.count("<!-- claims of schemes") != len(BLOCK.findall(text)):
            raise InputError(
                f"Need '<!-- end of claims -->' after the schemes' names in {path}."
            )
        pages[path] = BLOCK.sub(lambda block: _block(block[1], verdicts), text)
    return pages


def _block(names: str, verdicts: Sequence[Verdict]) -> str:
    schemes = {name.strip() for name in names.split(",")}
    rows = [
        f"- **{verdict.name}**: {verdict.claim.statement} "
        f"({verdict.claim.source}; `{verdict.claim.id}`)"
        for verdict in verdicts
        if schemes & _schemes(verdict)
    ]
    text = "\n".join(rows) if rows else "No claim of the ledger compares it yet."
    return f"<!-- claims of schemes: {names} -->\n{text}\n<!-- end of claims -->"


def _schemes(verdict: Verdict) -> set[str]:
    """All that its parts compare: `mean`, and `combination.mean` by experiment."""
    return {
        name
        for part in verdict.claim.parts
        for operand in (part.left, part.right)
        if operand is not None
        for scheme in operand.schemes
        for name in (scheme, f"{part.study.split('.')[0]}.{scheme}")
    }
