"""Snapshots of a simulation, collected without their states."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pjax.evaluation.attacked import is_judged
from p2pjax.simulation._simulate import Snapshot
from p2pjax.simulation._used import Used
from p2pjax.types import InputError

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas


class History(list[Snapshot]):
    """What a simulation reported, snapshot by snapshot.

    States are left out: they are donated to the next rounds.

    Example:
      >>> import jax, optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.local_only(task, optax.sgd(0.1), batch_size=32)
      >>> history = pj.History(
      ...     pj.simulate(jax.random.key(0), method, data, num_rounds=4, eval_every=2))
      >>> history.values("accuracy").shape
      (2, 4)
    """

    def __init__(self, snapshots: Iterable[Snapshot] = ()) -> None:
        """Collects snapshots.

        Args:
          snapshots: such as what `simulate` returns; it runs to its end.
        """
        super().__init__(now._replace(state=None) for now in snapshots)

    def append(self, now: Snapshot) -> None:
        """Adds a snapshot, without its state."""
        super().append(now._replace(state=None))

    @property
    def rounds(self) -> np.ndarray:
        """Rounds done at each snapshot, `[T]`."""
        return np.asarray([now.num_rounds for now in self])

    def values(self, metric: str) -> np.ndarray:
        """A metric at each snapshot, `[T, N]`; of S runs `[T, S, N]`."""
        if self and metric not in self[0].metrics:
            raise InputError(
                f"Need a metric among {', '.join(self[0].metrics)}, got '{metric}'."
            )
        return np.asarray([now.metrics[metric] for now in self])

    def used(self, what: str) -> np.ndarray:
        """A field of `Used` at each snapshot, `[T]`; of S runs `[T, S]`."""
        if what not in Used._fields:
            raise InputError(f"Need one of {', '.join(Used._fields)}, got '{what}'.")
        return np.asarray([getattr(now.used, what) for now in self])

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each snapshot, run and agent; needs pandas.

        Columns are the round, run, agent, all metrics, and what the run had used.
        Metrics that are not per agent are repeated for each. All metrics of Byzantine
        agents are NaN; of honest ones that diverged, `diverged` is 1.
        """
        import pandas

        return pandas.DataFrame(list(self._rows()))

    def plot(
        self, metric: str = "accuracy", *, against: str = "rounds", ax: Any = None
    ) -> "matplotlib.axes.Axes":
        """Draws the mean over agents, and the range between deciles; needs matplotlib.

        Byzantine agents are left out.

        Args:
          metric: what to draw.
          against: `rounds`, or a field of `Used` such as `messages`.
          ax: axes to draw into; new ones if not given.
        """
        import matplotlib.pyplot as plt

        values = self.values(metric)
        x = self.rounds if against == "rounds" else self.used(against)
        if x.ndim > 1:  # runs side by side
            x = x.mean(1)
        judged = [
            _of_judged(now.metrics, value)
            for now, value in zip(self, values, strict=True)
        ]
        ax = plt.subplots()[1] if ax is None else ax
        (line,) = ax.plot(x, [value.mean() for value in judged])
        low, high = np.transpose([np.quantile(one, [0.1, 0.9]) for one in judged])
        ax.fill_between(x, low, high, alpha=0.2, color=line.get_color())
        ax.set_xlabel(against)
        ax.set_ylabel(f"{metric} (mean and deciles of agents)")
        return ax

    def save(self, path: str | Path) -> None:
        """Writes a JSON line for each snapshot: round, metrics, what was used."""
        with Path(path).open("w") as file:
            for now in self:
                row = {
                    "round": now.num_rounds,
                    "metrics": {
                        k: np.asarray(v).tolist() for k, v in now.metrics.items()
                    },
                    "used": {
                        k: np.asarray(v).tolist() for k, v in now.used._asdict().items()
                    },
                }
                file.write(json.dumps(row) + "\n")

    def _rows(self) -> Iterable[dict[str, Any]]:
        for now in self:
            runs = np.shape(now.used.steps)  # () or [S]
            shapes = [np.shape(v)[len(runs) :] for v in now.metrics.values()]
            num_agents = max((shape[0] for shape in shapes if shape), default=1)
            for run in np.ndindex(runs):
                used = {k: v[run].item() for k, v in now.used._asdict().items()}
                for agent in range(num_agents):
                    row = {"round": now.num_rounds, "run": run[0] if run else 0}
                    row["agent"] = agent
                    for name, values in now.metrics.items():
                        own = np.asarray(values)[run]
                        if own.shape == (num_agents,):
                            row[name] = own[agent].item()
                        elif own.ndim == 0:
                            row[name] = own.item()
                    yield row | used


def _of_judged(metrics: Mapping[str, np.ndarray], value: np.ndarray) -> np.ndarray:
    """Values of honest agents, in one row."""
    judged = is_judged(metrics)
    if judged is None or value.shape[: judged.ndim] != judged.shape:
        return value.reshape(-1)
    return value[judged].reshape(-1)
