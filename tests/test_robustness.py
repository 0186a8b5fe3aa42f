"""The experiment of robust rules: published numbers, every study, refusals."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from figure_contents import assert_drawn

from experiments.engine import reading
from experiments.robustness import (
    adversaries,
    averaging,
    data,
    pictures,
    scores,
    selection,
)
from experiments.robustness.config import METHODS
from p2pjax.exchange import attacks
from p2pjax.graphs import as_topology, dumbbell, two_worlds
from p2pjax.types import InputError

VECTORS = json.loads(
    (Path(__file__).parent / "vectors/adversity_attacks.json").read_text()
)
# Squared errors of CS+ after 100 steps in double precision, mean of seeds 0 and 1.
AVERAGED = {
    ("spectral", 1): 1.235e-4,
    ("spectral", 3): 5.725e-4,
    ("dissensus", 1): 5.492e-5,
    ("dissensus", 3): 2.837e-4,
}
SLOW = pytest.mark.slow
FORMATS_TRIED = ("exact", "choco_sign")
TINY = (
    "--num_agents=6",
    "--links=2",
    "--hidden=4",
    "--train_size=20",
    "--test_size=30",
    "--batch_size=5",
    "--num_rounds=2",
    "--eval_every=2",
    "--num_devices=1",
)


@pytest.mark.parametrize(
    "attack, f",
    [
        pytest.param("spectral", 3, marks=SLOW),
        pytest.param("dissensus", 1, marks=SLOW),
        pytest.param("spectral", 1, marks=SLOW),
        pytest.param("dissensus", 3, marks=SLOW),
    ],
)
def test_published_averaging(parse, compiled_quickly, attack, f):
    """Later steps are chaotic: the errors are of the same size, no more."""
    settings = parse(
        "--study=averaging",
        "--num_rounds=100",
        "--num_runs=2",
        experiment="robustness",
    )
    error, apart = averaging.errors(settings, "cs_plus", attack, f).mean(0)
    assert 0.5 < error / AVERAGED[attack, f] < 2
    assert apart < 1e-12  # single precision; 1e-32 in double


def test_averaging_study(run):
    folder = run(
        "--study=averaging",
        "--num_agents=6",
        "--links=2",
        "--dimension=2",
        "--rules=gts",
        "--attacks=none,foe",
        "--num_byzantine=1",
        "--num_rounds=30",
        "--num_runs=2",
        experiment="robustness",
    )
    found = {
        (row["scheme"], row["setting"]["attack"], row["run"]): row
        for row in reading.rows(folder)
    }
    for number in (0, 1):
        alone = found["local_only", "none", number]
        assert alone["squared_error"] == pytest.approx(alone["disagreement"])
        free = found["gts", "none", number]
        assert free["squared_error"] < alone["squared_error"]
        assert found["gts", "foe", number]["squared_error"] != free["squared_error"]
    shown = ("squared error", "disagreement", "no attack", "foe", "gts", "local only")
    assert_drawn(folder, "error_by_attackers", *shown, num_lines=2)


@pytest.mark.slow
def test_diverged_errors_are_finite(parse, compiled_quickly):
    settings = parse(
        "--study=averaging",
        "--num_agents=6",
        "--links=1",
        "--num_rounds=300",
        experiment="robustness",
    )
    found = averaging.errors(settings, "gts", "dissensus", 3)
    assert found.tolist() == [[averaging.MOST] * 2]


@pytest.mark.slow
def test_two_worlds_study(run):
    """Attackers beside agents, and attackers who are agents and not judged."""
    folder = run(
        *TINY,
        "--rules=gts",
        "--attacks=alie,backdoor",
        "--num_byzantine=1",
        experiment="robustness",
    )
    found = {
        (row["scheme"], row["setting"]["attack"]): row for row in reading.rows(folder)
    }
    assert list(found) == [
        ("local_only", "none"),
        ("dpsgd", "none"),
        ("gts", "alie"),
        ("gts", "backdoor"),
    ]
    for (scheme, attack), row in found.items():
        agents = np.asarray(row["agent_accuracy"], float)
        assert len(agents) == (7 if attack == "backdoor" else 6)
        assert np.isfinite(agents[:6]).all() and np.isnan(agents[6:]).all()
        assert row["accuracy"] == pytest.approx(agents[:6].mean(), abs=1e-6)
        assert row["worst_accuracy"] == pytest.approx(agents[:6].min())
        assert ("attack_success" in row) == (attack == "backdoor")
        assert (row["disagreement"] > 0) and row["num_diverged"] == 0
        degree = 0 if scheme == "local_only" else 4
        assert row["messages"] == pytest.approx(
            2 * (36 / 7 if attack == "backdoor" else degree)
        )
        assert row["steps"] == 2
        assert len(row["class_accuracy"]) == 10
        assert 0 <= row["worst_class_accuracy"] <= row["balanced_accuracy"] <= 1
        if scheme != "local_only":
            assert row["accuracy_after"] == row["accuracy"]
            assert 0 <= row["accuracy_before"] <= 1
    assert found["gts", "alie"]["max_byzantine_neighbors"] == 1
    assert found["gts", "backdoor"]["mu_2"] == pytest.approx(4)
    shown = ("alie", "backdoor", "attackers f", "gts", "dpsgd", "local only")
    assert_drawn(folder, "accuracy_by_attackers", *shown, num_lines=3)


@pytest.mark.slow
def test_dumbbell_study(run):
    folder = run(
        *TINY,
        "--study=dumbbell",
        "--num_agents=10",
        "--rules=bucketed_trimmed_mean,ubar",
        "--splits=split",
        "--extra_edges=1",
        experiment="robustness",
    )
    found = reading.rows(folder)
    names = ("mean_of_all", "mean_of_clique_1", "mean_of_clique_2")
    for row in found:
        assert all(0 <= row[name] <= 1 for name in names)
    sent = 2 * 44 / 10
    assert [row["messages"] for row in found] == pytest.approx([0, sent, sent])
    assert [row.get("rejected") for row in found] == [None, 0, 0]
    shown = ("split split, extra edges 1", "mean of all", "accuracy", "local only")
    assert_drawn(folder, "accuracy_by_group", *shown)


@pytest.mark.slow
def test_compression_study(run):
    folder = run(
        *TINY,
        "--study=compression",
        "--eval_every=1",
        f"--formats={','.join(FORMATS_TRIED)}",
        "--consensus_steps=0.4",
        "--graphs=ring",
        experiment="robustness",
    )
    found = reading.rows(folder)
    assert {r["scheme"] for r in found if "accuracy_before" in r} == {*FORMATS_TRIED}
    sent = {row["scheme"]: row["bytes"] for row in found}
    size = 64 * 4 + 4 + 4 * 10 + 10
    assert sent["local_only"] == 0
    assert sent["exact"] == 2 * 2 * 4 * size
    scales = 4 * 4  # one of each leaf
    assert sent["choco_sign"] == 2 * 2 * (-(-size // 8) + scales)
    assert all(0 <= row["valid_accuracy"] <= 1 for row in found)
    shown = ("bytes sent by an agent", "choco sign", "exact", "local only")
    assert_drawn(folder, "accuracy_by_bytes_ring", *shown, num_lines=3)


@pytest.mark.slow
def test_compression_among_writers(run):
    folder = run(
        *TINY,
        "--study=compression",
        "--dataset=glyphs",
        "--writers",
        "--formats=uniform8",
        "--graphs=ring",
        experiment="robustness",
    )
    alone, uniform8 = reading.rows(folder)
    size = 784 * 4 + 4 + 4 * 10 + 10
    assert alone["bytes"] == 0 and uniform8["bytes"] == 2 * 2 * (size + 4 * 4)


def test_agents_that_are_writers(parse):
    """Each has its own examples, in three parts that have none in common."""
    args = ("--study=compression", "--dataset=glyphs", "--writers")
    settings = parse(*TINY, *args, experiment="robustness")
    examples = data.load_examples(settings)
    examples = examples._replace(x=np.arange(len(examples.y))[:, None])
    found = data.writers_of_run(settings, examples, 0)
    assert found.test.size.tolist() == found.valid.size.tolist() == [5] * 6
    assert found.train.size.tolist() == [20] * 6  # of 40 less 10
    owners = []
    for agent in range(6):
        rows = [
            set(part.examples["x"][agent, : part.size[agent], 0].tolist())
            for part in found[:3]
        ]
        assert sum(map(len, rows)) == len(set.union(*rows)) == 30
        (own,) = {examples.user[row] for row in set.union(*rows)}
        owners.append(own)
    assert len(set(owners)) == 6
    other = data.writers_of_run(settings, examples, 1)
    assert (other.train.examples["x"] != found.train.examples["x"]).any()


def test_validation_chooses_consensus_steps():
    rows = [
        {
            "scheme": scheme,
            "setting": {"graph": "ring", "consensus_step": step},
            "round": number,
            "valid_accuracy": value * number,
        }
        for scheme, step, value in (("a", 1, 0.1), ("a", 2, 0.3), ("b", 1, 0.2))
        for number in (1, 2)
    ]
    assert pictures.best_steps(rows) == rows[2:]


CHOSEN = (
    "--study=selection",
    "--num_agents=16",
    "--byzantine_share=0.25",
    "--degree=1",
    "--hidden=4",
    "--batch_size=16",
    "--num_rounds=2",
    "--eval_every=2",
    "--num_devices=1",
)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_selection_study(run):
    args = ("--methods=random,oracle", "--attacks=backdoor")
    folder = run(*CHOSEN, *args, experiment="robustness")
    found = {row["scheme"]: row for row in reading.rows(folder)}
    for row in found.values():
        agents = np.asarray(row["agent_accuracy"], float)
        assert np.flatnonzero(np.isnan(agents)).tolist() == [6, 7, 14, 15]
        assert row["expected_from_attackers"] == pytest.approx(2 / 7)
        assert 0 <= row["attack_success"] <= 1
        assert row["worst_accuracy"] == pytest.approx(np.nanmin(agents))
    assert found["oracle"]["from_attackers"] == 0
    assert found["random"]["from_attackers"] > 0
    ratio = pictures.chosen_attackers(found["random"])
    assert ratio == pytest.approx(found["random"]["from_attackers"] * 7 / 2)
    shown = ("attack success", "accuracy of honest agents", "random", "backdoor")
    assert_drawn(folder, "selection_by_attack", *shown)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_all_selections(run):
    args = ("--num_agents=32", "--degree=3", "--attacks=boosted_backdoor")
    folder = run(*CHOSEN, *args, experiment="robustness")
    found = reading.rows(folder)
    assert {row["scheme"] for row in found} == {*selection.METHODS} == {*METHODS}
    assert np.isfinite([row["loss"] for row in found]).all()


@pytest.mark.slow
def test_all_formats_and_graphs(run):
    folder = run(
        *TINY,
        "--study=compression",
        "--consensus_steps=0.1,0.4",
        experiment="robustness",
    )
    found = reading.rows(folder)
    assert len(found) == 2 * (1 + 5 + 3 * 2)
    assert np.isfinite([row["loss"] for row in found]).all()


@pytest.mark.slow
def test_all_rules(run):
    rules = ",".join(adversaries.RULES)
    args = (*TINY, "--num_agents=12", "--num_byzantine=1", f"--rules={rules}")
    folder = run(*args, "--attacks=sign_flip", experiment="robustness")
    assert len(reading.rows(folder)) == 2 + len(adversaries.RULES)


def test_ubar_joins_the_dumbbell_by_flag(parse):
    args = (*TINY, "--study=dumbbell", "--splits=iid")
    usual = make_jobs(parse(*args, experiment="robustness"))
    assert "ubar" not in {job.scheme for job in usual}
    added = make_jobs(parse(*args, "--rules=mean,ubar", experiment="robustness"))
    assert [job.scheme for job in added] == ["local_only", "mean", "ubar"]


def test_plain_gossip_has_no_line_search(parse):
    args = (*TINY, "--rules=mean", "--num_byzantine=1", "--attacks=none,alie,sign_flip")
    jobs = make_jobs(parse(*args, experiment="robustness"))
    assert [(job.scheme, job.setting["attack"]) for job in jobs] == [
        ("local_only", "none"),
        ("dpsgd", "none"),
        ("mean", "none"),
        ("mean", "sign_flip"),
    ]


@pytest.mark.parametrize(
    "args, message",
    [
        (("--study=averaging", "--attacks=backdoor"), "leave out mean, ubar, label"),
        (("--study=averaging", "--rules=mean"), "leave out mean, ubar, label"),
        (("--study=averaging", "--rules=ubar"), "leave out mean, ubar, label"),
        (("--rules=ubar", "--attacks=alie"), "Need a scale of alie for ubar"),
        (("--num_agents=7",), "Need an even number of agents"),
        (("--links=4",), "Need 1 to 3 links of each agent"),
        (("--test_size=1790",), "Need 1790 test examples"),
        (("--test_size=5",), "at least one of each of 6 agents"),
        (("--rules=trust",), "need mean, cs_plus"),
        (("--writers",), "Need the study compression for agents that are writers"),
        (
            ("--study=compression", "--dataset=glyphs", "--writers", "--test_size=120"),
            "Need 6 writers with 4 examples to train on beside 20",
        ),
        (("--study=compression", "--writers"), "Need 6 writers with 4 .* got 1:"),
        (
            (*("--study=selection", "--num_agents=40", "--attacks=alie"),),
            "Need attacks among none, label_flip",
        ),
        (("--study=selection",), "Need more attackers and more honest agents"),
    ],
)
def test_refusals(parse, args, message):
    with pytest.raises(InputError, match=message):
        settings = parse(*TINY, *args, experiment="robustness")
        make_jobs(settings)


def make_jobs(settings):
    from experiments.robustness.study import EXPERIMENT

    return EXPERIMENT.make_jobs(settings)


def test_two_worlds_and_steps():
    graph = two_worlds(26, 8)
    known = VECTORS["attacks"]["two_worlds_26_8"]
    assert (graph.mask.sum(1) == known["degree"]).all()
    for f in (1, 5):
        found = adversaries.threat(graph, "spectral", f, 10)
        step = adversaries.longest_step(found)
        assert step == pytest.approx((21 + f) / known["lambda_max"])
    report = attacks.report(graph, found.attack)
    assert report["mu_2"] == pytest.approx(known["mu2"])


def test_attackers_who_are_agents_are_linked_to_all():
    found = adversaries.threat(two_worlds(6, 1), "label_flip", 2, 10)
    assert found.num_agents == 8 and found.attack.byzantine == (6, 7)
    heard = attacks.byzantine_neighbors(found.graph, (6, 7))
    assert heard.tolist() == [2] * 6 + [0] * 2
    assert found.graph.mask[6:].sum(1).tolist() == [6, 6]


def test_dumbbell_has_a_bridge_and_edges_that_differ():
    linked = np.zeros((8, 8), int)
    linked[:4, :4] = linked[4:, 4:] = 1 - np.eye(4, dtype=int)
    linked[0, 7] = linked[7, 0] = 1
    for mine, other in zip(dumbbell(8), as_topology(linked), strict=True):
        np.testing.assert_array_equal(mine, other)
    for seed in range(20):
        assert dumbbell(8, 15, seed=seed).mask.sum() == 8 * 7  # complete
        assert dumbbell(8, 3, seed=seed).mask.sum() == 2 * (6 + 6 + 1 + 3)
    for args, message in (
        ((7,), "Need an even number of 4 agents"),
        ((4, 4), "Need 0 to 3 more edges"),
    ):
        with pytest.raises(InputError, match=message):
            dumbbell(*args)
    with pytest.raises(InputError, match="Need an even number of 4 agents"):
        two_worlds(2, 1)


def test_honest_agents_keep_their_data(parse):
    settings = parse(*TINY, experiment="robustness")
    examples = data.load_examples(settings)
    own = data.data_of_run(settings, examples, data.dirichlet(settings), 0)
    more = data.with_attackers(own, 8)
    jax.tree.map(
        np.testing.assert_array_equal, own, jax.tree.map(lambda x: x[:6], more)
    )
    np.testing.assert_array_equal(
        more.train.examples["x"][6:], own.train.examples["x"][:2]
    )
    pooled = scores.pooled(own.test, 6, 3)
    assert pooled.examples["x"].shape == (3, 30, 8, 8, 1)
    images = np.asarray(pooled.examples["x"])[0].reshape(30, -1)
    assert len(np.unique(images, axis=0)) == 30
    split = data.in_cliques(settings, 10, "split")
    apart = data.data_of_run(settings, examples, split, 0)
    labels = [
        set(y[:size].tolist())
        for y, size in zip(apart.train.examples["y"], apart.train.size, strict=True)
    ]
    assert set().union(*labels[:3]) == {0, 1, 2, 3, 4}
    assert set().union(*labels[3:]) == {5, 6, 7, 8, 9}


def test_disagreement_is_of_honest_agents():
    params = {"w": np.array([[0.0], [2.0], [1e9]], np.float32)}
    assert float(scores.disagreement(params, 2)) == 1
