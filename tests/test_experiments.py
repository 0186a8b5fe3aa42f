"""Experiments end to end: flagfiles, run folders, reruns, every refusal."""

import json
import re
import subprocess
import sys
from pathlib import Path

import experiment_modules
import jax
import numpy as np
import pytest
from absl import flags
from figure_contents import assert_drawn
from settings import TINY

from experiments import (
    averaging_schemes,
    averaging_study,
    combination,
    common,
    femnist,
    overview,
    run_folder,
)
from p2pjax.datasets.loaders import glyphs
from p2pjax.training import agent_loop
from p2pjax.types import InputError

ROOT = Path(__file__).parents[1]
FLAGFILES = sorted((ROOT / "experiments" / "flags").glob("*.flags"))


@pytest.fixture
def refused(run, tmp_path, capsys):
    """Runs with bad input; returns what standard error said."""

    def run_refused(*args):
        with pytest.raises(SystemExit) as exit_info:
            run(*args)
        assert exit_info.value.code == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert not (tmp_path / "run").exists()
        return said

    return run_refused


def test_run_folder(run):
    folder = run(*TINY, "--levels=0,80,100", "--num_runs=2")
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "run.flags",
        "checkpoints",
        "metrics.jsonl",
        "timing.jsonl",
        "summary.json",
        "accuracy_by_level.png",
        "accuracy_by_level.svg",
    }
    rows = run_folder.read(folder)
    assert [(r["scheme"], r["run"], r["round"]) for r in rows] == [
        (f"level_{level}", run, number)
        for level in (0, 80, 100)
        for run in (0, 1)
        for number in (2, 3)
    ]
    for row in rows:
        assert row["accuracy"] == pytest.approx(
            np.mean(row["agent_accuracy"]), abs=1e-6
        )
    shared = {row["scheme"]: row["bytes"] for row in rows if row["round"] == 3}
    messages = {row["scheme"]: row["messages"] for row in rows if row["round"] == 3}
    full = 784 * 12 + 12 + 12 * 8 + 8 + 8 * 10 + 10
    assert shared["level_0"] == messages["level_0"] == 0
    assert shared["level_100"] == pytest.approx(3 * 4 * full)
    assert messages["level_80"] == messages["level_100"] == 3
    # Everybody starts from the same weights and averages all: nobody disagrees.
    assert max(max(r["disagreement"]) for r in rows if r["scheme"] != "level_0") < 1e-5

    assert_drawn(
        folder,
        "accuracy_by_level",
        "averaging level (%)",
        "accuracy, mean over agents",
        "2 mini-batches",
        "3 mini-batches",
        num_lines=2,
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["experiment"] == "femnist"
    row = summary["rows"][0]
    assert row["scheme"] == "level_0"
    assert row["setting"] == {"level": 0}
    assert row["metric"] == "accuracy"
    assert row["runs"] == 2
    finals = [
        r["accuracy"] for r in rows if r["scheme"] == "level_0" and r["round"] == 3
    ]
    assert row["median"] == pytest.approx(np.median(finals))
    assert set(row) >= {"median", "p40", "p60", "mean", "std"}
    assert summary["environment"]["backend"]


def test_same_flags_same_bytes_and_rerun_from_run_flags(run):
    args = (*TINY, "--levels=80", "--num_runs=2", "--averaging=pairs", "--seed=7")
    first = run(*args, workdir="first")
    second = run(*args, workdir="second")
    again = run(f"--flagfile={first / 'run.flags'}", workdir="again")
    other = run(*args, "--seed=8", workdir="other")
    expected = (first / "metrics.jsonl").read_bytes()
    assert expected == (second / "metrics.jsonl").read_bytes()
    assert expected == (again / "metrics.jsonl").read_bytes()
    assert expected != (other / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "args, figure, label, num_lines",
    [
        pytest.param(
            ("--study=scheme", "--schemes=784-12-8-0,784-6-4-10"),
            "accuracy_by_round",
            "mini-batches",
            2,
            marks=pytest.mark.slow,
        ),
        (
            ("--study=peers", "--levels=0,80", "--group_sizes=2,4"),
            "accuracy_by_group_size",
            "agents that average together",
            2,
        ),
        (
            ("--levels=60", "--averaging=gossip", "--degree=2", "--rewire_every=2"),
            "accuracy_by_level",
            "averaging level (%)",
            2,
        ),
        (
            (
                "--levels=60",
                "--average_every=2",
                "--noper_sample",
                "--noshared_init",
                "--loss=cross_entropy",
                "--agent_loop=0",
            ),
            "accuracy_by_level",
            "averaging level (%)",
            2,
        ),
    ],
)
def test_studies_and_options(run, args, figure, label, num_lines):
    folder = run(*TINY, *args)
    accuracy = "accuracy, mean over agents"
    assert_drawn(folder, figure, label, accuracy, num_lines=num_lines)
    assert (folder / "summary.json").exists()


@pytest.mark.slow
def test_options_reach_the_run(run):
    """Every option changes what it should change."""

    def last_row(*args):
        changed = args[0].removeprefix("--").replace("=", "_") if args else "plain"
        return run_folder.read(run(*TINY, "--levels=50", *args, workdir=changed))[-1]

    plain = last_row()
    assert plain["messages"] == 3
    assert last_row("--average_every=2")["messages"] == 1
    assert last_row("--averaging=gossip", "--degree=2")["messages"] == 6
    for option in (
        "--noper_sample",
        "--noshared_init",
        "--loss=cross_entropy",
        "--learning_rate=0.2",
        "--batch_size=5",
        "--seed=1",
    ):
        row = last_row(option)
        assert row["loss"] != plain["loss"], option
        assert row["bytes"] == plain["bytes"]
    groups = run_folder.read(
        run(*TINY, "--study=peers", "--levels=50", "--group_sizes=2,4", workdir="peers")
    )
    assert {row["setting"]["group_size"] for row in groups} == {2, 4}
    assert len({row["loss"] for row in groups}) == len(groups)


def test_own_npz(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "mine.npz",
        x=rng.normal(size=(120, 5)).astype(np.float32),
        y=rng.integers(0, 3, 120),
        user=np.repeat(np.arange(4), 30),
    )
    folder = run(
        *TINY[2:],
        "--dataset=npz",
        f"--data_dir={tmp_path / 'mine.npz'}",
        "--levels=50",
        "--network=5=4=3",
    )
    assert run_folder.read(folder)[-1]["bytes"] == 3 * 4 * (5 * 2 + 2 + 2 * 3 + 3)


def on_embedded_data(flagfile, train_size, test_size):
    """The flagfile's experiment and a small command line; real data may be missing."""
    experiment = flagfile.name.split(".")[0]
    sizes = (f"--train_size={train_size}", f"--test_size={test_size}")
    small = {
        "femnist": ("--dataset=glyphs", *sizes),
        "mnist": ("--dataset=digits", *sizes),
        "vsn": ("--dataset=synthetic", *sizes),
        "associative": (),
        "next_word": (
            "--dataset=speakers",
            "--num_words=20",
            "--units=4",
            "--num_agents=12",
            "--sizes=8,12",
            "--min_train=1",
        ),
        "heterogeneity": ("--dataset=digits,speakers", "--num_agents=10"),
        "combination": ("--dataset=synthetic", "--max_epochs=3", "--patience=2"),
        "fedcurv": ("--train_size=8", "--test_size=8", "--num_dims=8"),
        "virtual": (
            "--dataset=embedded",
            "--num_agents=3",
            f"--size={train_size + test_size}",
            "--num_samples=2",
            "--epochs=1",
        ),
        "multi_task": (
            "--dataset=speakers,tags",
            "--num_agents=4",
            "--length=12",
            "--layers=1",
            "--stream=4",
            "--feed_forward=4",
            "--min_train=1",
            "--max_examples=8",
        ),
        "connections": (
            "--dataset=digits",
            "--network=mlp",
            "--num_agents=20",
            "--hidden=4",
        ),
    }[experiment]
    if "connections" in flagfile.name and "text" in flagfile.name:
        small = (
            "--dataset=speakers",
            "--num_agents=20",
            "--num_words=20",
            "--gru_units=4",
            "--min_train=1",
            "--max_train=1000",
        )
    if "senteval" in flagfile.name:
        small += ("--dataset=topics",)
    if "combination.mnist" in flagfile.name:
        small = ("--dataset=digits", "--network=mlp", "--hosts=2,4")
    if "auto" in flagfile.name:
        small += ("--values=1",)  # mini-batches before the grouping, which is run here
    if "train_size" in flagfile.name:
        small += ("--values=4",)
    return experiment, (f"--flagfile={flagfile}", *small, "--num_runs=1")


@pytest.mark.parametrize("flagfile", FLAGFILES, ids=lambda path: path.stem)
def test_flagfiles_build(parse, flagfile):
    experiment, args = on_embedded_data(flagfile, train_size=4, test_size=10)
    parse(*args, experiment=experiment)
    module = experiment_modules.MODULES[experiment]
    if experiment == "heterogeneity":  # trains nothing
        counts = module.histograms(0)
        assert {len(own) for own in counts.values()} == {10}
        return
    for program, world in first_and_last(module):
        state = jax.eval_shape(program.algorithm.init, jax.random.key(0), world)
        models = jax.eval_shape(program.algorithm.models, state)
        metrics = jax.eval_shape(program.evaluate, models, world)
        assert metrics["accuracy"].shape == world.train.size.shape


def first_and_last(module):
    """Programs of an experiment, with the data of their first run."""
    if hasattr(module, "make_jobs"):
        jobs = module.make_jobs()
        return [(job, job.make_world()) for job in (jobs[0], jobs[-1])]
    if hasattr(module, "load_examples"):
        cases = module.make_cases(module.load_examples())
    else:
        cases = module.make_cases()
    build = getattr(module, "build_program", averaging_study.perceptron_program)
    worlds = [case.make_world(0) for case in (cases[0], cases[-1])]
    return [
        (build(cases[0], worlds[0]), worlds[0]),
        (build(cases[-1], worlds[1]), worlds[1]),
    ]


@pytest.mark.slow
# The thesis has D2 also on graphs that are directed or have low eigenvalues.
@pytest.mark.filterwarnings(
    "ignore:The theory of D2 needs an undirected graph",
    "ignore:D2 needs a smallest eigenvalue above",
)
@pytest.mark.parametrize("flagfile", FLAGFILES, ids=lambda path: path.stem)
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_flagfiles_run(run, flagfile):
    experiment, args = on_embedded_data(flagfile, train_size=20, test_size=10)
    if experiment == "femnist":
        args += ("--batch_size=5", "--group_sizes=16")
    if experiment == "connections":  # test_connections runs the other methods
        args += ("--methods=sparse,dac",)
    if experiment == "mnist" and "network" not in flagfile.read_text():
        args += ("--network=64=20=10=10",)
    folder = run(*args, "--num_rounds=2", "--eval_every=1", experiment=experiment)
    if experiment == "heterogeneity":
        assert_drawn(folder, "divergence", "Jensen-Shannon divergence")
        return
    assert np.isfinite([row["loss"] for row in run_folder.read(folder)]).all()


def test_paper_sizes_are_refused_where_writers_are_too_small(refused, real_data):
    said = refused(
        f"--flagfile={ROOT}/experiments/flags/femnist.level_a.flags",
        f"--data_dir={real_data}",
    )
    assert "360 training and 60 test examples of each of 16 users" in said
    assert "0 users have 420" in said


@pytest.mark.parametrize(
    "args, message",
    [
        (("--levls=3",), "Unknown command line flag 'levls'"),
        (("--dataset=cifar",), "should be one of"),
        (("--study=all",), "should be one of"),
        (("femnist.flags",), "Need flags such as --seed=1 only, got 'femnist.flags'"),
        (("--flagfile=none.flags",), "none.flags"),
        (("--learning_rate=-0.1",), "positive learning rate, got -0.1"),
        (("--learning_rate=nan",), "positive learning rate, got nan"),
        (("--num_runs=0",), "num_runs"),
        (("--num_agents=0",), "num_agents"),
        (("--levels=a,b",), "whole numbers joined by commas for --levels, got 'a,b'"),
        (("--levels=120",), "levels from 0 to 100, got 120"),
        (("--network=784-300-10",), "a network such as 784=300=100=62"),
        (("--network=784=12=9",), "labels from 0 to 8"),
        (("--network=100=12=10",), "need 784 inputs, the network has 100"),
        (
            ("--study=scheme", "--schemes=784-20-8-10"),
            "784-20-8-10 has more cells than 784=12=8=10",
        ),
        (
            ("--study=scheme", "--schemes=784-20-10"),
            "model 0 is 784-20-10, 3 parts, but the networks have 4",
        ),
        (
            ("--study=scheme", "--schemes=784=20=10"),
            "a partial model such as 784-250-80-62",
        ),
        (
            ("--study=peers", "--group_sizes=3"),
            "divide the 4 agents evenly, got groups of 3",
        ),
        (
            ("--averaging=gossip", "--degree=4"),
            "0 < degree < 4 (the number of agents)",
        ),
        (("--dataset=femnist",), "Need --data_dir for --dataset=femnist"),
        (("--data_dir=somewhere",), "Got --data_dir without --dataset"),
        (("--dataset=femnist", "--data_dir=nowhere"), "nowhere"),
        (("--dataset=npz", "--data_dir=nowhere.npz"), "nowhere.npz"),
    ],
)
def test_bad_input_gets_a_sentence(refused, args, message):
    assert message in refused(*TINY, *args)


def test_bad_files_get_a_sentence(refused, tmp_path):
    path = tmp_path / "mine.npz"
    as_npz = ("--dataset=npz", f"--data_dir={path}")
    users = np.repeat(np.arange(4), 30)
    x, y = np.ones((120, 784), np.float32), users % 3

    np.savez(path, x=x, y=y)
    assert "user" in refused(*TINY, *as_npz)
    np.savez(path, x=np.array([{}] * 120), y=y, user=users)
    assert "pickled objects" in refused(*TINY, *as_npz)
    np.savez(path, x=x, y=y - 1, user=users)
    assert "-1" in refused(*TINY, *as_npz)
    np.savez(path, x=x, y=y, user=users)
    assert "the data has 4" in refused(*TINY, *as_npz, "--num_agents=8")
    assert "has only 30" in refused(*TINY, *as_npz, "--train_size=60")
    path.write_bytes(path.read_bytes()[:500])
    assert "cut off" in refused(*TINY, *as_npz)
    path.write_bytes(b"")
    assert "is empty" in refused(*TINY, *as_npz)


def test_used_and_unwritable_work_folders_are_refused(run, tmp_path, capsys):
    folder = run(*TINY, "--levels=0")
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit):
        run(*TINY, "--levels=0")
    assert "holds a run: choose another --workdir" in capsys.readouterr().err
    assert before == (folder / "metrics.jsonl").read_bytes()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        run(*TINY, "--levels=0", workdir="file/below")
    assert "can be written" in capsys.readouterr().err


def test_level_layouts():
    classic = (784, 300, 100, 62)
    assert averaging_schemes.level_layout(classic, 80) == (784, 250, 80, 62)
    assert averaging_schemes.level_layout(classic, 0) == (0, 0, 0, 0)
    assert averaging_schemes.level_layout(classic, 100) == classic
    assert averaging_schemes.level_layout((10, 20, 3), 50) == (10, 10, 3)


def test_default_schemes_are_level_80_and_whole_layers(parse):
    parse("--study=scheme", "--variant=d")
    examples = glyphs.glyphs(16, 12, num_classes=10)
    assert [case.name for case in femnist.make_cases(examples)] == [
        "784-250-80-10",
        "0-0-0-0",
        "784-300-100-10",
        "784-300-0-0",
        "784-300-100-0",
        "0-300-100-0",
        "0-300-100-10",
        "0-0-100-10",
    ]


def flag_names(module):
    """Flags that an experiment's source defines."""
    return re.findall(
        r'flags\.DEFINE_\w+\(\s*"(\w+)"', Path(module.__file__).read_text()
    )


@pytest.mark.parametrize("experiment", experiment_modules.NAMES)
def test_every_flag_has_a_sentence(parse, experiment):
    parse("--num_runs=1", experiment=experiment)
    for module, own in flags.FLAGS.flags_by_module_dict().items():
        for flag in own if module.startswith("experiments.") else ():
            sentence = re.sub("^<.*?>: ", "", flag.help)  # without the choices
            assert sentence[0].isupper() and sentence.endswith("."), flag.name
            assert len(sentence.split()) > 2, flag.name
    listed = flags.FLAGS.get_key_flags_for_module(f"experiments.{experiment}")
    assert {flag.name for flag in listed} >= {"seed", "workdir", "verbosity"}


def test_every_experiment_has_flagfiles():
    """What `test_flagfiles_build` and `test_flagfiles_run` find is complete."""
    for path in (ROOT / "experiments").glob("*.py"):
        if "common.run(main)" in path.read_text():
            assert path.stem in experiment_modules.NAMES
    of_experiments = {path.name.split(".")[0] for path in FLAGFILES}
    assert of_experiments == {*experiment_modules.NAMES}
    assert len(FLAGFILES) == len([*(ROOT / "experiments" / "flags").iterdir()])


def test_command_line(tmp_path):
    """In its own process: exit status, one sentence, help with this project's flags."""

    def command(*args):
        return subprocess.run(
            [sys.executable, "-m", "experiments.femnist", *args],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    bad = command("--levls=1")
    assert bad.returncode == 2
    assert bad.stderr == "Unknown command line flag 'levls'. Did you mean: levels ?\n"
    helped = command("--help").stdout
    assert helped.startswith(femnist.__doc__.splitlines()[0])
    listed = set(re.findall(r"^  (?:-v,)?--(?:\[no\])?(\w+):", helped, re.MULTILINE))
    shared = common, averaging_study, femnist
    own = {name for module in shared for name in flag_names(module)}
    assert listed == own | {"verbosity"}
    done = command(*TINY, "--levels=50", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "No --dataset given: procedural handwriting" in done.stderr
    assert "level_50, run 0: compiling" in done.stderr
    assert "3/3 rounds, 0 s left, level_50, run 0: accuracy" in done.stderr
    assert re.search(r"3 messages, [\d,]+ examples/s\n", done.stderr)
    written = (tmp_path / "run" / "run.flags").read_text()
    assert f"--num_devices={common.num_cores()}\n" in written
    assert f"--agent_loop={agent_loop.CHUNK}\n" in written  # it is a small network


def test_ci_runs_the_readme_test_command():
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^pip install .*pytest$", readme, re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text()


def test_sensors(run):
    folder = run(
        "--num_agents=4",
        "--train_size=10",
        "--test_size=8",
        "--batch_size=5",
        "--levels=0,80,100",
        "--standardize",
        "--num_rounds=3",
        "--eval_every=1",
        experiment="vsn",
    )
    rows = run_folder.read(folder)
    assert {row["scheme"] for row in rows} == {"level_0", "level_80", "level_100"}
    sent = {row["scheme"]: row["bytes"] for row in rows if row["round"] == 3}
    assert sent["level_80"] == 3 * 4 * 4713  # parameters of 100-40-16-1
    assert sent["level_100"] == 3 * 4 * 6091
    lines = (f"{number} mini-batches" for number in (1, 2, 3))
    assert_drawn(folder, "accuracy_by_level", *lines, num_lines=3)


def test_associative_networks(run):
    folder = run(
        "--num_hidden=40",
        "--shared_hidden=0,30,40",
        "--modified=1",
        "--batch_size=3",
        "--num_runs=2",
        "--num_rounds=4",
        "--eval_every=2",
        experiment="associative",
    )
    rows = run_folder.read(folder)
    assert len(rows) == 3 * 2 * 2
    sent = {row["scheme"]: row["bytes"] for row in rows if row["round"] == 4}
    assert sent == {"hidden_0": 0, "hidden_30": 4 * 4 * 3000, "hidden_40": 4 * 4 * 4000}
    # Agents start from weights of their own, so runs and agents differ.
    losses = [row["loss"] for row in rows if row["scheme"] == "hidden_0"]
    assert len(set(losses)) == len(losses)
    shown = ("vector 1 modified", "global hidden cells", "2 mini-batches")
    assert_drawn(folder, "accuracy_by_hidden", *shown, num_lines=2)


@pytest.mark.slow
def test_overview(run, tmp_path):
    folder = run(*TINY, "--levels=0,50,80,100")
    (found,) = overview.comparisons(folder)
    rows = run_folder.read(folder)
    final = {row["scheme"]: row["accuracy"] for row in rows if row["round"] == 3}
    assert found.local.name == "level_0"
    assert found.everything.name == "level_100"
    best = max(("level_50", "level_80"), key=lambda name: final[name])
    assert found.partial.median == pytest.approx(final[best])
    for ending in ("png", "svg"):
        overview.draw([found], tmp_path / f"overview.{ending}")
    shown = ("nothing shared", "best partial", "everything shared")
    assert_drawn(tmp_path, "overview", "accuracy, mean over agents", *shown)
    with pytest.raises(InputError, match="has no summary.json"):
        overview.comparisons(tmp_path)
    with pytest.raises(InputError, match="at least one run, got none"):
        overview.main([])
    only = run(*TINY, "--levels=50", workdir="only")
    with pytest.raises(InputError, match="nothing shared, a part shared"):
        overview.main([str(only)])


@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_next_word(run, capsys):
    small = (
        "--num_agents=4",
        "--num_words=20",
        "--units=4",
        "--degree=2",
        "--num_rounds=2",
        "--eval_every=1",
    )
    folder = run(*small, "--methods=p2p_bn", "--num_runs=2", experiment="next_word")
    rows = run_folder.read(folder)
    assert [(row["scheme"], row["run"], row["round"]) for row in rows] == [
        ("p2p_bn", run, number) for run in (0, 1) for number in (1, 2)
    ]
    assert [row["messages"] for row in rows] == [0, 2, 0, 2]
    assert all("time" in row for row in rows)
    assert sum(rows[-1]["agent_messages"]) == 4 * rows[-1]["messages"]
    assert ["gini" in row for row in rows] == [False, True] * 2
    links = run_folder.read(folder, "links.jsonl")
    assert [row["run"] for row in links] == [0, 1]
    assert all(len(row["cluster"]) == 4 for row in links)
    assert {"worst_decile", "consensus_distance"} <= set(rows[0])
    assert "mean of max" in capsys.readouterr().out
    for args, message in (
        (("--methods=push",), "Need methods among local_only"),
        (("--degree=4",), "4"),
        (("--dataset=chat",), "Need --data_dir for --dataset=chat"),
        (("--data_dir=x",), "Got --data_dir without --dataset"),
        (("--learning_rate=0",), "positive learning rate, got 0"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            run(*small, *args, workdir="refused", experiment="next_word")
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err


TINY_VIRTUAL = (
    "--num_agents=3",
    "--size=8",
    "--network=100=4=2",
    "--num_samples=2",
    "--epochs=2",
    "--batch_size=4",
    "--num_rounds=2",
    "--eval_every=1",
    "--agent_loop=0",
    "--num_devices=1",
)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_virtual(run, capsys):
    folder = run(*TINY_VIRTUAL, "--methods=fedavg,virtual", experiment="virtual")
    rows = run_folder.read(folder)
    assert [(row["scheme"], row["round"]) for row in rows] == [
        (name, number) for name in ("fedavg", "virtual") for number in (1, 2)
    ]
    # One of three clients per round of FedAvg, six of its rounds for two epochs each.
    sent = {row["scheme"]: row["bytes"] for row in rows if row["round"] == 2}
    assert sent["fedavg"] == 2 * 6 / 3 * 4 * (100 * 4 + 4 + 4 * 2 + 2)
    assert sent["virtual"] == 2 * 4 * 2 * (100 * 4 + 4)
    assert_drawn(folder, "accuracy_by_round", "fedavg", "virtual", num_lines=2)
    assert "0.9600 (0.0020)" in capsys.readouterr().out  # of the paper's table


def test_virtual_refuses(run, tmp_path, capsys):
    for args, message in (
        (("--methods=virtuous",), "Need methods among global"),
        (("--network=99=4=2",), "a network of 100 inputs for these examples"),
        (("--network=100=4=1", "--study=mnist"), "a network of 64 inputs"),
        (("--network=64=4=5", "--study=mnist"), "labels from 0 to 4"),
        (("--network=100=2",), "a hidden layer for clients to read"),
        (("--dropout=1",), "a dropout of 0 or more below 1, got 1.0"),
        (("--fedavg_share=0",), "a share of clients in .0, 1. and a positive rate"),
        (("--damping=2",), "a damping above 0 and at most 1, got 2.0"),
        (("--test_share=0",), "a test share between 0 and 1"),
        (
            ("--size=2000", "--study=mnist", "--network=64=4=10"),
            "at most 1797 in all",
        ),
        (("--dataset=public",), "Need --data_dir for --dataset=public"),
        (("--data_dir=x",), "Got --data_dir without --dataset"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            run(*TINY_VIRTUAL, *args, workdir="refused", experiment="virtual")
        assert exit_info.value.code == 2
        assert re.search(message, capsys.readouterr().err)
        assert not (tmp_path / "refused").exists()


def test_virtual_permutes_pixels_by_client(parse):
    args = ("--num_agents=3", "--size=40", "--num_runs=2", "--study=p_mnist")
    parse(*args, experiment="virtual")
    module = experiment_modules.MODULES["virtual"]
    worlds = module.make_worlds(module.load_examples())
    assert [world.train.size.tolist() for world in worlds] == [[30] * 3] * 2
    np.testing.assert_array_equal(worlds[0].cluster, [0, 1, 2])
    parse(*args[:3], "--study=mnist", experiment="virtual")
    plain = module.make_worlds(module.load_examples())
    for one, other in zip(plain, worlds, strict=True):
        x, permuted = one.train.examples["x"], other.train.examples["x"]
        assert (x != permuted).any()
        pixels = [np.sort(own.reshape(3, 30, -1)) for own in (x, permuted)]
        np.testing.assert_array_equal(*pixels)


def test_heterogeneity(run, capsys):
    args = ("--dataset=digits,speakers", "--num_agents=10", "--num_runs=2")
    folder = run(*args, experiment="heterogeneity")
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    found = {row["scheme"]: row["median"] for row in rows}
    assert found["digits_iid"] < 0.1 < found["digits_practical"]
    assert found["digits_practical"] < found["digits_pathological"]
    assert 0 < found["speakers"] < 1
    shown = (name.replace("_", " ") for name in found)
    assert_drawn(folder, "divergence", "Jensen-Shannon divergence", *shown)
    with pytest.raises(SystemExit):
        run("--dataset=chats", workdir="refused", experiment="heterogeneity")
    assert "got 'chats'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--dataset=mnist", workdir="refused", experiment="heterogeneity")
    assert "Need --data_dir for --dataset=mnist" in capsys.readouterr().err


COMBINATION = ("--max_epochs=4", "--patience=2", "--num_rounds=3", "--eval_every=1")


@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_combination(run, capsys):
    folder = run(
        *COMBINATION,
        "--splits=skewed",
        "--schemes=additive,centralized",
        "--target=0.5",
        experiment="combination",
    )
    rows = run_folder.read(folder)
    assert [(r["scheme"], r["round"]) for r in rows] == [
        (scheme, number)
        for scheme in ("additive", "centralized")
        for number in (1, 2, 3)
    ]
    size = 16 * 104 + 104 + 104 + 1
    assert size == 1873
    added, alone = rows[2], rows[5]
    assert added["bytes"] == added["bytes_down"] == 3 * 4 * size
    assert alone["bytes"] == alone["messages"] == 0
    assert added["sum_of_factors"] == 3
    assert 1 <= added["epochs"] <= 4
    assert added["norm"] > 5 * alone["norm"]
    assert {row["non_finite"] for row in rows} == {0}
    # Hosts end each round with one model, so they agree on the common test.
    assert len(set(added["agent_accuracy"])) == 1
    assert len(alone["agent_accuracy"]) == 1
    shown = ("rounds", "accuracy", "norm", "additive", "centralized")
    assert_drawn(folder, "curves_by_round", *shown, num_lines=2)
    shown = ("hosts", "factor of every host", "c = 1")
    assert_drawn(folder, "factors", *shown, num_lines=len(combination.FACTOR_RATES))
    assert "bytes until accuracy 0.5" in capsys.readouterr().out
    for args, message in (
        (("--schemes=median",), "Need schemes among mean, size_weighted"),
        (("--splits=half",), "Need splits among balanced, balanced_once"),
        (("--dataset=mnist",), "--dataset=synthetic or hospital or npz for --study="),
        (("--dataset=hospital",), "Need --data_dir for --dataset=hospital"),
        (("--study=digits", "--hosts=two"), "whole numbers joined by commas for"),
        (("--study=digits", "--dataset=synthetic"), "--dataset=digits or mnist or npz"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            run(*COMBINATION, *args, workdir="refused", experiment="combination")
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_combination_of_more_classes_is_refused_and_all_schemes_run(
    run, tmp_path, capsys
):
    schemes = "mean,size_weighted,exponential,local,fedavg_1,fedavg_5"
    stopping = ("--splits=unbalanced", f"--schemes={schemes}", "--stop_after=1")
    folder = run(*COMBINATION, *stopping, experiment="combination")
    last = {row["scheme"]: row for row in run_folder.read(folder)}
    assert last["mean"]["sum_of_factors"] == 1
    assert last["exponential"]["sum_of_factors"] == pytest.approx(2.001, abs=1e-4)
    assert last["local"]["bytes"] == 0
    assert last["fedavg_5"]["bytes"] == last["fedavg_1"]["bytes"] == 3 * 4 * 1873
    assert last["mean"]["bytes"] <= 3 * 4 * 1873
    args = ("--study=digits", "--hosts=2,4", "--schemes=mean,exponential")
    images = run(*COMBINATION, *args, workdir="images", experiment="combination")
    sums = {
        (row["setting"]["hosts"], row["scheme"]): row["sum_of_factors"]
        for row in run_folder.read(images)
    }
    assert sums[2, "exponential"] == pytest.approx(2 * np.exp(1 / 2), abs=1e-5)
    assert sums[4, "exponential"] == pytest.approx(4 * np.exp(1 / 4), abs=1e-5)
    x, y = np.zeros((9, 4), np.float32), np.arange(9) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y, user=np.zeros(9, int))
    own = ("--dataset=npz", f"--data_dir={tmp_path / 'own.npz'}")
    with pytest.raises(SystemExit):
        run(*COMBINATION, *own, workdir="refused", experiment="combination")
    assert "two classes for --study=hospital, got 3" in capsys.readouterr().err


def test_fedcurv(run, capsys):
    small = ("--train_size=8", "--test_size=8", "--num_rounds=2", "--eval_every=1")
    folder = run(*small, "--strengths=0.5", "--before_averaging", experiment="fedcurv")
    rows = run_folder.read(folder)
    assert [(r["scheme"], r["setting"], r["round"]) for r in rows] == [
        (scheme, {"strength": strength}, number)
        for scheme, strength in (("fedavg", 0), ("fedcurv", 0.5))
        for number in (1, 2)
    ]
    size = 2 * 16 + 16 + 16 * 4 + 4
    assert [row["bytes"] for row in rows] == [
        4 * size * parts * number for parts in (1, 2) for number in (1, 2)
    ]
    assert rows[-1]["bytes_down"] == 4 * size * 3 * 2
    # Before the averaging machines differ, and nobody was penalised at first.
    assert rows[0]["agent_accuracy"] == rows[2]["agent_accuracy"]
    assert rows[0]["loss"] == pytest.approx(rows[2]["loss"], abs=1e-6)
    assert rows[1]["loss"] != rows[3]["loss"]
    shown = ("rounds", "fedavg 0", "fedcurv 0.5")
    assert_drawn(folder, "curves_by_round", *shown, num_lines=2)
    assert "fedcurv 0.5" in capsys.readouterr().out
    texts = run(
        *small[2:],
        "--study=texts",
        "--num_dims=8",
        "--num_epochs=1",
        "--methods=fedper",
        workdir="texts",
        experiment="fedcurv",
    )
    found = {row["scheme"]: row for row in run_folder.read(texts)}
    assert found["fedper"]["bytes"] == 2 * 4 * (8 * 64 + 64)
    assert len(found["fedper"]["agent_accuracy"]) == 4
    for args, message in (
        (("--methods=fedsgd",), "Need methods among local_only"),
        (("--strengths=much",), "numbers joined by commas for --strengths"),
        (("--strengths=-1",), "penalty_weight of 0 or more, got -1"),
        (("--dataset=senteval",), "--study=texts for --dataset=senteval, got points"),
        (("--study=texts", "--dataset=points"), "Need --study=points for"),
        (("--study=texts", "--dataset=senteval"), "Need --data_dir for --dataset="),
        (("--train_size=7",), "multiple of 2 training points"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            run(*small, *args, workdir="refused", experiment="fedcurv")
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err
