"""Runs, folders and checkpoints under misuse and faults: refused in one sentence."""

import copy
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from settings import TINY
from toy_jobs import toy_jobs

from experiments.engine import (
    command,
    config,
    fitting,
    mapped_memory,
    own_files,
    positions,
    run_folder,
    runner,
    stops,
)
from experiments.engine.jobs import Measurement
from p2pjax import checkpoint
from p2pjax.checkpoint import Checkpoint
from p2pjax.types import InputError

ROOT = Path(__file__).parents[1]
# Two schemes of one run, five evaluations each.
ARGS = ("--num_rounds=5", "--eval_every=1", "--checkpoint_every=2", "--num_devices=2")


@pytest.fixture
def run_toys(parse, tmp_path):
    """Runs jobs that compile in no time; returns the run folder."""

    def run(*args, workdir="run"):
        folder = tmp_path / workdir

        def start():
            settled = parse(*ARGS, f"--workdir={folder}", *args)
            runner.run_jobs(settled, "toys", toy_jobs(settled), ("accuracy",))

        command.guarded(start)
        return folder

    return run


def test_programs_are_forgotten_before_there_are_too_many_maps(run_toys, monkeypatch):
    """Beyond 65530 maps XLA would end the process; the same bytes without programs."""
    whole = run_toys(workdir="whole")
    assert not mapped_memory.make_room()  # a few programs stay
    monkeypatch.setattr(mapped_memory.make_room, "__defaults__", (0,))
    forgotten = []
    clear = jax.clear_caches
    monkeypatch.setattr(jax, "clear_caches", lambda: forgotten.append(clear()))
    again = run_toys(workdir="again")
    assert len(forgotten) == 2  # before each of two schemes
    found = [(folder / "metrics.jsonl").read_bytes() for folder in (whole, again)]
    assert found[0] == found[1]


@pytest.fixture
def refused(run_toys, capsys):
    """What a run that is refused says."""

    def run_refused(*args, status=2, **options):
        with pytest.raises(SystemExit) as ended:
            run_toys(*args, **options)
        said = capsys.readouterr().err
        assert ended.value.code == status, said
        assert said.count("\n") == 1
        return said

    return run_refused


def contents(folder):
    """All files of a folder, with their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def stop_at_row(monkeypatch, number, error=KeyboardInterrupt):
    """Makes the row `number` fail."""
    append, rows = run_folder.append, []

    def failing(folder, name, row):
        rows.append(row)
        if len(rows) == number:
            raise error
        append(folder, name, row)

    monkeypatch.setattr(run_folder, "append", failing)


def test_item_2_a_new_run_needs_an_empty_folder(run_toys, refused):
    folder = run_toys()
    (folder / "run.flags").unlink()
    before = contents(folder)
    said = refused()
    assert said.startswith(f"Need a new or an empty work folder, but {folder} holds ")
    assert contents(folder) == before
    (folder.parent / "empty").mkdir()
    assert (run_toys(workdir="empty") / "summary.json").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "links.jsonl", "notes.txt"])
def test_item_2_foreign_files_are_not_touched(refused, tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine\n")
    assert f"holds {name}: choose another --workdir" in refused()
    assert contents(tmp_path / "run") == {name: b"mine\n"}


def test_item_2_a_vocabulary_may_be_there(run_toys, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "vocabulary.txt").write_text("a\n")
    assert (run_toys() / "summary.json").exists()


def test_item_2_ids_tell_what_determines_the_rows(parse):
    def id_of(*args, experiment="femnist"):
        return config.run_id(parse(*ARGS, *args), experiment)

    for same in (
        "--workdir=elsewhere",
        "--resume",
        "--checkpoint_every=3",
        "--num_devices=1",
        "--runs_at_once=2",
        "--agent_loop=0",
        "--tensorboard",
        "--verbosity=-1",
    ):
        assert id_of(same) == id_of(), same
    others = ("--seed=1", "--learning_rate=0.2", "--num_runs=2", "--eval_every=2")
    ids = {id_of(other) for other in others}
    assert len(ids | {id_of(), id_of(experiment="mnist")}) == len(others) + 2


def test_item_2_checkpoints_and_summary_have_the_id(run_toys, parse, monkeypatch):
    one, other = run_toys(workdir="one"), run_toys(workdir="other")
    expected = config.run_id(parse(*ARGS), "toys")
    assert json.loads((one / "summary.json").read_text())["id"] == expected
    for name in ("summary.json", *runner.ROW_FILES):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    (_, last) = checkpoint.numbers(one / "checkpoints")
    for name in ("one", "other"):
        path = one.parent / name / "checkpoints" / str(last) / "position.json"
        assert json.loads(path.read_text())["id"] == expected
    monkeypatch.setattr(config.p2pjax, "__version__", "0.0.0")
    assert config.run_id(parse(*ARGS), "toys") != expected


def test_item_2_a_checkpoint_of_another_id_is_refused(run_toys, refused):
    """Moved from the folder of another run, of the same shapes."""
    folder, other = run_toys(), run_toys("--seed=1", workdir="other")
    (folder / "checkpoints").rename(folder.parent / "away")
    (other / "checkpoints").rename(folder / "checkpoints")
    before = contents(folder)
    said = refused("--resume")
    assert "belongs to a different run: its id is another" in said
    assert "other flags or by another version of p2pjax" in said
    assert {n: b for n, b in contents(folder).items() if n != "lock"} == before


def with_other_digits(path, line_number):
    """Changes a digit of a line of a file, not its length."""
    lines = path.read_text().splitlines(keepends=True)
    line = lines[line_number]
    place = line.index('"accuracy": 0.') + len('"accuracy": 0.')
    digit = "1" if line[place] != "1" else "2"
    lines[line_number] = line[:place] + digit + line[place + 1 :]
    path.write_text("".join(lines))


def test_item_5_rows_changed_since_the_last_checkpoint_but_one(
    run_toys, monkeypatch, caplog
):
    """The one before has not seen them yet, so that the run goes on from there."""
    whole = run_toys(workdir="whole")
    with monkeypatch.context() as patched:
        stop_at_row(patched, 5)
        with pytest.raises(SystemExit):
            run_toys()
    folder = whole.parent / "run"
    assert checkpoint.numbers(folder / "checkpoints") == [2, 4]
    with_other_digits(folder / "metrics.jsonl", 3)
    run_toys("--resume")
    assert "metrics.jsonl was changed: its first" in caplog.text
    assert "Falling back to the previous checkpoint" in caplog.text
    for name in runner.ROW_FILES:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("name", runner.ROW_FILES)
def test_item_5_rows_changed_before_all_checkpoints_are_refused(
    run_toys, refused, name, caplog
):
    folder = run_toys()
    path = folder / name
    if name == "metrics.jsonl":
        with_other_digits(path, 0)
    else:
        path.write_text(path.read_text().replace('"run": 0', '"run": 1'))
    before = contents(folder)
    said = refused("--resume").splitlines()[-1]
    assert said.startswith(f"Need the rows of {folder} as the run wrote them to resume")
    assert f"{name} was changed" in caplog.text
    assert {n: b for n, b in contents(folder).items() if n != "lock"} == before


def test_item_5_rows_changed_while_the_run_goes_on(run_toys, monkeypatch, caplog):
    """The checksum is of what was written, not of what a checkpoint finds."""
    append = run_folder.append

    def meddled(folder, name, row):
        append(folder, name, row)
        if name == "metrics.jsonl" and row["round"] == 3:
            with_other_digits(folder / name, -1)

    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "append", meddled)
        folder = run_toys()
    with pytest.raises(SystemExit):
        run_toys("--resume")
    assert "metrics.jsonl was changed" in caplog.text
    assert folder.exists()


def rewritten(path, position):
    """Puts another position into a checkpoint, with checksums that fit."""
    (path / "position.json").write_text(json.dumps(position))
    sums = json.loads((path / "checksums.json").read_text())
    sums["position.json"] = sha256((path / "position.json").read_bytes()).hexdigest()
    (path / "checksums.json").write_text(json.dumps(sums))


def newest(folder):
    number = checkpoint.numbers(folder / "checkpoints")[-1]
    return folder / "checkpoints" / str(number)


@pytest.mark.parametrize("key", ["rows", "bytes"])
def test_item_7_a_checkpoint_cannot_name_files(run_toys, tmp_path, key):
    victim = tmp_path / "victim.txt"
    victim.write_text("precious\n")
    folder = run_toys()
    rows = (folder / "metrics.jsonl").read_bytes()
    path = newest(folder)
    position = json.loads((path / "position.json").read_text())
    empty = sha256(b"").hexdigest()
    position[key] = {str(victim): [0, empty], "../victim.txt": [0, empty]}
    rewritten(path, position)
    run_toys("--resume")
    assert victim.read_text() == "precious\n"
    assert (folder / "metrics.jsonl").read_bytes() == rows


TALLY = {
    "num_rounds": 2,
    "sent": [1.0, 2.0],
    "payload": 1.5,
    "delivered": 0.0,
    "links": [[0, 1, 3]],
    "merged": None,
}
POSITION = {
    "id": "0" * 64,
    "tallies": [TALLY],
    "used": {"steps": 1, "examples": 2, "messages": 3, "bytes": 4, "time": 0.5},
    "rows": {name: [7, "f" * 64] for name in runner.ROW_FILES},
}


@pytest.mark.parametrize(
    "where, value",
    [
        ((), []),
        (("id",), 3),
        (("more",), 1),
        (("tallies",), []),
        (("tallies",), {}),
        (("tallies", 0, "num_rounds"), 0),
        (("tallies", 0, "num_rounds"), 6),
        (("tallies", 0, "num_rounds"), True),
        (("tallies", 0, "num_rounds"), 10**400),
        (("tallies", 0, "sent"), [1.0]),
        (("tallies", 0, "sent"), ["1", 2]),
        (("tallies", 0, "sent"), [-1, 2]),
        (("tallies", 0, "sent"), [1.0, 10**400]),
        (("tallies", 0, "payload"), float("nan")),
        (("tallies", 0, "payload"), None),
        (("tallies", 0, "payload"), float("inf")),
        (("tallies", 0, "delivered"), 10**400),
        (("tallies", 0, "counted"), None),
        (("tallies", 0, "counted"), -1.0),
        (("tallies", 0, "links"), [[0, 2, 1]]),
        (("tallies", 0, "links"), [[-1, 0, 1]]),
        (("tallies", 0, "links"), [[0, 1]]),
        (("tallies", 0, "links"), [[0, 1, 1]] * 5),
        (("tallies", 0, "merged"), 7),
        (("tallies", 0, "models"), [[1.0], [2.0, 3.0]]),
        (("used",), None),
        (("used", "steps"), [1, 2]),
        (("used", "steps"), [1]),
        (("used", "steps"), -1),
        (("used", "time"), "now"),
        (("used", "time"), 10**400),
        (("used", "room"), 1),
        (("rows",), {}),
        (("rows", "/etc/passwd"), [0, "f" * 64]),
        (("rows", "links.jsonl"), [-1, "f" * 64]),
        (("rows", "links.jsonl"), [0.5, "f" * 64]),
        (("rows", "links.jsonl"), [0, "f"]),
        (("rows", "links.jsonl"), 0),
    ],
)
def test_item_7_positions_have_a_schema(where, value):
    sound = positions.from_json(POSITION, 1, 2, 5)
    assert positions.to_json(sound) == POSITION
    found = copy.deepcopy(POSITION)
    part = found
    for name in where[:-1]:
        part = part[name]
    if where:
        part[where[-1]] = value
    else:
        found = value
    with pytest.raises(InputError, match="not of such a run, or is damaged"):
        positions.from_json(found, 1, 2, 5)


@pytest.mark.parametrize(
    "name", ["lock", "metrics.jsonl", "links.jsonl", "checkpoints"]
)
def test_item_7_no_link_is_followed(run_toys, refused, tmp_path, name):
    folder = run_toys()
    outside = tmp_path / "outside"
    if name == "lock":
        outside.write_text("mine\n")
    else:
        (folder / name).rename(outside)
    before = outside.read_bytes() if outside.is_file() else contents(outside)
    (folder / name).symlink_to(outside)
    said = refused("--resume")
    assert str(folder) in said
    assert (outside.read_bytes() if outside.is_file() else contents(outside)) == before


def test_item_7_what_is_replaced_is_the_link(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "summary.json"
    victim.write_text("precious")
    path.symlink_to(victim)
    own_files.write_whole(path, "new")
    assert (path.read_text(), victim.read_text()) == ("new", "precious")
    assert {each.name for each in tmp_path.iterdir()} == {"victim", "summary.json"}
    for kind in ("link", "pipe"):
        if kind == "link":
            (tmp_path / kind).symlink_to(victim)
        else:
            os.mkfifo(tmp_path / kind)
        with pytest.raises(OSError):
            own_files.append(tmp_path / kind, "more")
        with pytest.raises(OSError):
            own_files.cut(tmp_path / kind, 0)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("knows_links", [True, False])
def test_item_7_new_files_are_complete_or_not_there(tmp_path, monkeypatch, knows_links):
    seen = []

    def linked(temporary, path):
        seen.append((temporary.read_text(), path.exists()))
        if not knows_links:
            raise OSError(errno.EPERM, "Operation not permitted")
        link(temporary, path)

    link = os.link
    monkeypatch.setattr(os, "link", linked)
    path = tmp_path / "run.flags"
    own_files.write_new(path, "--seed=1\n")
    assert seen == [("--seed=1\n", False)]
    with pytest.raises(FileExistsError):
        own_files.write_new(path, "--seed=2\n")
    assert path.read_text() == "--seed=1\n"
    assert [each.name for each in tmp_path.iterdir()] == ["run.flags"]


def test_item_11_what_a_killed_start_leaves_hinders_no_new_one(run_toys, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    left = folder / ".0123456789abcdef.tmp"
    left.write_text("--se")
    assert (run_toys() / "summary.json").exists()
    assert not left.exists()


def test_item_7_files_are_on_the_disk_before_they_have_their_names(
    tmp_path, monkeypatch
):
    done = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def synced(descriptor):
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def moved(move):
        def moving(path, to):
            done.append(("moved", str(path)))
            return move(path, to)

        return moving

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", moved(rename))
    monkeypatch.setattr(Path, "replace", moved(replace))
    own_files.write_whole(tmp_path / "a", "text")
    (temporary,) = [each[1] for each in done if each[0] == "moved"]
    assert done.index(temporary) < done.index(("moved", temporary))
    done.clear()
    state = {"x": jnp.ones(2)}
    for number in (1, 2):
        checkpoint.save(tmp_path / "c", number, Checkpoint(state, {}))
    moves = [each[1] for each in done if each[0] == "moved"]
    names = {path for path in moves if Path(path).parent == tmp_path / "c"}
    assert len(names) == 2  # random
    for path in names:
        last = done.index(("moved", path))
        for file in ("position.json", "description.json", "checksums.json"):
            assert done.index(f"{path}/{file}") < last


def test_item_11_no_half_of_a_removed_checkpoint_has_a_name(tmp_path, monkeypatch):
    """A kill while old checkpoints are removed left halves that looked like whole."""
    state = Checkpoint({"x": jnp.ones(2)}, {})
    checkpoint.save(tmp_path, 1, state, keep=1)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)  # killed
        checkpoint.save(tmp_path, 2, state, keep=1)
    names = {path.name for path in tmp_path.iterdir()}
    assert "1" not in names and len(names) == 2
    checkpoint.tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_item_7_only_folders_with_plain_numbers_are_checkpoints(tmp_path):
    state = {"x": jnp.ones(2)}
    checkpoint.save(tmp_path / "c", 3, Checkpoint(state, {}))
    for name in ("²", "٣", "007", "1" * 30, "-1"):
        (tmp_path / "c" / name).mkdir()
    (tmp_path / "c" / "5").touch()
    (tmp_path / "c" / "6").symlink_to(tmp_path / "c" / "3")
    assert checkpoint.numbers(tmp_path / "c") == [3]
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").touch()
    (tmp_path / "c" / "incomplete-4").symlink_to(tmp_path / "victim")
    (tmp_path / "c" / "4").symlink_to(tmp_path / "victim")
    checkpoint.save(tmp_path / "c", 4, Checkpoint(state, {}))
    assert checkpoint.numbers(tmp_path / "c") == [3, 4]
    assert (tmp_path / "victim" / "file").exists()


@pytest.mark.parametrize("what", ["link", "pipe", "size", "depth"])
def test_item_7_checkpoints_are_plain_and_bounded(tmp_path, what):
    state = {"x": jnp.ones(2)}
    checkpoint.save(tmp_path, 1, Checkpoint(state, {}))
    path = tmp_path / "1" / "position.json"
    path.unlink()
    if what == "link":
        path.symlink_to(tmp_path / "1" / "checksums.json")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "size":
        path.touch()
        os.truncate(path, 2**32)  # which takes no room
    else:
        path.write_text("[" * 10**6)
        sums = json.loads((tmp_path / "1" / "checksums.json").read_text())
        sums["position.json"] = sha256(path.read_bytes()).hexdigest()
        (tmp_path / "1" / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(InputError, match="is damaged|is incomplete"):
        checkpoint.load(tmp_path, 1, state)


@pytest.mark.parametrize("content", [b"", b"[" * 10**5, b"{}", bytes(100)])
def test_item_13_a_state_that_is_none(tmp_path, content):
    """With checksums that fit, as someone else may have made them."""
    state = {"x": jnp.ones(2)}
    checkpoint.save(tmp_path, 1, Checkpoint(state, {}))
    path = tmp_path / "1" / "state" / "_METADATA"
    path.write_bytes(content)
    sums = json.loads((tmp_path / "1" / "checksums.json").read_text())
    sums["state/_METADATA"] = sha256(content).hexdigest()
    (tmp_path / "1" / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(InputError, match="is damaged: .* while reading its state"):
        checkpoint.load(tmp_path, 1, state)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def small_files():
    """Lets no file of this process grow beyond 100 kB, as a quota would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_item_11_a_state_that_cannot_be_written(tmp_path, small_files):
    """What the system says comes through orbax, and nothing is left behind."""
    x = np.random.default_rng(0).normal(size=(500, 500)).astype("f4")
    folder = tmp_path / "c"
    checkpoint.save(folder, 1, Checkpoint({"x": jnp.ones(2)}, {}))
    with pytest.raises(OSError) as failed:
        checkpoint.save(folder, 2, Checkpoint({"x": jnp.asarray(x)}, {}))
    assert failed.value.errno == errno.EFBIG
    assert [path.name for path in folder.iterdir()] == ["1"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_item_11_a_checkpoint_that_cannot_be_written(
    run_toys, refused, monkeypatch, number
):
    """Room is asked for only where it lacks."""
    whole = run_toys(workdir="whole")

    def failing(*args):
        words = f"UNKNOWN: in OCDBT database: Bad [os_error_code='{number}']"
        raise ValueError(words)

    with monkeypatch.context() as patched:
        patched.setattr(ocp.StandardCheckpointer, "save", failing)
        said = refused()
    folder = whole.parent / "run"
    assert f"({os.strerror(number)}): " in said
    assert ("make room" in said) == (number != errno.EIO)
    assert f"--flagfile={folder}/run.flags --workdir={folder} --resume" in said
    run_toys("--resume")
    for name in runner.ROW_FILES:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_item_11_a_folder_that_could_not_be_started_can_be(
    run_toys, refused, monkeypatch, tmp_path
):
    def failing(descriptor):
        raise FULL

    for there in (False, True):
        if there:
            (tmp_path / "run").mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing)
            said = refused()
        assert "can be written" in said and "No space left on device" in said
        assert (tmp_path / "run").exists() == there
        assert not there or not list((tmp_path / "run").iterdir())
    assert (run_toys() / "summary.json").exists()


def test_item_11_a_full_disk_at_the_first_row(run_toys, refused, monkeypatch, tmp_path):
    with monkeypatch.context() as patched:
        stop_at_row(patched, 1, FULL)
        assert "make room, then go on with" in refused()
    assert (run_toys("--resume") / "summary.json").exists()


def test_item_11_measurements_leave_nothing_half_written(
    parse, monkeypatch, tmp_path, capsys
):
    jobs = [Measurement("near", {}, run, lambda: {"loss": 1.0}) for run in range(3)]

    def start():
        settled = parse(*ARGS, f"--workdir={tmp_path / 'run'}")
        runner.run_jobs(settled, "toys", jobs, ("loss",))

    with monkeypatch.context() as patched:
        stop_at_row(patched, 2, FULL)
        with pytest.raises(SystemExit) as ended:
            command.guarded(start)
    assert ended.value.code == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not list((tmp_path / "run").iterdir())
    command.guarded(start)
    assert (tmp_path / "run" / "summary.json").exists()


def test_item_11_killed_measurements_are_made_again(parse, tmp_path):
    jobs = [Measurement("near", {}, run, lambda: {"loss": 1.0}) for run in range(3)]
    folder = tmp_path / "run"

    def start(*args):
        settled = parse(*ARGS, f"--workdir={folder}", *args)
        runner.run_jobs(settled, "toys", jobs, ("loss",))

    with pytest.raises(InputError, match="--resume"):
        start("--resume")
    start()
    whole = contents(folder)
    (folder / "summary.json").unlink()
    own_files.cut(folder / "metrics.jsonl", 30)
    start("--resume")
    assert contents(folder) == whole


@pytest.mark.parametrize(
    "workdir",
    [
        "/proc/self/run",  # which even root cannot make
        "x" * 300,
        "new/" + "x" * 300,
        "x/" * 3000,
        "file/run",
        "file",
        "nul\0",
        "loop/run",
    ],
)
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_item_11_folders_that_cannot_be(refused, tmp_path, workdir, resume):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    said = refused(*resume, workdir=workdir)
    assert said.startswith("Need ") and len(said) < 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


@pytest.mark.parametrize(
    "name", ["run.flags", "metrics.jsonl", "links.jsonl", "summary.json", "lock"]
)
def test_item_11_names_that_folders_have(run_toys, refused, name):
    folder = run_toys()
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    said = refused("--resume").splitlines()[-1]
    assert str(folder) in said
    assert refused() and (folder / name).is_dir()


@pytest.mark.parametrize("name", ["checkpoints", "timing.jsonl"])
def test_item_11_names_that_are_taken_at_the_start(
    run_toys, refused, monkeypatch, tmp_path, name
):
    create = run_folder.create

    def meddled(*args):
        folder = create(*args)
        (folder / name).touch() if name == "checkpoints" else (folder / name).mkdir()
        return folder

    monkeypatch.setattr(run_folder, "create", meddled)
    said = refused()
    assert f"{tmp_path / 'run' / name} (" in said and "make room" not in said


def test_item_11_errors_outside_of_runs(capsys, tmp_path):
    """As a report that cannot be written, or data that cannot be read."""
    for error in (FULL, PermissionError(errno.EACCES, "Permission denied", "a/b")):

        def failing(error=error):
            raise error

        with pytest.raises(SystemExit) as ended:
            command.guarded(failing)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert ("make room" in said) == (error is FULL)
    assert "Could not read or write a/b (Permission denied): see that" in said


@pytest.mark.parametrize("place", ["settle", "create", "summarize", "append"])
@pytest.mark.parametrize("kind", ["ctrl_c", "sigterm"])
def test_item_12_stops_at_any_place_are_one_sentence(
    run_toys, refused, monkeypatch, place, kind
):
    """Before the run has a folder, before the loop, in the loop and after it."""
    of = {
        "settle": fitting,
        "create": run_folder,
        "summarize": runner,
        "append": run_folder,
    }[place]

    def stopped(*args):
        if kind == "ctrl_c":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)
        done(*args)

    done = getattr(of, place)
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched, stops.terminable():
        patched.setattr(of, place, stopped)
        said = refused(status=130 if kind == "ctrl_c" else 143)
    assert signal.getsignal(signal.SIGTERM) == before
    assert said.startswith("Stopped")
    if place in ("summarize", "append"):
        assert "go on with: python -m experiments.toys" in said
        assert (run_toys("--resume") / "summary.json").exists()


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("number", [1, 7])
def test_item_12_sigterm_saves_a_checkpoint(
    run_toys, refused, monkeypatch, tmp_path, at_once, number
):
    """Of one run, and of runs side by side, where none was due."""
    args = (f"--runs_at_once={at_once}", "--num_runs=3", "--checkpoint_every=100")
    whole = run_toys(*args, workdir="whole")
    append, rows = run_folder.append, []

    def terminated(folder, name, row):
        append(folder, name, row)
        rows.append(row)
        if len(rows) == number:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched, stops.terminable():
        patched.setattr(run_folder, "append", terminated)
        said = refused(*args, status=143)
    folder = tmp_path / "run"
    assert f"--flagfile={folder}/run.flags --workdir={folder} --resume" in said
    lines = (folder / "metrics.jsonl").read_bytes()
    marks = json.loads((newest(folder) / "position.json").read_text())["rows"]
    assert marks["metrics.jsonl"] == [len(lines), sha256(lines).hexdigest()]
    assert lines and lines != (whole / "metrics.jsonl").read_bytes()
    run_toys(*args, "--resume")
    for name in runner.ROW_FILES:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_item_12_a_second_sigterm_does_not_wait():
    with pytest.raises(stops.TerminatedError), stops.postponed() as notice:
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice.has_come
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it waited")
    with pytest.raises(stops.TerminatedError), stops.postponed() as notice:
        os.kill(os.getpid(), signal.SIGTERM)


def test_item_12_ctrl_c_while_modules_are_imported(tmp_path):
    (tmp_path / "jax.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "experiments.femnist"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "Stopped.\n")


@pytest.mark.slow
@pytest.mark.parametrize("how, status", [("SIGTERM", 143), ("SIGINT", 130)])
def test_item_12_programs_end_with_the_status_of_their_signal(tmp_path, how, status):
    folder = tmp_path / "run"
    args = [*TINY, "--levels=0", "--num_rounds=100000", "--checkpoint_every=100000"]
    started = subprocess.Popen(
        [sys.executable, "-m", "experiments.femnist", f"--workdir={folder}", *args],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started.send_signal(getattr(signal, how))
    _, said = started.communicate(timeout=60)
    assert started.returncode == status
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("Stopped; go on with: python -m")
    saved = checkpoint.numbers(folder / "checkpoints")
    assert len(saved) == (how == "SIGTERM")
