"""Tables as Markdown."""

from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table.

    Args:
      head: of its columns.
      rows: their cells.
    """
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
