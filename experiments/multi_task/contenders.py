"""What the multi-task study compares: methods, graphs, and tasks that run together."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.engine import design
from experiments.engine.run_folder import Row
from experiments.multi_task.config import Config
from experiments.multi_task.data import Dataset

Setting = dict[str, Any]


class Contender(NamedTuple):
    """A method on a graph, and the data sets whose agents run together."""

    method: str
    graph: str
    names: tuple[str, ...]
    foreign_share: float | None = None  # of a clustered graph; None is one edge
    local_epochs: int = 1

    @property
    def tasks(self) -> str:
        """All names in one word."""
        return "+".join(self.names)

    @property
    def graph_in_words(self) -> str:
        """For tables, with what a study varies beside it."""
        said = self.graph
        if self.foreign_share is not None:
            said += f", {self.foreign_share:g} foreign"
        if self.local_epochs > 1:
            said += f", {self.local_epochs} local epochs"
        return said

    @property
    def setting(self) -> dict[str, Any]:
        """What is written into rows in any study."""
        return {"tasks": self.tasks, "graph": self.graph}


def of_row(row: Row) -> Contender:
    """Whose row it is; what a study does not vary is as it is by default."""
    setting = row["setting"]
    return Contender(
        row["scheme"],
        setting["graph"],
        tuple(setting["tasks"].split("+")),
        setting.get("foreign_share"),
        setting.get("local_epochs", 1),
    )


def contenders(
    config: Config, datasets: Mapping[str, Dataset]
) -> list[tuple[Contender, Setting]]:
    """What the study compares, and what rows say of it.

    A task alone has a random graph.
    """
    found = []
    if "cts" in config.methods:
        found = [Contender("cts", "random", (name,)) for name in datasets]
    together = [tuple(datasets)]
    if config.study == "pairs":
        together = list(itertools.combinations(datasets, 2))
    for graph, names in itertools.product(config.graphs, together):
        possible = {"mt", "mt_ef"} if len(names) > 1 else set()
        if possible and len({datasets[name].head for name in names}) == 1:
            possible.add("mono")
        found += [Contender(m, graph, names) for m in config.methods if m in possible]
    return [varied for contender in found for varied in _varied(config, contender)]


def _varied(config: Config, contender: Contender) -> list[tuple[Contender, Setting]]:
    """A contender with each value of the flags that have several."""
    factors = {
        "foreign_share": config.foreign_share or (None,),
        "local_epochs": config.local_epochs,
    }
    own = ["local_epochs"]
    if contender.graph == "clustered":
        own.append("foreign_share")
    found = []
    for setting, values in design.combinations(factors, own):
        if "foreign_share" not in own:
            values["foreign_share"] = None
        found.append((contender._replace(**values), contender.setting | setting))
    return found
