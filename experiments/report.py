"""One page about one or several runs: report.html, which needs nothing else.

    python -m experiments.report WORKDIR [WORKDIR...] [--output=FILE]

Settings, environment, charts and a table to copy; several runs are side by side.
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from absl import app, flags

from experiments import common, report_charts, report_data, report_page, run_folder
from experiments.report_charts import Axis, Series
from experiments.report_data import Folder
from p2pjax import InputError

FLAGS = flags.FLAGS

_OUTPUT = flags.DEFINE_string(
    "output", None, "The page; report.html in the first work folder if not given."
)

ACCURACY = "accuracy (mean over agents)"
_X_LABELS = {
    "level": "averaging level (%)",
    "group_size": "agents that average together",
    "hidden": "global hidden cells",
    "batch_size": "examples of a mini-batch",
}


def page(folders: Sequence[Folder]) -> str:
    """The report as HTML."""
    title = "Report: " + ", ".join(folder.name for folder in folders)
    rows = [row for folder in folders for row in report_data.results(folder)]
    charts = (
        _curve_section(folders)
        + _final_section(folders)
        + _agent_section(folders)
        + _communication_section(folders)
    )
    body = "".join(
        [
            f"<h1>{escape(title)}</h1>",
            _overview(folders),
            _settings_section(folders),
            f'<div class="charts">{charts}</div>' if len(folders) == 1 else charts,
            report_page.results_table(rows, with_folder=len(folders) > 1),
        ]
    )
    return report_page.document(title, body)


def _overview(folders: Sequence[Folder]) -> str:
    rows = []
    for folder in folders:
        all_rows = [row for case in folder.cases for row in case.rows]
        state = "finished" if folder.is_finished else "unfinished"
        rows.append(
            [
                escape(folder.name),
                escape(folder.experiment or report_page.NOTHING),
                f'<span class="{state}">{state}</span>',
                str(len(folder.cases)),
                str(len({row["run"] for row in all_rows})),
                f"{max(row['round'] for row in all_rows):,}",
                str(report_data.num_agents(folder) or report_page.NOTHING),
            ]
        )
    head = ["folder", "experiment", "state", "schemes", "runs", "rounds", "agents"]
    note = (
        ""
        if all(folder.is_finished for folder in folders)
        else "<p>Of an unfinished run, final values count the repetitions that have "
        "come as far as the furthest one.</p>"
    )
    return report_page.table(head, rows, numbers_from=3) + note


def _settings_section(folders: Sequence[Folder]) -> str:
    settings = [folder.settings for folder in folders]
    environments = [folder.environment for folder in folders]
    differing = [
        name
        for name in _names(settings)
        if name != "workdir" and len({one.get(name) for one in settings}) > 1
    ]
    parts = []
    if differing:
        only = [{name: one.get(name) for name in differing} for one in settings]
        parts.append("<h2>Settings that differ</h2>" + _comparison(folders, only))
    for title, facts in (("All settings", settings), ("Environment", environments)):
        if any(facts):
            table = _comparison(folders, facts)
            parts.append(f"<details><summary>{title}</summary>{table}</details>")
    return "".join(parts)


def _comparison(folders: Sequence[Folder], facts: Sequence[dict[str, Any]]) -> str:
    """A row per name, a column per folder."""
    rows = [
        [escape(name), *(escape(_shown(one.get(name))) for one in facts)]
        for name in _names(facts)
    ]
    return report_page.table(["", *(folder.name for folder in folders)], rows)


def _names(facts: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({name for one in facts for name in one})


def _shown(value: Any) -> str:
    return report_page.NOTHING if value is None else str(value)


def _curve_section(folders: Sequence[Folder]) -> str:
    styled = report_charts.styled([report_data.curves(one) for one in folders])
    y = _accuracy_axis(styled)
    figures = []
    for folder, lines in zip(folders, map(_visible, styled), strict=True):
        if lines:
            x = report_charts.tight_axis("rounds", [0, *_xs(lines)])
            chart = report_charts.line_chart("Accuracy over rounds", lines, x, y)
            figures.append(_figure(folder, chart + report_charts.legend(lines)))
    return report_page.section(
        "Accuracy over rounds",
        "Median over runs; the band is from the 40th to the 60th percentile.",
        figures,
    )


def _final_section(folders: Sequence[Folder]) -> str:
    styled = report_charts.styled([report_data.finals(one) for one in folders])
    y = _accuracy_axis(styled)
    title = "Final accuracy"
    figures = []
    for folder, lines in zip(folders, map(_visible, styled), strict=True):
        key = report_data.compared_setting(folder)
        if lines and key:
            make_axis = (
                report_charts.doubling_axis
                if key == "group_size"
                else report_charts.tight_axis
            )
            x = make_axis(_X_LABELS[key], _xs(lines))
            chart = report_charts.line_chart(title, lines, x, y, bars=True)
            figures.append(_figure(folder, chart + report_charts.legend(lines)))
        elif lines:
            figures.append(_figure(folder, report_charts.dot_plot(title, lines, y)))
    return report_page.section(
        title,
        "At the last round: median over runs; bars from the 40th to the 60th "
        "percentile.",
        figures,
    )


def _agent_section(folders: Sequence[Folder]) -> str:
    styled = report_charts.styled([report_data.sorted_agents(one) for one in folders])
    y = _accuracy_axis(styled, "accuracy of an agent")
    figures = []
    for folder, lines in zip(folders, map(_visible, styled), strict=True):
        if lines:
            x = report_charts.tight_axis("agents, worst to best (rank)", _xs(lines))
            chart = report_charts.line_chart("Agents, worst to best", lines, x, y)
            figures.append(_figure(folder, chart + report_charts.legend(lines)))
    return report_page.section(
        "Accuracy of the agents",
        "At the last round: sorted in every run, then the mean over runs.",
        figures,
    )


def _communication_section(folders: Sequence[Folder]) -> str:
    styled = report_charts.styled([report_data.trails(one) for one in folders])
    all_ends = [report_data.trail_ends(one) for one in folders]
    y = report_charts.upper_axis(
        ACCURACY,
        [p.middle for ends in all_ends for end in ends for p in end],
        [p.middle for lines in styled for one in lines for p in one.points],
    )
    figures = []
    for folder, lines, ends in zip(folders, styled, all_ends, strict=True):
        largest = max(_xs(_visible(lines)), default=0.0)
        if largest > 0:  # else nothing was sent, or nobody counted
            unit, name = report_data.byte_unit(largest)
            x = report_charts.tight_axis(
                f"sent per agent ({name})", [0, largest / unit]
            )
            scaled = [
                one._replace(points=report_charts.scaled(one.points, 1 / unit))
                for one in lines
            ]
            ends = [report_charts.scaled(end, 1 / unit) for end in ends]
            title = "Accuracy over bytes sent"
            chart = report_charts.pareto_chart(title, scaled, ends, x, y)
            legend = report_charts.legend(lines, report_charts.pareto_front(ends))
            figures.append(_figure(folder, chart + legend))
    return report_page.section(
        "Communication",
        "Accuracy over what an agent has sent so far, medians over runs, from where "
        "schemes begin to differ. A circle is the end of a scheme: filled on the "
        "Pareto front, where no other is as accurate for as few bytes; hollow "
        "elsewhere.",
        figures,
    )


def _accuracy_axis(styled: Sequence[Sequence[Series]], label: str = ACCURACY) -> Axis:
    """One for all folders, so that they compare at a glance."""
    return report_charts.enclosing_axis(
        label,
        [
            height
            for lines in styled
            for one in lines
            for point in one.points
            for height in (point.low, point.high)
        ],
    )


def _visible(lines: Sequence[Series]) -> list[Series]:
    return [one for one in lines if report_charts.segments(one.points)]


def _xs(lines: Sequence[Series]) -> list[float]:
    return [p.x for one in lines for p in one.points if math.isfinite(p.x)]


def _figure(folder: Folder, content: str) -> str:
    state = "" if folder.is_finished else ' <span class="unfinished">unfinished</span>'
    caption = f"<figcaption>{escape(folder.name)}{state}</figcaption>"
    return f'<figure class="card">{caption}{content}</figure>'


def folder_names(paths: Sequence[Path]) -> list[str]:
    """Last parts of the paths, or the paths where these do not tell them apart."""
    names = [path.resolve().name for path in paths]
    is_clear = len(set(names)) == len(names) and all(names)
    return names if is_clear else [str(path) for path in paths]


def main(arguments: Sequence[str]) -> Path:
    """Writes the report on the work folders given.

    Returns:
      The page.
    """
    if not arguments:
        raise InputError(
            "Need the work folder of at least one run, got none: "
            "python -m experiments.report WORKDIR [WORKDIR...]"
        )
    paths = list(dict.fromkeys(map(Path, arguments)))
    folders = [
        report_data.read_folder(path, name)
        for path, name in zip(paths, folder_names(paths), strict=True)
    ]
    output = Path(_OUTPUT.value) if _OUTPUT.value else paths[0] / "report.html"
    text = page(folders)
    if output.is_dir():
        raise InputError(f"Need a file for --output, but {output} is a folder.")
    try:
        run_folder.write_whole(output, text)
    except OSError as error:
        raise InputError(
            f"Need a file that can be written, got {output} ({error.strerror}): choose "
            "another --output."
        ) from error
    print(f"Report is in {output}")
    return output


def parse_flags(args: list[str]) -> list[str]:
    """Reads the command line; what is not a flag is a work folder."""
    rest: list[str] = []

    def parse() -> None:
        try:
            rest.extend(FLAGS(args))
        except flags.Error as error:
            raise InputError(str(error)) from error

    common.guarded(parse)
    return rest


def run(args: list[str]) -> None:
    """Makes a report; input it cannot use becomes a sentence and status 2."""

    def make_report() -> None:
        main(args[1:])

    common.guarded(make_report)


if __name__ == "__main__":
    app.run(run, flags_parser=parse_flags)
