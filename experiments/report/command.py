"""The page as a whole, and the command that writes it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from absl import flags

from experiments import common, run_folder
from experiments.report import markup, measures, reading, sections
from experiments.report.reading import Folder
from p2pjax.types import InputError

FLAGS = flags.FLAGS

_OUTPUT = flags.DEFINE_string(
    "output", None, "The page; report.html in the first work folder if not given."
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
        reading.read_folder(path, name)
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
