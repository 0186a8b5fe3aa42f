"""The leaderboard: schemes of kept studies of `experiments.protocols`, best first."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.claims import evidence
from experiments.claims.evidence import Group, Study
from experiments.tables.markdown import markdown
from experiments.tables.render import environment, first_line, sentence
from p2pjax.evaluation import statistics

PAGE = Path("docs", "leaderboard.md")
HEAD = """# Leaderboard

Decentralized methods and graphs on data with label skew, computed by `python -m
experiments.tables` from the runs that are kept in [results/](../results); do not
edit. *All tests* is the accuracy of the agents' own models on the test examples of
all agents together, *own tests* on each agent's own, *mean model* that of the mean of
all models on all test examples (one global merge would give it). Cells are means over
seeds; ± are 95% intervals of the mean. *Disagreement* is the mean squared distance of
models from their mean. Messages and megabytes are what an agent has sent in a whole
run. Rates were chosen on a run that is not among these, at a quarter of the length
([RESULTS.md](../experiments/protocols/RESULTS.md)).
"""
NONE = "\nNo study of learning is kept yet.\n"
COLUMNS = (
    "scheme",
    "rate",
    "all tests",
    "own tests",
    "mean model",
    "disagreement",
    "messages",
    "MB",
    "seeds",
)


def page(root: Path) -> str:
    """What the page should say.

    Args:
      root: of the repository.
    """
    studies = evidence.load(root / "results").values()
    own = [study for study in studies if is_listed(study)]
    return HEAD + ("".join(section(root, study) for study in own) or NONE)


def is_listed(study: Study) -> bool:
    """Whether it is a study of protocols in which agents learn."""
    is_own = study.name.startswith("protocols.")
    return is_own and "accuracy" in first_line(study.groups[0])


def section(root: Path, study: Study) -> str:
    """A kept study: what it is, its command, and a table for each setting.

    Args:
      root: of the repository.
      study: of protocols.
    """
    name = study.name.partition(".")[2]
    flagfile = Path("experiments", "protocols", "flags", f"{name}.flags")
    lines = ["", f"## {name.replace('_', ' ')}", ""]
    if (root / flagfile).exists():
        lines += [sentence(root / flagfile), ""]
    lines += [
        "```",
        f"python -m experiments.protocols --flagfile={flagfile}",
        "```",
        "",
        f"{environment(root / 'results' / study.name)}.",
        "",
    ]
    by_setting: dict[str, list[Group]] = {}
    for group in study.groups:
        setting = first_line(group)["setting"].items()
        said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in setting)
        by_setting.setdefault(said, []).append(group)
    for said, groups in by_setting.items():
        lines += [f"**{said}**", ""] if said else []
        lines += [*table(groups), ""]
    return "\n".join(lines)


def table(groups: Sequence[Group]) -> list[str]:
    """Schemes in rows, best first.

    Args:
      groups: runs of each scheme in one setting.
    """
    pooled = "pooled_accuracy" in first_line(groups[0])
    metric = "pooled_accuracy" if pooled else "accuracy"
    order = sorted(groups, key=lambda group: -np.nan_to_num(_mean(group, metric)))
    return markdown(COLUMNS, [_row(group) for group in order])


def _row(group: Group) -> list[str]:
    return [
        first_line(group)["scheme"].replace("_", " "),
        _said(group, "learning_rate", "g"),
        _interval(group, "pooled_accuracy"),
        _interval(group, "accuracy"),
        _interval(group, "merged_accuracy"),
        _said(group, "disagreement", ".2g"),
        _said(group, "messages", ",.0f"),
        _said(group, "bytes", ".3g", 1e-6),
        str(len(group)),
    ]


def _finals(group: Group, metric: str) -> np.ndarray:
    """Of each run in the end, not a number where it has none."""
    found = [line[metric][-1] if metric in line else None for line in group.values()]
    return np.asarray(found, float)


def _mean(group: Group, metric: str) -> float:
    return float(_finals(group, metric).mean())


def _said(group: Group, metric: str, digits: str, factor: float = 1.0) -> str:
    mean = factor * _mean(group, metric)
    return f"{mean:{digits}}" if np.isfinite(mean) else ""


def _interval(group: Group, metric: str) -> str:
    values = _finals(group, metric)
    if not np.isfinite(values).all():
        return ""
    if len(values) < 2:
        return f"{values.mean():.3f}"
    return f"{values.mean():.3f} ± {statistics.mean_interval(values):.3f}"
