"""Scores of agents by how many agents of their own task they have heard.

Sajina (2025, 2.1.2.3) says that random graphs do harm because some agents hear no agent
of their own task.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.engine import reading
from experiments.engine.row_kinds import Row
from experiments.multi_task.contenders import of_row

Group = tuple[str, str, str, str, int]  # method, tasks, graph, whose, own neighbours


def own_neighbors(cluster: Sequence[int], links: Sequence[Sequence[int]]) -> list[int]:
    """How many others of its own cluster each agent has heard.

    Args:
      cluster: of each agent.
      links: receiver, sender and number of messages, `[L, 3]`.

    >>> own_neighbors([0, 0, 1], [[0, 1, 5], [0, 2, 5], [1, 2, 5]])
    [1, 0, 0]
    """
    heard = [0] * len(cluster)
    for receiver, sender, messages in links:
        heard[receiver] += messages > 0 and cluster[receiver] == cluster[sender]
    return heard


def scores(folder: Path) -> dict[Group, list[float]]:
    """Last scores of agents that run with others of other tasks.

    Args:
      folder: of a run.
    """
    last: dict[tuple[str, int], Row] = {}
    for row in reading.rows(folder):
        if "agent_accuracy" in row:
            last[reading.key_of(row), row["run"]] = row
    found: dict[Group, list[float]] = {}
    for row in reading.links(folder):
        ended = last.get((reading.key_of(row), row["run"]))
        contender = of_row(row)
        if ended is None or len(set(row["cluster"])) == 1:  # one task, or as one
            continue
        heard = own_neighbors(row["cluster"], row["links"])
        for task, own, score in zip(
            row["cluster"], heard, ended["agent_accuracy"], strict=True
        ):
            if score is not None:
                group = (
                    contender.method,
                    contender.tasks,
                    contender.graph_in_words,
                    contender.names[task],
                    own,
                )
                found.setdefault(group, []).append(score)
    return dict(sorted(found.items()))


def table(folder: Path) -> str:
    """A row per method, graph, task and number of own-task neighbours.

    Args:
      folder: of a run.
    """
    lines = [
        "| method | tasks | graph | score of | own-task neighbours | agents | mean |",
        "|---" * 7 + "|",
    ]
    for group, values in scores(folder).items():
        cells = [*map(str, group), str(len(values)), f"{np.mean(values):.4f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
