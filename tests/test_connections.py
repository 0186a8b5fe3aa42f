"""The study of connections: clusters as published, every method, table and figures."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from figure_contents import assert_drawn
from test_selection_contract import GUIDE, GUIDE_ROWS

from experiments.connections import (
    data,
    fronts,
    methods,
    overview,
    pictures,
    results,
    sources,
    study,
    thesis,
)
from experiments.connections.config import Config
from experiments.connections.subject import Run
from experiments.engine import reading, run_folder
from experiments.engine.summary import (
    SPEED,
    rounds_to_share_of_best,
    summarize,
    summary_rows,
)
from experiments.keep import kept_study
from p2pjax.datasets import stacking
from p2pjax.datasets.loaders import shakespeare
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.evaluation import statistics
from p2pjax.types import InputError

TINY = (
    "--num_agents=8",
    "--hidden=8",
    "--batch_size=16",
    "--learning_rate=1e-2",
    "--num_rounds=10",
    "--eval_every=5",
    "--num_devices=1",
)


def cifar_like(num_train=50_000, num_test=10_000):
    """As many images as CIFAR-10 has; the four pixels of each spell its number."""
    size = num_train + num_test
    x = np.arange(size, dtype=np.uint32)[:, None].view(np.uint8).reshape(-1, 2, 2)
    y = np.random.default_rng(0).permutation(np.arange(size) % 10).astype(np.int32)
    for part in (slice(0, num_train), slice(num_train, size)):
        y[part] = np.random.default_rng(1).permutation(np.arange(size)[part] % 10)
    return Examples(x, y, np.zeros_like(y), 10, np.arange(size) >= num_train)


def numbers(images):
    return np.ascontiguousarray(images).reshape(-1, 4).view(np.uint32)[:, 0]


CIFAR = cifar_like()
PLAIN = Config(num_agents=100)


def data_of(examples=CIFAR, **changes):
    rng = np.random.default_rng(3)
    return data.image_data(dataclasses.replace(PLAIN, **changes), examples, rng)


def counts(split):
    return np.asarray(stacking.label_histograms(split, 10))


class TestDataOfTheThesis:
    """100 agents of all of CIFAR-10, with the thesis' numbers of images."""

    @pytest.mark.parametrize("num_clusters", [2, 4])
    def test_rotation(self, num_clusters):
        found = data_of(num_clusters=str(num_clusters))
        for split, each in ((found.train, 40), (found.valid, 10), (found.test, 10)):
            np.testing.assert_array_equal(counts(split), np.full((100, 10), each))
        expected = np.repeat(np.arange(num_clusters), 100 // num_clusters)
        np.testing.assert_array_equal(found.cluster, expected)
        quarters = {2: (0, 2), 4: (0, 1, 2, 3)}[num_clusters]
        seen = []
        for split in (found.train, found.valid, found.test):
            for n, images in enumerate(split.examples["x"]):
                upright = np.rot90(images, -quarters[found.cluster[n]], (1, 2))
                rows = numbers(upright)
                np.testing.assert_array_equal(CIFAR.y[rows], split.examples["y"][n])
                assert (rows >= 50_000).all() == (split is found.test)
                seen.append(rows)
        every = np.concatenate(seen)
        assert len(set(every.tolist())) == len(every) == 60_000

    def test_a_hundred_training_images(self):
        found = data_of(train_size=100)
        np.testing.assert_array_equal(counts(found.train), np.full((100, 10), 10))
        np.testing.assert_array_equal(found.valid.size, [100] * 100)
        np.testing.assert_array_equal(found.test.size, [100] * 100)

    @pytest.mark.parametrize(
        "num_clusters, swaps",
        [(2, [None, (0, 2)]), (4, [None, (0, 1), (2, 3), (4, 5)])],
    )
    def test_swap(self, num_clusters, swaps):
        found = data_of(study="swap", num_clusters=str(num_clusters))
        np.testing.assert_array_equal(
            found.cluster, np.arange(100) * num_clusters // 100
        )
        for split in (found.train, found.valid, found.test):
            for n in range(100):
                y = CIFAR.y[numbers(split.examples["x"][n])]
                if swaps[found.cluster[n]] is not None:
                    one, other = swaps[found.cluster[n]]
                    y = np.where(y == one, other, np.where(y == other, one, y))
                np.testing.assert_array_equal(split.examples["y"][n], y)

    def test_vehicles_and_animals(self):
        found = data_of(study="vehicles_animals")
        vehicles = np.isin(np.arange(10), [0, 1, 8, 9])
        expected = np.where(np.arange(100)[:, None] < 50, vehicles, ~vehicles)
        np.testing.assert_array_equal(counts(found.train), 80 * expected)
        np.testing.assert_array_equal(counts(found.test), 20 * expected)
        np.testing.assert_array_equal(found.cluster, np.arange(100) // 50)
        small = data_of(study="vehicles_animals", train_size=100)
        assert small.train.size.tolist() == [100] * 50 + [96] * 50

    def test_superclasses(self):
        names = ("a", "b", "c", "a", "b", "b", "b", "b", "b", "b")
        found = data_of(study="superclasses", superclasses=names, num_agents=30)
        group = np.unique(names, return_inverse=True)[1]
        own = group == np.arange(30)[:, None] // 10
        np.testing.assert_array_equal(counts(found.train) > 0, own)
        np.testing.assert_array_equal(found.cluster, np.arange(30) // 10)
        alike = tuple("animal" if n in range(2, 8) else "vehicle" for n in range(10))
        found = data_of(study="superclasses", superclasses=alike)
        other = data_of(study="vehicles_animals")
        np.testing.assert_array_equal(
            found.train.examples["y"], other.train.examples["y"]
        )

    def test_pathological(self):
        found = data_of(study="pathological")
        pair = np.arange(10) // 2 == np.arange(100)[:, None] // 20
        np.testing.assert_array_equal(counts(found.train), 200 * pair)
        np.testing.assert_array_equal(counts(found.test), 50 * pair)
        np.testing.assert_array_equal(found.cluster, np.arange(100) // 20)
        small = data_of(study="pathological", train_size=100)
        np.testing.assert_array_equal(counts(small.train), 50 * pair)

    def test_practical(self):
        found = data_of(study="practical")
        pair = np.arange(10) // 2 == np.arange(100)[:, None] // 20
        train = counts(found.train)
        assert set(train[pair]) == {160}
        assert set(train[~pair]) == {10}  # 12 or 13, of which 2 or 3 validate
        assert set(counts(found.test)[pair]) == {40}
        assert set(counts(found.test)[~pair]) <= {2, 3}
        small = data_of(study="practical", train_size=100)
        np.testing.assert_array_equal(counts(small.train), np.full((100, 10), 10))
        kept = data_of(study="practical", train_size=100, proportional=True)
        shares = counts(kept.train)[pair].reshape(100, 2).sum(1) / 100
        assert shares.mean() == pytest.approx(0.8, abs=0.02)

    def test_runs_differ(self):
        config = dataclasses.replace(PLAIN, num_runs=2)
        one, other = data.image_data_of_runs(config, CIFAR).values()
        assert (one.train.examples["x"] != other.train.examples["x"]).any()

    def test_data_without_a_test_part(self):
        found = data_of(CIFAR._replace(is_test=None), test_share=0.25)
        np.testing.assert_array_equal(found.test.size, [150] * 100)
        np.testing.assert_array_equal(found.train.size, [360] * 100)

    def test_clusters_of_other_sizes_are_refused(self):
        with pytest.raises(InputError, match="5 clusters can share equally, got 42"):
            data_of(study="practical", num_agents=42)


def of_users(num_users, size=12, num_classes=10):
    """Images of users, the first pixel of each says whose it is."""
    user = np.repeat(np.arange(num_users, dtype=np.int32), size)
    x = np.tile(user.astype(np.uint8)[:, None, None], (1, 2, 2))
    y = np.arange(len(user), dtype=np.int32) % num_classes
    return Examples(x, y, user, num_classes)


class TestUsersAreAgents:
    """Where images have users, each agent has those of one."""

    def test_each_agent_has_all_of_one_user(self):
        found = data_of(of_users(11), num_agents=8, test_share=0.25)
        np.testing.assert_array_equal(found.test.size, [3] * 8)
        np.testing.assert_array_equal(found.train.size + found.valid.size, [9] * 8)
        owners = [
            {
                int(pixel)
                for split in found[:3]
                for pixel in split.examples["x"][n, : split.size[n]].flat
            }
            for n in range(8)
        ]
        assert {len(own) for own in owners} == {1}
        assert len(set.union(*owners)) == 8
        np.testing.assert_array_equal(found.cluster, np.arange(8) // 4)

    def test_the_own_split_is_kept(self):
        examples = of_users(4)
        is_test = np.arange(len(examples.y)) % 12 < 5
        found = data_of(examples._replace(is_test=is_test), num_agents=4, study="swap")
        np.testing.assert_array_equal(found.test.size, [5] * 4)

    def test_runs_have_other_users_in_other_clusters(self):
        config = dataclasses.replace(PLAIN, num_agents=4, num_runs=2)
        one, other = data.image_data_of_runs(config, of_users(40)).values()
        assert (one.train.examples["x"] != other.train.examples["x"]).any()

    def test_refusals(self):
        with pytest.raises(InputError, match="Need 8 users .* but the data has 7"):
            data_of(of_users(7), num_agents=8)
        with pytest.raises(InputError, match="Need 8 users .* but the data has 0"):
            data_of(of_users(8, size=2), num_agents=8)
        for name in ("vehicles_animals", "pathological", "practical"):
            with pytest.raises(InputError, match=f"without users for --study={name}"):
                data_of(of_users(40), num_agents=20, study=name)

    def test_a_file_may_do_without_users(self, parse, tmp_path):
        examples = of_users(40)
        args = ("--dataset=npz", f"--data_dir={tmp_path / 'own.npz'}")
        arrays = {"x": examples.x, "y": examples.y}
        np.savez(tmp_path / "own.npz", **arrays)
        flags = ("--study=pathological", "--num_agents=20")
        config = parse(*args, *flags, experiment="connections")
        ((run, found),) = study.make_data_and_subject(config)[0].items()
        assert run == 0
        assert (counts(found.train) > 0).sum(1).tolist() == [2] * 20
        np.savez(tmp_path / "own.npz", **arrays, user=examples.user)
        with pytest.raises(InputError, match="leave the array user out of the file"):
            study.make_jobs(config)
        config = parse(*args, "--num_agents=20", experiment="connections")
        ((_, found),) = study.make_data_and_subject(config)[0].items()
        assert all(len(np.unique(own)) == 1 for own in found.test.examples["x"])


@pytest.mark.parametrize(
    "changes, num_classes, message",
    [
        ({"study": "swap", "num_clusters": "4"}, 5, "6 classes or more .* got 5"),
        ({"study": "swap"}, 2, "3 classes or more .* got 2"),
        ({"study": "pathological"}, 5, "even number of classes, .* got 5"),
        ({"study": "practical"}, 2, "4 or more, .* got 2"),
        ({"study": "vehicles_animals"}, 4, "ten classes of CIFAR-10 .* got 4"),
        ({"study": "superclasses"}, 4, "each of 4 classes, .* got 0 of which 0"),
        (
            {"study": "superclasses", "superclasses": ("a",) * 4},
            4,
            "two different ones or more, got 4 of which 1",
        ),
    ],
)
def test_classes_that_a_study_cannot_use(changes, num_classes, message):
    examples = of_users(1, size=80, num_classes=num_classes)
    with pytest.raises(InputError, match=message):
        data_of(examples, num_agents=4, **changes)


def test_a_later_run_has_the_data_of_the_same_number():
    examples = of_users(1, size=400)
    config = dataclasses.replace(PLAIN, num_agents=4, num_runs=3)
    last = dataclasses.replace(config, first_run=2, num_runs=1)
    (alone,) = data.image_data_of_runs(last, examples).values()
    among = data.image_data_of_runs(config, examples)
    assert list(among) == [0, 1, 2]
    for one, other in zip(alone[:3], among[2][:3], strict=True):
        np.testing.assert_array_equal(one.size, other.size)
        width = one.examples["y"].shape[1]
        np.testing.assert_array_equal(one.examples["y"], other.examples["y"][:, :width])


def test_users_of_the_largest_groups():
    documents = Documents(
        list("abcde"),
        [[name] for name in "abcde"],
        test=[[name.upper()] for name in "abcde"],
        group=np.array([2, 0, 2, 1, 1]),
    )
    found = sources.in_largest_groups(documents, 2)
    assert found.users == ["a", "c", "d", "e"]
    assert found.test == [["A"], ["C"], ["D"], ["E"]]
    assert found.valid is None
    assert found.group.tolist() == [2, 2, 1, 1]
    with pytest.raises(InputError, match="users of 4 groups, got 3"):
        sources.in_largest_groups(documents, 4)
    with pytest.raises(InputError, match="users of 2 groups, got 0"):
        sources.in_largest_groups(documents._replace(group=None), 2)


def test_roles_by_play():
    users = ["THE_TRAGEDY_OF_KING_LEAR_MACBETH", "MUCH_ADO_ABOUT_NOTHING_IAGO"]
    found = shakespeare.by_play(Documents(users, [["a"], ["b"]]))
    assert found.group.tolist() == [5, 1]
    with pytest.raises(InputError, match="begin with one of .* found HAMLET"):
        shakespeare.by_play(Documents(["HAMLET"], [["a"]]))


def test_real_roles_by_play(real_data):
    found = shakespeare.by_play(shakespeare.load(real_data))
    assert np.bincount(found.group).min() > 20
    largest = sources.in_largest_groups(found, 4)
    assert len(np.unique(largest.group)) == 4


@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_a_run(run, capsys):
    """Rows, matrices, figures and table of two methods."""
    folder = run(*TINY, "--methods=sparse,pens", experiment="connections")
    rows = reading.rows(folder)
    assert [(r["scheme"], r["round"]) for r in rows] == [
        ("sparse", 5),
        ("sparse", 10),
        ("pens", 5),
        ("pens", 10),
    ]
    last = {row["scheme"]: row for row in rows}
    assert last["pens"]["accuracy"] == last["pens"]["accuracy_before"]
    assert last["pens"]["accuracy"] != last["pens"]["accuracy_after"]
    # A fifth of ten rounds is two: one round of six models, nine of three.
    assert last["sparse"]["messages"] == 30
    assert last["pens"]["messages"] <= 33
    assert last["sparse"]["gini"] == 0
    assert last["sparse"]["parameters"] == 64 * 8 + 8 + 8 * 10 + 10
    assert last["sparse"]["bytes"] == 30 * 4 * last["sparse"]["parameters"]
    links = {row["scheme"]: row for row in reading.links(folder)}
    fetched = sum(number for *_, number in links["pens"]["links"])
    merged = sum(number for *_, number in links["pens"]["merged"])
    assert fetched == 8 * last["pens"]["messages"]
    assert merged < fetched
    assert links["sparse"]["merged"] == links["sparse"]["links"]
    methods = ("sparse", "pens")
    for name, label in (
        ("accuracy_by_round", "accuracy, mean over agents"),
        ("in_cluster_by_round", "in-cluster share of peers averaged with"),
    ):
        assert_drawn(folder, name, "rounds", label, *methods, num_lines=2)
    until = "messages sent by an agent until its run's best"
    assert_drawn(folder, "pareto", until, *methods)
    assert_drawn(folder, "graphs", "who averaged with it", *methods)
    assert len(last["pens"]["class_accuracy"]) == 10
    metrics = {
        r["metric"] for r in json.loads((folder / "summary.json").read_text())["rows"]
    }
    assert metrics >= {"accuracy", "messages", "bytes", "gini", "merged_in_cluster"}
    assert metrics >= {"accuracy_before", "majority", "worst_class_accuracy"}
    said = capsys.readouterr().out
    assert "thesis" not in said
    overview.print_table(folder, ("rotation_2", True))
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[-2:] == ["thesis,", "rotation_2"]
    assert table[1].split()[0].rstrip("*") == "sparse"
    assert table[1].split()[4:6] == ["30.0", "1.000"]
    assert table[1].split()[-1] == "40.94"
    assert table[2].split()[-1] == "41.29"


def test_agents_that_send_nothing_have_a_figure_too(tmp_path):
    for number in (1, 2):
        alone = row("local", 0, number, 0.5, 0) | {"parameters": 3, "bytes": 0}
        run_folder.append(tmp_path, "metrics.jsonl", alone)
    pictures.draw(tmp_path)
    assert_drawn(tmp_path, "pareto", "local")
    assert not (tmp_path / "graphs.png").exists()
    assert not (tmp_path / "in_cluster_by_round.png").exists()


def test_runs_that_do_not_start_at_0_are_shown(tmp_path):
    for run in (5, 6):
        for number in (1, 2):
            one = row("sparse", run, number, run / 10, 3 * number, share=0.5)
            run_folder.append(tmp_path, "metrics.jsonl", one)
        links = {
            "scheme": "sparse",
            "run": run,
            "cluster": [0, 1],
            "links": [[0, 1, 3]],
        }
        run_folder.append(tmp_path, "links.jsonl", links)
    ((name, runs),) = results.runs_by_method(tmp_path).items()
    assert name == "sparse"
    assert [[r["run"] for r in own] for own in runs] == [[5, 5], [6, 6]]
    pictures.draw(tmp_path)
    assert_drawn(tmp_path, "graphs", "who averaged with it", "sparse")


def row(scheme, run, number, accuracy, messages, share=None):
    return {
        "scheme": scheme,
        "setting": {},
        "run": run,
        "round": number,
        "accuracy": accuracy,
        "messages": messages,
        "merged_in_cluster": share,
    }


def test_best_accuracy_costs_what_was_sent_until_then():
    runs = [
        [row("a", 0, n, accuracy, 3 * n) for n, accuracy in enumerate([0.1, 0.5, 0.4])],
        [row("a", 1, n, accuracy, 3 * n) for n, accuracy in enumerate([0.1, 0.2, 0.9])],
    ]
    assert fronts.at_best(runs) == pytest.approx((0.7, 4.5))


def test_a_run_may_lack_what_others_have(tmp_path):
    """Agents of one run sent nothing: no Gini coefficient of the scheme."""
    for run, more in ((0, {"gini": 0.5}), (1, {})):
        run_folder.append(tmp_path, "metrics.jsonl", row("a", run, 1, 0.5, 0) | more)
    found = summarize(tmp_path, "connections", ("accuracy", "gini"))
    assert [one["metric"] for one in found] == ["accuracy"]


def test_speed_is_when_most_of_the_best_is_reached(tmp_path):
    """Of each run, in summaries and in kept studies alike."""
    for run, curve in enumerate([(0.1, 0.91, 1.0), (0.5, 0.2, 0.4), (0.1, 0.2, 0.3)]):
        for number, accuracy in enumerate(curve, 1):
            one = row("a", run, 5 * number, accuracy, 3 * number)
            run_folder.append(tmp_path, "metrics.jsonl", one)
    (found,) = summarize(tmp_path, "connections", (SPEED,))
    assert (found["metric"], found["runs"]) == ("rounds_to_90%_of_best", 3)
    assert found["mean"] == pytest.approx((10 + 5 + 15) / 3)
    runs = [own for own in results.runs_by_method(tmp_path)["a"]]
    kept = [kept_study.evaluations(kept_study.line_of(own)) for own in runs]
    (again,) = summary_rows([dict(enumerate(kept))], (SPEED,))
    assert again["mean"] == pytest.approx(found["mean"])
    assert rounds_to_share_of_best([{"round": 1, "accuracy": None}]) is None


def test_stable_means_rounds_however_often_they_are_evaluated():
    rising = np.minimum(np.arange(1, 61) / 40, 0.5)  # flat from round 20 on
    for every in (1, 2, 4):
        runs = [[row("a", 0, n, rising[n - 1], 3 * n) for n in range(every, 61, every)]]
        accuracy = results.curves(runs, "accuracy")
        windows = overview._windows(runs)
        assert statistics.top_ua_stable_max(accuracy, lengths=windows) == 0.5


@pytest.mark.parametrize("every", [50, 400])
def test_a_single_evaluation_is_not_stable(every):
    runs = [[row("a", 0, n, n / 2000, 3) for n in range(every, 2001, every)]]
    windows = overview._windows(runs)
    accuracy = results.curves(runs, "accuracy")
    assert statistics.top_ua_stable_max(accuracy, lengths=windows) is None


def test_share_over_the_last_tenth():
    shares = [0.0] * 18 + [0.5, 1.0]
    runs = [[row("a", 0, n + 1, 0.5, 3, share) for n, share in enumerate(shares)]]
    assert results.share_at_the_end(runs) == 0.75
    silent = [[row("a", 0, 1, 0.5, 0)]]
    assert np.isnan(results.share_at_the_end(silent))
    # Where everything that arrives is averaged, there is one share only.
    assert results.in_cluster({"in_cluster": 0.3}) == 0.3


def test_printed_numbers():
    assert thesis.printed("oracle", "rotation_2", True) == 43.80
    assert thesis.printed("diple", "practical", False) == 71.09
    assert thesis.printed("pens", "text_4", False) == 8.82
    assert thesis.printed("aucccr", "text_2", True) is None
    assert thesis.printed("local", "swap_4", True) is None


@pytest.mark.parametrize(
    "flags, column",
    [
        (("--dataset=cifar10", "--train_size=100"), ("rotation_2", True)),
        (("--dataset=cifar10", "--study=swap", "--num_clusters=4"), ("swap_4", False)),
        (("--dataset=cifar10", "--study=practical"), ("practical", False)),
        (("--dataset=reddit", "--study=text", "--max_train=700"), ("text_2", True)),
        (("--dataset=digits",), None),
    ],
)
def test_column_of_the_thesis(flags, column):
    settings = {"study": "rotation", "num_clusters": "2"}
    settings |= dict(flag.removeprefix("--").split("=") for flag in flags)
    assert thesis.column_of(settings) == column


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--methods=pens,gossip",), "need sparse, .* got 'gossip'"),
        (("--num_agents=9",), "2 clusters can share equally, got 9"),
        (("--dataset=shakespeare",), "Need --dataset among digits, .* got shakespeare"),
        (("--study=text", "--dataset=mnist"), "among speakers, .* got mnist"),
        (("--study=text", "--methods=aucccr"), "leave it out of --methods"),
        (("--test_share=1.5",), "need less than 1, got 1.5"),
        (("--methods=dac", "--view_size=3"), "above the 3 peers averaged with"),
        (("--methods=dac", "--view_size=8,0"), "up to all 7 others, got 8: 0 is all"),
        (("--train_size=5",), "each of the 10 classes of agent 0, got a size of 5"),
        (("--study=text", "--first_run=1"), "Need --first_run=0 for generated texts"),
        (("--num_clusters=3",), "need one of 2, 4, got '3'"),
        (("--sharpness=nan",), "need a finite number"),
        (("--update_share=1.1",), "need 1 or less, got 1.1"),
        (("--max_train=0",), "need 1 or more, got 0"),
    ],
)
def test_refusals(parse, flags, message):
    with pytest.raises(InputError, match=message):
        study.make_jobs(parse(*TINY, *flags, experiment="connections"))


def test_limits_and_views_are_factors(parse):
    """A value each, of the methods to which it means something; 0 is no limit."""
    flags = ("--methods=sparse,pens,local", "--max_in_load=3,0", "--view_size=4,0")
    jobs = study.make_jobs(parse(*TINY, *flags, experiment="connections"))
    assert [(job.scheme, job.setting) for job in jobs] == [
        ("sparse", {"max_in_load": 3}),
        ("sparse", {"max_in_load": "none"}),
        *(
            ("pens", {"max_in_load": limit, "view_size": size})
            for limit in (3, "none")
            for size in (4, "all")
        ),
        ("local", {}),
    ]
    assert len({id(job.program.algorithm) for job in jobs}) == len(jobs)
    # A round of a study with one value is that of the study with several.
    (alone,) = study.make_jobs(
        parse(*TINY, "--methods=pens", "--max_in_load=3", experiment="connections")
    )
    assert alone.setting == {}
    shapes = [
        jax.tree.map(
            jax.numpy.shape,
            jax.eval_shape(job.program.algorithm.init, job.key, job.make_data()),
        )
        for job in (alone, jobs[3], jobs[2])
    ]
    assert shapes[0] == shapes[1] != shapes[2]  # a view is remembered


def test_pairs_of_groups_are_studies_of_their_own(parse, tmp_path, capsys):
    """Six pairs of four topics in one command, and the mean over them."""
    flags = ("--study=text", "--pairs", "--methods=sparse,local", "--num_words=20")
    small = ("--gru_units=4", "--num_agents=4", "--degree=1")
    config = parse(*TINY, *flags, *small, experiment="connections")
    jobs = study.make_jobs(config)
    pairs = ["0+1", "0+2", "0+3", "1+2", "1+3", "2+3"]
    assert [(job.scheme, job.setting["pair"]) for job in jobs] == [
        (method, pair) for pair in pairs for method in ("sparse", "local")
    ]
    for job in jobs[::2]:
        assert job.make_data().cluster.tolist() == [0, 0, 1, 1]
    data_of_pairs = [job.make_data().train.examples["x"] for job in jobs[:4:2]]
    assert not np.array_equal(*data_of_pairs)
    for more in ("--num_clusters=4", "--study=rotation"):
        with pytest.raises(InputError, match="--num_clusters=2 for --pairs, got"):
            study.make_jobs(parse(*TINY, *flags, more, experiment="connections"))
    for job in jobs:
        top = 0.1 * pairs.index(job.setting["pair"]) + 0.2 * (job.scheme == "sparse")
        one = row(job.scheme, 0, 1, top, 3 * (job.scheme == "sparse"))
        one |= {"setting": job.setting, "parameters": 3, "bytes": 12}
        run_folder.append(tmp_path, "metrics.jsonl", one)
    overview.print_table(tmp_path, None)
    mean = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert mean[2:] == [
        "| sparse | 6 | .450 |  |  |  |",
        "| local | 6 | .250 | -.200 | 0 of 6 | 0.00 |",
    ]


def test_settings_are_told_apart(tmp_path, capsys):
    """In tables, figures and scores; each is compared with random peers like it."""
    for scheme, limits in (("sparse", (3,)), ("pens", (3, "none")), ("local", (None,))):
        for limit in limits:
            setting = {} if limit is None else {"max_in_load": limit}
            for number in (1, 2):
                sent = 0 if scheme == "local" else (1 + (limit == "none")) * number
                one = row(scheme, 0, number, 0.5 + sent / 10, sent, share=0.5)
                one |= {"setting": setting, "parameters": 3, "bytes": 12 * sent}
                run_folder.append(tmp_path, "metrics.jsonl", one)
    runs_of = results.runs_by_method(tmp_path)
    assert list(runs_of) == [
        "sparse, max in load 3",
        "pens, max in load 3",
        "pens, max in load none",
        "local",
    ]
    assert results.alike(runs_of, "pens, max in load 3", "sparse") == next(
        iter(runs_of)
    )
    assert results.alike(runs_of, "local", "pens") == "pens, max in load 3"
    assert results.alike(runs_of, "local", "oracle") is None
    overview.print_table(tmp_path, None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].rstrip("*") for line in lines[1:]] == list(runs_of)
    assert " 2.000 " in lines[3]  # twice the messages of random peers
    pictures.draw(tmp_path)
    assert_drawn(tmp_path, "pareto", *runs_of)
    assert_drawn(tmp_path, "in_cluster_by_round", *runs_of)


def test_the_guide_adds_a_method(parse):
    """The row of CONTRIBUTING.md makes an algorithm out of its selection."""
    config = parse(*TINY, "--first_run=3", experiment="connections")
    names = {"_pulling": methods._pulling} | GUIDE
    (method,) = eval(f"{{{GUIDE_ROWS[1]}}}", names).values()
    of_runs, subject = study.make_data_and_subject(config)
    assert list(of_runs) == [3]
    found = of_runs[3]
    algorithm = method(subject, Run(3, found))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), found)
    assert state.peers.ids.shape == (8, 4)
    with pytest.raises(InputError, match="num_candidates, got 3, 2"):
        GUIDE["alike"](num_candidates=2)


@pytest.mark.slow
class TestEveryMethod:
    @pytest.fixture(autouse=True)
    def promotion(self):
        with jax.numpy_dtype_promotion("standard"):  # optax.adam mixes dtypes
            yield

    def test_on_images(self, run):
        methods = list(study.METHODS)
        # A model has 610 numbers; predictions for 100 examples would have more.
        probe_size, predictions = 20, 20 * 10
        folder = run(
            *TINY,
            f"--probe_size={probe_size}",
            f"--methods={','.join(methods)}",
            experiment="connections",
        )
        last = {row["scheme"]: row for row in reading.rows(folder)}
        assert list(last) == methods
        assert np.isfinite([row["loss"] for row in last.values()]).all()
        assert last["local"]["messages"] == 0
        for name in ("sparse", "oracle", "dac"):
            assert last[name]["messages"] == 30
        assert last["oracle"]["merged_in_cluster"] == 1
        # One round with all, nine with three, unless losses are infinite.
        assert last["l2c"]["messages"] == 7 + 9 * 3
        assert last["diple"]["messages"] <= 6 * 30
        assert last["d_cliques"]["messages"] > 60
        # With a model comes an update; predictions take no model, but to be averaged.
        size = last["sparse"]["parameters"]
        numbers = {name: row["bytes"] / 4 for name, row in last.items()}
        for name in ("pens", "dac", "panm_loss"):
            assert numbers[name] == last[name]["messages"] * size
        assert numbers["panm_grad"] == last["panm_grad"]["messages"] * 2 * size
        merged = {
            row["scheme"]: sum(number for *_, number in row["merged"]) / 8
            for row in reading.links(folder)
        }
        compared = last["dac_probe"]["messages"] * predictions
        expected = merged["dac_probe"] * size + compared
        assert numbers["dac_probe"] == pytest.approx(expected, rel=1e-6)
        # At most one of those averaged with in a round was not compared before.
        averaged, fetched = merged["panm_probe"], last["panm_probe"]["messages"]
        most = averaged * size + fetched * predictions
        assert most - 10 * predictions <= numbers["panm_probe"] <= most
        assert numbers["panm_probe"] < fetched * size

    def test_convolutions(self, run):
        """Methods that take gradients of their own."""
        folder = run(
            *TINY,
            "--dataset=glyphs",
            "--methods=diple,l2c",
            "--bilevel",
            "--train_size=20",
            "--num_rounds=2",
            "--eval_every=1",
            experiment="connections",
        )
        assert np.isfinite([row["loss"] for row in reading.rows(folder)]).all()

    def test_on_texts(self, run):
        folder = run(
            *TINY,
            "--study=text",
            "--num_words=50",
            "--gru_units=8",
            "--methods=sparse,oracle,panm_grad,d_cliques",
            "--num_rounds=2",
            "--eval_every=1",
            experiment="connections",
        )
        assert np.isfinite([row["loss"] for row in reading.rows(folder)]).all()

    def test_options_reach_the_methods(self, run):
        def last(*flags):
            name = "_".join(flags).replace("--", "").replace("=", "_")
            folder = run(*TINY, *flags, workdir=name, experiment="connections")
            return reading.rows(folder)[-1]

        capped = last("--methods=pens", "--max_in_load=3", "--second_stage=9")
        assert max(capped["agent_messages"]) <= 3 * 10
        seen = last("--methods=pens", "--view_size=4", "--second_stage=9")
        assert seen["messages"] <= 4 * 10
        short = last("--methods=pens", "--second_stage=2", "--num_candidates=4")
        assert short["messages"] <= 4 + 9 * 3
        # A matching every fiftieth of ten rounds is one in every round.
        often, rarely = (
            last("--methods=panm_loss", *flags)["messages"]
            for flags in ((), ("--matching_every=11",))
        )
        assert often > rarely

    def test_agents_find_their_cluster(self, run):
        """Sixteen agents, half of which see digits upside down."""
        folder = run(
            "--num_agents=16",
            "--methods=sparse,oracle,pens,dac",
            "--batch_size=16",
            "--learning_rate=1e-2",
            "--num_rounds=30",
            "--eval_every=3",
            experiment="connections",
        )
        runs_of = results.runs_by_method(folder)
        shares = {
            name: results.share_at_the_end(runs) for name, runs in runs_of.items()
        }
        top = {name: fronts.at_best(r)[0] for name, r in runs_of.items()}
        assert shares["oracle"] == 1
        assert shares["pens"] > 0.9 and shares["dac"] > 0.9 > shares["sparse"]
        assert min(top["oracle"], top["pens"], top["dac"]) > top["sparse"]
