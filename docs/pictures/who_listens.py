"""Draws who listens to whom while PANM learns it: python docs/pictures/who_listens.py.

Sixteen agents of four clusters, whose digits are turned by 0, 90, 180 and 270 degrees.
An animated GIF, a frame per round. Stages have to fit: with 5 candidates and a second
stage from round 9, .73 of the links were inside clusters at most, and .40 in the end.
"""

from pathlib import Path

import jax
import matplotlib

matplotlib.use("agg")
import numpy as np
import optax
from matplotlib import pyplot as plt
from matplotlib.animation import FuncAnimation, PillowWriter

import p2pjax as pj

OUT = Path(__file__).with_suffix(".gif")
NUM_AGENTS, NUM_ROUNDS, SECOND_STAGE = 16, 32, 16
COLORS = ("#1b6ca8", "#b3541e", "#2e7d32", "#6a1b9a")


def links() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who averaged with whom `[R, N, N]`, clusters `[N]` and accuracy `[R]`."""
    data = pj.datasets.digits(
        num_agents=NUM_AGENTS, split=pj.split.rotated(4), valid_fraction=0.1, seed=0
    )
    task = pj.classification(pj.nn.MLP((32, 10)), data)
    method = pj.panm(
        task,
        optax.adam(3e-3),
        batch_size=16,
        num_peers=3,
        num_candidates=8,
        second_stage=SECOND_STAGE,
        matching_every=4,
    )
    heard = np.zeros((NUM_ROUNDS, NUM_AGENTS, NUM_AGENTS), bool)
    accuracy = np.zeros(NUM_ROUNDS)
    for t, now in enumerate(
        pj.simulate(jax.random.key(0), method, data, NUM_ROUNDS, eval_every=1)
    ):
        merged = now.info.merged or now.info.links
        sender, arrived = np.asarray(merged.sender)[-1], np.asarray(merged.arrived)[-1]
        for agent in range(NUM_AGENTS):
            heard[t, agent, sender[agent][arrived[agent] > 0]] = True
        accuracy[t] = now.metrics["accuracy"].mean()
    return heard, np.asarray(data.cluster), accuracy


def main() -> None:
    """Writes the animation."""
    heard, cluster, accuracy = links()
    angle = 2 * np.pi * np.arange(NUM_AGENTS) / NUM_AGENTS
    x, y = np.cos(angle), np.sin(angle)
    order = np.argsort(cluster, kind="stable")
    place = np.empty(NUM_AGENTS, int)
    place[order] = np.arange(NUM_AGENTS)
    x, y = x[place], y[place]
    heard &= ~np.eye(NUM_AGENTS, dtype=bool)
    inside = (heard & (cluster[:, None] == cluster)).sum((1, 2)) / heard.sum((1, 2))
    print("share of links inside clusters, by round:", inside.round(2).tolist())
    figure, axes = plt.subplots(figsize=(4, 4.5), dpi=72, layout="constrained")

    def draw(t: int) -> None:
        axes.clear()
        for agent, peer in zip(*np.nonzero(heard[t]), strict=True):
            same = cluster[agent] == cluster[peer]
            axes.plot(
                [x[agent], x[peer]],
                [y[agent], y[peer]],
                color=COLORS[cluster[agent]] if same else "#cfd8dc",
                lw=1.6 if same else 0.8,
                zorder=2 if same else 1,
            )
        axes.scatter(x, y, s=120, c=[COLORS[c] for c in cluster], zorder=3)
        stage = "first" if t + 1 < SECOND_STAGE else "second"
        axes.set_title(
            f"round {t + 1}, {stage} stage: {inside[t]:.0%} of links inside clusters\n"
            f"mean accuracy {accuracy[t]:.2f}",
            size=10,
        )
        axes.set_xlim(-1.2, 1.2)
        axes.set_ylim(-1.2, 1.2)
        axes.set_aspect("equal")
        axes.axis("off")

    animation = FuncAnimation(figure, draw, frames=NUM_ROUNDS)
    animation.save(OUT, writer=PillowWriter(fps=3))
    print(OUT.name)


if __name__ == "__main__":
    main()
