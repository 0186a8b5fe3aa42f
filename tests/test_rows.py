"""Rows of metrics.jsonl and links.jsonl: who sent how much, who heard whom."""

import json

import numpy as np
import pytest

from experiments.engine import rows, run_folder
from experiments.engine.summary import summarize
from p2pjax.evaluation import statistics
from p2pjax.simulation._used import Used
from p2pjax.types import FederatedData, Info, Links, ModelTraffic, Split

CLUSTER = np.array([0, 0, 1])


def info_of(sender, count, sent):
    """Of R rounds: tables `[R, N, K]`, messages `[R, N]`."""
    sent = np.asarray(sent, np.float32)
    links = None
    if sender is not None:
        links = Links(np.asarray(sender, np.int32), np.asarray(count, np.float32))
    return Info(np.ones_like(sent), sent, sent, sent, None, links)


TWO_ROUNDS = info_of(
    [[[1, 2], [0, 0], [0, 1]], [[1, 0], [2, 0], [2, 2]]],
    [[[1, 1], [2, 0], [0, 0]], [[1, 0], [3, 0], [0, 0]]],
    [[2, 1, 1], [0, 1, 3]],
)


MERGED = TWO_ROUNDS._replace(
    merged=Links(
        TWO_ROUNDS.links.sender,
        np.float32([[[1, 0], [1, 0], [0, 0]], [[1, 0], [0, 0], [0, 0]]]),
    )
)


def row_of(tally, info, cluster=CLUSTER):
    name = {"scheme": "near", "setting": {}, "run": 2}
    values = {"accuracy": np.array([0.0, 0.5, 1.0]), "spread": np.array([1.0, 2.0])}
    used = Used(np.int64(12), np.int64(120), *np.zeros(3))
    return rows.metrics_row(name, tally, used, values, info, cluster, {"fact": 7})


def test_counts_add_up_over_evaluations():
    first = rows.counted(rows.nothing(3), 2, TWO_ROUNDS)
    second = rows.counted(first, 4, TWO_ROUNDS)
    assert (first.num_rounds, second.num_rounds) == (2, 4)
    np.testing.assert_array_equal(first.sent, [2, 2, 4])
    np.testing.assert_array_equal(second.sent, [4, 4, 8])
    assert first.payload == pytest.approx(8 / 3)
    assert second.payload == pytest.approx(16 / 3)
    np.testing.assert_array_equal(first.links, [[0, 2, 1], [2, 0, 3], [0, 0, 0]])
    np.testing.assert_array_equal(second.links, 2 * first.links)


def test_what_a_source_counts_is_counted_beside_all():
    some = TWO_ROUNDS._replace(counted=np.float32([[1, 0, 0], [0, 1, 1]]))
    first = rows.counted(rows.nothing(3), 2, some)
    again = rows.from_json(json.loads(json.dumps(rows.to_json(first))))
    second = rows.counted(again, 4, some)
    assert (first.counted, second.counted) == (1.0, 2.0)
    assert row_of(second, some)["messages_thesis"] == 2.0
    assert row_of(second, some)["messages"] == pytest.approx(16 / 3)
    # Of rounds before there is no count: none is made up.
    before = rows.counted(rows.nothing(3), 2, TWO_ROUNDS)
    assert "counted" not in rows.to_json(before)
    later = rows.counted(before, 4, some)
    assert later.counted is None
    assert "messages_thesis" not in row_of(later, some)


def test_counts_survive_a_checkpoint_bit_by_bit():
    info = TWO_ROUNDS._replace(payload=np.float32([[0.1, 0.7, 1e9]]))
    tally = rows.counted(rows.nothing(3), 2, info)
    found = rows.from_json(json.loads(json.dumps(rows.to_json(tally))))
    assert found.num_rounds == tally.num_rounds
    assert found.payload == tally.payload
    np.testing.assert_array_equal(found.sent, tally.sent)
    np.testing.assert_array_equal(found.links, tally.links)
    nobody = rows.nothing(3)
    assert rows.from_json(json.loads(json.dumps(rows.to_json(nobody)))).links is None


def test_a_row_says_who_sent_and_from_where_it_came():
    tally = rows.counted(rows.counted(rows.nothing(3), 2, TWO_ROUNDS), 4, TWO_ROUNDS)
    row = row_of(tally, TWO_ROUNDS)
    assert list(row)[:4] == ["scheme", "setting", "run", "round"]
    assert row["round"] == 4
    assert row["accuracy"] == 0.5
    assert row["spread"].tolist() == [1, 2]
    assert row["messages"] == pytest.approx(16 / 3)
    assert row["bytes"] == pytest.approx(4 * 16 / 3)
    assert row["agent_messages"].tolist() == [4, 4, 8]
    assert row["gini"] == pytest.approx(statistics.gini([4, 4, 8]))
    assert row["in_cluster"] == 0.5  # of 8 messages, agents 0 and 1 exchanged 4
    assert row["fact"] == 7
    assert "time" not in row


def test_what_is_not_known_is_left_out():
    silent = info_of(TWO_ROUNDS.links.sender, np.zeros((2, 3, 2)), np.zeros((2, 3)))
    tally = rows.counted(rows.nothing(3), 2, silent)
    row = row_of(tally, silent)
    assert row["in_cluster"] is None  # nothing came
    assert "gini" not in row
    assert row["agent_messages"].tolist() == [0, 0, 0]
    assert "in_cluster" not in row_of(tally, silent, np.zeros(3, int))  # one cluster
    served = info_of(None, None, np.ones((2, 3)))
    tally = rows.counted(rows.nothing(3), 2, served)
    assert "in_cluster" not in row_of(tally, served)
    assert rows.links_row({}, tally, CLUSTER) is None


def test_links_row():
    tally = rows.counted(rows.nothing(3), 2, TWO_ROUNDS)
    row = rows.links_row({"scheme": "near"}, tally, CLUSTER)
    assert row["scheme"] == "near"
    assert row["cluster"] is CLUSTER
    assert row["links"] == [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 3]]


def test_what_is_averaged_is_kept_beside_what_is_fetched():
    tally = rows.counted(rows.nothing(3), 2, MERGED)
    assert row_of(tally, MERGED)["merged_in_cluster"] == 1
    assert row_of(tally, MERGED)["in_cluster"] == 0.5
    assert "merged_in_cluster" not in row_of(tally, TWO_ROUNDS)
    row = rows.links_row({}, rows.counted(tally, 4, MERGED), CLUSTER)
    assert row["merged"] == [[0, 1, 4], [1, 0, 2]]
    found = rows.from_json(json.loads(json.dumps(rows.to_json(tally))))
    np.testing.assert_array_equal(found.merged, tally.merged)
    assert "merged" not in rows.links_row(
        {}, rows.counted(rows.nothing(3), 2, TWO_ROUNDS), CLUSTER
    )


def test_traffic_of_each_partial_model_is_in_columns_of_its_own():
    """Means over agents, summed over rounds, also after a checkpoint."""
    messages = np.float32([[[2, 0], [1, 1], [0, 2]], [[1, 0], [0, 0], [2, 0]]])
    info = TWO_ROUNDS._replace(models=ModelTraffic(messages, 10 * messages))
    tally = rows.counted(rows.nothing(3), 2, info)
    tally = rows.from_json(json.loads(json.dumps(rows.to_json(tally))))
    row = row_of(rows.counted(tally, 4, info), info)
    assert (row["messages_of_model_0"], row["messages_of_model_1"]) == (4, 2)
    assert (row["bytes_of_model_0"], row["bytes_of_model_1"]) == (160, 80)
    assert not [name for name in row_of(rows.nothing(3), TWO_ROUNDS) if "model" in name]


def test_links_of_many_agents_are_not_kept():
    many = rows.MOST_LINKED + 1
    info = info_of(np.zeros((1, many, 1)), np.ones((1, many, 1)), np.ones((1, many)))
    assert rows.counted(rows.nothing(many), 1, info).links is None


def summary_of(folder, evaluations, target=None):
    for row in evaluations:
        run_folder.append(folder, "metrics.jsonl", row)
    found = summarize(folder, "toy", ("accuracy", "loss"), target)
    return {(row["scheme"], row["metric"]): row for row in found}


def evaluation(scheme, run, number, agents, messages, **setting):
    return {
        "scheme": scheme,
        "setting": setting,
        "run": run,
        "round": number,
        "accuracy": float(np.mean(agents)),
        "agent_accuracy": agents,
        "messages": messages,
        "bytes": 4 * messages,
        "steps": 2 * number,
        "examples": 20 * number,
    }


def test_summary_has_gains_over_learning_alone(tmp_path):
    found_rows = [
        evaluation("none", run, 1, [0.5, 0.5, 0.5], 0, level=0, size=size)
        for size in (1, 2)
        for run in (0, 1)
    ]
    found_rows += [
        evaluation("some", 0, 1, [0.6, 0.4, 0.7], 5, level=80, size=2),
        evaluation("some", 1, 1, [0.6, 0.6, 0.6], 5, level=80, size=2),
    ]
    found = summary_of(tmp_path, found_rows)
    gain = found["some", "gain_over_local"]
    assert gain["runs"] == 2
    assert gain["mean"] == pytest.approx((0.2 / 3 + 0.1) / 2)
    assert found["some", "share_of_agents_that_lose"]["mean"] == pytest.approx(1 / 6)
    assert ("none", "gain_over_local") not in found
    assert ("some", "loss") not in found  # which no row has
    deciles = [found["some", f"gain_over_local_p{p}"]["mean"] for p in (10, 50, 90)]
    first = np.percentile([0.1, -0.1, 0.2], (10, 50, 90))
    assert deciles == pytest.approx((first + 0.1) / 2)


def test_gains_are_those_of_honest_agents(tmp_path):
    """Agents that attack neither win nor lose, wherever they stand."""
    attacked, nothing = [np.nan, 0.4, 0.7], {"size": 3}
    found_rows = [
        evaluation("pooled", 0, 1, [0.0, 0.0, 0.0], 0) | {"scheme": "central"},
        evaluation("none", 0, 1, [0.5, 0.5, 0.5], 0, **nothing),
        evaluation("inside", 0, 1, attacked, 5, **nothing),
        evaluation("beside", 0, 1, [0.4, 0.5, 0.7, np.nan], 5, **nothing),
        evaluation("fewer", 0, 1, [0.4, 0.5], 5, **nothing),
        evaluation("only_attackers", 0, 1, [np.nan] * 3, 5, **nothing),
    ]
    found = summary_of(tmp_path, found_rows)
    assert found["inside", "gain_over_local"]["mean"] == pytest.approx(0.05)
    assert found["inside", "share_of_agents_that_lose"]["mean"] == 0.5
    assert found["beside", "gain_over_local"]["mean"] == pytest.approx(0.1 / 3)
    assert found["beside", "share_of_agents_that_lose"]["mean"] == pytest.approx(1 / 3)
    gained = {scheme for scheme, metric in found if metric == "gain_over_local"}
    assert gained == {"inside", "beside"}


def test_summary_says_what_a_target_took(tmp_path):
    found_rows = [
        evaluation("quick", run, number, [accuracy], 3 * number)
        for run, curve in enumerate([(0.2, 0.8, 0.9), (0.8, 0.7, 0.9), (0.1, 0.1, 0.1)])
        for number, accuracy in enumerate(curve, start=1)
    ]
    found = summary_of(tmp_path, found_rows, target=0.75)
    assert found["quick", "share_of_runs_that_reach_target"]["mean"] == pytest.approx(
        2 / 3
    )
    for metric, expected in (("round", 1.5), ("messages", 4.5), ("bytes", 18)):
        row = found["quick", f"{metric}_to_target"]
        assert row["mean"] == expected and row["runs"] == 2


def test_the_majority_label_of_training_on_the_test():
    def split(labels, sizes):
        return Split({"y": np.array(labels, np.int32)}, np.array(sizes, np.int32))

    data = FederatedData(
        split([[1, 1, 2, 0], [3, 3, 3, 3]], [3, 2]),
        split([[0], [0]], [0, 0]),
        split([[1, 2, 9], [3, 3, 1]], [2, 3]),
        np.zeros(2, np.int32),
    )
    assert rows.data_facts(data) == {"majority": pytest.approx((1 / 2 + 2 / 3) / 2)}
    none = data._replace(test=split([[1], [1]], [1, 0]))
    assert rows.data_facts(none) == {}  # an agent without a test


def test_accuracies_of_classes_are_means_over_agents_who_have_them():
    values = np.array([[0.5, np.nan, np.nan], [1.0, 0.25, np.nan]])
    assert rows._over_agents(values) == [0.75, 0.25, None]


def test_classes_of_honest_agents_are_balanced():
    values = {
        "accuracy": np.array([0.5, np.nan, 1.0]),
        "diverged": np.array([0.0, np.nan, 0.0]),
        "class_accuracy": np.array([[0.5, 1.0], [np.nan] * 2, [0.25, np.nan]]),
    }
    used = Used(*np.zeros(5, np.int64))
    tally = rows.counted(rows.nothing(3), 2, TWO_ROUNDS)
    row = rows.metrics_row({}, tally, used, values, TWO_ROUNDS, CLUSTER, {})
    assert row["class_accuracy"] == [0.375, 1.0]
    assert row["balanced_accuracy"] == pytest.approx((0.75 + 0.25) / 2)
    assert row["worst_class_accuracy"] == pytest.approx((0.5 + 0.25) / 2)


def test_means_are_over_honest_agents():
    """Of an honest agent that diverged it is told."""
    tally = rows.counted(rows.nothing(3), 2, TWO_ROUNDS)
    info = TWO_ROUNDS._replace(train_loss=np.float32([[1, 1, 1], [9, 2, 4]]))
    used = Used(*np.zeros(5, np.int64))

    def row(accuracy, diverged):
        values = {"accuracy": np.array(accuracy), "diverged": np.array(diverged)}
        return rows.metrics_row({}, tally, used, values, info, CLUSTER, {})

    found = row([np.nan, 0.25, 0.75], [np.nan, 0.0, 0.0])
    assert found["accuracy"] == 0.5 and found["train_loss"] == 3
    assert found["num_byzantine"] == 1 and found["num_diverged"] == 0
    assert found["messages"] == row([0.0] * 3, [0.0] * 3)["messages"]
    found = row([np.nan, np.nan, 0.75], [np.nan, 1.0, 0.0])
    assert np.isnan(found["accuracy"]) and found["num_diverged"] == 1
    plain = row([0.0, 0.5, 1.0], [0.0] * 3)
    assert plain["accuracy"] == 0.5 and plain["train_loss"] == 5
    assert "num_byzantine" not in plain


def test_agents_that_attack_are_not_judged():
    tally = rows.counted(rows.nothing(3), 2, TWO_ROUNDS)
    used = Used(np.int64(12), np.int64(120), *np.zeros(3))
    values = {
        "accuracy": np.array([0.25, np.nan, 0.75]),
        "loss": np.array([1.0, np.nan, 3.0]),
        "diverged": np.array([0.0, np.nan, 1.0]),
    }
    info = TWO_ROUNDS._replace(train_loss=np.array([[0.0] * 3, [1.0, np.nan, 2.0]]))
    row = rows.metrics_row({}, tally, used, values, info, CLUSTER, {})
    assert (row["accuracy"], row["loss"], row["train_loss"]) == (0.5, 2, 1.5)
    assert row["num_diverged"] == 1
    assert np.isnan(row["agent_accuracy"][1])
    # Agent 0 heard agent 1 twice and agent 2 once, agent 2 nobody.
    assert row["from_attackers"] == pytest.approx(2 / 3)
    assert "rejected" not in row
    info = info._replace(
        merged=MERGED.merged, rejected=np.float32([[1, 0, 2], [0] * 3])
    )
    row = rows.metrics_row({}, tally, used, values, info, CLUSTER, {})
    assert row["from_attackers"] == 1
    assert row["rejected"] == 0.5  # of an agent and round
