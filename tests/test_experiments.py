"""Experiments end to end: flagfiles, run folders, reruns, every refusal."""

import ast
import dataclasses
import importlib
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

from experiments import overview
from experiments.averaging import schemes as averaging_schemes
from experiments.combination import results as combination_results
from experiments.engine import command, config, fields, reading
from experiments.engine.jobs import Measurement
from experiments.femnist import study as femnist
from p2pjax.types import InputError

ROOT = Path(__file__).parents[1]
FLAGFILES = [
    path for path in experiment_modules.flagfiles() if not path.name.startswith("base")
]


def named(flagfile):
    """As in `mnist.level`."""
    return f"{flagfile.parents[1].name}.{flagfile.stem}"


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


# As many tests look at one run of these as can. Its models differ before and after
# averaging, also in how often they are right.
PAIRS = (
    *TINY,
    "--levels=80",
    "--num_runs=2",
    "--averaging=pairs",
    "--seed=7",
    "--loss=cross_entropy",
    "--learning_rate=0.5",
)


@pytest.fixture(scope="module")
def pairs(run_once):
    return run_once(*PAIRS)


def test_run_folder(run):
    folder = run(*TINY, "--levels=0,100", "--num_runs=2")
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
    rows = reading.rows(folder)
    assert [(r["scheme"], r["run"], r["round"]) for r in rows] == [
        (f"level_{level}", run, number)
        for level in (0, 100)
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
    assert messages["level_100"] == 3
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


def test_same_flags_same_bytes_and_rerun_from_run_flags(run, pairs):
    again = run(f"--flagfile={pairs / 'run.flags'}", workdir="again")
    other = run(*PAIRS, "--num_runs=1", "--seed=8", workdir="other")
    expected = (pairs / "metrics.jsonl").read_bytes()
    assert expected == (again / "metrics.jsonl").read_bytes()
    first = [row for row in reading.rows(pairs) if row["run"] == 0]
    assert [row["loss"] for row in first] != [
        row["loss"] for row in reading.rows(other)
    ]


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
            ("--study=peers", "--levels=80", "--group_sizes=2"),
            "accuracy_by_group_size",
            "agents that average together",
            1,
        ),
        pytest.param(
            ("--study=peers", "--levels=0,80", "--group_sizes=2,4"),
            "accuracy_by_group_size",
            "agents that average together",
            2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("--levels=60", "--averaging=gossip", "--degree=2", "--rewire_every=2"),
            "accuracy_by_level",
            "averaging level (%)",
            2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (
                "--levels=60",
                "--average_every=2",
                "--update=mini_batch",
                "--init=own",
                "--loss=cross_entropy",
                "--agent_loop=0",
            ),
            "accuracy_by_level",
            "averaging level (%)",
            2,
            marks=pytest.mark.slow,
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
        return reading.rows(run(*TINY, "--levels=50", *args, workdir=changed))[-1]

    plain = last_row()
    assert plain["messages"] == 3
    assert last_row("--average_every=2")["messages"] == 1
    assert last_row("--averaging=gossip", "--degree=2")["messages"] == 6
    for option in (
        "--update=mini_batch",
        "--init=own",
        "--loss=cross_entropy",
        "--learning_rate=0.2",
        "--batch_size=5",
        "--seed=1",
    ):
        row = last_row(option)
        assert row["loss"] != plain["loss"], option
        assert row["bytes"] == plain["bytes"]
    groups = reading.rows(
        run(*TINY, "--study=peers", "--levels=50", "--group_sizes=2,4", workdir="peers")
    )
    assert {row["setting"]["group_size"] for row in groups} == {2, 4}
    assert len({row["loss"] for row in groups}) == len(groups)


@pytest.mark.slow
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
    assert reading.rows(folder)[-1]["bytes"] == 3 * 4 * (5 * 2 + 2 + 2 * 3 + 3)


def on_embedded_data(flagfile, train_size, test_size):
    """The flagfile's experiment and a small command line; real data may be missing."""
    experiment, name = flagfile.parents[1].name, named(flagfile)
    sizes = (f"--train_size={train_size}", f"--test_size={test_size}")
    small = {
        "femnist": ("--dataset=glyphs", *sizes),
        "mnist": ("--dataset=digits", *sizes),
        "vsn": ("--dataset=synthetic", *sizes),
        "associative": (),
        "compare": (
            "--dataset=digits",
            "--split=dirichlet",
            "--num_agents=4",
            "--methods=local_only,dpsgd",
        ),
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
        "levels": (
            "--dataset=glyphs",
            "--variant=d",
            "--num_agents=4",
            f"--samples={train_size + test_size}",
            "--channels=2",
            "--hidden=4",
        ),
        "robustness": (
            "--dataset=digits",
            "--network=mlp",
            "--hidden=4",
            "--test_size=60",
            "--num_byzantine=1",
        ),
        "protocols": (
            "--dataset=digits",
            "--split=rotated" if "clusters" in name else "--split=dirichlet",
            "--network=mlp",
            "--hidden=4",
            "--num_agents=12",
            "--degree=2",
            "--tokens=2,4",
            f"--train_size={train_size}",
        ),
    }[experiment]
    if "connections.text" in name or "connections.thesis_text" in name:
        small = (
            "--dataset=speakers",
            "--num_agents=20",
            "--num_words=20",
            "--gru_units=4",
            "--min_train=1",
            "--max_train=1000",
        )
    if "levels.shakespeare" in name:
        small = (
            "--dataset=speakers",
            "--num_agents=4",
            "--num_words=20",
            "--units=4",
            "--min_train=1",
            "--max_train=1000",
        )
    if experiment == "multi_task" and "_digits" in flagfile.read_text():
        small = (
            "--dataset=glyphs_digits,glyphs_letters",
            "--num_agents=4",
            "--channels=2",
            "--features=3",
            "--max_examples=8",
        )
    if "protocols.tokens" in name:
        small += ("--rates=0.1",)  # fewer tokens are fewer schemes
    if "robustness.averaging" in name:
        small += ("--rules=gts", "--attacks=none")
    if "robustness.compression_femnist" in name:
        small += ("--dataset=glyphs",)
    if "robustness.selection" in name:
        small += ("--methods=random,pens", "--attacks=none,backdoor")
    if "senteval" in name:
        small += ("--dataset=topics",)
    if "combination.design" in name:
        small += ("--activation=sigmoid", "--optimizer=sgd", "--splits=skewed")
    if "fedcurv.points_" in name:
        small += ("--geometry=star", "--strengths=1")
    if "virtual.cnn" in name or "virtual.gru" in name:
        small += ("--channels=2,3", "--units=3", "--num_words=20", "--size=10")
    if "virtual.rates" in name or "combination.rates" in name:
        small += ("--fedavg_rate=0.1",)
    if "virtual.design" in name or "virtual.informed" in name:
        small += ("--initial_stddev=0.2", "--gate=0.1", "--divergence_weight=1")
        small += ("--largest_start=0.99", "--prior_stddev=1", "--rates=0.01")
    if "mnist.design" in name:
        small += ("--init=own", "--weights=uniform", "--update=mini_batch")
    if ".gossip_" in name:
        small += ("--averaging=server,private", "--cycles=2")
    if "mnist.changing" in name:
        small += ("--train_size=5",)
    if "mnist.tune" in name:
        small += ("--rate_grid=1",)
    if "combination.mnist" in name:
        small = ("--dataset=digits", "--network=mlp", "--hosts=2,4")
        small += ("--train_size=100",)
    if "combination.design_breast" in name:
        small += ("--dataset=breast_cancer",)
    if "combination.texts" in name:
        small = ("--dataset=speakers", "--hosts=2", "--num_words=20", "--min_train=1")
        small += ("--max_train=1000", "--units=4", "--max_epochs=3", "--patience=2")
    if "auto" in name:
        small += ("--values=1",)  # mini-batches before the grouping, which is run here
    if "train_size" in name:
        small += ("--values=4",)
    return experiment, (f"--flagfile={flagfile}", *small, "--num_runs=1")


def fewer(settings):
    """With fewer values of what a study of partial averaging varies."""
    lists = {
        name: getattr(settings, name, None)
        for name in ("levels", "group_sizes", "values")
    }
    shorter = {name: (own[0], own[-1]) for name, own in lists.items() if own}
    return dataclasses.replace(settings, **shorter)


@pytest.mark.parametrize("flagfile", FLAGFILES, ids=named)
def test_flagfiles_are_read(parse, flagfile):
    parse(f"--flagfile={flagfile}", experiment=flagfile.parents[1].name)


def takes_long(path):
    """Those of larger sizes build the same jobs as the quick one, of more agents."""
    size = "paper|quick|scaled"
    size = re.search(f"^# size: ({size})", path.read_text(), re.MULTILINE)[1]
    return size != "quick"


# The thesis has D2 also on graphs that are directed or have low eigenvalues.
OUTSIDE_THEORY = pytest.mark.filterwarnings(
    "ignore:The theory of D2 needs an undirected graph",
    "ignore:D2 needs a smallest eigenvalue above",
)

BUILT = [
    pytest.param(path, marks=pytest.mark.slow if takes_long(path) else ())
    for path in FLAGFILES
]


@OUTSIDE_THEORY
@pytest.mark.parametrize("flagfile", BUILT, ids=named)
def test_flagfiles_build(parse, flagfile):
    """Every flagfile through the one interface that all experiments have."""
    experiment, args = on_embedded_data(flagfile, train_size=4, test_size=10)
    settings = fewer(parse(*args, experiment=experiment))
    jobs = experiment_modules.EXPERIMENTS[experiment].make_jobs(settings)
    assert {job.run for job in jobs} == set(settings.runs)
    for job in (jobs[0], jobs[-1]):
        if isinstance(job, Measurement):
            assert all(np.isfinite(value) for value in job.measure().values())
            continue
        algorithm, evaluate = job.program
        data = job.make_data()
        state = jax.eval_shape(algorithm.init, job.key, data)
        models = jax.eval_shape(algorithm.models, state)
        metrics = jax.eval_shape(evaluate, models, data)
        assert metrics["accuracy"].shape == data.train.size.shape


@pytest.mark.slow
@OUTSIDE_THEORY
@pytest.mark.parametrize("flagfile", FLAGFILES, ids=named)
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_flagfiles_run(run, flagfile):
    experiment, args = on_embedded_data(flagfile, train_size=20, test_size=10)
    if experiment == "femnist":
        args += ("--batch_size=5", "--group_sizes=16")
    if experiment == "connections":  # test_connections runs the other methods
        args += ("--methods=sparse,dac",)
    if "robustness.two_worlds" in named(flagfile):  # test_robustness runs the others
        args += ("--rules=gts", "--attacks=alie,label_flip")
    if "robustness.separated" in named(flagfile):  # as does test_attacked_agents
        args += ("--rules=ios", "--attacks=alie")
    if "robustness.partial" in named(flagfile):
        args += ("--rules=cs_plus", "--attacks=backdoor", "--levels=0,50")
    if experiment == "mnist" and "network" not in flagfile.read_text():
        args += ("--network=64=20=10=10",)
    folder = run(*args, "--num_rounds=2", "--eval_every=1", experiment=experiment)
    if experiment == "heterogeneity":
        assert_drawn(folder, "divergence", "Jensen-Shannon divergence")
        return
    if "robustness.averaging" in named(flagfile):
        assert_drawn(folder, "error_by_attackers", "squared error", "gts")
        return
    if named(flagfile) == "protocols.consensus":
        assert_drawn(folder, "error_by_mixings", "squared error", "base 2")
        return
    assert np.isfinite([row["loss"] for row in reading.rows(folder)]).all()


def test_paper_sizes_are_refused_where_writers_are_too_small(refused, real_data):
    said = refused(
        f"--flagfile={ROOT}/experiments/femnist/flags/level_a.flags",
        f"--data_dir={real_data}",
    )
    assert "360 training and 60 test examples of each of 16 users" in said
    assert "0 users have 420" in said


@pytest.mark.parametrize(
    "args, message",
    [
        (("--levls=3",), "Unknown command line flag 'levls'"),
        (("--dataset=cifar",), "need one of glyphs, femnist, npz"),
        (("--study=all",), "need one of level, scheme, peers, got 'all'"),
        (("femnist.flags",), "Need flags such as --seed=1 only, got 'femnist.flags'"),
        (("--flagfile=none.flags",), "none.flags"),
        (("--learning_rate=-0.1",), "need more than 0, got -0.1"),
        (("--learning_rate=nan",), "need a finite number, got nan"),
        (("--learning_rate=1e300",), "0 or 1.4e-45 to 3.4e+38, got 1e+300"),
        (("--learning_rate=1e-300",), "0 or 1.4e-45 to 3.4e+38, got 1e-300"),
        (("--num_runs=0",), "num_runs"),
        (("--num_agents=0",), "num_agents"),
        (("--levels=a,b",), "flag --levels=a,b: need a whole number, got 'a'"),
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


def test_used_and_unwritable_work_folders_are_refused(run, pairs, tmp_path, capsys):
    before = (pairs / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit):
        run(*TINY, "--levels=0", workdir=pairs)
    assert "holds a run: choose another --workdir" in capsys.readouterr().err
    assert before == (pairs / "metrics.jsonl").read_bytes()
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
    jobs = femnist.make_jobs(
        parse("--study=scheme", "--variant=d", "--train_size=2", "--test_size=2")
    )
    assert [job.scheme for job in jobs] == [
        "784-250-80-10",
        "0-0-0-0",
        "784-300-100-10",
        "784-300-0-0",
        "784-300-100-0",
        "0-300-100-0",
        "0-300-100-10",
        "0-0-100-10",
    ]


@pytest.mark.parametrize("name", experiment_modules.NAMES)
def test_every_experiment_has_one_shape(name):
    """A package of config, study, flags and results, described in sentences."""
    experiment = experiment_modules.EXPERIMENTS[name]
    assert experiment.name == name
    folder = ROOT / "experiments" / name
    for part in ("__main__.py", "config.py", "study.py", "RESULTS.md"):
        assert (folder / part).exists(), part
    assert (folder / "flags" / "quick.flags").exists()
    if name != "heterogeneity":  # where no agent learns
        assert set(command.SUMMARY) <= set(experiment.summary)
    fields = dataclasses.fields(experiment.config)
    assert {"seed", "workdir", "verbosity"} <= {field.name for field in fields}
    for field in fields:
        sentence = field.metadata["help"]
        assert sentence[0].isupper() and sentence.endswith("."), field.name
        assert len(sentence.split()) > 2, field.name
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiment.config().seed = 1


@pytest.mark.parametrize("name", experiment_modules.NAMES)
def test_configs_survive_their_flagfile(name, tmp_path):
    """What run.flags has gives the same config again."""
    kind = experiment_modules.EXPERIMENTS[name].config
    for flagfile in experiment_modules.flagfiles(name):
        found = config.parse(kind, [f"--flagfile={flagfile}"])
        (tmp_path / "run.flags").write_text(config.as_flags(found))
        again = config.parse(kind, [f"--flagfile={tmp_path / 'run.flags'}"])
        assert again == found


def test_experiments_define_no_global_flags():
    """Importing one has no effect on the flags of another, or of a user's program."""
    modules = set(flags.FLAGS.flags_by_module_dict())
    assert "absl.logging" in modules
    assert not [name for name in modules if "experiments" in name]


def test_only_configs_know_flags():
    """No module of experiments but the config's reads or defines an absl flag."""
    allowed = {ROOT / "experiments" / "engine" / "config.py"}
    for path in (ROOT / "experiments").rglob("*.py"):
        if path not in allowed:
            imported = [
                alias.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ImportFrom) and node.module == "absl"
                for alias in node.names
            ]
            assert "flags" not in imported, path


def test_every_experiment_has_flagfiles():
    """What `test_flagfiles_build` and `test_flagfiles_run` find is complete."""
    assert {path.parents[1].name for path in FLAGFILES} == {*experiment_modules.NAMES}
    assert not (ROOT / "experiments" / "flags").exists()
    for path in experiment_modules.flagfiles():
        first = path.read_text().splitlines()[0]
        assert first.startswith("# "), path
        assert first[2].isupper() or first[2].isdigit(), path


def run_command(*args):
    """In its own process."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.femnist", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_sorted_by_topic(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["femnist", "--helpshort"])
    main = importlib.import_module("experiments.femnist.__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    command.main(main.EXPERIMENT)
    helped = capsys.readouterr().out
    assert helped.startswith("Partial averaging on FEMNIST")
    listed = set(re.findall(r"^  --(?:\[no\])?(\w+):", helped, re.MULTILINE))
    kind = experiment_modules.EXPERIMENTS["femnist"].config
    assert listed == {field.name for field in dataclasses.fields(kind)}
    topics = re.findall(r"^(\w.*):$", helped, re.MULTILINE)
    assert topics == [*fields.TOPICS]


@pytest.mark.slow
def test_command_line_with_a_mistake():
    bad = run_command("--levls=1")
    assert bad.returncode == 2
    assert bad.stderr == "Unknown command line flag 'levls'. Did you mean: levels ?\n"


def test_command_line(tmp_path, compiled_quickly):
    """What it says while it runs, and its exit status."""
    done = run_command(*TINY, "--levels=50", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "No --dataset given: procedural handwriting" in done.stderr
    assert "level_50, run 0: compiling" in done.stderr
    assert "3/3 rounds, 0 s left, level_50, run 0: accuracy" in done.stderr
    assert re.search(r"3 messages, [\d,]+ examples/s\n", done.stderr)
    written = (tmp_path / "run" / "run.flags").read_text()
    assert f"--num_devices={command.num_cores()}\n" in written


def test_runs_in_parts_are_those_of_the_whole(run, pairs):
    """Run 1 has the same rows whether it is the second of two or the first of one."""
    part = reading.rows(run(*PAIRS, "--num_runs=1", "--first_run=1"))
    assert part == [row for row in reading.rows(pairs) if row["run"] == 1]


def test_scores_before_and_after_averaging(run, pairs):
    """Both are there unless one does without, and `accuracy` keeps its meaning."""
    plain = reading.rows(run(*PAIRS, "--noscore_before"))
    both = reading.rows(pairs)
    for one, other in zip(plain, both, strict=True):
        assert "accuracy_before" not in one
        assert other["accuracy"] == pytest.approx(one["accuracy"], abs=1e-6)
        assert other["accuracy_after"] == other["accuracy"]
    assert any(row["accuracy_before"] != row["accuracy_after"] for row in both)


def test_ci_runs_the_readme_test_command():
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^pip install .*pytest$", readme, re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
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
    rows = reading.rows(folder)
    assert {row["scheme"] for row in rows} == {"level_0", "level_80", "level_100"}
    sent = {row["scheme"]: row["bytes"] for row in rows if row["round"] == 3}
    assert sent["level_80"] == 3 * 4 * 4713  # parameters of 100-40-16-1
    assert sent["level_100"] == 3 * 4 * 6091
    lines = (f"{number} mini-batches" for number in (1, 2, 3))
    assert_drawn(folder, "accuracy_by_level", *lines, num_lines=3)


@pytest.mark.slow
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
    rows = reading.rows(folder)
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
    rows = reading.rows(folder)
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
def test_virtual(run):
    folder = run(*TINY_VIRTUAL, "--methods=fedavg,virtual", experiment="virtual")
    rows = reading.rows(folder)
    assert [(row["scheme"], row["round"]) for row in rows] == [
        (name, number) for name in ("fedavg", "virtual") for number in (1, 2)
    ]
    # One of three clients per round of FedAvg, six of its rounds for two epochs each.
    sent = {row["scheme"]: row["bytes"] for row in rows if row["round"] == 2}
    assert sent["fedavg"] == 2 * 6 / 3 * 4 * (100 * 4 + 4 + 4 * 2 + 2)
    assert sent["virtual"] == 2 * 4 * 2 * (100 * 4 + 4)
    assert_drawn(folder, "accuracy_by_round", "fedavg", "virtual", num_lines=2)


def test_virtual_refuses(run, tmp_path, capsys):
    for args, message in (
        (("--methods=virtuous",), "need global, "),
        (("--network=99=4=2",), "a network of 100 inputs for these examples"),
        (("--network=100=4=1", "--study=mnist"), "a network of 64 inputs"),
        (("--network=64=4=5", "--study=mnist"), "labels from 0 to 4"),
        (("--network=100=2",), "a hidden layer for clients to read"),
        (("--dropout=1",), "need less than 1, got 1"),
        (("--fedavg_share=0",), "need more than 0, got 0"),
        (("--damping=2",), "need 1 or less, got 2"),
        (("--test_share=0",), "need more than 0, got 0"),
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


COMBINATION = ("--max_epochs=4", "--patience=2", "--num_rounds=3", "--eval_every=1")


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_combination(run, capsys):
    folder = run(
        *COMBINATION,
        "--splits=skewed",
        "--schemes=additive,centralized",
        "--target=0.5",
        experiment="combination",
    )
    rows = reading.rows(folder)
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
    assert_drawn(
        folder, "factors", *shown, num_lines=len(combination_results.FACTOR_RATES)
    )
    assert "bytes until accuracy 0.5" in capsys.readouterr().out
    for args, message in (
        (("--schemes=median",), "need mean, size_weighted"),
        (("--splits=half",), "need balanced, balanced_once"),
        (("--dataset=mnist",), "--dataset=synthetic or breast_cancer or hospital"),
        (("--dataset=hospital",), "Need --data_dir for --dataset=hospital"),
        (("--study=digits", "--hosts=two"), "need a whole number, got 'two'"),
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
    last = {row["scheme"]: row for row in reading.rows(folder)}
    assert last["mean"]["sum_of_factors"] == 1
    assert last["exponential"]["sum_of_factors"] == pytest.approx(2.001, abs=1e-4)
    assert last["local"]["bytes"] == 0
    assert last["fedavg_5"]["bytes"] == last["fedavg_1"]["bytes"] == 3 * 4 * 1873
    assert last["mean"]["bytes"] <= 3 * 4 * 1873
    args = ("--study=digits", "--hosts=2,4", "--schemes=mean,exponential")
    images = run(*COMBINATION, *args, workdir="images", experiment="combination")
    sums = {
        (row["setting"]["hosts"], row["scheme"]): row["sum_of_factors"]
        for row in reading.rows(images)
    }
    assert sums[2, "exponential"] == pytest.approx(2 * np.exp(1 / 2), abs=1e-5)
    assert sums[4, "exponential"] == pytest.approx(4 * np.exp(1 / 4), abs=1e-5)
    x, y = np.zeros((9, 4), np.float32), np.arange(9) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y, user=np.zeros(9, int))
    own = ("--dataset=npz", f"--data_dir={tmp_path / 'own.npz'}")
    with pytest.raises(SystemExit):
        run(*COMBINATION, *own, workdir="refused", experiment="combination")
    assert "two classes for --study=hospital, got 3" in capsys.readouterr().err
