"""What `experiments.combination` shows beside its curves: factors and costs."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import figures
from experiments.engine import reading

FACTOR_HOSTS = (2, 5, 10, 20, 40, 80)
FACTOR_RATES = (1e-3, 1e-2, 1e-1, 0.5, 1.0)


def draw_factors(folder: Path) -> None:
    """The paper's Figure 4: exp(c / H) for equal hosts goes to 1, whatever c is."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for rate in FACTOR_RATES:
        hosts = np.asarray(FACTOR_HOSTS)
        axes.plot(hosts, np.exp(rate / hosts), marker="o", label=f"c = {rate:g}")
    axes.set_xlabel("hosts")
    axes.set_ylabel("factor of every host")
    axes.legend(frameon=False)
    figures.save_plain(figure, folder, "factors")


def print_costs(folder: Path, target: float) -> None:
    """Bytes that a host sent until its run's accuracy first reached the target."""
    first: dict[tuple[str, str], dict[int, float]] = {}
    for row in reading.rows(folder, ("accuracy", "bytes")):
        where = row["scheme"], " ".join(map(str, row["setting"].values()))
        runs = first.setdefault(where, {})
        if row["accuracy"] is not None and row["accuracy"] >= target:
            runs.setdefault(row["run"], row["bytes"])
    print(f"{'scheme':<16} {'setting':<14} bytes until accuracy {target:g}   runs")
    for (scheme, setting), runs in first.items():
        cost = f"{np.median(list(runs.values())):.0f}" if runs else "never"
        print(f"{scheme:<16} {setting:<14} {cost:<24} {len(runs):>6}")
