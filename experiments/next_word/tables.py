"""Tables of a finished run for a person: best accuracies, costs, graphs."""

from pathlib import Path

import numpy as np

from experiments.engine import reading
from p2pjax.evaluation import statistics
from p2pjax.graphs import analysis, topology


def print_tops(folder: Path) -> None:
    """The best accuracy of every method, in three definitions, its cost, and a t-test.

    The test compares the runs' best with those of the method that has the best mean;
    messages are those that an agent sent until its run's best.
    """
    accuracy, messages = _curves(folder, "accuracy"), _curves(folder, "messages")
    tops = {name: statistics.top_of_runs(runs) for name, runs in accuracy.items()}
    best = max(tops, key=lambda name: float(tops[name].mean()))
    print(
        f"{'method':<32} {'mean of max':<13} {'max of mean':<13} {'stable max':<12} "
        f"{'messages':<10} p against {best}"
    )
    for name, runs in accuracy.items():
        stable = statistics.top_ua_stable_max(runs)
        until = [
            run[int(np.argmax(curve))]
            for run, curve in zip(messages[name], runs, strict=True)
        ]
        is_tested = name != best and len(runs) > 1
        print(
            f"{name:<32} {statistics.top_ua_mean_of_max(runs):<13.4f} "
            f"{statistics.top_ua_max_of_mean(runs):<13.4f} "
            f"{'none' if stable is None else f'{stable:.4f}':<12} "
            f"{np.mean(until):<10.1f} "
            f"{_p_value(tops[name], tops[best]) if is_tested else ''}"
        )


def _curves(folder: Path, metric: str) -> dict[str, list[list[float]]]:
    """Of every method in every setting: `[S, E]`."""
    curves: dict[str, dict[int, list[float]]] = {}
    for row in reading.rows(folder, (metric,)):
        name = " ".join([row["scheme"], *map(str, row["setting"].values())])
        of_run = curves.setdefault(name, {}).setdefault(row["run"], [])
        of_run.append(row[metric])
    return {name: [*runs.values()] for name, runs in curves.items()}


def _p_value(one: np.ndarray, other: np.ndarray) -> str:
    return f"{statistics.t_test(one, other)[1]:.2g}"


def print_graphs(folder: Path) -> None:
    """Who could hear whom in every method's first run: connectivity, spectral gap."""
    rows = reading.links(folder)
    # None of networks of more agents than links are kept of, or without any peers.
    first = min((row["run"] for row in rows), default=None)
    for row in rows:
        if row["run"] == first and row["links"]:
            receiver, sender, _ = np.transpose(row["links"])
            graph = topology.from_edges(len(row["cluster"]), sender, receiver)
            facts = analysis.report(graph)
            print(
                f"{row['scheme']:<20} "
                f"{'' if facts['directed'] else 'un'}directed graph, "
                f"mean degree {facts['mean_degree']:.2f}, "
                f"{'' if facts['strongly_connected'] else 'not '}strongly connected, "
                f"spectral gap {facts['spectral_gap']:.3f}"
            )
