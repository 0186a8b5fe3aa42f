"""The MNIST studies: permutations, schemes, cases, runs, refusals."""

import importlib

import numpy as np
import pytest
from settings import TINY_DIGITS

from experiments.engine import reading
from experiments.mnist import global_models, semi_local
from experiments.mnist.labels import cycle, swap
from p2pjax.datasets import partition
from p2pjax.datasets.stacking import Examples
from p2pjax.partial import placement
from p2pjax.partial.schemes import PartialModel
from p2pjax.types import InputError

CLASSIC = (784, 300, 100, 10)


@pytest.fixture
def blocks():
    """Of tiny data."""
    y = np.tile(np.arange(10), 40).astype(np.int32)
    x = np.arange(400, dtype=np.uint8)[:, None] % 250
    examples = Examples(x, y, np.zeros_like(y), 10)

    def make_blocks(num_agents, train_size, turns=None):
        assert turns is None
        sizes = {"num_agents": num_agents, "train_size": train_size, "test_size": 30}
        return lambda run: partition.iid_blocks(
            examples, np.random.default_rng(run), **sizes
        )

    return make_blocks


@pytest.fixture
def config(parse):
    """A few of the paper's levels, tiny data."""
    return lambda *args: parse(
        "--train_size=10", "--levels=0,80,100", *args, experiment="mnist"
    )


def test_cycles_and_swaps():
    np.testing.assert_array_equal(cycle(10, 0), np.arange(10))
    np.testing.assert_array_equal(cycle(10, 2), [*range(8), 9, 8])
    np.testing.assert_array_equal(cycle(10, 4), [*range(6), 7, 8, 9, 6])
    np.testing.assert_array_equal(cycle(10, 10), [*range(1, 10), 0])
    np.testing.assert_array_equal(swap(cycle(10, 2), 6, 7)[5:], [5, 7, 6, 9, 8])
    for length in (-1, 1, 11):
        with pytest.raises(InputError, match=f"0 or 2 to 10 classes, got {length}"):
            cycle(10, length)


def test_only_the_permuted_agents_have_other_labels(config, blocks):
    case = global_models.level(config(), CLASSIC, blocks, (50,))[0]
    data, plain = case.make_data(3), blocks(16, 10)(3)
    for split, before in ((data.train, plain.train), (data.test, plain.test)):
        np.testing.assert_array_equal(split.examples["x"], before.examples["x"])
        y, old = split.examples["y"], before.examples["y"]
        np.testing.assert_array_equal(y[7:], old[7:])
        np.testing.assert_array_equal(y[:7], cycle(10, 2)[old[:7]])
    np.testing.assert_array_equal(data.cluster, [0] * 7 + [1] * 9)
    rows = data.train.examples["x"].reshape(-1)
    assert len(rows) == 160


def test_blocks_are_disjoint_and_tests_are_common():
    y = np.arange(100, dtype=np.int32) % 10
    x = np.arange(100, dtype=np.uint8)[:, None]
    examples = Examples(x, y, np.zeros_like(y), 10)
    sizes = {"num_agents": 4, "train_size": 20, "test_size": 15}
    one = partition.iid_blocks(examples, np.random.default_rng(0), **sizes)
    other = partition.iid_blocks(examples, np.random.default_rng(1), **sizes)
    rows = one.train.examples["x"].reshape(-1)
    assert len(set(rows.tolist())) == 80
    assert rows.max() < 85
    assert (one.test.examples["x"][:, :, 0] == np.arange(85, 100)).all()
    assert (rows != other.train.examples["x"].reshape(-1)).any()
    # The data's own split is honoured.
    is_test = np.arange(100) < 20
    own = partition.iid_blocks(
        examples._replace(is_test=is_test), np.random.default_rng(0), **sizes
    )
    assert (own.test.examples["x"][0, :, 0] == np.arange(15)).all()
    assert own.train.examples["x"].min() >= 20
    with pytest.raises(InputError, match="4 x 30 training and 15 test .* got 85 and"):
        partition.iid_blocks(
            examples, np.random.default_rng(0), **(sizes | {"train_size": 30})
        )


def test_rotation():
    rng = np.random.default_rng(0)
    y = np.zeros(40, np.int32)
    x = rng.integers(0, 255, (40, 3, 3)).astype(np.uint8)
    examples = Examples(x, y, y, 1)
    sizes = {"num_agents": 3, "train_size": 5, "test_size": 4}
    plain = partition.iid_blocks(examples, rng, **sizes)
    turned = partition.rotate(plain, np.asarray([0, 1, 4]))
    before, after = (data.train.examples["x"] for data in (plain, turned))
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(after[1, 2], np.rot90(before[1, 2]))
    np.testing.assert_array_equal(turned.cluster, [0, 1, 0])
    flat = partition.iid_blocks(
        examples._replace(x=x.reshape(40, 9)), np.random.default_rng(0), **sizes
    )
    with pytest.raises(InputError, match="square images"):
        partition.rotate(flat, np.asarray([0, 1, 2]))


def test_semi_local_schemes_are_the_papers(config, blocks):
    twelve = config("--num_agents=12")
    cases = semi_local.semi_local(twelve, CLASSIC, blocks, (25, 50))
    schemes = {case.name: case.scheme for case in cases}
    assert list(schemes) == [
        "none",
        "full",
        "full_in_groups",
        "level_80",
        "level_80_semi_local",
        "level_80_semi_local_depends",
    ]
    assert len(cases) == 12
    all_agents = tuple(range(12))
    pairs = [(2 * j, 2 * j + 1) for j in range(6)]
    assert schemes["none"].models == ()
    assert schemes["full"].models == (PartialModel(CLASSIC, all_agents),)
    assert schemes["full_in_groups"].models == tuple(
        PartialModel(CLASSIC, pair) for pair in pairs
    )
    assert schemes["level_80"].models == (PartialModel((784, 250, 80, 10), all_agents),)
    beside = schemes["level_80_semi_local"]
    assert beside.models == (
        PartialModel((784, 250, 80, 10), all_agents),
        *(PartialModel((0, 50, 20, 0), pair) for pair in pairs),
    )
    assert beside.depends == ()
    depends = schemes["level_80_semi_local_depends"]
    assert depends == beside._replace(depends=tuple((m, 0) for m in range(1, 7)))
    data = cases[0].make_data(0)
    np.testing.assert_array_equal(data.cluster, np.repeat(np.arange(6), 2))
    # Agents 2j and 2j + 1 have the j-th permutation of (7, 8, 9).
    plain = blocks(12, 10)(0).test.examples["y"][6]
    found = data.test.examples["y"][6]
    for old, new in zip((7, 8, 9), (8, 9, 7), strict=True):
        assert (found[plain == old] == new).all()
    for case in cases:
        placement.align(placement.attach(case.scheme))
    with pytest.raises(InputError, match="multiple of 6 agents"):
        semi_local.semi_local(config(), CLASSIC, blocks, (25,))


def test_semi_local_and_local_schemes_are_the_papers(config, blocks):
    four = config("--num_agents=4")
    cases = semi_local.semi_local_local(four, CLASSIC, blocks, (100,))
    schemes = {case.name: case.scheme for case in cases}
    assert schemes["full_in_groups"].models == (PartialModel(CLASSIC, (0, 1)),)
    assert schemes["level_70_semi_local_depends"].models == (
        PartialModel((784, 220, 70, 10), (0, 1, 2, 3)),
        PartialModel((0, 80, 30, 0), (0, 1)),
        PartialModel((0, 40, 15, 0), (2, 3)),
    )
    data = cases[0].make_data(0)
    plain = blocks(4, 10)(0).test.examples["y"]
    found = data.test.examples["y"]
    np.testing.assert_array_equal(found[:2], plain[:2])
    np.testing.assert_array_equal(found[2], swap(np.arange(10), 8, 9)[plain[2]])
    np.testing.assert_array_equal(
        found[3], swap(swap(np.arange(10), 8, 9), 6, 7)[plain[3]]
    )
    with pytest.raises(InputError, match="Need 4 agents"):
        semi_local.semi_local_local(config(), CLASSIC, blocks, (100,))


def test_layouts_are_the_papers(config, blocks):
    cases = global_models.layouts(config(), CLASSIC, blocks, (0,))
    assert [case.name for case in cases] == [
        "0-0-0-0",
        "784-300-100-10",
        "784-250-80-10",
        "784-300-100-0",
        "0-0-0-0-0",
        "784-300-100-10-10",
        "784-250-80-10-10",
        "784-300-100-10-0",
    ]
    cases = global_models.layouts(config(), (784, 50, 10), blocks, (0,))
    assert [case.name for case in cases][2::4] == ["784-40-10", "784-40-10-10"]


def test_peers_permuted_and_train_sizes(config, blocks):
    cases = global_models.peers(config(), CLASSIC, blocks, (4, 8))
    assert [len(case.scheme.networks) for case in cases] == [4] * 3 + [8] * 3
    np.testing.assert_array_equal(cases[-1].make_data(0).cluster, [0] * 2 + [1] * 6)
    cases = global_models.permuted(config(), CLASSIC, blocks, (0, 2))
    assert (cases[0].make_data(0).cluster == 0).all()
    assert cases[-1].setting == {"level": 100, "num_permuted": 2}
    cases = global_models.train_size(config(), CLASSIC, blocks, (5, 7))
    assert cases[-1].make_data(0).train.size.tolist() == [7] * 16
    with pytest.raises(InputError, match="0 to 16 agents .* got 17"):
        global_models.permuted(config(), CLASSIC, blocks, (17,))


SLOW = pytest.mark.slow  # they go the ways of test_experiments, on other data


@pytest.mark.parametrize(
    "args, figure, num_lines",
    [
        pytest.param(
            ("--study=level", "--values=4,8"), "accuracy_by_level", 4, marks=SLOW
        ),
        pytest.param(
            ("--study=convergence", "--average_every=2"),
            "accuracy_by_round",
            2,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=peers", "--values=4,6"), "accuracy_by_num_agents", 4, marks=SLOW
        ),
        pytest.param(
            ("--study=semi_local", "--values=4", "--num_agents=6", "--neutral_input"),
            "accuracy_by_batch_size",
            6,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=semi_local_local", "--values=4"),
            "accuracy_by_batch_size",
            6,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=difference", "--values=0,6"), "accuracy_by_cycle", 4, marks=SLOW
        ),
        pytest.param(
            ("--study=permuted", "--values=0,2"),
            "accuracy_by_num_permuted",
            4,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=train_size", "--values=5,9"),
            "accuracy_by_train_size",
            4,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=layouts", "--values=3"), "accuracy_by_cycle", 8, marks=SLOW
        ),
        pytest.param(
            ("--study=drift", "--values=0,100000"), "accuracy_by_drift", 4, marks=SLOW
        ),
        pytest.param(
            ("--study=auto", "--values=1,2", "--num_agents=6", "--levels=60"),
            "accuracy_by_round",
            6,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=auto_rotated", "--values=2", "--num_runs=2"),
            "accuracy_by_round",
            5,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=changing", "--values=2", "--num_agents=4"),
            "accuracy_by_round",
            8,
            marks=SLOW,
        ),
        pytest.param(
            ("--study=auto", "--values=1", "--num_agents=6", "--first_run=3"),
            "accuracy_by_round",
            5,
            marks=SLOW,
        ),
    ],
)
def test_studies_run(run, args, figure, num_lines):
    folder = run(*TINY_DIGITS, *args, experiment="mnist")
    assert (folder / f"{figure}.png").stat().st_size > 5000
    rows = reading.rows(folder)
    assert len({(row["scheme"], *row["setting"].values()) for row in rows}) == num_lines
    assert np.isfinite([row["loss"] for row in rows]).all()


@pytest.mark.slow
def test_runs_and_settings_of_a_scheme_share_a_program(run):
    """Three runs at two settings, two schemes: two programs are compiled."""
    advance = importlib.import_module("p2pjax.simulation._simulate")._advance
    before = advance._cache_size()
    folder = run(
        *TINY_DIGITS,
        "--study=difference",
        "--values=0,6",
        "--num_runs=3",
        "--eval_every=3",
        experiment="mnist",
    )
    assert len(reading.rows(folder)) == 2 * 2 * 3
    assert advance._cache_size() - before == 2


@pytest.mark.slow
def test_drift_saves_messages(run):
    folder = run(*TINY_DIGITS, "--study=drift", "--values=0,100000", experiment="mnist")
    messages = {
        (row["scheme"], row["setting"]["drift"]): row["messages"]
        for row in reading.rows(folder)
    }
    assert messages == {
        ("level_0", 0): 0,
        ("level_0", 1000): 0,
        ("level_60", 0): 3,
        ("level_60", 1000): 0,
    }


@pytest.mark.parametrize(
    "args, message",
    [
        (("--values=a",), "flag --values=a: need a whole number, got 'a'"),
        (("--values=0",), "--values of 1 or more for --study=level (examples of a"),
        (("--study=train_size", "--values=0"), "--values of 1 or more for --study=tra"),
        (("--study=convergence", "--values=2"), "no --values for --study=convergence"),
        (("--data_dir=x",), "Got --data_dir without --dataset"),
        (("--dataset=mnist",), "Need --data_dir for --dataset=mnist"),
        (("--network=64=12=9",), "labels from 0 to 8"),
        (("--num_permuted=9",), "0 to 4 agents with permuted labels, got 9"),
        (("--train_size=900",), "4 x 900 training and 20 test examples"),
        (("--study=difference", "--values=1"), "cycles of 0 or 2 to 10"),
    ],
)
def test_bad_input_gets_a_sentence(run, tmp_path, capsys, args, message):
    with pytest.raises(SystemExit) as exit_info:
        run(*TINY_DIGITS, *args, experiment="mnist")
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_real_mnist(run, real_data):
    folder = run(
        "--dataset=mnist",
        f"--data_dir={real_data}",
        "--network=784=6=4=10",
        "--num_agents=4",
        "--num_permuted=1",
        "--train_size=20",
        "--test_size=10",
        "--values=5",
        "--levels=80",
        "--num_rounds=2",
        experiment="mnist",
    )
    assert reading.rows(folder)[-1]["round"] == 2
