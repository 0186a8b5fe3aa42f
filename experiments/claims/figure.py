"""One picture of all claims: a cell per claim, grouped by source."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from experiments.claims.verdicts import NAMES, Verdict

COLUMNS = 20
# Okabe and Ito's colours, told apart by colour-blind readers; letters say it as well.
LOOK = {
    "supported": ("#0072B2", "white", "S"),
    "partly supported": ("#56B4E9", "black", "P"),
    "contradicted": ("#D55E00", "white", "C"),
    "inconclusive": ("#F0E442", "black", "I"),
    "under-run": ("#CC79A7", "black", "U"),
    "not testable here": ("#666666", "white", "X"),
    "not run": ("#FFFFFF", "#666666", "-"),
}


def draw(verdicts: Sequence[Verdict], folder: Path) -> None:
    """Writes claims.svg and claims.png."""
    sources = list(dict.fromkeys(v.claim.source for v in verdicts))
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots()
    top = 0.0
    for source in sources:
        own = sorted(
            (v for v in verdicts if v.claim.source == source),
            key=lambda v: NAMES.index(v.name),
        )
        axes.text(
            0, top + 0.55, f"{source}: {_count(len(own))}", va="bottom", fontsize=10
        )
        for i, verdict in enumerate(own):
            row, column = divmod(i, COLUMNS)
            face, ink, letter = LOOK[verdict.name]
            x, y = column, top - 0.5 - row
            axes.add_patch(
                Rectangle(
                    (x, y), 0.92, 0.92, facecolor=face, edgecolor="#666666", lw=0.6
                )
            )
            axes.text(x + 0.46, y + 0.45, letter, ha="center", va="center", color=ink)
        top -= -(-len(own) // COLUMNS) + 1.1
    axes.set_xlim(-0.1, COLUMNS)
    axes.set_ylim(top + 0.9, 1.4)
    axes.set_aspect("equal")
    axes.axis("off")
    names = [v.name for v in verdicts]
    handles = [
        Patch(
            facecolor=LOOK[name][0],
            edgecolor="#666666",
            label=f"{LOOK[name][2]}  {name} ({names.count(name)})",
        )
        for name in NAMES
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "claims"}):
        figure.savefig(folder / "claims.svg", metadata={"Date": None})
        figure.savefig(folder / "claims.png", dpi=130)


def _count(number: int) -> str:
    return f"{number} claim{'' if number == 1 else 's'}"
