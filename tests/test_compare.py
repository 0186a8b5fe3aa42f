"""`experiments.compare`: any method, any network, own data, equal budgets."""

import re

import jax
import numpy as np
import pytest
from slow_cases import marked

import p2pjax as pj
from experiments.compare import results
from experiments.compare.config import Config
from experiments.compare.graphs import GRAPHS
from experiments.compare.methods import METHODS, REFUSED
from experiments.compare.problem import SPLITS, network_of
from experiments.engine import reading, run_folder
from experiments.engine.config import describe
from p2pjax.types import InputError, Peers

TINY = (
    "--num_agents=4",
    "--hidden=4",
    "--batch_size=16",
    "--num_rounds=2",
    "--eval_every=1",
    "--degree=2",
)


@pytest.fixture
def own_npz(tmp_path):
    """Examples of four users with names, of three classes with names."""
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    y = rng.integers(0, 3, 160)
    np.savez(
        path,
        x=(rng.normal(size=(160, 5)) + y[:, None]).astype(np.float32),
        y=np.array(["ant", "bee", "cat"])[y],
        user=np.repeat(["ann", "bob", "cleo", "dora"], 40),
    )
    return path


NETWORKS = """
import flax.linen as nn
import jax.numpy as jnp
from flax import nnx

import p2pjax as pj


class Linen(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dense(self.num_classes)(nn.Dropout(0.1, deterministic=not train)(x))


class Flat(Linen):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes, name="last")(x.reshape(len(x), -1))


class Nnx(nnx.Module):
    def __init__(self, num_classes, rngs):
        self.layer = nnx.Linear(5, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


def functions(num_classes):
    return pj.Network(
        lambda key: {"w": jnp.zeros((5, num_classes))}, lambda p, x: x @ p["w"]
    )
"""


@jax.numpy_dtype_promotion("standard")  # optax's injected rates
def test_own_data_own_network_swept_rates(run, own_npz, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    folder = run(
        *TINY,
        "--dataset=npz",
        f"--data_dir={own_npz}",
        "--network=my_networks:Linen",
        "--methods=local_only,fedavg",
        "--learning_rates=0.01,0.3",
        experiment="compare",
    )
    rows = reading.rows(folder)
    last = {(r["scheme"], r["setting"]["learning_rate"]): r for r in rows}
    assert len(last) == 4 and len(rows) == 8
    assert last["fedavg", 0.01]["loss"] != last["fedavg", 0.3]["loss"]
    for row in rows:
        assert len(row["class_accuracy"]) == 3
        assert 0 < row["majority"] < 1
        assert 0 <= row["valid_accuracy"] <= 1
        assert row["steps"] == row["round"] * 2  # 28 examples in batches of 16
    assert last["fedavg", 0.3]["accuracy_after"] == last["fedavg", 0.3]["accuracy"]
    assert "accuracy_before" in last["fedavg", 0.3]
    table = (folder / "comparison.md").read_text()
    assert table in capsys.readouterr().out
    assert "Each agent has used at most 2 rounds; mean over 1 runs" in table
    assert table.count("\n| fedavg |") == table.count("\n| local_only |") == 1
    assert (folder / "report.html").exists()


def test_all_rates_are_one_program(parse):
    config = parse(*TINY, "--learning_rates=0.1,0.2,0.3", experiment="compare")
    from experiments.compare.study import make_jobs

    jobs = make_jobs(config)
    assert len(jobs) == 4 * 3
    assert len({job.program for job in jobs}) == 4
    rates = [job.hyperparameters["learning_rate"] for job in jobs[:3]]
    assert rates == [0.1, 0.2, 0.3]


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_a_swept_rate_is_that_rate(run):
    """The state has it: a run of two rates equals two runs of one."""
    args = (*TINY, "--methods=dpsgd", "--valid_fraction=0")
    both = run(*args, "--learning_rates=0.05,0.5", workdir="both", experiment="compare")
    alone = run(*args, "--learning_rate=0.5", workdir="one", experiment="compare")
    swept = [r for r in reading.rows(both) if r["setting"]["learning_rate"] == 0.5]
    for one, other in zip(swept, reading.rows(alone), strict=True):
        assert one == other


@pytest.mark.parametrize("name", ["Linen", "Nnx", "functions"])
def test_networks_of_ones_own(parse, tmp_path, monkeypatch, name):
    (tmp_path / "their_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    config = parse(f"--network=their_networks:{name}", experiment="compare")
    task = pj.classification(network_of(config, 3), (5,))
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    inputs = 4 if name == "Linen" else 5
    assert any(leaf.shape == (inputs, 3) for leaf in jax.tree.leaves(shapes))


@pytest.mark.filterwarnings("ignore:D2")  # on rings of even size
@pytest.mark.parametrize(
    "name", marked(METHODS, "d_cliques", "d2", "dac", "fedcurv", "l2c", "panm", "sgp")
)
def test_every_method_is_made(parse, name):
    network = "batch_norm_cnn" if name == "p2p_bn" else "mlp"
    split = ("--split=rotated", "--degree=1") if name == "oracle" else ("--split=iid",)
    config = parse(
        *TINY,
        f"--methods={name}",
        f"--network={network}",
        "--channels=2",
        *split,
        experiment="compare",
    )
    from experiments.compare.study import make_jobs

    (job,) = make_jobs(config)
    data = job.make_data()
    with jax.numpy_dtype_promotion("standard"):
        state = jax.eval_shape(job.program.algorithm.init, job.key, data)
        models = jax.eval_shape(job.program.algorithm.models, state)
        found = jax.eval_shape(job.program.evaluate, models, data)
    assert found["accuracy"].shape == (4,)


def test_every_method_is_offered_or_refused_with_its_reason(parse, capsys):
    assert {*METHODS} | {*REFUSED} == {*pj.METHODS}
    assert not {*METHODS} & {*REFUSED}
    for name, why in REFUSED.items():
        with pytest.raises((InputError, SystemExit), match=why.split(":")[0]):
            parse(f"--methods={name}", experiment="compare")
        assert why in " ".join(describe(Config).split())


@pytest.mark.parametrize(
    "args, said",
    [
        (("--methods=combination", "--loss_probability=0.1"), "messages that arrive"),
        (("--methods=complete_training", "--local_steps=2"), "leave them"),
        (("--methods=d_cliques", "--loss_probability=0.1"), "messages that arrive"),
        (("--methods=d_cliques", "--local_steps=2"), "in every step: leave them"),
        (("--methods=diple", "--local_epochs=2"), "each iteration: leave them"),
        (("--methods=central", "--local_steps=2"), "once over all agents' data"),
        (("--methods=choco_sgd", "--loss_probability=0.1"), "lost messages"),
        (("--methods=combination", "--local_steps=2"), "use epochs"),
    ],
)
def test_what_a_method_cannot_take_is_refused(parse, args, said):
    from experiments.compare.study import make_jobs

    with pytest.raises(InputError, match=said):
        make_jobs(parse(*TINY, *args, experiment="compare"))


def what_happens(parse, *args):
    """What the program of one method does, and what it plans; or why it refuses."""
    from experiments.compare.study import make_jobs

    try:
        (job,) = make_jobs(parse(*TINY, *args, experiment="compare"))
    except InputError as refusal:
        return str(refusal)
    algorithm, data = job.program.algorithm, job.make_data()
    plan = algorithm.plan(np.random.default_rng(0), data, 5)  # losses may be drawn
    one = jax.tree.map(lambda leaf: leaf[0], plan)
    with jax.numpy_dtype_promotion("standard"):
        state = jax.eval_shape(algorithm.init, job.key, data)
        program = jax.make_jaxpr(lambda *now: algorithm.round(job.key, 0, *now, data))
        traced = re.sub("0x[0-9a-f]+", "", str(program(one, state)))
    return traced + str([np.asarray(leaf).tolist() for leaf in jax.tree.leaves(plan)])


@pytest.mark.filterwarnings("ignore:D2", "ignore:SGP")
@pytest.mark.parametrize("name", marked(METHODS, *set(METHODS) - {"dpsgd", "diple"}))
def test_no_method_ignores_updates_or_losses(parse, name):
    """What only some take is taken or refused; who sends nothing can lose nothing."""
    args = (f"--methods={name}", "--split=rotated", "--degree=1", "--channels=2")
    args += ("--network=batch_norm_cnn" if name == "p2p_bn" else "--network=mlp",)
    plain = what_happens(parse, *args)
    assert "Need" not in plain[:20]
    given = ["--local_steps=3", "--local_epochs=3"]
    if name not in ("local_only", "central"):
        given.append("--loss_probability=0.4")
    for one in given:
        assert what_happens(parse, *args, one) != plain, f"{name} ignores {one}"


def test_the_last_layer_of_other_networks_has_to_be_said(parse, tmp_path, monkeypatch):
    from experiments.compare.study import make_jobs

    (tmp_path / "networks_with_heads.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    args = (*TINY, "--methods=fedper", "--network=networks_with_heads:Flat")
    with pytest.raises(InputError, match="last layer of this network for fedper"):
        make_jobs(parse(*args, experiment="compare"))
    (job,) = make_jobs(parse(*args, "--head=params/last/.*", experiment="compare"))
    assert job.scheme == "fedper"


def test_rates_of_methods_that_start_afresh(parse):
    """Each has a program of its own: no state could tell it the rate."""
    from experiments.compare.study import make_jobs

    args = ("--methods=combination", "--learning_rates=0.1,0.2")
    one, other = make_jobs(parse(*TINY, *args, experiment="compare"))
    assert one.program is not other.program
    assert not one.hyperparameters and other.setting == {"learning_rate": 0.2}


SCHEME = """
[models.all]
cells = "64-2-0"
members = "all"

[models.pair]
cells = "0-1-0"
members = [0, 2]
depends = ["all"]
"""


def test_levels_are_settings_where_there_are_several(parse):
    from experiments.compare.study import make_jobs

    args = (*TINY, "--methods=dpsgd,partial_averaging", "--learning_rates=0.1,0.2")
    jobs = make_jobs(parse(*args, "--level=0,50", experiment="compare"))
    assert [job.setting for job in jobs[2:]] == [
        {"level": level, "learning_rate": rate}
        for level in (0, 50)
        for rate in (0.1, 0.2)
    ]
    assert len({job.program for job in jobs}) == 3  # rates share one
    for args_of_one in ((), ("--level=30",)):
        jobs = make_jobs(parse(*args, *args_of_one, experiment="compare"))
        assert [job.setting for job in jobs[2:]] == [job.setting for job in jobs[:2]]


@jax.numpy_dtype_promotion("standard")  # optax's injected rates
def test_a_scheme_from_a_file_takes_the_place_of_a_level(run, tmp_path):
    (tmp_path / "pairs.toml").write_text(SCHEME)
    args = (*TINY, "--methods=partial_averaging,fedavg", "--budget=bytes")
    file = f"--scheme_file={tmp_path / 'pairs.toml'}"
    folder = run(*args, file, experiment="compare")
    one, other = (row for row in reading.rows(folder) if row["round"] == 2)
    assert one["setting"]["scheme_file"].startswith("pairs ")
    # Of 4 hidden cells all agents share 2, half of them one more.
    assert one["bytes"] == one["bytes_down"] == 2 * 4 * 65 * 2.5
    assert other["bytes"] == other["bytes_down"] == 2 * 4 * (64 * 4 + 4 + 40 + 10)
    table = (folder / "comparison.md").read_text()
    assert "| partial_averaging scheme_file pairs " in table


@pytest.mark.parametrize(
    ("content", "args", "said"),
    [
        (SCHEME, ("--level=80",), "Need --level or --scheme_file, which stands in its"),
        (SCHEME, ("--methods=dpsgd",), "Need partial_averaging among --methods for"),
        (SCHEME, ("--hidden=1",), "agent 0 has 1 cells in part 1"),
        (SCHEME, ("--num_agents=2",), "among agents 0 to 1"),
        (None, (), "cannot be read"),
        ('network = "64=3=10"\n' + SCHEME, (), "as wide as 64=4=10.*got 64=3=10"),
        ('network = "64=4=4=10"\n' + SCHEME, (), "cannot be used"),
    ],
)
def test_schemes_that_do_not_fit_are_refused(parse, tmp_path, content, args, said):
    from experiments.compare.study import make_jobs

    if content is not None:
        (tmp_path / "mine.toml").write_text(content)
    file = f"--scheme_file={tmp_path / 'mine.toml'}"
    with pytest.raises(InputError, match=said):
        make_jobs(
            parse(
                *TINY, "--methods=partial_averaging", file, *args, experiment="compare"
            )
        )


NAMED = [name for name in GRAPHS if name != "file"]
DRAWN_AGAIN = {"equi_dyn", "matcha", "moving_geometric"}
IN_TURN = {"base_k", "one_peer_exponential", "one_peer_hypercube"}


def named_graph(parse, name):
    args = "--num_agents=8", "--degree=4", "--num_rounds=5"
    found = GRAPHS[name](parse(*args, experiment="compare"))
    graph = found.graph
    if callable(graph):
        graph = graph(np.random.default_rng(0))
    return graph, found.changes


@pytest.mark.parametrize("name", NAMED)
def test_all_runs_have_graphs_of_one_width(parse, name):
    """Methods that remember a graph share one program among runs."""
    found = GRAPHS[name](
        parse("--num_agents=16", "--degree=4", experiment="compare")
    ).graph
    if callable(found):
        drawn = [found(np.random.default_rng(run)) for run in range(30)]
        assert len({one[0].shape[-1] for one in drawn}) == 1


@pytest.mark.parametrize("name", NAMED)
def test_graphs(parse, name):
    graph, changes = named_graph(parse, name)
    sender = graph.ids if isinstance(graph, Peers) else graph.neighbor
    assert sender.shape[-2] == 8
    assert changes == (name in DRAWN_AGAIN | IN_TURN)
    assert (sender.ndim == 3) == (name in IN_TURN | {"moving_geometric"})
    if name not in DRAWN_AGAIN:
        assert pj.graphs.contraction(graph) > 0  # agents agree in the end


@pytest.mark.parametrize("name", NAMED)
def test_every_graph_serves_dpsgd(parse, name):
    """One program of it can be made; methods of rounds take sequences as well."""
    from experiments.compare.study import make_jobs

    args = "--num_agents=8", "--degree=2", "--num_rounds=3", f"--graph={name}"
    brings_weights = isinstance(named_graph(parse, name)[0], Peers)
    methods = "dpsgd" if brings_weights else "dpsgd,divshare"
    config = parse(*args, f"--methods={methods}", experiment="compare")
    for job in make_jobs(config):
        plan = job.program.algorithm.plan
        assert jax.tree.leaves(plan(np.random.default_rng(0), job.make_data(), 3))


@pytest.mark.parametrize(
    "name, said",
    [
        ("ring", "a graph of 4 agents, 2 neighbours, spectral gap 0.667; a mixing "
         "leaves 0.333 of what models differ."),
        ("one_peer_hypercube", "2 graphs of 4 agents, 1 neighbours, spectral gap 1; 2 "
         "mixings make all models equal."),
    ],
)  # fmt: skip
def test_says_how_well_a_graph_mixes(run, caplog, name, said):
    with caplog.at_level("INFO"):
        run(*TINY, "--methods=dpsgd", f"--graph={name}", experiment="compare")
    assert said in caplog.text


@pytest.mark.parametrize("name", [name for name in SPLITS if name != "by_user"])
def test_splits(parse, name):
    from experiments.compare import problem

    config = parse(f"--split={name}", "--num_agents=4", experiment="compare")
    examples = problem.examples_of(config)
    data = problem.data_of_run(config, examples, np.random.default_rng(0))
    assert data.train.examples["x"].shape[-3:] == (8, 8, 1)


@pytest.mark.parametrize(
    "args, message",
    [
        (("--methods=dpsdg",), "need local_only, central, dpsgd"),
        (("--network=resnet",), "Need a network among mlp, cnn, batch_norm_cnn"),
        (("--network=nowhere:Net",), "Need a network that can be imported"),
        (("--split=by_user",), "Need users to split by, and digits has none"),
        (("--graph=file",), "Need --graph_file for --graph=file"),
        (("--graph_file=edges.txt",), "Need --graph=file for --graph_file, got --gra"),
        (("--local_steps=2", "--local_epochs=2"), "got both: leave out one"),
        (("--methods=p2p_bn",), "add batch norm"),
        (("--dataset=nothing",), "nothing"),
        (("--dataset=npz",), "data_dir"),
        (("--methods=d2", "--loss_probability=0.5"), "D2"),
    ],
)
def test_refusals(run, tmp_path, capsys, args, message):
    with pytest.raises(SystemExit) as exit_info:
        run(*TINY, *args, experiment="compare")
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("network", ["cnn", "batch_norm_cnn"])
def test_vectors_are_no_images(parse, own_npz, network):
    from experiments.compare.study import make_jobs

    args = "--dataset=npz", f"--data_dir={own_npz}", f"--network={network}"
    with pytest.raises(InputError, match="Need images of height and width"):
        make_jobs(parse(*TINY, *args, experiment="compare"))


def rows_of(method, accuracies, per_round, rate=0.1, run=0):
    return [
        {
            "scheme": method,
            "setting": {"learning_rate": rate},
            "run": run,
            "round": number,
            "accuracy": accuracy,
            "agent_accuracy": [accuracy, accuracy],
            "messages": per_round * number,
            "bytes": 8 * per_round * number,
            "examples": 10 * number,
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]


def test_methods_are_compared_where_they_have_used_as_much(tmp_path):
    rows = rows_of("often", [0.5, 0.6, 0.7, 0.8], 2)
    rows += rows_of("rarely", [0.4, 0.5, 0.55, 0.75], 1)
    rows += rows_of("local_only", [0.3, 0.3, 0.3, 0.3], 0)
    for row in rows:
        run_folder.append(tmp_path, "metrics.jsonl", row)

    def order(budget, amount=None):
        text = results.table(tmp_path, budget, amount)
        cells = [line.split(" | ") for line in text.splitlines() if line[:2] == "| "]
        return [(row[0][2:], row[2]) for row in cells[1:]]

    assert order("rounds")[0] == ("often", "0.800")
    # After four messages of each agent the thrifty method has come further.
    assert order("messages")[:2] == [("rarely", "0.750"), ("often", "0.600")]
    assert order("messages", 2)[:2] == [("often", "0.500"), ("rarely", "0.500")]
    # What was first evaluated beyond the budget is not said to be within it.
    assert "Not so of" not in results.table(tmp_path, "messages", 2)
    beyond = results.table(tmp_path, "messages", 1)
    assert "Not so of often 2: so many messages had been used" in beyond
    assert order("bytes")[:2] == order("messages")[:2]
    assert order("examples", 20)[:2] == [("often", "0.600"), ("rarely", "0.500")]


def test_a_method_that_never_fits_into_the_budget_is_named(tmp_path):
    rows = rows_of("thrifty", [0.4, 0.5], 1) + rows_of("large", [0.6, 0.7], 5)
    for row in rows:
        run_folder.append(tmp_path, "metrics.jsonl", row)
    text = results.table(tmp_path, "bytes", None)
    assert "at most 16 bytes, but for large at the first evaluation; mean" in text
    assert "but for" not in results.table(tmp_path, "bytes", 40)


def test_settings_have_lines_and_rates_of_their_own(tmp_path):
    """The validation chooses a rate for each level."""
    for level, rate, accuracy in (
        (0, 0.1, 0.5),
        (0, 0.5, 0.4),
        (50, 0.1, 0.6),
        (50, 0.5, 0.7),
    ):
        (row,) = rows_of("partial_averaging", [accuracy], 1, rate=rate)
        setting = {"level": level} | row["setting"]
        row |= {"setting": setting, "valid_accuracy": accuracy}
        run_folder.append(tmp_path, "metrics.jsonl", row)
    text = results.table(tmp_path, "rounds", None)
    assert "| partial_averaging level 50 | 0.5 | 0.700 |" in text
    assert "| partial_averaging level 0 | 0.1 | 0.500 |" in text
    assert "0.600" not in text and "0.400" not in text
    chosen = results.chosen_rows(tmp_path, "rounds", None)
    assert {row["scheme"] for row in chosen} == {
        "partial_averaging level 0",
        "partial_averaging level 50",
    }


def test_validation_data_choose_the_rate(tmp_path):
    good = rows_of("dpsgd", [0.6], 1, rate=0.1)
    lucky = rows_of("dpsgd", [0.9], 1, rate=0.5)
    for row, valid in ((good[0], 0.8), (lucky[0], 0.7)):
        run_folder.append(tmp_path, "metrics.jsonl", row | {"valid_accuracy": valid})
    text = results.table(tmp_path, "rounds", None)
    assert "| dpsgd | 0.1 | 0.600 |" in text and "0.900" not in text
