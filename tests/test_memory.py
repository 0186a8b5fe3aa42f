"""What a simulation will need, and what is refused before it starts."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from settings import TINY
from toy_jobs import SIZE, toy_algorithm, toy_evaluate, toy_jobs, toy_world

from experiments.engine import fitting, runner
from p2pjax import host_memory, memory_estimate, sharding
from p2pjax.memory_estimate import MemoryEstimate
from p2pjax.simulation._simulate import prepare, side_by_side


def start_of(algorithm, num_runs=1):
    starts = [
        prepare(jax.random.key(run), algorithm, toy_world(run), 3)
        for run in range(num_runs)
    ]
    return starts[0] if num_runs == 1 else side_by_side(starts)


# Of one run of the toy: x; what it was before; three sets of examples with their sizes
# and the clusters.
MODELS, REST, DATA = 4 * SIZE, 4 * SIZE, 3 * (4 * 3 * SIZE + 4 * SIZE) + 4 * SIZE
ORDER_SEEDS = 4 * SIZE  # of the order of batches, one for each agent


@pytest.mark.parametrize("num_runs", [1, 3])
def test_what_is_held_is_exact(num_runs):
    algorithm = toy_algorithm("near")
    start = start_of(algorithm, num_runs)
    one = MemoryEstimate(MODELS, REST, DATA + ORDER_SEEDS)
    expected = [part * num_runs for part in one]
    assert memory_estimate.static_memory(
        start.key, algorithm, start.data
    ) == MemoryEstimate(*expected)
    found = memory_estimate.estimate(start, algorithm, 3, toy_evaluate)
    assert found[:3] == tuple(expected[:3])
    assert found.total == sum(found)
    # At least what is reported: loss, messages, bytes and so on of three rounds.
    assert 10_000 > found.working >= num_runs * 3 * 4 * 4 * SIZE


def test_all_devices_count():
    algorithm = toy_algorithm("near")
    with jax.set_mesh(sharding.agents_mesh(SIZE, 2)):
        start = start_of(algorithm)
        spread = memory_estimate.static_memory(start.key, algorithm, start.data)
        assert spread == MemoryEstimate(MODELS, REST, DATA + ORDER_SEEDS)
        # What cannot be spread is on both.
        whole = sharding.placed({"a": jnp.zeros(SIZE), "b": jnp.zeros(3)})
        assert memory_estimate.num_bytes(whole) == 4 * SIZE + 2 * 12


def test_working_memory_grows_with_what_is_side_by_side():
    """A model's activations are seen before anything runs."""

    def evaluate(models, world):
        del world
        wide = jnp.outer(models.reported, jnp.ones(100_000)).cumsum(0)
        return {"accuracy": wide.cumsum(1).sum(1)}

    algorithm = toy_algorithm("near")
    found = memory_estimate.estimate(start_of(algorithm), algorithm, 3, evaluate)
    assert 4 * 4 * SIZE * 100_000 > found.working >= 4 * SIZE * 100_000


def test_free_memory_of_this_machine(monkeypatch, tmp_path):
    assert 10**8 < memory_estimate.available_memory() < 10**14
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(host_memory, "_MEMINFO", meminfo)
    meminfo.write_text("MemTotal:  9 kB\nMemFree: 3 kB\nMemAvailable:    5 kB\n")
    assert memory_estimate.available_memory() == 5 * 1024
    monkeypatch.setattr(host_memory, "_GROUP", tmp_path)
    for name, text in (("max", "4000\n"), ("current", "3000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 700\n")
    assert memory_estimate.available_memory() == 1700  # of the group
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_estimate.available_memory() == 5 * 1024
    for text in ("MemTotal: 9 kB\n", "nonsense"):  # an old kernel, something else
        meminfo.write_text(text)
        pages = {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}
        monkeypatch.setattr(host_memory.os, "sysconf", lambda name, p=pages: p[name])
        assert memory_estimate.available_memory() == 7 * 4096

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(host_memory.os, "sysconf", unknown)
    assert memory_estimate.available_memory() is None


class Accelerator:
    def __init__(self, **stats):
        self.memory_stats = lambda: stats or None


def test_free_memory_of_accelerators(monkeypatch):
    monkeypatch.setattr(memory_estimate.jax, "default_backend", lambda: "gpu")
    used = Accelerator(bytes_limit=100, bytes_in_use=30)
    devices = [used, Accelerator(bytes_limit=60)]
    monkeypatch.setattr(memory_estimate, "_devices", lambda: devices)
    assert memory_estimate.available_memory() == 2 * 60
    monkeypatch.setattr(memory_estimate, "_devices", lambda: [*devices, Accelerator()])
    assert memory_estimate.available_memory() is None


@pytest.fixture
def run_toys(parse, tmp_path):
    def run(*args):
        folder = f"--workdir={tmp_path / 'run'}"
        config = parse("--num_rounds=2", "--num_runs=3", folder, *args)
        # As on an accelerator, where nothing is settled before memory is known.
        config = dataclasses.replace(config, runs_at_once=None)
        return runner.run_jobs(config, "toys", toy_jobs(config), ("accuracy",))

    return run


def test_too_large_runs_are_refused_before_anything_is_written(
    run, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(fitting, "_PROGRAMS", 1000)
    # Enough for what is known from shapes: twice 154 kB of models and 94 kB of images.
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: 500_000)
    with pytest.raises(SystemExit) as exit_info:
        run(*TINY, "--levels=50", "--agent_loop=1")
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert re.match(
        r"Need memory of [\d.]+ [kM]B \(models 154 kB, optimizers and messages 0 kB, "
        r"data \d+ kB, training, evaluation and checkpoints \d+ kB, programs 1 kB\), "
        r"but 500 kB are free: take fewer examples at once \(--batch_size, test "
        r"examples\)\.\n",
        said,
    )
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "need, at_once, agent_loop, advice",
    [
        (MemoryEstimate(9, 0, 0, 1), 1, 1, "take fewer agents or smaller networks."),
        (MemoryEstimate(1, 2, 1, 0), 1, 1, "take fewer agents or smaller networks."),
        (MemoryEstimate(1, 2, 3, 0), 1, 1, "take fewer agents or examples."),
        (MemoryEstimate(3, 2, 1, 5), 1, 1, "take fewer agents or smaller networks."),
        (
            MemoryEstimate(1, 2, 3, 4),
            1,
            1,
            "take fewer examples at once (--batch_size, ",
        ),
        (
            MemoryEstimate(1, 2, 3, 4),
            1,
            0,
            "take fewer agents side by side (--agent_loop=1).",
        ),
        (
            MemoryEstimate(9, 0, 0, 0),
            *(4, 0),
            "take fewer runs side by side (--runs_at_once is 4), or fewer agents or",
        ),
    ],
)
def test_the_advice_is_about_the_largest_part(need, at_once, agent_loop, advice):
    said = fitting._refusal(need, 10, at_once, agent_loop)
    assert f"but 0 kB are free: {advice}" in said


def test_as_many_runs_as_fit_go_side_by_side(run_toys, monkeypatch, tmp_path):
    found = []
    need = MemoryEstimate(10, 10, 10, 20)
    monkeypatch.setattr(fitting, "_PROGRAMS", 0)
    monkeypatch.setattr(memory_estimate, "estimate", lambda *args: need)
    monkeypatch.setattr(runner, "_run_left", lambda *args: found.append(args))
    monkeypatch.setattr(runner, "summarize", lambda *args: None)
    for free, expected in ((50, 1), (200, 3), (10**6, 9), (None, 1)):
        monkeypatch.setattr(memory_estimate, "available_memory", lambda free=free: free)
        run_toys(f"--workdir={tmp_path / str(free)}", "--num_devices=1", "--num_runs=9")
        assert found[-1][0].runs_at_once == expected
