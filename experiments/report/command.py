"""The page as a whole, and the command that writes it."""

import dataclasses
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from experiments.engine import own_files
from experiments.engine.fields import RESULTS, text
from experiments.engine.untrusted_files import shown
from experiments.report import comparisons, markup, measures, reading, sections
from experiments.report.reading import Folder
from p2pjax.types import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the report."""

    output: str | None = text(
        None,
        "The page; report.html in the first work folder if not given.",
        topic=RESULTS,
    )


def page(folders: Sequence[Folder]) -> str:
    """The report as HTML."""
    title = "Report: " + ", ".join(folder.name for folder in folders)
    charts = "".join(make(folders) for make in sections.CHARTS)
    body = "".join(
        [
            f"<h1>{escape(title)}</h1>",
            _overview(folders),
            _settings_section(folders),
            f'<div class="charts">{charts}</div>' if len(folders) == 1 else charts,
            sections.who_received_from_whom(folders),
            sections.not_recorded(folders),
            sections.results_table(folders),
            comparisons.classes_table(folders),
            sections.clusters_table(folders),
        ]
    )
    return markup.document(title, body)


def _overview(folders: Sequence[Folder]) -> str:
    rows = []
    for folder in folders:
        all_rows = [row for case in folder.cases for row in case.rows]
        state = "finished" if folder.is_finished else "unfinished"
        rows.append(
            [
                escape(folder.name),
                escape(folder.experiment or markup.NOTHING),
                f'<span class="{state}">{state}</span>',
                str(len(folder.cases)),
                str(len({row["run"] for row in all_rows})),
                f"{max(row['round'] for row in all_rows):,}",
                str(measures.num_agents(folder) or markup.NOTHING),
            ]
        )
    head = ["folder", "experiment", "state", "schemes", "runs", "rounds", "agents"]
    note = (
        ""
        if all(folder.is_finished for folder in folders)
        else "<p>Of an unfinished run, final values count the repetitions that have "
        "come as far as the furthest one.</p>"
    )
    return markup.table(head, rows, numbers_from=3) + note


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
    return markup.table(["", *(folder.name for folder in folders)], rows)


def _names(facts: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({name for one in facts for name in one})


def _shown(value: Any) -> str:
    return markup.NOTHING if value is None else str(value)


def folder_names(paths: Sequence[Path]) -> list[str]:
    """Last parts of the paths, or the paths where these do not tell them apart."""
    names = [path.resolve().name for path in paths]
    is_clear = len(set(names)) == len(names) and all(names)
    return names if is_clear else [str(path) for path in paths]


def main(options: Options, arguments: Sequence[str]) -> Path:
    """Writes the report on work folders.

    Args:
      options: of the command line.
      arguments: the work folders.

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
        reading.read_folder(path, name)
        for path, name in zip(paths, folder_names(paths), strict=True)
    ]
    output = Path(options.output or paths[0] / "report.html")
    html = page(folders)
    if output.is_dir():
        raise InputError(f"Need a file for --output, but {output} is a folder.")
    try:
        own_files.write_whole(output, html)
    except OSError as error:
        raise InputError(
            f"Need a file that can be written, got {output} ({error.strerror}): choose "
            "another --output."
        ) from error
    print(f"Report is in {shown(output)}")
    return output
