"""`experiments.protocols`: label skew, graphs and methods at equal messages."""

import jax
import numpy as np
import optax
import pytest
from figure_contents import assert_drawn

import p2pjax as pj
from experiments.engine import config as configs
from experiments.engine import reading
from experiments.protocols import cases, consensus, graphs, rates, training
from experiments.protocols.config import (
    TUNING_RUN,
    Config,
    as_compared,
    settle_tuning,
)
from p2pjax.datasets import label_skew
from p2pjax.simulation._sweep import with_hyperparameters
from p2pjax.training.rates import learning_rates
from p2pjax.types import InputError

TINY = (
    "--num_agents=4",
    "--hidden=4",
    "--batch_size=16",
    "--train_size=40",
    "--num_rounds=4",
    "--eval_every=2",
    "--num_devices=1",
    "--verbosity=-1",
)


class TestEqualSizes:
    def test_sizes_are_equal_and_no_row_is_used_twice(self):
        y = np.random.default_rng(0).integers(0, 5, 1003)
        rows = label_skew.dirichlet_equal_sizes(y, np.random.default_rng(1), 10, 0.1)
        assert [len(own) for own in rows] == [100] * 10
        assert len(set(np.concatenate(rows).tolist())) == 1000

    def test_small_alpha_gives_few_classes(self):
        y = np.arange(4000) % 10

        def largest_share(alpha):
            rng = np.random.default_rng(2)
            rows = label_skew.dirichlet_equal_sizes(y, rng, 16, alpha)
            return np.mean([np.bincount(y[own]).max() / len(own) for own in rows])

        assert largest_share(0.01) > 0.65 > largest_share(0.3) > largest_share(10) + 0.1
        assert largest_share(1e4) < 0.16

    def test_what_cannot_be_split_is_refused(self):
        y, rng = np.arange(8) % 2, np.random.default_rng(0)
        with pytest.raises(InputError, match="Need a positive alpha, got 0"):
            label_skew.dirichlet_equal_sizes(y, rng, 2, 0)
        with pytest.raises(InputError, match="at least one example for each of 9"):
            label_skew.dirichlet_equal_sizes(y, rng, 9, 1)
        split = pj.split.dirichlet(0.3, equal_sizes=True)
        with pytest.raises(InputError, match="Need at least 2 examples for each of 5"):
            pj.federate(np.zeros((8, 2)), y, num_agents=5, split=split)
        data = pj.datasets.digits(num_agents=8, split=split)
        assert len(set(data.train.size.tolist())) == 1


class TestRates:
    def test_the_rate_is_read_where_methods_look_for_it(self):
        optimizer = rates.descent(0.5, 2, 0.1, momentum=0.9)
        state = optimizer.init(np.float32(0))
        state = with_hyperparameters(state, {rates.FIRST: 0.25})
        read = []
        for _ in range(4):
            _, state = optimizer.update(np.float32(1), state)
            (found,) = learning_rates(state)
            read.append(float(found))
        assert read == pytest.approx([0.25, 0.25, 0.025, 0.025])

    @pytest.mark.slow
    def test_memories_follow_the_rate_as_with_a_schedule_of_optax(self):
        """Gradient tracking with a drop is that of `optax.inject_hyperparams`."""
        data = pj.datasets.digits(
            num_agents=4, split=pj.split.dirichlet(0.3, equal_sizes=True), seed=3
        )
        task = pj.classification(pj.nn.MLP((4, 10)), data)
        drop = optax.piecewise_constant_schedule(0.2, {30: 0.1})
        scheduled = optax.inject_hyperparams(optax.sgd)(learning_rate=drop)
        found = []
        with jax.numpy_dtype_promotion("standard"):  # optax's injected rates
            for optimizer in (rates.descent(0.2, 30, 0.1), scheduled):
                method = pj.gradient_tracking(
                    task, optimizer, pj.graphs.ring(4), batch_size=32
                )
                key = jax.random.key(0)
                *_, last = pj.simulate(key, method, data, num_rounds=4, eval_every=4)
                found.append(last.state.variables.params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *found)

    def test_momentum_is_nesterovs(self):
        ours = rates.descent(0.5, 100, 0.1, momentum=0.9)
        theirs = optax.sgd(0.5, momentum=0.9, nesterov=True)
        states = [ours.init(np.float32(0)), theirs.init(np.float32(0))]
        for gradient in (np.float32(1.0), np.float32(-0.3), np.float32(2.0)):
            one, states[0] = ours.update(gradient, states[0])
            other, states[1] = theirs.update(gradient, states[1])
            assert float(one) == pytest.approx(float(other), rel=1e-6)

    def test_one_for_all_for_each_scheme_or_for_each_case(self):
        config = Config(methods=("dpsgd", "dsgdm"), alphas=(10.0, 0.1))
        found = cases.cases_of(config, 100)
        assert [c.setting["alpha"] for c in found] == [10.0, 0.1, 10.0, 0.1]
        assert [c.program for c in found[:2]] == [found[0].program] * 2

        def of(*given, **more):
            own = Config(**(vars(config) | {"rates": given or None} | more))
            return training.rates_of(own, found)

        assert of() == [0.1] * 4
        assert of(learning_rate=0.3) == [0.3] * 4
        assert of(0.2) == [0.2] * 4
        assert of(0.2, 0.4) == [0.2, 0.2, 0.4, 0.4]
        assert of(0.1, 0.1, 0.3, 0.1) == [0.1, 0.1, 0.3, 0.1]
        with pytest.raises(InputError, match=r"Need one rate, 2 .* or 4 .* got 3"):
            of(0.1, 0.1, 0.1)
        with pytest.raises(InputError, match="--rates or --learning_rate, got both"):
            of(0.2, learning_rate=0.3)

    def test_repeated_rates_are_kept_by_flags(self):
        found = configs.parse(Config, ["--rates=0.1,0.1,0.3"])
        assert found.rates == (0.1, 0.1, 0.3)
        assert "--rates=0.1,0.1,0.3\n" in configs.as_flags(found)

    def test_tuning_takes_a_quarter_of_the_rounds_and_a_run_of_its_own(self):
        found = settle_tuning(Config(tune=True, num_rounds=10, num_runs=3))
        assert (found.num_rounds, found.num_runs) == (3, 1)
        assert found.first_run == TUNING_RUN
        assert settle_tuning(found) == found  # also when it is resumed
        usual = Config(num_rounds=10)
        assert settle_tuning(usual) is usual


class TestGraphs:
    def test_all_mixings_keep_sums_of_rows(self):
        config = as_compared(Config(num_agents=8, degree=2))
        for name, make in graphs.GRAPHS.items():
            found = graphs.matrices(make(config), np.random.default_rng(0), 3)
            assert found.shape == (3, 8, 8), name
            np.testing.assert_allclose(found.sum(2), 1, atol=1e-6, err_msg=name)

    def test_each_agent_hears_one_other_with_some_probability(self):
        rng = np.random.default_rng(0)
        drawn = [graphs.hear_one(rng, 50, 0.2) for _ in range(40)]
        shares = np.mean([graph.mask for graph in drawn])
        assert shares == pytest.approx(0.2, abs=0.03)
        for graph in drawn:
            is_own = graph.neighbor[:, 0] == np.arange(50)
            np.testing.assert_array_equal(is_own, ~graph.mask[:, 0])

    @pytest.mark.parametrize(("first", "begin"), [(0.1, 2), (0.5, 10), (0.99, 19)])
    def test_all_hear_all_in_a_window(self, first, begin):
        rng = np.random.default_rng(0)
        found = graphs.with_window(rng, 6, 0.2, 20, first)
        degrees = np.asarray(found.mask).sum(2)
        is_dense = (degrees == 5).all(1)
        assert np.flatnonzero(is_dense).tolist() == [begin]
        assert degrees[~is_dense].max() <= 1

    def test_errors_of_consensus_are_those_of_powers_of_the_matrix(self):
        config = Config(study="consensus", num_agents=6, num_rounds=4)
        error, messages = consensus.errors(config, "ring", 0)
        x = np.random.default_rng([0, 0]).normal(size=(6, consensus.DIMENSION))
        third = np.eye(6) + np.roll(np.eye(6), 1, 0) + np.roll(np.eye(6), -1, 0)
        for t in range(5):
            mixed = np.linalg.matrix_power(third / 3, t) @ x
            wanted = np.mean((mixed - x.mean(0)) ** 2)
            assert error[t] == pytest.approx(wanted, rel=1e-5)
        assert messages.tolist() == [0, 2, 4, 6, 8]

    @pytest.mark.parametrize(
        ("graph", "steps"), [("base_2", 9), ("base_3", 6), ("base_4", 5), ("base_5", 2)]
    )
    def test_base_graphs_of_25_agents_agree_when_the_paper_says(self, graph, steps):
        config = Config(study="consensus", num_agents=25, num_rounds=10)
        error, _ = consensus.errors(config, graph, 0)
        assert (error > 0).tolist() == [t < steps for t in range(11)]


@pytest.fixture(scope="module")
def skewed(run_once):
    flags = ("--methods=dpsgd,all_reduce", "--alphas=10,0.1", "--num_runs=2")
    return run_once(*TINY, *flags, "--rates=0.2,0.1", experiment="protocols")


class TestRun:
    def test_rows_say_what_agents_and_their_mean_reach(self, skewed):
        rows = reading.rows(skewed)
        assert len(rows) == 2 * 2 * 2 * 2
        for row in rows:
            values = [row[name] for name in ("pooled_accuracy", "worst_pooled")]
            assert all(0 <= value <= 1 for value in values)
            assert row["worst_pooled"] <= row["pooled_accuracy"] + 1e-6
            assert (
                row["learning_rate"] == {"dpsgd": 0.2, "all_reduce": 0.1}[row["scheme"]]
            )
            if row["scheme"] == "all_reduce":  # one model
                assert row["disagreement"] < 1e-8
                merged = row["merged_accuracy"]
                assert merged == pytest.approx(row["pooled_accuracy"], abs=1e-3)
            else:
                assert row["disagreement"] > 1e-6
        per_exchange = {row["scheme"]: row["messages"] for row in rows}
        assert per_exchange["all_reduce"] / per_exchange["dpsgd"] == 3 / 2

    def test_table_and_figure(self, skewed):
        table = (skewed / "comparison.md").read_text()
        assert table.count("| scheme | rate | pooled accuracy |") == 2
        assert "### alpha 0.1" in table
        assert_drawn(
            skewed,
            "accuracy_by_alpha",
            "alpha of Dirichlet shares",
            "accuracy of the mean model",
            "all reduce",
        )

    @pytest.mark.slow
    def test_tuning_prints_rates(self, run, capsys):
        flags = ("--study=merge", "--tune", "--grid=0.2,0.4", "--local_steps=2")
        folder = run(*TINY, *flags, experiment="protocols")
        said = capsys.readouterr().out
        assert "\n--rates=" in said
        assert said.split("--rates=")[1].split("\n")[0].count(",") == 5
        assert "At an edge of --grid: sparse" in said
        rows = reading.rows(folder)
        assert {row["run"] for row in rows} == {TUNING_RUN}
        assert {row["setting"]["rate"] for row in rows} == {0.2, 0.4}
        silent = {row["scheme"] for row in rows if row["messages"] == 0}
        assert {"alone", "alone_other_starts"} <= silent
        starts = {r["scheme"]: r["disagreement"] for r in rows}
        assert starts["alone_other_starts"] > starts["alone"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--study=merge", "--methods=dpsgd"), "Need no --methods in the study merge"),
        (("--study=merge", "--graphs=ring"), "Need no --graphs in the study merge"),
        (("--study=loss", "--graphs=ring,torus"), "Need one graph in the study loss"),
        (("--study=loss", "--losses=1"), "Need --losses below 1, got 1"),
        (("--study=graphs", "--alphas=1,2"), "Need one value of --alphas in the study"),
        (("--local_steps=1,2",), "Need one value of --local_steps in the study"),
        (("--study=consensus", "--tune"), "Need a study that trains for --tune"),
        (("--split=by_user",), "Need no --train_size with --split=by_user"),
        (("--train_size=5000",), "Need 22224 examples for 4 agents with 5000"),
        (("--rates=1,2,3",), "Need one rate, 11"),
    ],
)
def test_what_cannot_be_run_is_refused(run, tmp_path, capsys, flags, said):
    with pytest.raises(SystemExit) as ended:
        run(*TINY, *flags, experiment="protocols")
    assert ended.value.code == 2
    found = capsys.readouterr().err
    assert said in found and found.count("\n") == 1
    assert not (tmp_path / "run").exists()
