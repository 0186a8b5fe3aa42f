"""The front door: every method in one call, on an ordinary network of flax."""

import inspect
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lowering import assert_lowers
from test_network import SHAPE, LinenNet, NNXNet, plain_net

import p2pjax as pj
from p2pjax.nn import SlowConvolutionWarning
from p2pjax.simulation._simulate import (
    _advance,
    initial_state,
    prepare,
    snapshots,
)
from p2pjax.training.samplers import shuffled_epochs

SIZE = 8
BATCH = 4
# Methods with a network or data of their own; their tests are elsewhere too.
SPECIAL = {"virtual", "multi_task", "partial_averaging"}
ORDINARY = [name for name in pj.METHODS if name not in SPECIAL]


def images(num_agents=SIZE, seed=0):
    """Two classes that differ in where the light is."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 12 * num_agents)
    x = rng.normal(size=(len(y), *SHAPE)).astype(np.float32)
    x[:, :2] += 2 * y[:, None, None, None]
    return pj.federate(
        x,
        y,
        num_agents=num_agents,
        split=pj.split.iid(),
        test_fraction=0.2,
        valid_fraction=0.2,
        seed=seed,
    )


DATA = images()
TASK = pj.classification(LinenNet(0.2), DATA)
RING = pj.graphs.ring(SIZE)


def build(name, task=TASK, **options):
    """A method by its name, as a user would write it."""
    graph = {
        "ad_psgd": RING,
        "dpsgd": RING,
        "choco_sgd": RING,
        "d2": pj.graphs.complete(SIZE),
        "dfedavgm": RING,
        "dfedsam": RING,
        "k_gt": RING,
        "sgp": pj.graphs.ring(SIZE, directed=True),
        "gosgd": RING,
        "exact_diffusion": RING,
        "extra": RING,
        "gradient_tracking": RING,
        "momentum_tracking": RING,
        "qg_dsgdm": RING,
        "relay_sgd": RING,
        "p2p_bn": pj.graphs.directed_regular(SIZE, 3, seed=0),
        "fedcurv_neighbors": RING,
        "sparse": pj.graphs.directed_regular(SIZE, 3, seed=0),
        "teleportation": pj.graphs.ring(4),
        "dfca": RING,
        "facade": RING,
        "oracle": np.arange(SIZE) % 2,
        "d_cliques": np.arange(SIZE) // 4,
    }
    own = {
        "fedprox": {"penalty_weight": 0.1},
        "ditto": {"penalty_weight": 0.1},
        "fedcurv": {"penalty_weight": 0.1},
        "fedcurv_neighbors": {"penalty_weight": 0.1},
        "fedper": {"personal": ["params/dense/.*"]},
        "aucccr": {"num_agents": SIZE, "num_epochs_alone": 1, "num_probes": 6},
        "complete_training": {
            "local_stopping": pj.LocalStopping(1, max_epochs=2, first_accuracy=0)
        },
        "pens": {"num_candidates": 4, "second_stage": 2},
        "panm": {"num_candidates": 4, "second_stage": 2},
        "gosgd": {"probability": 0.5},
        "facade": {"head": ["params/dense/.*"]},
        "divshare": {"num_fragments": 3, "num_receivers": 2},
        "choco_sgd": {"compression": pj.channel.sign(), "consensus_step": 0.4},
    }
    arguments = [graph[name]] if name in graph else []
    return getattr(pj, name)(
        task,
        optax.sgd(0.1),
        *arguments,
        batch_size=BATCH,
        **own.get(name, {}),
        **options,
    )


def shapes_of_round(method, data=DATA):
    inputs = method.plan(np.random.default_rng(0), data, 2)
    state = jax.eval_shape(method.init, jax.random.key(0), data)
    one = jax.tree.map(lambda leaf: leaf[0], inputs)
    key, t = jax.random.key(0), jnp.int32(0)
    new_state, info = jax.eval_shape(method.round, key, t, one, state, data)
    return state, new_state, info


@pytest.mark.parametrize("name", ORDINARY)
def test_every_method_traces(name):
    """Its state keeps its shapes, and all that can be compared is reported."""
    method = build(name)
    state, new_state, info = shapes_of_round(method)
    assert jax.tree.structure(state) == jax.tree.structure(new_state)
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [
        leaf.shape for leaf in jax.tree.leaves(new_state)
    ]
    for field in ("train_loss", "sent", "received", "payload", "steps", "examples"):
        assert getattr(info, field).shape == (SIZE,), field
    models = jax.eval_shape(method.models, state)
    assert isinstance(models, pj.Models)
    values = jax.eval_shape(method.evaluate, models, DATA)
    assert values["accuracy"].shape == (SIZE,)
    assert method.round_is and not method.round_is.endswith(".")


def test_signatures_are_alike():
    """Task, optimizer, then what only some have; the rest by the same keywords."""
    for name in pj.METHODS:
        signature = inspect.signature(getattr(pj, name))
        positional = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        first = "groups" if name == "multi_task" else "task"
        assert positional[:2] == [first, "optimizer"], name
        assert set(positional[2:]) <= {"graph", "scheme", "cluster", "clique"}, name
        batch_size = signature.parameters["batch_size"]
        assert batch_size.kind is batch_size.KEYWORD_ONLY
        assert "Args:" in inspect.getdoc(getattr(pj, name)), name


def test_no_backend_starts_at_construction():
    """Of data, tasks, graphs and methods: a user may still choose devices."""
    code = (Path(__file__).parent / "construct_every_method.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(pj.METHODS)


def test_everything_that_is_exported_is_documented():
    for name in pj.__all__:
        value = getattr(pj, name)
        if callable(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), name


QUICK = ["dpsgd", "pens", "fedavg", "p2p_bn"]


def run(method, data=DATA, num_rounds=2, key=None, **options):
    key = jax.random.key(0) if key is None else key
    return list(pj.simulate(key, method, data, num_rounds, **options))


def check_run(name):
    method = build(name)
    start = jax.tree.map(np.asarray, method.models(method.init(KEY, DATA)).reported)
    *_, last = run(method)
    assert np.isfinite(last.info.train_loss).all()
    assert np.isfinite(last.metrics["accuracy"]).all()
    models = method.models(last.state).reported
    before, after = start.stats["batch_stats"], models.stats["batch_stats"]
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.isfinite(new).all()
        moved = np.abs(np.asarray(new) - old).reshape(SIZE, -1).max(1)
        assert (moved > 1e-5).all(), "statistics do not move"
    assert last.used.steps > 0 and last.used.examples > 0


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "pens" else n for n in QUICK],
)
def test_trains_an_ordinary_network(name):
    check_run(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ORDINARY if name not in QUICK])
def test_every_method_trains_an_ordinary_network(name):
    check_run(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_goes_on_from_a_saved_state_in_one_program(name, tmp_path):
    """As if it had never stopped; more rounds and other keys compile nothing."""
    traces, method = [], build(name)
    round_fn = method.round

    def counted(*arguments):
        traces.append(None)
        return round_fn(*arguments)

    method = method._replace(round=counted)
    start = prepare(KEY, method, DATA, 3)
    options = {"eval_every": 1, "evaluate": method.evaluate}
    whole = snapshots(start, method, 3, **options)
    first = next(whole)
    pj.save_state(tmp_path, 1, first.state)
    *_, last = whole
    seen = len(traces)
    state, done = pj.load_state(tmp_path, initial_state(KEY, method, start.data))
    *_, again = snapshots(
        start, method, 3, first_round=done, state=state, used=first.used, **options
    )
    np.testing.assert_array_equal(again.metrics["loss"], last.metrics["loss"])
    assert again.used.messages == last.used.messages
    assert again.used.examples == last.used.examples
    run(method, num_rounds=2, key=jax.random.key(9))
    if name != "p2p_bn":  # whose waves have other shapes in other runs
        assert len(traces) == seen > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_two_devices_give_the_numbers_of_one(name):
    method = build(name)
    (alone,) = run(method, eval_every=2)
    with jax.set_mesh(pj.sharding.agents_mesh(SIZE, 2)):
        (spread,) = run(method, eval_every=2)
    for metric in ("loss", "accuracy"):
        np.testing.assert_allclose(
            spread.metrics[metric], alone.metrics[metric], rtol=1e-4, atol=1e-5
        )
    assert spread.used.messages == alone.used.messages


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_lowers_for_accelerators(name):
    assert_lowers(build(name), DATA)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_seeds_side_by_side(name):
    """Keys `[S]` give what each key gives alone, on data that is not copied."""
    method = build(name)
    keys = jax.random.split(jax.random.key(1), 2)
    (both,) = run(method, key=keys, eval_every=2)
    for number, key in enumerate(keys):
        (alone,) = run(method, key=key, eval_every=2)
        np.testing.assert_allclose(
            both.metrics["loss"][number], alone.metrics["loss"], rtol=1e-4, atol=1e-5
        )
        assert both.used.messages[number] == alone.used.messages


@pytest.mark.parametrize(
    "name",
    [
        "dpsgd",
        *(pytest.param(n, marks=pytest.mark.slow) for n in QUICK if n != "dpsgd"),
    ],
)
def test_twins_learn_the_same(name):
    """Linen, NNX and plain functions with the same initial parameters."""
    linen = pj.classification(LinenNet(), DATA)
    results = []
    for network in (LinenNet(), NNXNet, plain_net()):
        task = pj.classification(network, DATA)._replace(init=linen.init)
        (last,) = run(build(name, task), eval_every=2)
        results.append((last.metrics, last.info.train_loss, last.state))
    for other in results[1:]:
        for mine, theirs in zip(
            jax.tree.leaves(results[0]), jax.tree.leaves(other), strict=True
        ):
            if jnp.issubdtype(mine.dtype, jnp.floating):
                np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.filterwarnings("error")
def test_slow_convolutions_are_told_of_once():
    class Grouped(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(4, (3, 3), feature_group_count=2)(nn.Conv(2, (3, 3))(x))
            return nn.Dense(2)(x.reshape(x.shape[0], -1))

    task = pj.classification(Grouped(), DATA)
    with pytest.warns(SlowConvolutionWarning, match="groups of channels"):
        task.check()
    task.check()  # not again
    for network in (LinenNet(), NNXNet, plain_net()):  # convolutions as users have them
        pj.classification(network, DATA).check()


def test_one_trace_for_many_rounds():
    traces = []

    def loss(variables, batch, key):
        traces.append(None)
        return TASK.loss(variables, batch, key)

    method = build("dpsgd", TASK._replace(loss=loss))
    run(method, num_rounds=4, eval_every=2)
    seen = len(traces)
    run(method, num_rounds=4, eval_every=2, key=jax.random.key(7))
    assert seen and len(traces) == seen


class TestSimulate:
    """Seeds, totals, sweeps, histories, loops of one's own."""

    method = build("local_only")

    def test_keys_of_several_runs(self):
        keys = jax.random.split(jax.random.key(1), 3)
        both = run(self.method, key=keys)
        assert both[-1].metrics["accuracy"].shape == (3, SIZE)
        assert both[-1].used.steps.shape == (3,)
        alone = run(self.method, key=keys[2])
        np.testing.assert_allclose(
            both[-1].metrics["loss"][2], alone[-1].metrics["loss"], rtol=1e-5
        )
        with pytest.raises(pj.InputError, match=r"keys \[S\] of several runs"):
            pj.simulate(keys.reshape(1, 3), self.method, DATA, 1)

    @pytest.mark.slow
    def test_runs_whose_inputs_differ_go_one_after_the_other(self):
        method = build("p2p_bn")
        keys = jax.random.split(jax.random.key(1), 2)
        both = run(method, key=keys, num_rounds=3, eval_every=3)
        for number, key in enumerate(keys):
            (alone,) = run(method, key=key, num_rounds=3, eval_every=3)
            np.testing.assert_allclose(
                both[-1].metrics["loss"][number], alone.metrics["loss"], atol=1e-5
            )

    def test_totals_are_exact(self):
        last = run(self.method, num_rounds=5, eval_every=2)[-1]
        sizes = np.asarray(DATA.train.size)
        assert last.used.examples == 5 * sizes.sum()
        assert last.used.steps == 5 * (-(-sizes // BATCH)).sum()
        assert last.used.messages == last.used.bytes == 0
        assert np.isnan(last.used.time)
        assert last.used.examples.dtype == np.int64

    def test_messages_and_bytes(self):
        method = build("fedavg", num_clients=3)
        last = run(method)[-1]
        params = jax.eval_shape(TASK.init, KEY)
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        assert last.used.messages == 2 * 3 * 2  # up and down
        assert last.used.bytes == 4 * size * last.used.messages

    def test_a_sweep_compiles_once(self):
        sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
        method = pj.local_only(TASK, sgd, batch_size=BATCH)
        keys = jax.random.split(jax.random.key(0), 2)
        before = _advance._cache_size()
        runs = pj.sweep(keys, method, DATA, {"learning_rate": [0.0, 0.1]}, 2)
        assert _advance._cache_size() == before + 1
        rates = [run.hyperparameters["learning_rate"] for run in runs]
        assert rates == [0, 0, 0.1, 0.1]
        assert [run.run for run in runs] == [0, 1, 0, 1]
        still, moving = runs[0].history, runs[2].history
        np.testing.assert_array_equal(still[0].info.train_loss.shape, (1, SIZE))
        plain = pj.local_only(TASK, optax.sgd(0.1), batch_size=BATCH)
        expected = run(plain, key=keys[0])
        np.testing.assert_allclose(
            moving[-1].metrics["loss"], expected[-1].metrics["loss"], rtol=1e-5
        )

    def test_what_cannot_be_swept_is_refused(self):
        with pytest.raises(pj.InputError, match="it keeps none, got 'learning_rate'"):
            pj.sweep(KEY, self.method, DATA, {"learning_rate": [0.1]}, 1)
        rate = optax.linear_schedule(0.1, 0.0, 10)
        sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=rate)
        method = pj.local_only(TASK, sgd, batch_size=BATCH)
        with pytest.raises(pj.InputError, match="a schedule"):
            pj.sweep(KEY, method, DATA, {"learning_rate": [0.1]}, 1)
        with pytest.raises(pj.InputError, match="Need values of one hyperparameter"):
            pj.sweep(KEY, method, DATA, {}, 1)

    def test_a_history(self, tmp_path):
        snapshots = run(self.method, num_rounds=3)
        history = pj.History(snapshots)
        assert all(now.state is None for now in history)
        assert history.rounds.tolist() == [1, 2, 3]
        assert history.values("accuracy").shape == (3, SIZE)
        assert history.used("examples").tolist() == [
            now.used.examples for now in snapshots
        ]
        table = history.to_pandas()
        assert len(table) == 3 * SIZE
        assert set(table) >= {"round", "run", "agent", "accuracy", "messages"}
        np.testing.assert_allclose(
            table[table["round"] == 3]["accuracy"], snapshots[-1].metrics["accuracy"]
        )
        history.save(tmp_path / "history.jsonl")
        assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 3
        ax = history.plot("accuracy", against="examples")
        np.testing.assert_allclose(
            ax.lines[0].get_ydata(), history.values("accuracy").mean(1)
        )
        assert ax.get_xlabel() == "examples"
        with pytest.raises(pj.InputError, match="Need a metric among"):
            history.values("auc")
        with pytest.raises(pj.InputError, match="Need one of steps"):
            history.used("watts")

    def test_a_loop_of_ones_own(self):
        """As ARCHITECTURE writes it: the same numbers as `simulate`."""
        method = build("dpsgd")
        key = jax.random.key(5)
        state = method.init(key, DATA)
        inputs = method.plan(np.random.default_rng(0), DATA, 2)
        step = jax.jit(method.round, donate_argnums=3)
        for t in range(2):
            state, info = step(
                jax.random.fold_in(key, t),
                t,
                jax.tree.map(lambda leaf, t=t: leaf[t], inputs),
                state,
                DATA,
            )
        assert np.isfinite(info.train_loss).all()


class TestBeforeAndAfter:
    """Scores of trained and of averaged models."""

    def test_who_has_which(self):
        both = {"accuracy_before", "accuracy_after"}
        expected = {
            "pens": both,
            "dpsgd": {"accuracy_after"},
            "p2p_bn": both,
            "local_only": set(),
            "fedcurv": both,
        }
        for name, scores in expected.items():
            method = build(name)
            state, *_ = shapes_of_round(method)
            models = jax.eval_shape(method.models, state)
            values = set(jax.eval_shape(method.evaluate, models, DATA))
            assert values & both == scores, name

    @pytest.mark.parametrize(
        "name", ["dpsgd", pytest.param("fedavg", marks=pytest.mark.slow)]
    )
    def test_on_request(self, name):
        """The exchange is kept pending, and nothing else changes."""
        plain = run(build(name), num_rounds=3)
        scored = run(build(name, score_before=True), num_rounds=3)
        for one, other in zip(plain, scored, strict=True):
            np.testing.assert_allclose(
                one.metrics["loss"], other.metrics["loss"], rtol=1e-4, atol=1e-5
            )
            np.testing.assert_array_equal(
                other.metrics["accuracy"], other.metrics["accuracy_after"]
            )
            assert one.used == other.used or np.isnan(one.used.time)
            assert one.used.messages == other.used.messages
        assert "accuracy_before" in scored[-1].metrics


class TestRefusals:
    """What cannot be done is said in a sentence."""

    def test_p2p_bn_without_validation_data(self):
        empty = pj.Split(
            {name: leaf[:, :0] for name, leaf in DATA.valid.examples.items()},
            np.zeros(SIZE, np.int32),
        )
        data = DATA._replace(valid=empty)
        with pytest.raises(pj.InputError, match="valid_fraction=0.1"):
            build("p2p_bn").init(KEY, data)

    def test_p2p_bn_without_normalisation(self):
        task = pj.classification(pj.nn.MLP((3, 2)), DATA)
        with pytest.raises(pj.InputError, match="has none: add batch norm"):
            build("p2p_bn", task)

    def test_fed_bn_without_normalisation(self):
        task = pj.classification(pj.nn.MLP((3, 2)), DATA)
        with pytest.raises(pj.InputError, match="Need a network with normalisation"):
            build("fedavg", task, local_patterns=pj.FED_BN)

    def test_patterns_that_match_nothing(self):
        with pytest.raises(pj.InputError, match="'params/head/.*', which matches none"):
            build("dpsgd", local_patterns=["params/head/.*"])
        with pytest.raises(pj.InputError, match="got the string"):
            build("dpsgd", local_patterns="params/dense/.*")
        for name, partly in (
            ("pens", pj.partial.level(0.5)),
            ("p2p_bn", pj.partial.level(0.5)((4, 3, 2), 2)),
        ):
            with pytest.raises(pj.InputError, match="the argument scheme"):
                build(name, local_patterns=partly)

    def test_one_example_at_a_time_with_batch_norm(self):
        learner = pj.per_sample(pj.gradient_descent(TASK, optax.sgd(0.1)))
        method = pj.local_only(TASK, learner, batch_size=BATCH)
        with pytest.raises(pj.InputError, match="without batch norm"):
            method.init(KEY, DATA)

    def test_not_an_optimizer(self):
        with pytest.raises(pj.InputError, match="Need an optimizer of optax"):
            pj.local_only(TASK, 0.1, batch_size=BATCH)

    def test_partial_averaging_of_an_unknown_task(self):
        task = TASK._replace(network=None)
        with pytest.raises(pj.InputError, match="Need to know the cells"):
            pj.partial_averaging(
                task, optax.sgd(0.1), pj.partial.level(0.8), batch_size=BATCH
            )

    def test_unknown_keyword(self):
        with pytest.raises(TypeError, match="learning_rate"):
            build("dpsgd", learning_rate=0.1)


def test_sgp_says_what_lost_messages_do_to_it():
    """The weights fall, and the steps grow as one over them."""
    with pytest.warns(UserWarning, match="steps grow as one over the weight left"):
        method = build("sgp", channel=pj.channel.drop(0.3))
    state, *_ = shapes_of_round(method)
    assert state.protocol_state.shape == (SIZE,)


STEPWISE = ["sgp", "gosgd", "d2", "exact_diffusion", "extra", "gradient_tracking"]


@pytest.mark.parametrize("name", [*STEPWISE, "qg_dsgdm", "relay_sgd"])
def test_states_keep_their_dtype_in_64_bits(name):
    """SGP's weights became float64 in the first step, which no loop takes."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        task = pj.classification(pj.nn.MLP((3, 2)), DATA)
        state, new_state, _ = shapes_of_round(build(name, task))
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(
        lambda leaf: leaf.dtype, new_state
    )


def test_norm_by_class_stays_or_travels():
    """FedBN keeps scale, bias and statistics; SiloBN statistics; others send all."""
    results = {}
    for name, rule in (("fed", pj.FED_BN), ("silo", pj.SILO_BN), ("full", pj.FULL)):
        method = build("fedavg", local_patterns=rule)
        inputs = method.plan(np.random.default_rng(0), DATA, 1)
        state, step = initial_state(KEY, method, DATA), jax.jit(method.round)
        one = jax.tree.map(lambda leaf: leaf[0], inputs)
        state, _ = step(KEY, jnp.int32(0), one, state, DATA)
        results[name] = state.variables

    def differ(tree):
        return any(
            not np.allclose(leaf, np.asarray(leaf)[:1], atol=1e-7)
            for leaf in jax.tree.leaves(tree)
        )

    for name, (scale, statistics) in {
        "fed": (True, True),
        "silo": (False, True),
        "full": (False, False),
    }.items():
        variables = results[name]
        assert differ(variables.params["norm"]) == scale, name
        assert differ(variables.stats) == statistics, name
        assert not differ(variables.params["dense"]), name


@pytest.mark.parametrize("size", [1, 3, 5])
def test_short_batches_train_batch_norm_rightly(size):
    """Sizes of 1, fewer than B and B + 1: filled with the agent's own examples."""
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, size=(size, *SHAPE)).astype(np.float32)
    y = np.zeros(size, np.int32)
    part = pj.Split({"x": x[None], "y": y[None]}, np.asarray([size], np.int32))
    data = pj.FederatedData(part, part, part, np.zeros(1, np.int32))
    task = pj.classification(LinenNet(), data)
    method = pj.local_only(task, optax.sgd(0.0), batch_size=BATCH)
    state = initial_state(KEY, method, data)
    kernel = np.asarray(state.variables.params["conv"]["kernel"][0])
    bias = np.asarray(state.variables.params["conv"]["bias"][0])
    (last,) = run(method, data, num_rounds=1)
    outputs = np.asarray(
        jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        + bias.reshape(1, 1, 1, -1)
    )
    seed = prepare(KEY, method, data, 1).data.train.order_seed[0]
    sampler = shuffled_epochs(BATCH, size)
    order = np.asarray(sampler.order(jnp.int32(0), jnp.int32(size), seed))
    mean = np.zeros(3)
    for first in range(0, size, BATCH):
        rows = order[np.arange(first, first + BATCH) % size]
        mean = 0.99 * mean + 0.01 * outputs[rows].mean((0, 1, 2))
    found = last.state.variables.stats["batch_stats"]["norm"]["mean"][0]
    np.testing.assert_allclose(found, mean, rtol=1e-4)


def test_every_run_and_agent_has_its_own_order_of_batches():
    """It was the same for all seeds, so that runs differed by their start only."""
    method = build("local_only")
    keys = jax.random.split(jax.random.key(3), 2)
    seeds = [prepare(key, method, DATA, 1).data.train.order_seed for key in keys]
    assert len(set(np.concatenate(seeds).tolist())) == 2 * SIZE
    again = prepare(keys[0], method, DATA, 1).data.train.order_seed
    np.testing.assert_array_equal(again, seeds[0])
    sampler = shuffled_epochs(4, 9)
    orders = {
        tuple(np.asarray(sampler.order(jnp.int32(0), jnp.int32(9), seed)).tolist())
        for seed in np.concatenate(seeds)
    }
    assert len(orders) == 2 * SIZE
    assert all(sorted(order) == list(range(9)) for order in orders)


class TestProtocolsOfOnesOwn:
    """A protocol may read the gradient and the optimizer's update of each step."""

    def protocol(self, num_models=1):
        """`x <- W x + update`, from the update itself instead of two models."""

        def send(key, peers, step, state):
            del key, state
            return pj.protocols.Outgoing(
                step.before, step.before, pj.protocols.is_peer(peers)
            )

        def receive(peers, arrived, outgoing, step, state, combine):
            del arrived, outgoing, state
            models = combine(peers)
            models["params"] = jax.tree.map(jnp.add, models["params"], step.update)
            scaled = jax.tree.map(lambda g: -0.1 * g, step.gradient)
            far = [
                jnp.abs(a - b).reshape(SIZE, -1).max(1)
                for a, b in zip(
                    *map(jax.tree.leaves, (scaled, step.update)), strict=True
                )
            ]
            return models, jnp.stack(far).max(0)

        return pj.protocols.GossipProtocol(
            pj.protocols.prepare_weights(pj.graphs.uniform_receive),
            pj.protocols.peer_ids,
            lambda message: jnp.zeros(SIZE),
            send,
            receive,
            needs_gradient=True,
            num_models=num_models,
        )

    def test_combine_then_adapt_from_updates(self):
        task = pj.classification(pj.nn.MLP((3, 2)), DATA)
        options = {"batch_size": BATCH}
        own = pj.gossip(task, optax.sgd(0.1), self.protocol(), RING, **options)
        (mine,) = run(own, eval_every=2)
        theirs = pj.dpsgd(task, optax.sgd(0.1), RING, mix_first=True, **options)
        (expected,) = run(theirs, eval_every=2)
        for a, b in zip(
            jax.tree.leaves(mine.state.variables),
            jax.tree.leaves(expected.state.variables),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, atol=1e-6)
        # Plain SGD: the update is the gradient times minus the rate.
        np.testing.assert_allclose(mine.state.protocol_state, 0, atol=1e-7)

    def test_messages_of_several_models(self):
        task = pj.classification(pj.nn.MLP((3, 2)), DATA)
        payloads = []
        for num_models in (1, 2):
            method = pj.gossip(
                task, optax.sgd(0.1), self.protocol(num_models), RING, batch_size=BATCH
            )
            (last,) = run(method, num_rounds=1)
            payloads.append(last.used.bytes)
        assert payloads[1] == 2 * payloads[0] > 0

    @pytest.mark.parametrize(
        ("what", "change", "said"),
        [
            ("kept", lambda models: (), "what agents keep .* got no params/layer_1"),
            ("message", lambda models: {"params": {}}, "what agents send .* got no"),
            (
                "message",
                lambda models: models | {"memory": models["params"]},
                "got memory/layer_1/bias, which no model has",
            ),
            (
                "kept",
                lambda models: jax.tree.map(lambda leaf: leaf[1:], models),
                r"bias of float32\[\d, 3\] instead of float32",
            ),
            ("models", lambda models: None, "what a protocol's receive returns"),
            ("sent", lambda sent: sent[:, 0], r"as bool\[(\d), 3\], .* got bool\[\1\]"),
            ("sent", lambda sent: sent.astype(float), r"got float32\[\d, 3\]"),
        ],
    )
    def test_leaves_that_are_not_the_models(self, what, change, said):
        """Which leaves travel is the engine's to say, not the protocol's."""
        base = pj.protocols.dpsgd()

        def send(*given):
            found = base.send(*given)
            given = found.sent if what == "sent" else found.message
            return found._replace(**{what: change(given)})

        def receive(*given):
            models, state = base.receive(*given)
            return change(models), state

        own = base._replace(
            **({"receive": receive} if what == "models" else {"send": send})
        )
        task = pj.classification(pj.nn.MLP((3, 2)), DATA)
        for score_before in (False, True):
            method = pj.gossip(
                task,
                optax.sgd(0.1),
                own,
                RING,
                batch_size=BATCH,
                score_before=score_before,
            )
            with pytest.raises(pj.InputError, match=said):
                shapes_of_round(method)

    def test_a_learner_without_gradients_is_refused(self):
        task = pj.classification(pj.nn.MLP((3, 2)), DATA)
        learner = pj.gradient_descent(task, optax.sgd(0.1))._replace(gradient=None)
        method = pj.gossip(task, learner, self.protocol(), RING, batch_size=BATCH)
        with pytest.raises(pj.InputError, match="that descends along a gradient"):
            shapes_of_round(method)
