"""Run folders that are damaged, foreign or unfinished: refused in one sentence."""

import csv
import errno
import io
import json
import re
import runpy
import shutil
import stat
import sys

import experiment_modules
import pytest
from damages import (
    AGAIN,
    KEPT,
    LEDGERS,
    LINKS,
    NEEDED,
    NEEDED_OF_SUMMARIES,
    OF_ANY_FILE,
    OF_JSON,
    ROWS,
    SIDES,
    SUMMARIES,
    replaced_by,
    with_row,
    with_side,
)
from run_folders import OF_RUNS, OF_TREES, TASKS, place_of, write_good, write_tree
from toy_jobs import toy_jobs

from experiments.engine import command, config, own_files, runner, untrusted_files
from experiments.report import markup
from p2pjax.types import InputError

PROGRAMS = OF_RUNS | OF_TREES


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Folders that are copied to be damaged."""
    folder = tmp_path_factory.mktemp("good")
    return {
        "runs": write_good(folder / "runs", {}),
        "tasks": write_good(folder / "tasks", TASKS),
        "trees": write_tree(folder / "trees"),
    }


@pytest.fixture
def copied(good, tmp_path):
    """A good folder for a program."""

    def copy(program):
        (tmp_path / "output").mkdir(exist_ok=True)
        kind = "tasks" if program == "task_scores" else "runs"
        source = good["trees" if program in OF_TREES else kind]
        return shutil.copytree(source, tmp_path / "folder", dirs_exist_ok=True)

    return copy


def contents(folder):
    """Files below a folder with their bytes; of links, pipes and others the kind."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size < 10**7
        else path.lstat().st_mode
        for path in folder.rglob("*")
    }


@pytest.fixture
def problem_of(tmp_path, capsys):
    """Why a program does not refuse a folder in one sentence; "" if it does."""

    def run(program, folder, words=""):
        before = contents(tmp_path)
        try:
            PROGRAMS[program].run(folder, tmp_path / "output")
        except SystemExit as ended:
            status = ended.code
        except Exception as error:
            capsys.readouterr()
            return f"{type(error).__name__}: {error}"[:80]
        else:
            status = 0
        out, err = capsys.readouterr()
        if status != 2:
            return f"ends with status {status}"
        if not (err.endswith(".\n") and err[:-1].isprintable() and len(err) < 1000):
            return f"says {err!r}"
        if out or words not in err:
            return f"says {err!r} and {out!r} without {words!r}"
        return "" if contents(tmp_path) == before else "wrote something"

    return run


@pytest.fixture
def problems(copied, problem_of):
    """Damages a file in several ways; tells of those that are not refused."""

    def run(program, name, changes, words=None):
        folder = copied(program)
        path = place_of(folder, name)
        whole, found = path.read_bytes(), {}
        for what, change in changes.items():
            change(path)
            problem = problem_of(program, folder, words or name)
            if problem:
                found[what] = problem
            for left in (path, path.with_name("elsewhere")):
                if left.is_dir() and not left.is_symlink():
                    left.rmdir()
                else:
                    left.unlink(missing_ok=True)
            path.write_bytes(whole)
        return found

    return run


def test_item_13_good_folders_are_read(copied, tmp_path, capsys):
    for program, found in PROGRAMS.items():
        folder = copied(program)
        found.run(folder, tmp_path / "output")
        assert capsys.readouterr().out
        shutil.rmtree(folder)


FILES = [(program, name) for program, found in PROGRAMS.items() for name in found.reads]


@pytest.mark.parametrize(("program", "name"), FILES)
def test_item_13_damaged_files(problems, program, name):
    changes = OF_ANY_FILE | (OF_JSON if name.endswith(("json", "jsonl")) else {})
    if name == "links.jsonl":
        del changes["empty"]  # no agent has peers
    assert problems(program, name, changes) == {}


# Of a run folder these may be missing: no agent has peers, the run has not ended, or is
# so old that it did not say its flags.
OPTIONAL = {("report", name) for name in ("links.jsonl", "summary.json", "run.flags")}


@pytest.mark.parametrize(("program", "name"), FILES)
def test_item_13_missing_files_and_files_of_others(
    copied, problem_of, program, name, monkeypatch
):
    folder, open_file = copied(program), own_files.open_file

    def denied(path, flags):
        """Whoever runs the tests may be allowed to read everything."""
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(own_files, "open_file", denied)
        words = f"{name} cannot be read (Permission denied)"
        assert problem_of(program, folder, words) == ""
    if (program, name) not in OPTIONAL:
        place_of(folder, name).unlink()
        assert problem_of(program, folder, f"has no {name}") == ""


@pytest.mark.parametrize("program", OF_RUNS)
def test_item_13_folders_that_are_none(problem_of, program, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for folder, words in (
        ("missing", "is no folder"),
        ("file", "is no folder"),
        ("empty", "has no "),
        ("x" * 300, "cannot be read"),
    ):
        assert problem_of(program, tmp_path / folder, words) == ""


LINES = {"metrics.jsonl": ROWS, "links.jsonl": LINKS, "runs.jsonl": KEPT}


@pytest.mark.parametrize(
    ("program", "name"), [(program, name) for program, name in FILES if name in LINES]
)
def test_item_13_lines_that_no_run_writes(problems, program, name):
    own = NEEDED.get(program, {}) if name == "metrics.jsonl" else {}
    assert problems(program, name, LINES[name] | own, "but line 2 of ") == {}
    again = AGAIN if name == "metrics.jsonl" else {"twice": AGAIN["twice"]}
    assert problems(program, name, again, "but line 3 of ") == {}


@pytest.mark.parametrize("program", [p for p, name in FILES if name == "summary.json"])
def test_item_13_summaries_that_no_run_writes(problems, program):
    changes = SUMMARIES | NEEDED_OF_SUMMARIES.get(program, {})
    assert problems(program, "summary.json", changes) == {}
    if program == "overview":
        unknown = {"a scheme without rows": with_row(scheme="other")}
        words = "metrics.jsonl has none of other"
        assert problems(program, "summary.json", unknown, words) == {}


@pytest.mark.parametrize("program", [p for p, name in FILES if name == "run.flags"])
def test_item_13_flags_that_no_run_writes(problems, program):
    lines = ("no flag", "--seed", "--=3", "-x=3", "--other=1\n--other=2", "# comment")
    changes = {
        line: lambda path, line=line: path.write_text(f"--seed=3\n--nox\n{line}\n")
        for line in lines
    }
    words = "Need a flag of its own in every line, but line "
    assert problems(program, "run.flags", changes, words) == {}


def test_item_13_flags_of_other_kinds(problems):
    values = {
        "num_rounds": ("x", "", "0.5", "9" * 5000),
        "num_runs": ("-1", "1e9", "٣"),
        "first_run": ("two",),
        "train_size": ("many",),
        "max_train": ("0.5", "nan"),
    }

    def with_flag(name, value):
        def change(path):
            lines = [x for x in path.read_text().splitlines() if f"--{name}=" not in x]
            path.write_text("\n".join([*lines, f"--{name}={value}"]) + "\n")

        return change

    for name, some in values.items():
        changes = {value: with_flag(name, value) for value in some}
        words = f"as its --{name}"
        assert problems("connection_scores", "run.flags", changes, words) == {}


def test_item_13_runs_of_one_method_need_the_same_rounds(problems):
    def without_first(path):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))

    changes = {"no first line": without_first}
    words = "has runs of nothing with other rounds than its first"
    assert problems("connection_scores", "metrics.jsonl", changes, words) == {}


@pytest.mark.parametrize("program", ["report", "connection_scores", "task_scores"])
def test_item_13_the_last_line_of_an_unfinished_run(copied, program, tmp_path, capsys):
    """Is left out if it is cut, however it is cut."""
    folder = copied(program)
    (folder / "summary.json").unlink()
    paths = [folder / name for name in ("metrics.jsonl", "links.jsonl")]
    whole = [path.read_bytes() for path in paths]
    PROGRAMS[program].run(folder, tmp_path / "output")
    expected = capsys.readouterr().out, contents(tmp_path / "output")
    more = '{"scheme": "späte", "setting": {}, "run": 5, "round": 1, "x"'.encode()
    for cut in (1, 15, 16, len(more)):  # 15 is inside of a letter
        for path, before in zip(paths, whole, strict=True):
            path.write_bytes(before + more[:cut])
        PROGRAMS[program].run(folder, tmp_path / "output")
        assert (capsys.readouterr().out, contents(tmp_path / "output")) == expected


def test_item_13_ledgers_that_cannot_be_used(problems):
    changes = {what: replaced_by(text.encode()) for what, text in LEDGERS.items()}
    changes |= {text[:60]: with_side(text) for text in SIDES}
    assert problems("claims", "claims.toml", changes, " ") == {}


def test_item_13_values_that_were_not_measured(copied, tmp_path, capsys):
    """Curves of null, which runs that diverge have, are no reason to refuse."""
    for program in OF_TREES:
        folder = copied(program)
        path = place_of(folder, "runs.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[:3]:
            row["accuracy"] = [None] * len(row["round"])
        del rows[-1]["accuracy"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        PROGRAMS[program].run(folder, tmp_path / "output")
        assert capsys.readouterr().out
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        *((f"{mark}cmd|' /C calc'!A0", True) for mark in "=+-@\t\r"),
        *(("-1.5", False), ("+3", False), ("-2e-05", False), ("level_80", False)),
        *(("-inf", True), ("--1", True), ("-1+1", True), ("a=1", False)),
    ],
)
def test_item_9_cells_of_the_csv_are_no_formulas(cell, expected):
    row = {"folder": cell, "scheme": cell, "setting": cell, "median": -0.5}
    written = markup.csv_text(list(row), [row])
    (found,) = csv.DictReader(io.StringIO(written, newline=""))
    for name in ("folder", "scheme", "setting"):
        assert found[name] == ("'" * expected) + cell.replace("\r", " ")
    assert found["median"] == "-0.5"


def test_item_9_a_report_on_formulas(good, tmp_path, capsys):
    folder = shutil.copytree(good["runs"], tmp_path / "=folder")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"part"', '"=1+1"'))
    OF_RUNS["report"].run(folder, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "\n&#x27;=1+1," in page and "\n=1+1," not in page


def test_item_13_nothing_reaches_the_terminal_raw(good, tmp_path, capsys):
    """Names of folders are whatever an archive had."""
    name = "\x1b]0;title\x07\x9b2J\udcff"
    folder = shutil.copytree(good["runs"], tmp_path / name)
    for program in ("report", "connection_scores"):
        OF_RUNS[program].run(folder, tmp_path)
    with pytest.raises(SystemExit):
        OF_RUNS["task_scores"].run(folder / "missing", tmp_path)
    with pytest.raises(SystemExit):
        OF_RUNS["overview"].run(folder, tmp_path / name / "missing")
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "\\x1b]0;title\\x07\\x9b2J\\udcff" in said.out


PROGRAM_NAMES = [
    ".".join(path.relative_to(experiment_modules.ROOT).with_suffix("").parts)
    for path in sorted((experiment_modules.ROOT / "experiments").rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
    # started by others, with a sentence and with the flags of an experiment
    and path.name not in ("last_words.py", "counted_run.py")
]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_item_13_unknown_flags(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.app, "run", lambda main, argv: main(argv))
    monkeypatch.setattr(command, "_hush_libraries", lambda: None)
    for flag in ("--no_such_flag", "--no_such_flag=3", "-z"):
        monkeypatch.setattr(sys, "argv", [name, flag])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__")
        said = capsys.readouterr()
        assert ended.value.code == 2
        assert said.err.count("\n") == 1 and said.out == ""
        assert flag.strip("-").partition("=")[0] in said.err
    assert not list(tmp_path.iterdir())


def test_item_13_flagfiles_that_are_no_text(copied, tmp_path, capsys):
    for content in (b"\xff\xfe--seed\0", b"--output=\0\n"):
        (tmp_path / "x.flags").write_bytes(content)
        with pytest.raises(SystemExit) as ended:
            OF_RUNS["report"].run(f"--flagfile={tmp_path / 'x.flags'}", tmp_path)
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_item_13_files_and_lines_are_bounded(problems, monkeypatch):
    whole = {"as it is": lambda path: None}
    monkeypatch.setattr(untrusted_files, "MOST_OF_A_LINE", 100)
    words = "but line 1 of "
    assert problems("task_scores", "metrics.jsonl", whole, words) == {}
    monkeypatch.setattr(untrusted_files, "MOST_BYTES", 1000)
    words = "bytes, more than 1000: "
    assert problems("task_scores", "metrics.jsonl", whole, words) == {}


@pytest.mark.parametrize("program", ["task_scores", "connection_scores", "keep"])
def test_item_13_columns_of_ones_own_are_read(copied, program, tmp_path, capsys):
    """Also numbers of models that diverge, which are long integers."""
    folder = copied(program)
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    own = {"own": int(3e38), "lists": [[1, None], [0.5]], "nothing": None}
    path.write_text("".join(json.dumps(row | own) + "\n" for row in rows))
    PROGRAMS[program].run(folder, tmp_path / "output")
    assert capsys.readouterr().out
    if program == "keep":
        kept = tmp_path / "output" / "toy.good" / "runs.jsonl"
        line = json.loads(kept.read_text().splitlines()[0])
        assert line["unchanged"]["own"] == int(3e38) and "lists" not in line


def test_item_13_there_is_one_reader():
    """Others that read files read none of run folders."""
    others = {
        "bench/counted_run.py",  # tells how it is started
        "bench/estimates.py",  # what the system says of this process
        "bench/harness.py",  # answers of processes that it started
        "bench/p2pjax_first_result.py",  # what runs that it started counted
        "bench/worker.py",
        "claims/__main__.py",  # compares a page
        "claims/ledger.py",  # TOML, of a text from the one reader
        "engine/command.py",  # the code itself
        "engine/compile_cache.py",  # which CPU it is
        "engine/flagfiles.py",  # which the user names, also by links
        "engine/mapped_memory.py",  # what the process has mapped
        "engine/own_files.py",  # opens files for others
        "engine/processes.py",  # what other processes of a run say
        "engine/untrusted_files.py",
        "equality/__main__.py",  # compares a page
        "equality/quadratics.py",  # numbers of the tests
    }
    reads = re.compile(r"json\.loads?\(|tomllib|read_text\(|read_bytes\(|\bopen\(")
    folder = experiment_modules.ROOT / "experiments"
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if reads.search(path.read_text())
    }
    assert found <= others


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """A folder of jobs that compile in no time, and what runs or resumes them."""
    kind = experiment_modules.EXPERIMENTS["femnist"].config
    flags = ("--num_rounds=3", "--eval_every=1", "--checkpoint_every=1")

    def run(folder, *args):
        own = [*flags, "--num_devices=1", f"--workdir={folder}", *args]

        def start():
            settled = command.settle(config.parse(kind, own))
            runner.run_jobs(settled, "toys", toy_jobs(settled), ("accuracy",))

        command.guarded(start)

    folder = tmp_path_factory.mktemp("toys") / "run"
    run(folder)
    return folder, run


def test_item_13_what_could_not_be_read_again_is_not_run(tmp_path):
    kind = experiment_modules.EXPERIMENTS["femnist"].config
    flags = [f"--workdir={tmp_path / 'run'}", "--num_rounds=1", "--num_devices=1"]
    settled = command.settle(config.parse(kind, flags))
    job, *_ = toy_jobs(settled)
    for jobs, words in (
        ([job, job], f"run 0 of {job.scheme} twice"),
        ([job._replace(scheme="\x1b[0m")], "as its scheme"),
        ([job._replace(setting={"a": {"b": 1}})], "as its setting"),
    ):
        with pytest.raises(InputError, match=words):
            runner.run_jobs(settled, "toys", jobs, ("accuracy",))
    assert not (tmp_path / "run").exists()


RESUMED = {
    "position.json": ("deep lists", "deep lists, closed", "binary", "pipe"),
    "checksums.json": ("deep objects", "folder"),
    "description.json": ("deep lists",),
}
NOT_RESUMED = {
    "run.flags": ("binary", "deep lists", "pipe", "link", "too large"),
    "metrics.jsonl": ("binary", "pipe", "folder"),
}


@pytest.mark.parametrize("name", RESUMED)
def test_item_13_resume_from_the_checkpoint_before(toys, tmp_path, name):
    good, run = toys
    for damage in RESUMED[name]:
        folder = shutil.copytree(good, tmp_path / damage)
        every = sorted((folder / "checkpoints").iterdir(), key=lambda p: int(p.name))
        OF_ANY_FILE[damage](every[-1] / name)
        run(folder, "--resume")
        same = (folder / "metrics.jsonl").read_bytes()
        assert same == (good / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("name", NOT_RESUMED)
def test_item_13_resume_refuses(toys, tmp_path, capsys, name):
    good, run = toys
    for damage in NOT_RESUMED[name]:
        folder = shutil.copytree(good, tmp_path / damage)
        OF_ANY_FILE[damage](folder / name)
        with pytest.raises(SystemExit) as ended:
            run(folder, "--resume")
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert str(folder) in said.splitlines()[-1] and "Traceback" not in said
