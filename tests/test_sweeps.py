"""Runs side by side: the numbers, rows, links and resumes of one after the other."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from settings import TINY
from toy_jobs import SIZE, toy_jobs, toy_world

from experiments.engine import jobs as jobs_module
from experiments.engine import reading, run_folder, runner
from experiments.next_word import methods as next_word_methods
from p2pjax.simulation._simulate import prepare, side_by_side
from p2pjax.tasks._next_token import next_token

# Two schemes of three runs, five evaluations each.
ARGS = ("--num_rounds=5", "--eval_every=1", "--checkpoint_every=2", "--num_devices=2")


@pytest.fixture
def run_toys(parse, tmp_path):
    """Runs jobs that are made of nothing; returns the run folder."""

    def run(*args, workdir="run", num_runs=3, **options):
        folder = f"--workdir={tmp_path / workdir}"
        config = parse(*ARGS, folder, f"--num_runs={num_runs}", *args)
        jobs = toy_jobs(config, **options)
        return runner.run_jobs(config, "toys", jobs, ("accuracy",))

    return run


def by_run(folder):
    rows = reading.rows(folder)
    return {(r["scheme"], r["run"], r["round"]): r for r in rows}


def assert_same_rows(one, other, **tolerance):
    assert one.keys() == other.keys()
    for key, row in one.items():
        assert row.keys() == other[key].keys()
        for name, value in row.items():
            if isinstance(value, (int, float, list)):
                # Classes that no agent has are None.
                both = (np.asarray(v, float) for v in (value, other[key][name]))
                np.testing.assert_allclose(*both, **tolerance)
            else:
                assert value == other[key][name]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [2, 3])
def test_same_rows_as_one_after_the_other(run_toys, at_once):
    alone = run_toys(workdir="alone")
    together = run_toys(f"--runs_at_once={at_once}", workdir="together")
    assert len(by_run(alone)) == 2 * 3 * 5
    assert_same_rows(by_run(alone), by_run(together), rtol=1e-6)
    # Who heard whom is counted exactly; a row per finished job, in the order of jobs.
    links = (alone / "links.jsonl").read_bytes()
    assert links == (together / "links.jsonl").read_bytes()
    assert links.count(b"\n") == 6
    for row in reading.links(alone):
        last = by_run(alone)[row["scheme"], row["run"], 5]
        sent = np.zeros(SIZE)
        for _, sender, count in row["links"]:
            sent[sender] += count
        assert sent.tolist() == last["agent_messages"]
        assert row["cluster"] == [0, 0, 1, 1]


def test_rows_come_evaluation_by_evaluation(run_toys):
    folder = run_toys("--runs_at_once=2", schemes=("near",))
    order = [(row["run"], row["round"]) for row in reading.rows(folder)]
    together = [(run, number) for number in range(1, 6) for run in (0, 1)]
    assert order == together + [(2, number) for number in range(1, 6)]


@pytest.mark.slow
def test_a_real_study(run):
    args = (*TINY, "--levels=80", "--num_runs=2", "--averaging=pairs")
    alone = run(*args, workdir="alone")
    together = run(*args, "--runs_at_once=2", workdir="together")
    assert_same_rows(by_run(alone), by_run(together), rtol=1e-6)
    assert "--runs_at_once=2" in (together / "run.flags").read_text()


@pytest.fixture
def in_64_bits(monkeypatch):
    """Next-word networks of float64."""

    def as_float64(leaf):
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float64))

    def next_token_in_64_bits(*args, **options):
        task = next_token(*args, **options)
        return task._replace(init=lambda key: jax.tree.map(as_float64, task.init(key)))

    monkeypatch.setattr(next_word_methods, "next_token", next_token_in_64_bits)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.slow
def test_every_kind_of_method(run, in_64_bits):
    """In 64 bits, since in 32 bits one of the networks' biases is rounding.

    Batch norm takes out a bias before it, so its gradient is rounding only, and Adam
    takes whole steps along it: such biases differ by .01 in 32 bits, all else by 1e-6.
    Training does not see that, evaluation by running means does, up to a test example.
    """
    args = (
        "--methods=local_only,sgp,p2p_bn,fedavg,central",
        "--num_agents=4",
        "--num_words=20",
        "--units=4",
        "--degree=2",
        "--clients=2",
        "--num_runs=2",
        "--num_rounds=2",
        "--eval_every=2",
    )
    alone = run(*args, workdir="alone", experiment="next_word")
    together = run(
        *args, "--runs_at_once=2", workdir="together", experiment="next_word"
    )
    assert len(by_run(alone)) == 5 * 2
    assert_same_rows(by_run(alone), by_run(together), rtol=1e-6)


@pytest.mark.slow
def test_tables_of_different_shapes_go_one_by_one(run_toys):
    options = {"widths": (1, 2), "num_runs": 4, "schemes": ("near",)}
    alone = run_toys(workdir="alone", **options)
    together = run_toys("--runs_at_once=4", workdir="together", **options)
    for name in ("metrics.jsonl", "links.jsonl"):
        assert (alone / name).read_bytes() == (together / name).read_bytes()


def test_batches(parse):
    jobs = toy_jobs(parse("--num_runs=3"))
    found = [(g.start, g.stop) for g in jobs_module._groups(jobs, 2)]
    assert found == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert [len(group) for group in jobs_module._groups(jobs, 9)] == [3, 3]
    assert [len(group) for group in jobs_module._groups(jobs, 1)] == [1] * 6


def test_side_by_side(parse):
    algorithm = toy_jobs(parse())[0].program.algorithm
    starts = [prepare(jax.random.key(s), algorithm, toy_world(s), 5) for s in (1, 2)]
    both = side_by_side(starts)
    assert both.key.shape == (2,)
    assert both.inputs.shape == (2, 5, SIZE, 1)
    second = jax.tree.map(lambda leaf: leaf[1], both.data)
    seeds = starts[1].data.train.order_seed
    expected = toy_world(2)
    expected = expected._replace(train=expected.train._replace(order_seed=seeds))
    jax.tree.map(np.testing.assert_array_equal, second, expected)
    wider = starts[1]._replace(inputs=np.zeros((5, SIZE, 2), np.int32))
    assert side_by_side([starts[0], wider]) is None


def stop_at(monkeypatch, number):
    """Makes the row `number` fail half-written."""
    append, rows = run_folder.append, []

    def failing(folder, name, row):
        if name in runner.ROW_FILES:
            rows.append(row)
            if len(rows) == number:
                with (folder / name).open("a") as file:
                    file.write('{"scheme": "ne')
                raise KeyboardInterrupt
        append(folder, name, row)

    monkeypatch.setattr(run_folder, "append", failing)


@pytest.mark.parametrize(
    "at_once, stops",
    [
        (1, (6, 14)),
        pytest.param(2, (1, 6, 12, 14, 36), marks=pytest.mark.slow),
    ],
)
def test_resumes_to_the_same_bytes(run_toys, monkeypatch, at_once, stops):
    """Stopped in rows of metrics and of links, within a batch and between two."""
    args = (f"--runs_at_once={at_once}",)
    whole = run_toys(*args, workdir="whole")
    for number in stops:
        workdir = f"stopped_{number}"
        with monkeypatch.context() as patched:
            stop_at(patched, number)
            with pytest.raises(SystemExit) as exit_info:
                run_toys(*args, workdir=workdir)
        assert exit_info.value.code == 130
        folder = run_toys(*args, "--resume", workdir=workdir)
        for name in runner.ROW_FILES:
            assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_no_links_no_file(run_toys):
    folder = run_toys(links=False, num_runs=1)
    assert not (folder / "links.jsonl").exists()
    assert "in_cluster" not in reading.rows(folder)[0]
    position = max((folder / "checkpoints").glob("*/position.json"))
    (tally,) = json.loads(position.read_text())["tallies"]
    assert tally["links"] is None
