"""Draws asynchronous events and the waves that they form: docs/pictures/waves.py."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import numpy as np
from matplotlib import pyplot as plt

import p2pjax as pj
from p2pjax.asynchronous import events, waves

OUT = Path(__file__).with_suffix(".svg")
NUM_AGENTS, NUM_EPOCHS = 8, 3
COLORS = ("#1b6ca8", "#b3541e", "#2e7d32", "#6a1b9a", "#00838f", "#9e9d24")


def main() -> None:
    """Writes the picture."""
    graph = pj.graphs.directed_regular(NUM_AGENTS, 2, seed=1)
    sizes = np.full(NUM_AGENTS, 10)
    receivers = pj.graphs.as_graph(graph, num_agents=NUM_AGENTS)
    stacked = type(receivers)(*(np.stack([leaf] * NUM_EPOCHS) for leaf in receivers))
    schedule = events.draw(np.random.default_rng(3), stacked, sizes, NUM_EPOCHS)
    tables, _, _ = waves.pack(schedule, NUM_AGENTS, NUM_EPOCHS)
    wave_of = {}
    number = 0
    for epoch in range(NUM_EPOCHS):
        for wave in range(tables.width.shape[1]):
            width = tables.width[epoch, wave]
            for training in tables.training[epoch, wave, :width]:
                wave_of[int(training)] = number
            number += width > 0
    plt.rcParams["svg.hashsalt"] = "p2pjax"
    figure, every = plt.subplots(
        2, 1, figsize=(10, 5.2), sharey=True, layout="constrained"
    )
    num_trainings = len(schedule.agent)
    for axes, place in zip(every, (lambda i: i, lambda i: wave_of[i]), strict=True):
        for receiver, source, after in zip(
            schedule.receiver, schedule.source, schedule.after, strict=True
        ):
            if source >= num_trainings:
                continue
            later = [
                i for i in range(after, num_trainings) if schedule.agent[i] == receiver
            ]
            if later:  # merged when its receiver trains next
                axes.plot(
                    [place(source), place(later[0])],
                    [schedule.agent[source], receiver],
                    color="#90a4ae",
                    lw=0.7,
                    zorder=1,
                )
        for i, agent in enumerate(schedule.agent):
            color = COLORS[wave_of[i] % len(COLORS)]
            axes.scatter(place(i), agent, s=90, color=color, zorder=2)
        axes.set_ylabel("agent")
        axes.set_yticks(range(NUM_AGENTS))
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_title(f"{num_trainings} events, one after the other", size=10)
    every[0].set_xlabel("event")
    every[1].set_title(f"the same events in {number} waves, side by side", size=10)
    every[1].set_xlabel("wave")
    every[1].set_xticks(range(number))
    figure.savefig(OUT, facecolor="white", metadata={"Date": None})
    print(OUT.name)


if __name__ == "__main__":
    main()
