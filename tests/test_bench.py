"""Benchmarks: what they write, on sizes that say nothing about speed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from settings import TINY as SMALL

from experiments.bench import harness, inputs, versions
from experiments.bench.harness import Answer, Suite, System, Workload
from experiments.bench.suites import SUITES
from p2pjax.types import InputError

ROOT = Path(__file__).parents[1]
MLP = {"num_agents": 4, "widths": (6, 5, 10), "batch_size": 2, "num_steps": 2}
TINY = {
    "headline": MLP,
    "small": {**MLP, "num_rounds": 1},
    "per_sample": MLP,
    "cnn": {
        "num_agents": 2,
        "image": (16, 16, 1),
        "channels": (2, 2),
        "dense": (3,),
        "batch_size": 2,
        "num_steps": 1,
    },
    "own_networks": {
        "num_agents": 2,
        "image": (8, 8, 1),
        "channels": (2, 2),
        "dense": (3,),
        "batch_size": 2,
        "num_steps": 1,
    },
    "gru": {"num_agents": 2, "words": 12, "units": 3, "batch_size": 2, "num_steps": 1},
    "encoder": {
        "num_agents": 2,
        "words": 12,
        "length": 4,
        "batch_size": 2,
        "num_steps": 1,
    },
    "mixing": {"num_agents": 8, "num_columns": 20, "degree": 2},
    "slices": {"num_agents": 4, "widths": (6, 5, 4, 3), "num_models": (1, 2)},
    "selection": {
        "num_agents": 4,
        "widths": (6, 5, 10),
        "batch_size": 2,
        "num_examples": 4,
        "num_candidates": 2,
        "num_kept": 1,
    },
    "events": {"sizes": ((6, 12),), "units": 3, "batch_size": 2, "num_examples": 4},
    "peers": {**MLP, "num_rounds": 1},
    "adversity": {
        "num_agents": 8,
        "widths": (6, 5, 10),
        "degree": 4,
        "batch_size": 2,
        "num_rounds": 1,
    },
    "scale": {"num_agents": (2, 4), "widths": (6, 5, 10), "num_updates": 80},
    "views": {
        "num_agents": (12, 16),
        "view_size": 6,
        "widths": (6, 10),
        "batch_size": 2,
        "num_steps": 1,
    },
    "million": {"num_agents": (4, 6), "widths": (6, 10), "batch_size": 2},
    "memory": {"sizes": ((4, (6, 10)),), "shared": (6, (6, 10))},
    "compile": {"networks": ({"kind": "mlp", "widths": [6, 10]},), "num_agents": 2},
    "first_result": {"experiments": ("femnist",), "more_flags": SMALL},
}
RATIOS = {  # without PyTorch, which need not be there
    "headline": {"p2pjax/jax_loop", "gemm_peak_fraction"},
    "small": {"p2pjax/jax_loop", "gemm_peak_fraction"},
    "per_sample": {"p2pjax/jax_loop", "p2pjax/numpy"},
    "cnn": {"p2pjax/jax_loop"},
    "gru": {"p2pjax/jax_loop"},
    "own_networks": {"CPU time linen/package", "CPU time nnx/package"},
    "encoder": {"p2pjax/jax_loop"},
    "mixing": {"time/read_and_write", "p2pjax/scipy"},
    "slices": {"p2pjax_3/p2pjax_1"},
    "selection": {"p2pjax/jax_loop", "CPU time jax_loop/p2pjax"},
    "events": {
        f"6_agents_12_words: {form}/jax_loop" for form in ("p2pjax", "p2pjax_1_device")
    },
    "peers": {"CPU time jax_loop/p2pjax"},
    "adversity": {"time: adverse/plain", "memory: adverse/plain"},
    "scale": {"cost p2pjax_4/p2pjax_2"},
    "views": {
        f"{method}: {time} p2pjax_16/p2pjax_12"
        for method in ("pens", "dac", "panm")
        for time in ("time", "CPU time")
    },
    "million": {
        "dpsgd: time p2pjax_6/p2pjax_4",
        "dpsgd: CPU time p2pjax_6/p2pjax_4",
    },
    "memory": {
        "4_agents_70_parameters: peak/parameters",
        "one of two processes/one",
    },
    "compile": {"compile_mlp: cold/cached"},
    "first_result": {"femnist: warm/cold"},
}
FAST = ("headline",)


def test_every_suite_is_tested():
    assert set(TINY) == set(RATIOS) == set(SUITES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in SUITES
    ],
)
def test_suites_write_what_they_measured(monkeypatch, tmp_path, name):
    gemm, copy = harness.MACHINE
    small = gemm.systems["numpy"]._replace(arguments={"size": 8})
    copies = copy.systems["jax"]._replace(arguments={"num_floats": 8})
    machine = (
        gemm._replace(systems={"numpy": small}),
        copy._replace(systems={"jax": copies}),
    )
    monkeypatch.setattr(harness, "MACHINE", machine)
    suite = SUITES[name](**TINY[name])
    table = harness.write(tmp_path, name, suite, harness.run(suite, repeats=2))
    written = json.loads((tmp_path / "bench.json").read_text())
    assert set(written) == {"suite", "rows", "ratios"}
    assert written["suite"] == name
    found = {(row["workload"], row["system"]) for row in written["rows"]}
    assert found == {
        (workload.name, system)
        for workload in (*suite.workloads, *machine)
        for system in workload.systems
    }
    for row in written["rows"]:
        assert set(row) == {"workload", "system", "value", "unit"}
        assert row["value"] > 0 or row["unit"] == "programs"  # all may be cached
        assert f"| {row['workload']} | {row['system']} | " in table
    assert set(written["ratios"]) >= RATIOS[name]
    assert all(value > 0 for value in written["ratios"].values())
    if harness.is_installed("torch"):
        trained = [ratio for ratio in RATIOS[name] if ratio.endswith("p2pjax/jax_loop")]
        for torch in ("torch", "torch_1"):
            ratios = {ratio.replace("jax_loop", torch) for ratio in trained}
            assert ratios <= set(written["ratios"])
    assert (tmp_path / "bench.md").read_text() == table


def test_medians_and_ratios(tmp_path):
    workload = Workload("w", "x/s", harness.rate, {})
    suite = Suite((workload,), lambda found: harness.speedups(found["w"]))
    samples = {
        "w": {"p2pjax": [30.0, 10, 20], "torch_1": [4.0], "torch_2": [5.0], "o": [2.0]}
    }
    table = harness.write(tmp_path, "s", suite, samples)
    assert "| w | p2pjax | 20 | 10 | 30 | x/s |" in table
    ratios = json.loads((tmp_path / "bench.json").read_text())["ratios"]
    assert ratios == {
        "p2pjax/torch": 4,
        "p2pjax/torch_1": 5,
        "p2pjax/torch_2": 4,
        "p2pjax/o": 10,
    }
    assert harness.speedups({"torch_1": 1.0}) == {}
    answer = Answer(seconds=0.5, work=3.0, gigabytes=7.0, cpu_seconds=0.9)
    assert harness.cpu_milliseconds(answer) == pytest.approx(300)
    assert harness.rate(answer) == 6
    assert harness.milliseconds(answer) == 500
    assert harness.gigabytes(answer) == 7
    assert harness.amount(answer) == 3


def test_the_headline_costs_what_it_should():
    assert inputs.mlp_gigaflops((784, 300, 100, 10), 50) == pytest.approx(0.05634)


def test_a_system_that_fails_is_named():
    broken = System("machine", "numpy_product", {"size": -1})
    suite = Suite((Workload("w", "x/s", harness.rate, {"broken": broken}),), dict)
    with pytest.raises(InputError, match="but w, broken ended with status 1"):
        harness.run(suite, 1)


def test_unknown_suites_are_refused():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.bench", "--suite=heads"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "flag --suite=heads: need headline, small" in done.stderr
    assert "got 'heads'" in done.stderr


@pytest.mark.slow
def test_two_checkouts_take_turns():
    """Here the same one twice, at a tiny size."""
    (workload,) = SUITES["small"](**TINY["small"]).workloads
    answers = versions.compared(workload.systems["p2pjax"], ROOT, repeats=2)
    assert [len(turn) for turn in answers] == [2, 2]
    assert min(workload.measure(answer) for turn in answers for answer in turn) > 0


def test_rows_say_how_many_times_better_this_checkout_is():
    rate, time, count = (
        Workload("w", unit, harness.rate, {}) for unit in ("x/s", "s", "programs")
    )
    assert "| 4 | 1 | x/s | 4.000 | 4.00 to 4.00 |" in versions.row(
        "s", rate, "one", [4.0], [1.0]
    )
    assert "| 2 | 6 | s | 3.000 | 2.00 to 8.00 |" in versions.row(
        "s", time, "one", [2.0, 1.0, 3.0], [6.0, 8.0, 6.0]
    )
    assert "| 0 | 0 | programs | nan |" in versions.row("s", count, "one", [0.0], [0.0])


def test_one_run_gives_all_measures_of_the_same_systems(tmp_path):
    product = {"numpy": System("machine", "numpy_product", {"size": 8})}
    same = [
        Workload("time", "s", harness.seconds, product),
        Workload("cpu", "CPU-s", harness.cpu_seconds, product),
    ]
    other = Workload("other", "s", harness.seconds, dict(product))
    assert harness.together([*same, other]) == [tuple(same), (other,)]
    found = harness.run(Suite(same, lambda found: {}), 1)
    assert found["time"]["numpy"][0] > 0 <= found["cpu"]["numpy"][0]


def test_all_quick_flagfiles_are_timed():
    suite = SUITES["first_result"]()
    named = {workload.name for workload in suite.workloads}
    assert {"femnist", "virtual_cpu", "multi_task_programs", "vsn_compile"} < named
    (same, *_) = harness.together(suite.workloads)
    assert len(same) == 4


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--other=nowhere"], "Need --other with the folder of another checkout, got"),
        ([f"--other={ROOT}", "--only=cnn"], "Need --only among mlp, got cnn."),
    ],
)
def test_versions_refuse(flags, sentence):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.bench.versions", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert sentence in done.stderr
