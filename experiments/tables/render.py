"""Kept studies as Markdown: the command, what it took, and a table of accuracies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.claims import evidence
from experiments.claims.evidence import Group, Study
from experiments.engine import reading, summary, untrusted_files
from experiments.engine.row_kinds import WHERE
from experiments.keep import kept_study
from experiments.tables import readings
from experiments.tables.markdown import markdown
from p2pjax.evaluation import statistics
from p2pjax.types import InputError

BEGIN = "<!-- computed by `python -m experiments.tables`; do not edit -->"
END = "<!-- end of what is computed -->"
POINTS = (10, 20, 30, 40, 100, 200, 300, 400, 500, 1000)  # rounds worth a column
MOST = 6  # columns of rounds
# Metrics with tables of their own, where a study has them.
ALSO = (
    "pooled_accuracy",
    "merged_accuracy",
    "worst_accuracy",
    "attack_success",
    "from_attackers",
    "disagreement",
    "mean_of_all",
    "mean_of_clique_1",
    "mean_of_clique_2",
)
STEPS, SOURCE_STEPS = "steps", "source_steps"  # of an agent until then; in the end
SMALL = ("squared_error", "disagreement")  # of any magnitude: two digits that count


def pages(root: Path) -> dict[Path, str]:
    """What every RESULTS.md should say, by path."""
    studies = evidence.load(root / "results")
    found = {}
    for study_file in sorted((root / "experiments").glob("*/study.py")):
        path = study_file.with_name("RESULTS.md")
        own = [
            s for name, s in studies.items() if name.split(".")[0] == path.parent.name
        ]
        parts = [section(root, study) for study in own]
        parts += readings.sections(root, studies, path.parent.name)
        if not parts:
            parts = ["No study is kept yet.\n"]
        found[path] = replaced(path, "\n".join(parts))
    return found


def replaced(path: Path, computed: str) -> str:
    """The page with another computed part."""
    text = text_of(path)
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError(f"Need the lines '{BEGIN}' and '{END}' once each in {path}.")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{computed}\n{END}{after}"


def text_of(path: Path) -> str:
    """A page of the repository."""
    return untrusted_files.text_of(path, "a page of text", remedy="write it anew")


def section(root: Path, study: Study) -> str:
    """A kept study."""
    experiment, _, name = study.name.partition(".")
    flagfile = Path("experiments", experiment, "flags", f"{name}.flags")
    kept = root / "results" / study.name
    flags = reading.flags(kept)
    runs = {run for group in study.groups for run in group}
    lines = [f"### {study.name}", ""]
    if (root / flagfile).exists():
        lines += [sentence(root / flagfile), ""]
    lines += ["```", f"python -m experiments.{experiment} --flagfile={flagfile}"]
    lines += [
        "```",
        "",
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}; {environment(kept)}.",
    ]
    metric = "accuracy" if "accuracy" in first_line(study.groups[0]) else _scalar(study)
    lines += [
        f"Cells are means over runs of the {metric.replace('_', ' ')}"
        f"{' in the last round' if _rounds(study) == [] else ''}, with 95% intervals "
        "of the mean where there are several runs.",
        "",
        *table(study, metric),
        "",
    ]
    lines += steps_beside_source(study)
    for also in _also(kept, metric):
        lines += [f"The {also.replace('_', ' ')} of the same runs:", ""]
        lines += [*table(study, also), ""]
    gained = gains(study)
    if gained:
        lines += [
            "What agents gain over learning alone, mean over agents and runs; in "
            "brackets the gain that a tenth of them does not reach, and the share of "
            "agents that lose:",
            "",
            *gained,
            "",
        ]
    lines += [
        f"Kept in `results/{study.name}`, with all flags ({len(flags)}).",
        "",
    ]
    return "\n".join(lines)


def sentence(flagfile: Path) -> str:
    """What a flagfile says it is."""
    comments = [
        line.removeprefix("#").strip()
        for line in text_of(flagfile).splitlines()
        if line.startswith("#") and "size:" not in line
    ]
    return " ".join(comments)


def environment(kept: Path) -> str:
    """What the runs of a kept study were made with."""
    facts = reading.summary(kept).environment
    needed = ("jax", "python", "devices", "backend", "cpus")
    missing = [name for name in needed if name not in facts]
    if missing:
        path, wrong = kept / reading.SUMMARY, f"has no {missing[0]}"
        raise untrusted_files.refusal(path, "the environment of runs", wrong)
    return (
        f"jax {facts['jax']}, Python {facts['python']}, {facts['devices']} device(s) "
        f"of {facts['backend']}, {facts['cpus']} cores"
    )


def first_line(group: Group) -> dict[str, Any]:
    """Of the runs of a scheme and setting."""
    return next(iter(group.values()))


def _scalar(study: Study) -> str:
    line = first_line(study.groups[0])
    lists = (*reading.OF_AGENTS, *reading.OF_THE_END)
    names = [n for n in line if n not in (*WHERE, "round", *lists)]
    return names[0] if names else "round"


def _also(kept: Path, metric: str) -> list[str]:
    """Other metrics of the summary that have a table."""
    known = {row["metric"] for row in reading.summary(kept).rows}
    return [name for name in ALSO if name in known and name != metric]


def varied(study: Study) -> list[str]:
    """Settings that take several values within a scheme."""
    values: dict[str, dict[str, set]] = {}
    for group in study.groups:
        line = first_line(group)
        for key, value in line["setting"].items():
            of_scheme = values.setdefault(key, {})
            of_scheme.setdefault(line["scheme"], set()).add(json.dumps(value))
    return [
        key
        for key, of_scheme in values.items()
        if any(len(found) > 1 for found in of_scheme.values())
    ]


def table(study: Study, metric: str) -> list[str]:
    """Schemes in rows; columns are values of what the study varies, or rounds."""
    if varied(study):
        return by_setting(study, lambda group: _cell(group, metric, None))
    rounds = _rounds(study) or [first_line(study.groups[0])["round"][-1]]
    head = ["scheme", *(f"round {number}" for number in rounds)]
    rows = [
        [first_line(group)["scheme"], *(_cell(group, metric, at) for at in rounds)]
        for group in study.groups
    ]
    return markdown(head, rows)


def gains(study: Study) -> list[str]:
    """Schemes in rows, what they gain over learning alone; empty where none does."""
    schemes = [
        {run: kept_study.evaluations(line) for run, line in group.items()}
        for group in study.groups
    ]
    found = {
        reading.key_of(first_line(group)): summary.gains(runs, schemes)
        for group, runs in zip(study.groups, schemes, strict=True)
    }
    if not any(found.values()):
        return []

    def cell(group: Group) -> str:
        values = found[reading.key_of(first_line(group))]
        if not values:
            return ""
        lowest, losing = (
            np.mean(values[name]) for name in (f"{summary.GAIN}_p10", summary.LOSING)
        )
        mean = np.mean(values[summary.GAIN])
        return f"{mean:+.3f} ({lowest:+.3f}, {losing:.0%} lose)"

    if varied(study):
        return by_setting(study, cell)
    rows = [[first_line(group)["scheme"], cell(group)] for group in study.groups]
    return markdown(["scheme", "gain"], [row for row in rows if row[1]])


def by_setting(study: Study, cell: Callable[[Group], str]) -> list[str]:
    """Schemes in rows; columns are values of the last setting that the study varies.

    Args:
      study: that varies a setting.
      cell: text of a scheme in a setting; rows without any are left out.
    """
    *others, last = varied(study)
    columns: dict[str, None] = {}
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for group in study.groups:
        line = first_line(group)
        setting = line["setting"]
        name = (line["scheme"], *(f"{setting.get(key, '')}" for key in others))
        value = f"{last.replace('_', ' ')} {setting[last]}" if last in setting else ""
        columns[value] = None
        cells.setdefault(name, {})[value] = cell(group)
    head = ["scheme", *(key.replace("_", " ") for key in others), *columns]
    rows = [
        [*name, *(own.get(c, "") for c in columns)]
        for name, own in cells.items()
        if any(own.values())
    ]
    return markdown(head, rows)


def steps_beside_source(study: Study) -> list[str]:
    """A table of the steps of an agent in the end and those of the source.

    None where a study does not know its source's.

    Args:
      study: that is kept.
    """
    keys, rows = varied(study), []
    for group in study.groups:
        line = first_line(group)
        if SOURCE_STEPS in line:
            taken = np.mean([own[STEPS][-1] for own in group.values()])
            setting = [f"{line['setting'].get(key, '')}" for key in keys]
            counts = (f"{taken:,.0f}", f"{line[SOURCE_STEPS][-1]:,.0f}")
            rows.append([line["scheme"], *setting, *counts])
    if not rows:
        return []
    names = [key.replace("_", " ") for key in keys]
    head = ["scheme", *names, "steps of an agent", "of the source"]
    said = (
        "Local steps of an agent until then, in the mean, beside those of the source:"
    )
    return [said, "", *markdown(head, rows), ""]


def _rounds(study: Study) -> list[int]:
    """Evaluations that are worth a column: the last and some before it."""
    if varied(study):
        return []
    evaluated = first_line(study.groups[0])["round"]
    chosen = [number for number in evaluated if number in POINTS]
    return sorted({*chosen, evaluated[-1]})[-MOST:]


def _cell(group: Group, metric: str, at: int | None) -> str:
    """Mean and interval over runs, at a round or in the end; "" where one has none."""
    found = []
    for line in group.values():
        curve = dict(zip(line["round"], line.get(metric, ()), strict=False))
        found.append(curve.get(line["round"][-1] if at is None else at))
    values = np.asarray(found, float)
    if np.isnan(values).any():
        return ""
    digits = ".2g" if metric in SMALL else ".3f"
    mean = f"{values.mean():{digits}}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.mean_interval(values):{digits}}"
