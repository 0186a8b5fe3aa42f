"""Runs, folders and checkpoints under misuse and faults: refused in one sentence."""

import json

import pytest
from toy_jobs import toy_jobs

from experiments.engine import command, config, run_folder, runner
from p2pjax import checkpoint

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
