"""How fast agents agree on the mean of their numbers, graph by graph.

As in Takezawa et al. (2023), "Beyond exponential graph: communication-efficient
topologies for decentralized learning via finite-time convergence",
https://arxiv.org/abs/2305.11420.
"""

from collections.abc import Mapping
from functools import cache, partial

import numpy as np

from experiments.engine.jobs import Measurement, data_rng
from experiments.protocols.config import Config, as_compared
from experiments.protocols.graphs import GRAPHS, matrices
from p2pjax.host_memory import check_room

DIMENSION = 100  # numbers of each agent, over which errors are means
_ROW = 1000  # bytes of a measurement, about
EXACT = 1e-12  # of a squared error of numbers of size 1: weights are of float32


def measurements(config: Config) -> list[Measurement]:
    """Squared errors of each graph after 0 to `--num_rounds` mixings.

    Args:
      config: of the experiment.
    """
    size, steps = config.num_agents, config.num_rounds
    number = (steps + 1) * len(config.chosen_graphs) * config.num_runs
    check_room(
        8 * size * (steps * size + DIMENSION) + _ROW * number,
        f"{steps} mixing matrices of {size} agents and {number} errors",
    )
    found = cache(partial(errors, config))

    def measure(graph: str, run: int, t: int) -> Mapping[str, float]:
        error, messages = found(graph, run)
        return {"squared_error": float(error[t]), "messages": float(messages[t])}

    return [
        Measurement(graph, {"t": t}, run, partial(measure, graph, run, t))
        for graph in config.chosen_graphs
        for t in range(steps + 1)
        for run in config.runs
    ]


def errors(config: Config, graph: str, run: int) -> tuple[np.ndarray, np.ndarray]:
    """After t mixings, `[T + 1]`: mean squared distance from the first mean; messages.

    Messages are those that an agent has sent, in the mean. Errors below `EXACT` are
    round-off, and count as 0.

    Args:
      config: of the experiment.
      graph: its name.
      run: its number; all graphs of a run start from the same numbers.
    """
    rng = data_rng(config, run)
    x = rng.normal(size=(config.num_agents, DIMENSION))
    mean, sent = x.mean(0), [0.0]
    found = [float(np.mean((x - mean) ** 2))]
    named = GRAPHS[graph](as_compared(config))
    for matrix in matrices(named, rng, config.num_rounds):
        x = matrix @ x
        error = float(np.mean((x - mean) ** 2))
        found.append(error if error > EXACT else 0.0)
        links = np.count_nonzero(matrix) - np.count_nonzero(np.diag(matrix))
        sent.append(sent[-1] + links / len(x))
    return np.asarray(found), np.asarray(sent)
