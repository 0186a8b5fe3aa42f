"""Good run folders and kept studies, and all programs that read them."""

from typing import NamedTuple

from experiment_modules import run_tool
from report_pages import json_line

import experiments.report.command
from experiments import connection_scores, overview, task_scores
from experiments.claims import __main__ as claims
from experiments.connections import scores as connections
from experiments.engine.summary import summarize
from experiments.keep import __main__ as keep
from experiments.keep import kept_study
from experiments.multi_task import scores as multi_task
from experiments.tables import __main__ as tables
from experiments.tables import render

FLAGS = (
    "--study=rotation\n--num_clusters=2\n--nobilevel\n--num_rounds=20\n--num_runs=2\n"
)
TASKS = {"tasks": "tags", "graph": "random"}
LEDGER = """
[study."toy.good"]
rounds = 20
core_hours = 1

[[claim]]
id = "c"
source = "s"
place = "p"
statement = "t"
kind = "order"
metric = "accuracy"
setting = ""
printed = ""
needs = ""

[[claim.part]]
study = "toy.good"
is = "greater"
left = { scheme = "part" }
right = { best_of = ["nothing", "everything"], minus = { value = 0.1 } }

[[claim.part]]
study = "toy.good"
is = "less"
left = { scheme = "part", metric = "bytes", at = "best" }
right = { scheme = "everything", agent = 1 }

[[claim.part]]
study = "toy.good"
is = "rises"
over = "round"
values = [10, 20]
left = { scheme = "part", ratio_to = { scheme = "nothing" } }
"""


def good_rows(setting):
    """Evaluations of two runs of schemes that send nothing, a part and everything."""
    return [
        {
            "scheme": scheme,
            "setting": setting,
            "run": run,
            "round": number,
            "accuracy": 0.5 + sent / 10 + run / 100 + number / 1000,
            "loss": 1.5,
            "messages": sent * number,
            "bytes": 4 * sent * number,
            "f1_tags": 0.25 + number / 100,
            **({"gini": 0.125, "in_cluster": 0.5} if sent else {}),
            "class_accuracy": [0.5, None],
            "agent_accuracy": [0.5, 0.625, 0.5, 0.375],
            "agent_messages": [sent * number] * 4,
        }
        for sent, scheme in enumerate(("nothing", "part", "everything"))
        for run in (0, 1)
        for number in (10, 20)
    ]


def good_links(setting):
    """Who received from whom in these runs."""
    return [
        {
            "scheme": scheme,
            "setting": setting,
            "run": run,
            "cluster": [0, 0, 1, 1],
            "links": [[0, 1, 20], [1, 2, 20], [2, 3, 40], [3, 0, 20]],
        }
        for scheme in ("part", "everything")
        for run in (0, 1)
    ]


def write_good(path, setting):
    """A finished run folder that all programs can read."""
    path.mkdir(parents=True)
    (path / "run.flags").write_text(FLAGS)
    for name, rows in (
        ("metrics.jsonl", good_rows(setting)),
        ("links.jsonl", good_links(setting)),
    ):
        (path / name).write_text("".join(map(json_line, rows)))
    summarize(path, "toy", ("accuracy", "loss", "messages", "bytes"))
    return path


def write_tree(path):
    """A checkout with one experiment, its kept study and a ledger of claims."""
    run = write_good(path / "run", {})
    results = path / "tree" / "results"
    kept_study.keep("toy.good", [run], results, False)
    (results / "claims.toml").write_text(LEDGER)
    toy = path / "tree" / "experiments" / "toy"
    toy.mkdir(parents=True)
    (toy / "study.py").touch()
    (toy / "RESULTS.md").write_text(f"# Toy\n{render.BEGIN}\n{render.END}\n")
    (path / "tree" / "README.md").write_text(
        "<!-- totals of claims --><!-- end of totals -->\n"
    )
    return path / "tree"


class Program(NamedTuple):
    """A program that reads run folders, or a tree with kept studies."""

    reads: tuple[str, ...]  # names of files
    run: object  # of the folder or tree, and another folder for what it writes


def _claims(tree, output):
    paths = ("results", "docs", "readme")
    places = (tree / "results", output / "docs", tree / "README.md")
    flags = [f"--{flag}={p}" for flag, p in zip(paths, places, strict=True)]
    run_tool(claims.Options, claims.main, *flags)


def _tables(tree, output):
    del output
    tables.ROOT, before = tree, tables.ROOT
    try:
        run_tool(tables.Options, tables.main)
    finally:
        tables.ROOT = before


OF_RUNS = {
    "report": Program(
        ("metrics.jsonl", "links.jsonl", "summary.json", "run.flags"),
        lambda folder, output: run_tool(
            experiments.report.command.Options,
            experiments.report.command.main,
            folder,
            f"--output={output / 'report.html'}",
        ),
    ),
    "overview": Program(
        ("metrics.jsonl", "summary.json"),
        lambda folder, output: run_tool(
            overview.Options,
            lambda options, folders: overview.main(folders, options.figure),
            folder,
            f"--figure={output / 'overview.svg'}",
        ),
    ),
    "connection_scores": Program(
        ("metrics.jsonl", "run.flags"),
        lambda folder, output: run_tool(
            connection_scores.Options,
            lambda _, folders: connections.print_scores(folders),
            folder,
        ),
    ),
    "task_scores": Program(
        ("metrics.jsonl",),
        lambda folder, output: run_tool(
            task_scores.Options,
            lambda _, folders: multi_task.print_table(folders),
            folder,
        ),
    ),
    "keep": Program(
        ("metrics.jsonl", "summary.json", "run.flags"),
        lambda folder, output: run_tool(
            keep.Options, keep.main, "toy.good", folder, f"--results={output}"
        ),
    ),
}
OF_TREES = {
    "claims": Program(("runs.jsonl", "claims.toml"), _claims),
    "tables": Program(("runs.jsonl", "summary.json", "run.flags"), _tables),
}


def place_of(folder, name):
    """Where a file of this name is, in a run folder or in a tree."""
    if not (folder / "results").exists():
        return folder / name
    kept = folder / "results"
    return kept / name if name == "claims.toml" else kept / "toy.good" / name
