"""What the multi-task study compares: methods, graphs, and tasks that run together."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.engine.run_folder import Row
from experiments.multi_task.config import Config
from experiments.multi_task.data import Dataset


class Contender(NamedTuple):
    """A method on a graph, and the data sets whose agents run together."""

    method: str
    graph: str
    names: tuple[str, ...]

    @property
    def tasks(self) -> str:
        """All names in one word."""
        return "+".join(self.names)

    @property
    def setting(self) -> dict[str, Any]:
        """What is written into rows."""
        return {"tasks": self.tasks, "graph": self.graph}


def of_row(row: Row) -> Contender:
    """Whose row it is."""
    setting = row["setting"]
    names = tuple(setting["tasks"].split("+"))
    return Contender(row["scheme"], setting["graph"], names)


def contenders(config: Config, datasets: Mapping[str, Dataset]) -> list[Contender]:
    """What the study compares; a task alone has a random graph."""
    found = []
    if "cts" in config.methods:
        found = [Contender("cts", "random", (name,)) for name in datasets]
    together = [tuple(datasets)]
    if config.study == "pairs":
        together = list(itertools.combinations(datasets, 2))
    for graph, names in itertools.product(config.graphs, together):
        possible = {"mt", "mt_ef"} if len(names) > 1 else set()
        if possible and all(datasets[name].is_masked for name in names):
            possible.add("mono")  # all have the same head
        found += [Contender(m, graph, names) for m in config.methods if m in possible]
    return found
