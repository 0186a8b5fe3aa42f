"""Robustness against attackers among agents: classes apart, partial models."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from experiment_modules import EXPERIMENTS
from figure_contents import assert_drawn

from experiments.engine import reading
from experiments.robustness import (
    adversaries,
    data,
    networks,
    partial,
    printed,
    separated,
)
from p2pjax.exchange import attacks, robust
from p2pjax.graphs import complete
from p2pjax.graphs.topology import edges
from p2pjax.types import InputError

TINY = (
    "--study=separated",
    "--num_agents=8",
    "--num_byzantine=1",
    "--train_size=20",
    "--test_size=42",
    "--batch_size=5",
    "--num_rounds=2",
    "--eval_every=2",
    "--num_devices=1",
)
SHARED = (
    "--study=partial",
    "--num_agents=10",
    "--hidden=4",
    "--batch_size=5",
    "--num_rounds=2",
    "--eval_every=2",
    "--num_devices=1",
)


@pytest.fixture
def settled(parse):
    """Settings of a tiny study of separated classes, with other flags."""
    return lambda *args: parse(*TINY, *args, experiment="robustness")


@pytest.fixture
def shared(parse):
    """Settings of a tiny study of partial models, with other flags."""
    return lambda *args: parse(*SHARED, *args, experiment="robustness")


def make_jobs(settings):
    return EXPERIMENTS["robustness"].make_jobs(settings)


@pytest.mark.slow
def test_separated_study(run, capsys):
    folder = run(*TINY, "--rules=ios", "--attacks=isolation", experiment="robustness")
    found = {
        (row["scheme"], row["setting"]["split"]): row for row in reading.rows(folder)
    }
    assert len(found) == 4
    for (scheme, _), row in found.items():
        agents = np.asarray(row["agent_accuracy"], float)
        assert len(agents) == (7 if scheme == "local_only" else 8)
        assert np.isfinite(agents[:7]).all() and np.isnan(agents[7:]).all()
        assert row["accuracy"] == pytest.approx(agents[:7].mean(), abs=1e-6)
        assert row["worst_accuracy"] == pytest.approx(agents[:7].min())
        assert row["disagreement"] > 0 and row["steps"] == 2
        assert (row["messages"] > 0) == (scheme == "ios")
    said = capsys.readouterr().out
    assert (
        "erdos_renyi, iid, 1 attackers: accuracy of honest agents in percent\n" in said
    )
    assert "Wu et al." not in said
    shown = ("isolation", "ios", "local only", "accuracy of the worst", "no attack")
    assert_drawn(folder, "accuracy_by_rule", *shown)


@pytest.mark.slow
@pytest.mark.parametrize("few, count", [("--rules=krum", 6), ("--attacks=alie", 7)])
def test_all_attacks_and_rules_of_separated_classes(run, compiled_quickly, few, count):
    args = ("--num_agents=12", "--splits=split", "--graphs=two_castles")
    folder = run(*TINY, *args, few, experiment="robustness")
    found = reading.rows(folder)
    assert len(found) == 1 + count
    assert np.isfinite([row["loss"] for row in found]).all()


def test_jobs_of_separated_classes(settled):
    rules = "self_centered_clipping,krum"
    jobs = make_jobs(settled(f"--rules={rules}", "--attacks=none,alie"))
    assert [
        (job.scheme, job.setting["split"], job.setting["attack"]) for job in jobs
    ] == [
        ("local_only", "split", "none"),
        ("local_only", "iid", "none"),
        *(
            (rule, split, attack)
            for rule in rules.split(",")
            for attack in ("none", "alie")
            for split in ("split", "iid")
        ),
    ]
    sizes = {
        len(job.make_data().cluster) for job in jobs if job.setting["attack"] == "none"
    }
    assert sizes == {7}  # without an attack there are no attackers
    assert {len(job.make_data().cluster) for job in jobs[4:6]} == {8}
    # Splits have data of one shape and share programs, but for the radius of clipping.
    shapes = [jax.tree.map(np.shape, job.make_data()) for job in jobs[-2:]]
    assert shapes[0] == shapes[1]
    assert jobs[-1].program is jobs[-2].program
    assert jobs[2].program is not jobs[3].program
    facts = [job.facts.get("max_byzantine_neighbors") for job in jobs]
    assert facts == [None] * 4 + [1, 1] + [None] * 2 + [1, 1]


@pytest.mark.parametrize("name", ["erdos_renyi", "two_castles"])
@pytest.mark.parametrize("seed", range(3))
def test_honest_agents_hear_enough(settled, name, seed):
    settings = settled("--num_agents=12", f"--seed={seed}")
    place = separated.placed(settings, name, 2)
    assert place.byzantine == (10, 11) and place.num_honest == 10
    degree = np.asarray(place.graph.mask).sum(1)
    assert degree[:10].min() >= 6
    if name == "two_castles":
        assert degree.tolist() == [10] * 12
    found = separated.threat(place, "gaussian")
    assert found.num_agents == 12 and found.attack.byzantine == (10, 11)
    assert attacks.report(place.graph, found.attack)["honest_parts"] == 1
    heard = attacks.byzantine_neighbors(place.graph, (10, 11))
    assert separated.tolerated(found) == heard.max() > 0
    free = separated.threat(place, "none")
    assert free.num_agents == 10 and separated.tolerated(free) == 0
    inside = [pair for pair in zip(*edges(place.graph), strict=True) if max(pair) < 10]
    assert sorted(zip(*edges(free.graph), strict=True)) == sorted(inside)
    again = separated.placed(settings, name, 2)
    np.testing.assert_array_equal(again.graph.neighbor, place.graph.neighbor)


def test_rules_are_those_of_the_authors():
    near = jnp.array([[0.0], [0.2], [0.2], [5.0], [-5.0], [9.0]])
    received = robust.received_from_members(near)

    def result(name, split="split"):
        rule = separated.rule_of(name, 1, split)
        return float(robust.apply(rule, received, near)[0])

    assert result("trimmed_mean") == pytest.approx((0.2 + 0.2 + 5 + 0) / 4)
    clipped = 0.2 + 0.2 + 0.3 - 0.3 + 0.3
    assert result("self_centered_clipping") == pytest.approx(clipped / 6)
    assert result("self_centered_clipping", "iid") == pytest.approx(0.3 / 6)
    assert separated.rule_of("mean", 1, "split") is None
    assert {*separated.DEFAULT_RULES} <= {*adversaries.RULES}


def test_factor_of_alie():
    """Of 12 agents 2 attack: the value of the authors' formula."""
    assert adversaries.alie_factor(complete(12), (10, 11)) == pytest.approx(
        0.348756, abs=1e-6
    )


@pytest.mark.parametrize(
    "num_agents, owners",
    [
        (10, [[k] for k in range(10)]),
        (4, [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
        (12, [*([k] for k in range(10)), [0], [1]]),
    ],
)
def test_classes_are_separated(num_agents, owners):
    y = np.arange(100) % 10
    deal = data.apart(num_agents, 10, "split")
    rows = deal(y, np.random.default_rng(0))
    assert [sorted({*y[own].tolist()}) for own in rows] == owners
    assert sorted(np.concatenate(rows).tolist()) == list(range(100))
    even = data.apart(num_agents, 10, "iid")(y, np.random.default_rng(0))
    assert {len(own) for own in even} == {100 // num_agents}


def test_rate_and_weight_decay(settled):
    optimizer = networks.make_optimizer(settled())
    params, gradient = {"w": jnp.float32(2)}, {"w": jnp.float32(1)}
    state = optimizer.init(params)
    for step in range(3):
        updates, state = optimizer.update(gradient, state, params)
        before, params = params["w"], optax.apply_updates(params, updates)
        rate = 0.9 / np.sqrt(step + 1)
        expected = before * (1 - 0.01 * rate) - rate
        assert float(params["w"]) == pytest.approx(float(expected), rel=1e-6)


def test_softmax_regression_starts_far_from_zero():
    network = networks.SoftmaxRegression(10, init_std=2.0)
    dark = jnp.zeros((1, 8, 8, 1))
    logits, variables = network.init_with_output(jax.random.key(0), dark)
    layer = jax.tree.map(np.asarray, variables["params"]["Dense_0"])
    assert layer["kernel"].std() == pytest.approx(2, rel=0.1)
    # Pixels without ink are -1.
    expected = layer["bias"] - layer["kernel"].sum(0)
    np.testing.assert_allclose(np.asarray(logits)[0], expected, rtol=1e-4)


def test_printed_accuracies():
    assert printed.accuracy("erdos_renyi", "split", "ios", "sign_flip") == 91.61
    assert printed.accuracy("two_castles", "iid", "mean", "gaussian") == 16.09
    assert printed.accuracy("erdos_renyi", "split", "local_only", "none") == 10
    assert printed.accuracy("erdos_renyi", "split", "local_only", "alie") is None
    assert printed.accuracy("erdos_renyi", "split", "gts", "none") is None
    assert printed.accuracy("erdos_renyi", "split", "ios", "foe") is None
    assert list(printed.ATTACKS) == [adversaries.NONE, *adversaries.OF_WU]
    for table in printed.ACCURACIES.values():
        assert set(table) == {"local_only", *separated.DEFAULT_RULES}
        assert {len(row) for row in table.values()} == {1, 6}


def test_table_beside_that_of_the_authors(settled, monkeypatch, capsys, tmp_path):
    setting = {"graph": "erdos_renyi", "f": 2, "split": "split"}
    rows = [
        {"scheme": scheme, "setting": setting | {"attack": attack}, "mean": mean}
        for scheme, attack, mean in (
            ("local_only", "none", 0.1),
            ("ios", "none", 0.5),
            ("ios", "alie", 0.25),
        )
    ]
    monkeypatch.setattr(reading, "summary_rows", lambda *args: rows)
    settings = settled("--num_agents=12", "--num_byzantine=2", "--dataset=mnist")
    separated.print_table(settings, tmp_path)
    head, names, first, second, _ = capsys.readouterr().out.splitlines()
    assert "in brackets that of Wu et al." in head
    assert names.split() == ["none", "alie"]
    assert first.split() == ["local_only", "10.0", "(10.0)"]
    assert second.split() == ["ios", "50.0", "(91.7)", "25.0", "(86.6)"]
    separated.print_table(dataclasses.replace(settings, dataset="digits"), tmp_path)
    assert "(" not in capsys.readouterr().out


@pytest.mark.slow
def test_partial_study(run, capsys):
    args = ("--levels=0,50,100", "--rules=clipped_gossip", "--attacks=none,backdoor")
    folder = run(*SHARED, *args, experiment="robustness")
    rows = reading.rows(folder)
    found = {
        (row["scheme"], row["setting"]["attack"], row["setting"]["level"]): row
        for row in rows
    }
    assert list(found) == [
        ("local_only", "none", 0),
        *(
            ("clipped_gossip", attack, level)
            for attack in ("none", "backdoor")
            for level in (50, 100)
        ),
    ]
    hostile = {
        tuple(np.flatnonzero(np.isnan(np.asarray(row["agent_accuracy"], float))))
        for row in rows
    }
    assert len(hostile) == 1 and len(*hostile) == 2  # the same are judged in all cases
    for row in rows:
        assert 0 <= row["attack_success"] <= 1
        agents = np.asarray(row["agent_accuracy"], float)
        assert row["worst_accuracy"] == pytest.approx(np.nanmin(agents))
        assert row["accuracy"] == pytest.approx(np.nanmean(agents), abs=1e-6)
        assert row["max_byzantine_neighbors"] == 1
    sent = {level: row["bytes"] for (_, _, level), row in found.items()}
    assert sent[0] == 0 < sent[50] < sent[100]
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said if line.startswith("clipped")] == [
        ["clipped_gossip", "none"],
        ["clipped_gossip", "backdoor"],
    ]
    shown = ("no attack", "backdoor", "attack success", "percent of shared cells")
    assert_drawn(folder, "accuracy_by_level", *shown, "local only", num_lines=2)


@pytest.mark.slow
@pytest.mark.parametrize("few, count", [("--rules=mean", 5), ("--attacks=alie", 4)])
def test_all_attacks_and_rules_on_partial_models(run, compiled_quickly, few, count):
    args = ("--num_agents=20", "--degree=8", "--levels=50")
    folder = run(*SHARED, *args, few, experiment="robustness")
    found = reading.rows(folder)
    assert len(found) == count
    assert np.isfinite([row["loss"] for row in found]).all()


def test_jobs_of_partial_models(shared):
    jobs = make_jobs(shared("--rules=mean,cs_plus", "--attacks=alie,boosted_backdoor"))
    assert [
        (job.scheme, job.setting["attack"], job.setting["level"]) for job in jobs
    ] == [
        ("local_only", "none", 0),
        *(
            (rule, attack, level)
            for rule in ("mean", "cs_plus")
            for attack in ("alie", "boosted_backdoor")
            for level in (50, 80, 100)
        ),
    ]
    without = make_jobs(shared("--rules=mean", "--attacks=none", "--levels=100"))
    assert [job.scheme for job in without] == ["mean"]


def test_attackers_of_partial_models_are_spread(shared):
    for seed in range(3):
        settings = shared("--num_agents=20", "--degree=8", f"--seed={seed}")
        place = partial.placed(settings)
        assert len(place.byzantine) == 4
        heard = attacks.byzantine_neighbors(place.graph, place.byzantine)
        assert heard.max() == place.tolerated <= 3


def test_partial_models_have_fewer_examples_where_asked(shared):
    settings = shared("--train_size=40")
    examples = data.load_examples(settings)
    found = partial.data_of_run(settings, examples, 0)
    assert found.train.size.mean() == pytest.approx(40, abs=1)
    assert found.train.size.sum() + found.test.size.sum() == 572  # 10 * 40 / 0.7


@pytest.mark.parametrize(
    "args, message",
    [
        (("--attacks=spectral",), "among none, gaussian, sign_flip, isolation, dup"),
        (("--graphs=ring",), "graphs among erdos_renyi, two_castles in the study sep"),
        (("--num_byzantine=4",), "hear 10 others or more each, 2 x 4"),
        (("--num_agents=7", "--graphs=two_castles"), "Need an even number of 4 agents"),
        (("--train_size=2",), "Need training examples for each of 7 agents"),
        (("--test_size=5",), "at least one of each of 7 agents"),
        (("--study=compression", "--graphs=two_castles"), "among ring, random_regular"),
        (("--study=two_worlds", "--attacks=duplicate"), "among none, spectral, alie"),
    ],
)
def test_refusals_of_separated_classes(settled, args, message):
    with pytest.raises(InputError, match=message):
        make_jobs(settled(*args))


@pytest.mark.parametrize(
    "args, message",
    [
        (("--attacks=foe",), "among none, gaussian, .* in the study partial, got foe"),
        (("--levels=0,120",), "Need levels from 0 to 100, got 120"),
        (("--levels=10",), "got none of 4 at level 10: raise --hidden"),
        (("--network=cnn",), "Need --network=mlp in the study partial"),
        (("--network=softmax",), "hidden cells, got softmax"),
        (("--byzantine_share=0.01",), "got 0 attackers: change --byzantine_share"),
        (("--byzantine_share=0.6",), "fewer than half of each honest agent's 4"),
        (("--train_size=1000",), "Need 14286 examples for 10 agents"),
    ],
)
def test_refusals_of_partial_models(shared, args, message):
    with pytest.raises(InputError, match=message):
        make_jobs(shared(*args))
