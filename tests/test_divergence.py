"""Models that are no longer finite: wrong, counted, told; and data that are not."""

import logging
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from settings import TINY
from toy_jobs import toy_evaluate, toy_jobs

import p2pjax as pj
from experiments.engine import command, jobs, notices, reading, rows, runner
from experiments.engine.config import Common
from p2pjax.datasets.label_sets import label_set
from p2pjax.evaluation.test_sets import DIVERGED
from p2pjax.nn.variational import Columns
from p2pjax.types import Info, InputError

NUM_CLASSES = 3


def split(num_examples):
    """All labels are 0: what argmax makes of NaN."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, num_examples, 5)).astype(np.float32)
    y = np.zeros((4, num_examples), np.int32)
    return pj.Split({"x": x, "y": y}, np.full(4, num_examples, np.int32))


DATA = pj.FederatedData(split(6), split(2), split(3), np.zeros(4, np.int32))


def with_nan(variables):
    def filled(tree, value):
        return jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), tree)

    return variables._replace(
        params=filled(variables.params, np.nan), stats=filled(variables.stats, 1)
    )


def tokens(**more):
    return {"tokens": jnp.ones((2, 4), jnp.int32), "valid": jnp.ones(2, bool)} | more


@pytest.mark.parametrize(
    ("task", "batch"),
    [
        (pj.classification(pj.nn.MLP((4, NUM_CLASSES)), (5,)), None),
        (
            pj.variational_classification(Columns((4, 3)), (5,), num_samples=2),
            None,
        ),
        (
            pj.next_token(pj.nn.gru.NextWord(6, 4, 4, 4), 4),
            {"x": jnp.ones((2, 4), jnp.int32), "y": jnp.zeros(2, jnp.int32)},
        ),
        (
            pj.masked_token(pj.nn.bert_tiny(6), 4, mask_id=1),
            tokens(y=jnp.zeros(2, jnp.int32)),
        ),
        (
            pj.tagging(pj.nn.bert_tiny(6), 4, label_set(["O", "B-PER", "I-PER"])),
            tokens(
                positions=jnp.zeros((2, 1), jnp.int32),
                labels=jnp.ones((2, 1), jnp.int32),
            ),
        ),
        (
            pj.associative(num_visible=5, num_hidden=4),
            {"x": jnp.zeros((2, 5)), "y": jnp.zeros((2, 5))},
        ),
    ],
    ids=["classes", "variational", "next", "masked", "tags", "associative"],
)
def test_item_3_predictions_that_are_not_finite_are_wrong(task, batch):
    if batch is None:
        batch = {"x": jnp.ones((2, 5)), "y": jnp.zeros(2, jnp.int32)}
    batch = {"valid": jnp.ones(2, bool)} | batch
    start = jax.eval_shape(task.init, jax.random.key(0))
    found = jax.jit(task.evaluate)(with_nan(start), batch)
    assert float(found["accuracy"].weight) == 2
    assert float(found["accuracy"].total) == 0
    if "f1" in found:
        assert float(found["f1"].total) == 0


def test_item_3_classes_that_are_ruled_out_are_no_divergence():
    logits = jnp.array([[1.0, -jnp.inf], [jnp.inf, 0.0], [-jnp.inf, -jnp.inf]])
    right = pj.tasks.losses.is_right(logits, jnp.zeros(3, jnp.int32))
    assert right.tolist() == [True, False, False]


def test_item_3_agents_that_diverge_are_reported_one_by_one():
    task = pj.classification(pj.nn.MLP((4, NUM_CLASSES)), DATA)
    keys = jax.random.split(jax.random.key(0), 4)
    models = jax.vmap(task.init)(keys)
    bad = models._replace(
        params=jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), models.params)
    )
    inf = models._replace(
        params=jax.tree.map(lambda leaf: leaf.at[1].set(jnp.inf), models.params)
    )
    evaluate = jax.jit(pj.on_test_sets(task))
    before, after = (evaluate(pj.Models(one), DATA) for one in (models, bad))
    assert before[DIVERGED].tolist() == [0, 0, 0, 0]
    assert after[DIVERGED].tolist() == [0, 0, 1, 0]
    assert evaluate(pj.Models(inf), DATA)[DIVERGED].tolist() == [0, 1, 0, 0]
    assert after["accuracy"][2] == 0
    kept = np.array([0, 1, 3])
    np.testing.assert_array_equal(before["accuracy"][kept], after["accuracy"][kept])


def test_item_3_a_rate_that_is_too_high_shows_in_the_metrics():
    task = pj.classification(pj.nn.MLP((4, NUM_CLASSES)), DATA)
    method = pj.local_only(task, optax.sgd(jnp.inf), batch_size=2)
    with pytest.warns(UserWarning, match="4 of 4 agents are not finite by round 1"):
        *_, last = pj.simulate(jax.random.key(0), method, DATA, 2)
    assert last.metrics[DIVERGED].sum() == 4
    assert last.metrics["accuracy"].sum() == 0


@pytest.mark.parametrize(
    "keys",
    [
        jax.random.key(0),
        pytest.param(
            jax.random.split(jax.random.key(0), 2), marks=pytest.mark.slow, id="two"
        ),
    ],
)
def test_item_3_simulate_warns_once(keys):
    """At the first evaluation after one agent's model is not finite."""
    task = pj.classification(pj.nn.MLP((4, NUM_CLASSES)), DATA)
    good = pj.local_only(task, optax.sgd(0.1), batch_size=2)

    def round_fn(key, t, inputs, state, data):
        state, info = good.round(key, t, inputs, state, data)
        spoiled = jax.tree.map(
            lambda leaf: leaf.at[2].set(jnp.where(t < 2, leaf[2], jnp.nan)),
            state.variables.params,
        )
        variables = state.variables._replace(params=spoiled)
        return state._replace(variables=variables), info

    method = good._replace(round=round_fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = list(pj.simulate(keys, method, DATA, 6, eval_every=2))
    assert [snapshot.metrics[DIVERGED].any() for snapshot in found] == [0, 1, 1]
    size = max(1, keys.size)
    assert [str(one.message) for one in told] == [
        f"The models of {size} of {4 * size} agents are not finite by round 4, where "
        "they were evaluated: lower the learning rate."
    ]
    assert Path(told[0].filename).name == "test_divergence.py"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(pj.simulate(keys, good, DATA, 2))


def test_item_3_nan_in_data_is_refused_and_in_padding_is_not():
    method = pj.local_only(
        pj.classification(pj.nn.MLP((4, NUM_CLASSES)), (5,)),
        optax.sgd(0.1),
        batch_size=2,
    )
    plan = partial(method.plan, np.random.default_rng(0))
    for name, value in (("train", np.nan), ("valid", np.inf), ("test", -np.inf)):
        part = getattr(DATA, name)
        x = part.examples["x"].copy()
        x[3, 1, 4] = value
        part = part._replace(examples={**part.examples, "x": x})
        with pytest.raises(InputError, match="finite numbers .* examples x.* agents 3"):
            plan(DATA._replace(**{name: part}), 1)
        plan(DATA._replace(**{name: part._replace(size=np.int32([1] * 4))}), 1)


def row(values):
    info = Info(np.ones((1, 3)), np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((1, 3)))
    name = {"scheme": "near", "setting": {}, "run": 0}
    used = pj.Used(*np.zeros(5, np.int64))
    return rows.metrics_row(
        name, rows.nothing(3), used, values, info, np.zeros(3, int), {}
    )


def test_item_3_rows_say_how_many_and_have_nothing_else_that_is_new():
    values = {"accuracy": np.array([0.0, 0.5, 1.0])}
    old, new = row(values), row(values | {DIVERGED: np.float32([0, 1, 1])})
    assert new.pop("num_diverged") == 2
    assert str(old) == str(new)


def diverging(round_fn, from_round, *arguments):
    key, t, sender, state, world = arguments
    state, info = round_fn(key, t, sender, state, world)
    x = state["x"].at[1].set(jnp.where(t < from_round, state["x"][1], jnp.nan))
    return state | {"x": x}, info


def evaluate(models, world):
    return toy_evaluate(models, world) | {
        DIVERGED: (~jnp.isfinite(models.reported)).astype(jnp.float32)
    }


@pytest.fixture
def start(tmp_path):
    """Runs two toy runs whose agent 1 is not finite after the last round before 6."""

    def run(*, from_round=5, evaluate=evaluate, **settings):
        config = command.settle(
            Common(
                workdir=str(tmp_path / "run"),
                num_rounds=8,
                eval_every=2,
                num_runs=2,
                **settings,
            )
        )
        made = toy_jobs(config, schemes=("near",))
        method = made[0].program.algorithm
        method = method._replace(round=partial(diverging, method.round, from_round))
        program = jobs.Program(method, evaluate)
        made = [job._replace(program=program) for job in made]
        return runner.run_jobs(config, "toy", made, ("accuracy",))

    return run


def test_item_3_a_run_says_when_an_agent_diverged_first(start, caplog):
    with caplog.at_level(logging.WARNING):
        folder = start()
    found = [row["num_diverged"] for row in reading.rows(folder)]
    assert found[:3] == [0, 0, 1]
    assert found[3] >= 1  # others average with it
    said = [r.getMessage() for r in caplog.records if "diverged" in r.getMessage()]
    assert said == [
        f"near, run {run}: 1 of 4 agents diverged by round 6, agent 1 among them: "
        "lower --learning_rate."
        for run in (0, 1)
    ]


def test_item_3_a_run_without_divergence_says_nothing(start, caplog):
    with caplog.at_level(logging.WARNING):
        folder = start(from_round=99, stop_when_diverged=True)
    assert {row["num_diverged"] for row in reading.rows(folder)} == {0}
    assert "diverged" not in caplog.text


def test_item_3_stop_when_diverged(start, tmp_path):
    with pytest.raises(InputError, match="near, run 0: 1 of 4 .* by round 6"):
        start(stop_when_diverged=True)
    written = list(reading.rows(tmp_path / "run"))
    assert [row["num_diverged"] for row in written] == [0, 0, 1]


def test_item_3_a_run_says_once_that_its_models_are_saturated(start, caplog):
    """Finite numbers that no learning gives: a norm of agent 1 from round 5 on."""

    def absurd(models, world):
        x = models.reported
        norm = jnp.where(jnp.isfinite(x), 1.0, 2e5)
        return toy_evaluate(models, world) | {"norm": norm}

    with caplog.at_level(logging.WARNING):
        start(evaluate=absurd)
    said = [r.getMessage() for r in caplog.records if "saturated" in r.getMessage()]
    assert [one.partition(" agents have")[0] for one in said] == [
        f"near, run {run}: 1 of 4" for run in (0, 1)
    ]
    assert "a norm above 1e+05 by round 6, agent 1 among them" in said[0]
    assert "lower --learning_rate" in said[0]


def test_item_3_what_diverged_is_not_also_saturated(start, caplog):
    with caplog.at_level(logging.WARNING):
        start(
            evaluate=lambda models, world: (
                evaluate(models, world) | {"norm": jnp.full(4, jnp.inf)}
            ),
            from_round=0,
        )
    assert "diverged" in caplog.text and "saturated" not in caplog.text


@pytest.mark.parametrize(
    ("labels", "loss", "is_told"),
    [
        (np.int32([[0, 9], [3, 3]]), 24.0, True),  # ten classes: 10 log(10) = 23.03
        (np.int32([[0, 9], [3, 3]]), 22.0, False),
        (np.int32([[0, 1], [1, 1]]), 7.0, True),
        (np.int32([[0, 1], [1, 1]]), 6.9, False),
        (np.zeros((2, 2, 5), np.uint8), 30.0, False),  # vectors: cells that are wrong
    ],
)
def test_item_3_losses_far_above_an_undecided_prediction(labels, loss, is_told):
    part = pj.Split({"x": np.zeros((2, 2, 5)), "y": labels}, np.full(2, 2, np.int32))
    data = pj.FederatedData(part, part, part, np.zeros(2, np.int32))
    values = {"loss": np.float32([0.1, loss]), "accuracy": np.zeros(2)}
    limits = notices._limits(values, data)
    assert (
        any((values[name] > limit).any() for name, limit in limits.items()) == is_told
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "flags"),
    [
        ("femnist", (*TINY, "--levels=80")),  # sigmoids and squares: only norms grow
        ("compare", ("--methods=dpsgd", "--num_rounds=2", "--num_agents=4")),
    ],
)
def test_item_3_rates_of_a_million(run, caplog, experiment, flags):
    with caplog.at_level(logging.WARNING):
        run(*flags, experiment=experiment, workdir="usual")
        assert "saturated" not in caplog.text
        run(*flags, "--learning_rate=1e6", experiment=experiment, workdir="high")
    assert caplog.text.count("saturated") == 1
