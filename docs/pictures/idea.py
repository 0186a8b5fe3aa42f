"""Draws the idea of the simulator: python docs/pictures/idea.py.

Agents' models are rows of one stack; a round trains all rows, then mixes columns by
sparse weights, slice by slice: what is masked stays with its agent.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

OUT = Path(__file__).with_suffix(".svg")
NUM_AGENTS, NUM_COLUMNS = 6, 9
GLOBAL, GROUP = range(0, 4), range(4, 7)  # columns; the rest is local
GROUPS = (0, 0, 0, 1, 1, 1)
INK, PALE = "#263238", "#eceff1"
AGENT_COLORS = ("#1b6ca8", "#3d8bc4", "#6aaede", "#b3541e", "#d27a3f", "#eaa877")
NEIGHBORS = {0: (1, 2), 1: (0, 3), 2: (0, 4), 3: (1, 5), 4: (2, 5), 5: (3, 4)}


def stack(axes: Axes, left: float, colors: np.ndarray, title: str) -> None:
    """A table of cells, one row per agent."""
    for row in range(NUM_AGENTS):
        for column in range(NUM_COLUMNS):
            place = (left + 0.36 * column, NUM_AGENTS - 1 - row)
            axes.add_patch(
                Rectangle(place, 0.33, 0.82, facecolor=colors[row, column], lw=0)
            )
    width = 0.36 * NUM_COLUMNS
    axes.text(left + width / 2, NUM_AGENTS + 0.55, title, ha="center", size=11)
    for columns, name in ((GLOBAL, "all"), (GROUP, "group"), (range(7, 9), "own")):
        x = left + 0.36 * (columns[0] + len(columns) / 2) - 0.02
        axes.text(x, NUM_AGENTS + 0.02, name, ha="center", size=8, color="#607d8b")


def weights(axes: Axes, left: float) -> None:
    """The sparse mixing matrix."""
    for row in range(NUM_AGENTS):
        for column in range(NUM_AGENTS):
            used = column == row or column in NEIGHBORS[row]
            place = (left + 0.36 * column, NUM_AGENTS - 1 - row)
            color = AGENT_COLORS[column] if used else PALE
            axes.add_patch(Rectangle(place, 0.33, 0.82, facecolor=color, lw=0))
    middle = left + 0.36 * NUM_AGENTS / 2
    axes.text(middle, NUM_AGENTS + 0.55, "sparse weights", ha="center", size=11)
    axes.text(
        middle,
        NUM_AGENTS + 0.02,
        "who hears whom",
        ha="center",
        size=8,
        color="#607d8b",
    )


def mixed() -> np.ndarray:
    """Colours after the exchange: means over neighbours that share the slice."""
    own = np.array([matplotlib.colors.to_rgb(c) for c in AGENT_COLORS])
    found = np.repeat(own[:, None], NUM_COLUMNS, axis=1)
    for row, heard in NEIGHBORS.items():
        for column in (*GLOBAL, *GROUP):
            peers = [row]
            for peer in heard:
                if column in GLOBAL or GROUPS[peer] == GROUPS[row]:
                    peers.append(peer)
            found[row, column] = own[peers].mean(0)
    return found


def arrow(axes: Axes, start: float, stop: float, words: str) -> None:
    """From one table to the next."""
    y = NUM_AGENTS / 2
    axes.add_patch(
        FancyArrowPatch(
            (start, y), (stop, y), arrowstyle="-|>", mutation_scale=14, color=INK
        )
    )
    axes.text((start + stop) / 2, y + 0.3, words, ha="center", size=9, color=INK)


def main() -> None:
    """Writes the picture."""
    plt.rcParams["svg.hashsalt"] = "p2pjax"
    plt.rcParams["font.family"] = "DejaVu Sans"
    figure, axes = plt.subplots(figsize=(10.6, 3.6))
    own = np.array([matplotlib.colors.to_rgb(c) for c in AGENT_COLORS])
    before = np.repeat(own[:, None], NUM_COLUMNS, axis=1)
    for row in range(NUM_AGENTS):
        axes.text(-0.15, NUM_AGENTS - 0.6 - row, f"agent {row}", ha="right", size=9)
    stack(axes, 0.0, before, "all models, one array  [N, ...]")
    arrow(axes, 3.35, 5.0, "local\ntraining")
    weights(axes, 5.1)
    axes.text(
        7.7,
        NUM_AGENTS / 2,
        "\N{MULTIPLICATION SIGN}",
        size=22,
        ha="center",
        va="center",
        color=INK,
    )
    axes.text(
        7.7, NUM_AGENTS / 2 - 0.8, "slice by\nslice", size=8, ha="center", va="top"
    )
    arrow(axes, 8.0, 9.0, "")
    stack(axes, 9.1, mixed(), "after one exchange  [N, ...]")
    axes.text(
        6.2,
        -0.75,
        "one round = one pure, jitted function of a key, inputs, state and data",
        ha="center",
        size=10,
        color=INK,
    )
    axes.set_xlim(-1.2, 12.5)
    axes.set_ylim(-1.0, NUM_AGENTS + 1.1)
    axes.axis("off")
    figure.savefig(OUT, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    print(OUT.name)


if __name__ == "__main__":
    main()
