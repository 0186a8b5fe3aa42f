"""Draws what no program can use: flags, data files, folders.

Each function yields cases without end; `rng` decides which. A case prepares what it
needs in an empty folder and returns the program and its arguments.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiment_modules import EXPERIMENTS
from test_experiment_data import SMALL, layout

from experiments.engine.config import Common
from experiments.engine.fields import TOPICS

NO_NUMBERS = ("nan", "inf", "-inf", "1e999", "x", "", "0x10", "1,,2", "--", "1e-3e5")
NO_WORDS = ("nonsense", "", "a,b", "../..", "\N{SNOWMAN}", "x" * 5000, "ring ring")
TOOLS = ("report", "overview", "keep", "connection_scores", "task_scores")
ROW = '{"scheme": "level_80", "setting": {}, "run": 0, "round": 2, "accuracy": 0.5'
ROW += ', "bytes": 10, "messages": 3}\n'
SUMMARY = '{"experiment": "femnist", "rows": [], "environment": {}}\n'


class Case(NamedTuple):
    """A call that must be refused."""

    what: str  # for the message of a failure
    program: str
    args: tuple[str, ...]


Drawn = Callable[[Path], Case]


def _any(rng: np.random.Generator, among):
    return among[rng.integers(len(among))]


def flags(rng: np.random.Generator) -> Iterator[Drawn]:
    """Values that their flags cannot have, flags that are none, flagfiles."""
    while True:
        name = _any(rng, list(EXPERIMENTS))
        kind = EXPERIMENTS[name].config
        how = rng.choice(
            ["value", "unknown", "flagfile", "argument"], p=[0.7, *[0.1] * 3]
        )
        if how == "value":
            field = _any(rng, _checked_fields(kind))
            is_number = any(part in str(field.type) for part in ("int", "float"))
            bad = _any(rng, NO_NUMBERS if is_number else NO_WORDS)
            yield _with(name, f"--{field.name}={bad}")
        elif how == "unknown":
            bad = _any(rng, ["--unknown", "--no", "--num_agent=4", "--=3", "--lr=.1"])
            yield _with(name, bad)
        elif how == "flagfile":
            yield _flagfile(name, _any(rng, ["missing", "binary", "folder", "itself"]))
        else:
            yield _with(name, _any(rng, ["extra", "-", "seed=3", "\N{SNOWMAN}"]))


def _checked_fields(kind: type[Common]) -> list[dataclasses.Field]:
    """Fields that are numbers, or words among those that are known."""
    assert all(field.metadata["topic"] in TOPICS for field in dataclasses.fields(kind))
    found = []
    for field in dataclasses.fields(kind):
        read = field.metadata["read"]
        if read is None or field.type in ("bool", bool):
            continue
        try:
            read("nonsense")
        except ValueError:
            found.append(field)
    return found


def _with(name: str, *args: str) -> Drawn:
    return lambda folder: Case(f"{name} {args}", name, args)


def _flagfile(name: str, what: str) -> Drawn:
    def prepare(folder: Path) -> Case:
        path = folder / "my.flags"
        if what == "binary":
            path.write_bytes(bytes(range(256)) * 4)
        elif what == "folder":
            path.mkdir()
        elif what == "itself":
            path.write_text(f"--flagfile={path}\n--seed=x\n")
        return Case(f"{name}, flagfile {what}", name, (f"--flagfile={path}",))

    return prepare


def data_files(rng: np.random.Generator) -> Iterator[Drawn]:
    """Archives, images and folders of users that are damaged or lack something."""
    while True:
        name = _any(rng, list(SMALL))
        yield _data_file(name, _any(rng, list(_FILES)), int(rng.integers(2**31)))


def _data_file(name: str, what: str, seed: int) -> Drawn:
    def prepare(folder: Path) -> Case:
        path = folder / "data"
        dataset = _FILES[what](path, np.random.default_rng(seed))
        small = (*SMALL[name], *layout(name, 64, 4))
        args = (*small, f"--dataset={dataset}", f"--data_dir={path}")
        return Case(f"{name}, {what}, seed {seed}", name, args)

    return prepare


def _arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": rng.integers(0, 255, (120, 8, 8)).astype(np.uint8),
        "y": np.arange(120) % 4,
        "user": np.arange(120) // 30,
    }


def _changed_npz(change: Callable[[dict], object]):
    def write(path: Path, rng: np.random.Generator) -> str:
        arrays = _arrays(rng)
        change(arrays)
        with path.open("wb") as file:
            np.savez(file, **arrays)
        return "npz"

    return write


def _cut_npz(path: Path, rng: np.random.Generator) -> str:
    _changed_npz(lambda arrays: None)(path, rng)
    whole = path.read_bytes()
    path.write_bytes(whole[: rng.integers(len(whole) - 30)])
    return "npz"


def _set(**values):
    return lambda arrays: arrays.update(values)


def _noise(path: Path, rng: np.random.Generator) -> str:
    path.write_bytes(rng.bytes(rng.integers(2000)))
    return str(rng.choice(["npz", "tff", "leaf", "idx"]))


def _nothing(path: Path, rng: np.random.Generator) -> str:
    return str(rng.choice(["npz", "tff", "leaf", "idx"]))


def _empty_folder(path: Path, rng: np.random.Generator) -> str:
    path.mkdir()
    return str(rng.choice(["npz", "tff", "leaf", "idx"]))


def _device(path: Path, rng: np.random.Generator) -> str:
    path.symlink_to("/dev/zero")
    return str(rng.choice(["npz", "tff", "idx"]))


def _pipe(path: Path, rng: np.random.Generator) -> str:
    os.mkfifo(path)
    return str(rng.choice(["npz", "tff", "idx"]))


def _broken_users(path: Path, rng: np.random.Generator) -> str:
    path.mkdir()
    text = _any(
        rng,
        [
            "{",
            "[" * 100_000,
            '{"users": ["a"]}',
            '{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": ['
            + "9" * 400
            + "]}}}",
            '{"users": ["a"], "user_data": {"a": {"x": [[NaN]], "y": [0]}}}',
            '{"users": [{}], "user_data": 3}',
        ],
    )
    for part in ("train", "test"):
        (path / part).mkdir()
        (path / part / "users.json").write_text(text)
    return "leaf"


def _cut_images(path: Path, rng: np.random.Generator) -> str:
    path.mkdir()
    header = np.array([2051, 10**9, 28, 28], ">i4").tobytes()
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        (path / name).write_bytes(header + rng.bytes(500))
    for name in ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"):
        (path / name).write_bytes(np.array([2049, 9], ">i4").tobytes() + rng.bytes(9))
    return "idx"


_FILES = {
    "a cut archive": _cut_npz,
    "no labels": _changed_npz(lambda arrays: arrays.pop("y")),
    "labels of another length": _changed_npz(_set(y=np.arange(7))),
    "labels below zero": _changed_npz(_set(y=np.arange(120) - 3)),
    "labels that are no whole numbers": _changed_npz(_set(y=np.arange(120) / 7)),
    "labels beyond the classes": _changed_npz(_set(num_classes=np.array(2))),
    "labels in a table": _changed_npz(_set(y=np.zeros((120, 2), int))),
    "inputs that are not finite": _changed_npz(_set(x=np.full((120, 8, 8), np.nan))),
    "inputs that are words": _changed_npz(_set(x=np.full((120, 8, 8), "a"))),
    "inputs that are objects": _changed_npz(
        _set(x=np.array([{} for _ in range(120)], object))
    ),
    "no examples": _changed_npz(_set(x=np.zeros((0, 8, 8)), y=np.zeros(0, int))),
    "users of another length": _changed_npz(_set(user=np.arange(3))),
    "a split that is none": _changed_npz(_set(split=np.full(120, 7))),
    "noise": _noise,
    "nothing": _nothing,
    "an empty folder": _empty_folder,
    "a device": _device,
    "a pipe": _pipe,
    "users in broken JSON": _broken_users,
    "images that are cut off": _cut_images,
}


def work_folders(rng: np.random.Generator) -> Iterator[Drawn]:
    """Folders in which no run can start or go on."""
    while True:
        name = _any(rng, list(EXPERIMENTS))
        what = _any(rng, list(_FOLDERS))
        yield _work_folder(name, what)


def _work_folder(name: str, what: str) -> Drawn:
    def prepare(folder: Path) -> Case:
        path = folder / "run"
        workdir, *more = _FOLDERS[what](path)
        return Case(f"{name}, {what}", name, (f"--workdir={workdir}", *more))

    return prepare


def _holding(names: dict[str, str | bytes | None], *more: str):
    """A folder with these files; None is a folder."""

    def prepare(path: Path) -> tuple:
        path.mkdir()
        for name, content in names.items():
            if content is None:
                (path / name).mkdir()
            elif isinstance(content, bytes):
                (path / name).write_bytes(content)
            else:
                (path / name).write_text(content)
        return (path, *more)

    return prepare


def _file(path: Path) -> tuple:
    path.write_text("mine")
    return (path,)


def _below_a_file(path: Path) -> tuple:
    path.write_text("mine")
    return (path / "deeper",)


def _circle(path: Path) -> tuple:
    path.symlink_to(path)
    return (path,)


_FOLDERS = {
    "a file": _file,
    "below a file": _below_a_file,
    "a circle of links": _circle,
    "too long a name": lambda path: (path / ("x" * 300),),
    "foreign files": _holding({"notes.txt": "mine"}),
    "foreign rows": _holding({"metrics.jsonl": ROW}),
    "another run": _holding({"run.flags": "--seed=3\n", "metrics.jsonl": ROW}),
    "checkpoints alone": _holding({"checkpoints": None}),
    "nothing to resume": lambda path: (path, "--resume"),
    "an empty one to resume": _holding({}, "--resume"),
    "rows alone to resume": _holding({"metrics.jsonl": ROW}, "--resume"),
    "other flags to resume": _holding({"run.flags": "--seed=77\n"}, "--resume"),
    "noise to resume": _holding({"run.flags": bytes(range(256)) * 9}, "--resume"),
    "a folder as flags": _holding({"run.flags": None}, "--resume"),
    "a name with a zero": lambda path: (f"{path}\0x",),
}


def run_folders(rng: np.random.Generator) -> Iterator[Drawn]:
    """Run folders that no program can read."""
    while True:
        yield _run_folder(_any(rng, TOOLS), _any(rng, list(_CONTENTS)))


def _run_folder(tool: str, what: str) -> Drawn:
    def prepare(folder: Path) -> Case:
        path = folder / "run"
        if _CONTENTS[what] is not None:
            _holding(_CONTENTS[what])(path)
        first = ("femnist.level", f"--results={folder / 'kept'}")
        args = (*(first if tool == "keep" else ()), str(path))
        if tool in ("report", "overview"):
            flag = "output" if tool == "report" else "figure"
            args += (f"--{flag}={folder / 'out.html'}",)
        return Case(f"{tool}, {what}", tool, args)

    return prepare


def _run(**changes) -> dict[str, str | bytes | None]:
    """A folder of a finished run that says nothing, with changes."""
    whole = {"run.flags": "--seed=0\n", "metrics.jsonl": ROW, "summary.json": SUMMARY}
    changed = {name.replace("_", "."): content for name, content in changes.items()}
    return {name: text for name, text in (whole | changed).items() if text != "none"}


_CONTENTS: dict[str, dict | None] = {
    "no folder": None,
    "an empty folder": {},
    "no rows": _run(metrics_jsonl=""),
    "rows that are noise": _run(metrics_jsonl=bytes(range(256))),
    "rows that are cut": _run(metrics_jsonl=ROW[:-20] + "\n" + ROW),
    "rows that are lists": _run(metrics_jsonl="[1, 2]\n"),
    "rows that are deep": _run(metrics_jsonl="[" * 100_000 + "\n"),
    "rows of other kinds": _run(metrics_jsonl=ROW.replace('"run": 0', '"run": "a"')),
    "rows with long numbers": _run(
        metrics_jsonl=ROW.replace('"run": 0', f'"run": {"9" * 9000}')
    ),
    "rows as a folder": _run(metrics_jsonl=None),
    "a summary that is cut": _run(summary_json=SUMMARY[:20]),
    "a summary that is deep": _run(summary_json='{"rows": ' + "[" * 100_000),
    "a summary that is a list": _run(summary_json="[]"),
    "a summary that is noise": _run(summary_json=bytes(range(256))),
    "a summary as a folder": _run(summary_json=None),
}
