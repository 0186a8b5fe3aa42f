"""Programs compiled before their turn: once each, with the same rows."""

import collections
import logging
import re
import threading

import jax
import optax
import pytest
from toy_jobs import toy_jobs

import p2pjax as pj
from experiments.engine import ahead as ahead_module
from experiments.engine import runner
from experiments.engine.ahead import MOST_AHEAD, Ahead

ARGS = ("--num_rounds=4", "--eval_every=2", "--num_devices=1", "--num_runs=2")
SCHEMES = ("near", "far", "high", "low", "left")


class Compiled(logging.Handler):
    """Counts what XLA is asked to compile, by name."""

    def __init__(self):
        super().__init__()
        self.names = collections.Counter()

    def emit(self, record):
        found = re.match(r"Finished XLA compilation of (\S+)", record.getMessage())
        if found:
            self.names[found[1]] += 1


@pytest.fixture
def counted():
    """Names of programs compiled in a test, and how often."""
    handler, logger = Compiled(), logging.getLogger("jax._src.dispatch")
    logger.addHandler(handler)
    jax.config.update("jax_log_compiles", True)  # in all threads
    yield handler.names
    jax.config.update("jax_log_compiles", False)
    logger.removeHandler(handler)


def run_toys(parse, folder, **options):
    config = parse(*ARGS, f"--workdir={folder}")
    jobs = toy_jobs(config, SCHEMES, **options)
    runner.run_jobs(config, "toys", jobs, ("accuracy",))
    return (folder / "metrics.jsonl").read_bytes()


def test_each_program_is_compiled_once_and_rows_are_the_same(
    parse, tmp_path, monkeypatch, counted
):
    threads = set()
    compiled = ahead_module.compiled

    def spied(*args):
        threads.add(threading.current_thread().name.partition("_")[0])
        return compiled(*args)

    monkeypatch.setattr(ahead_module, "compiled", spied)
    jax.clear_caches()
    found = run_toys(parse, tmp_path / "ahead")
    assert counted["jit(_advance)"] == len(SCHEMES)
    assert "compiling ahead" in threads
    assert not [t for t in threading.enumerate() if "compiling" in t.name]
    monkeypatch.setattr(Ahead, "start", lambda *unused: None)
    threads.clear()
    jax.clear_caches()
    assert run_toys(parse, tmp_path / "in_turn") == found
    assert threads == {"MainThread"}


def test_what_fails_ahead_is_compiled_in_its_turn(parse, tmp_path, monkeypatch):
    whole = run_toys(parse, tmp_path / "whole")
    make_batch = ahead_module.batches
    failed = []

    def failing(*args):
        failed.append(args)
        raise ValueError("no memory in this thread")

    monkeypatch.setattr(ahead_module, "batches", failing)
    assert run_toys(parse, tmp_path / "failed") == whole
    assert 1 <= len(failed) <= ahead_module.AT_ONCE
    monkeypatch.setattr(ahead_module, "batches", make_batch)
    monkeypatch.setattr(ahead_module, "free_bytes", lambda: 0)  # no room for data
    assert run_toys(parse, tmp_path / "no_room") == whole


def test_it_does_not_go_far_ahead(parse, tmp_path, monkeypatch):
    looked, has_looked = [], threading.Semaphore(0)

    def look(self, config, jobs, number):
        looked.append(number)
        has_looked.release()

    monkeypatch.setattr(Ahead, "_compile", look)
    config = parse(*ARGS, f"--workdir={tmp_path}")
    jobs = toy_jobs(config, SCHEMES)
    with Ahead() as ahead:
        ahead.start(config, jobs)
        for _ in range(MOST_AHEAD):
            assert has_looked.acquire(timeout=60)
        assert not has_looked.acquire(timeout=0.1)
        for _ in range(2):  # the second turn of a program changes nothing
            with ahead.turn(jobs[0].program):
                pass
        assert has_looked.acquire(timeout=60)
        assert not has_looked.acquire(timeout=0.1)
    assert looked == [0, 2, 4, 6]  # first jobs of programs, which have two runs each


def test_one_program_needs_no_threads(parse, tmp_path, monkeypatch):
    monkeypatch.setattr(Ahead, "_look", None)  # would be submitted
    config = parse(*ARGS, f"--workdir={tmp_path}")
    with Ahead() as ahead:
        ahead.start(config, toy_jobs(config, ("near",)))
        assert not ahead._threads._threads


def test_a_sweep_of_rates_and_seeds_is_one_compilation(counted):
    """6 rates x 3 seeds."""
    data = pj.datasets.digits(num_agents=2, split=pj.split.iid())
    task = pj.classification(pj.nn.MLP((4, 10)), data)
    sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    method = pj.local_only(task, sgd, batch_size=32)
    rates = {"learning_rate": [0.01, 0.02, 0.03, 0.1, 0.2, 0.3]}
    keys = jax.random.split(jax.random.key(0), 3)
    runs = pj.sweep(keys, method, data, rates, num_rounds=1)
    assert len(runs) == 18
    assert counted["jit(_advance)"] == counted["jit(_initial)"] == 1


def test_a_run_compiles_no_more_than_it_did(parse, tmp_path, counted):
    """A program of rounds and one of initial states for each scheme, and small ones."""
    jax.clear_caches()
    run_toys(parse, tmp_path / "run")
    assert counted["jit(_advance)"] == counted["jit(_initial)"] == len(SCHEMES)
    assert counted.total() <= 2 * len(SCHEMES) + 12
