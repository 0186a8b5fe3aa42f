"""Draws how splits divide labels over agents: python docs/pictures/label_split.py."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import numpy as np
from matplotlib import pyplot as plt

import p2pjax as pj

OUT = Path(__file__).with_suffix(".png")
NUM_AGENTS, NUM_CLASSES = 12, 10
SPLITS = {
    "split.iid()": pj.split.iid(),
    "split.dirichlet(1.0)": pj.split.dirichlet(1.0),
    "split.dirichlet(0.1)": pj.split.dirichlet(0.1),
    "split.pathological()": pj.split.pathological(),
}


def counts(split: pj.split.Request) -> np.ndarray:
    """Training examples of each agent and class, `[N, classes]`."""
    data = pj.datasets.digits(num_agents=NUM_AGENTS, split=split, seed=0)
    found = np.zeros((NUM_AGENTS, NUM_CLASSES), int)
    for agent, size in enumerate(np.asarray(data.train.size)):
        labels = np.asarray(data.train.examples["y"])[agent, :size]
        found[agent] = np.bincount(labels, minlength=NUM_CLASSES)
    return found


def main() -> None:
    """Writes the picture."""
    figure, every = plt.subplots(
        1, len(SPLITS), figsize=(11, 3.4), sharey=True, layout="constrained"
    )
    agents, classes = np.meshgrid(
        np.arange(NUM_AGENTS), np.arange(NUM_CLASSES), indexing="ij"
    )
    for axes, (name, split) in zip(every, SPLITS.items(), strict=True):
        size = counts(split)
        axes.scatter(agents, classes, s=2.2 * size, c=classes, cmap="tab10")
        axes.set_title(name, family="monospace", size=10)
        axes.set_xlabel("agent")
        axes.set_xticks(range(0, NUM_AGENTS, 2))
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_ylabel("class")
    every[0].set_yticks(range(NUM_CLASSES))
    figure.savefig(OUT, facecolor="white", dpi=110)
    print(OUT.name)


if __name__ == "__main__":
    main()
