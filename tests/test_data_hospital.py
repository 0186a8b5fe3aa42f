"""The hospital's table: its file, its stand-in, its splits, what is held out."""

import gzip

import numpy as np
import pytest

from p2pjax.datasets import partition
from p2pjax.datasets.loaders import hospital
from p2pjax.datasets.loaders.hospital import TableSplit
from p2pjax.types import InputError

NAMES = (
    "Patient ID",
    hospital.AGE,
    hospital.RESULT,
    *hospital.BLOOD,
    "Serum Glucose",
    *hospital.PATHOGENS,
    *hospital.RAPID,
)
GOOD = (
    {hospital.AGE: "19", hospital.RESULT: "positive"},
    {
        hospital.AGE: "0",
        hospital.RESULT: "negative",
        "Hematocrit": "0.25",
        "Red blood cell distribution width (RDW)": "-1.5",
        "Influenza A": "detected",
        "Parainfluenza 2": "not_detected",
        "Influenza A, rapid test": "positive",
        "Serum Glucose": "7",
    },
)


def table(rows=GOOD, names=NAMES):
    """The csv of rows, which leave out cells; names with a comma are quoted."""

    def line(cells):
        return ",".join(f'"{cell}"' if "," in cell else cell for cell in cells)

    body = [line([row.get(name, "") for name in names]) for row in rows]
    # As in the published table: hard spaces, and spaces at the end.
    head = line(names).replace("concentration (MCHC)", "concentration\xa0(MCHC)")
    return "\n".join([head.replace("platelet volume", "platelet volume "), *body, ""])


def write(tmp_path, text, name="einstein.csv"):
    path = tmp_path / name
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    return path


@pytest.mark.parametrize("name", ["einstein.csv", "einstein_covid19.csv.gz"])
def test_load_reads_cells_and_marks(tmp_path, name):
    path = write(tmp_path, table(), name)
    for source in (path, tmp_path):
        examples = hospital.load(source)
        assert examples.x.shape == (2, 37)
        assert examples.x.dtype == np.float32
        assert examples.y.tolist() == [1, 0]
        assert examples.num_classes == 2
        # Nothing measured: the age alone.
        assert examples.x[0].tolist() == [1.0] + [0.0] * 36
        expected = np.zeros(37)
        expected[[1, 14, 15]] = 0.25, -1.5, 1  # blood, and that it was taken
        expected[[17, 33]] = 1  # influenza A, and that pathogens were looked for
        expected[[35, 36]] = 1  # its rapid test, and that there was one
        np.testing.assert_allclose(examples.x[1], expected)


@pytest.mark.parametrize(
    "rows, message",
    [
        ([{hospital.AGE: "old", hospital.RESULT: "positive"}], "a number, found 'old'"),
        ([{hospital.RESULT: "positive"}], "'Patient age quantile' must be a number"),
        ([{hospital.AGE: "1"}], "exam result' must be one of .*, found ''"),
        ([GOOD[0] | {"Basophils": "nan"}], "'Basophils' must be a number, found 'nan'"),
        ([GOOD[0] | {"Influenza B": "maybe"}], "line 2: 'Influenza B' .*found 'maybe'"),
        ([], "at least one patient"),
    ],
)
def test_load_refuses_cells(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        hospital.load(write(tmp_path, table(rows)))


def test_load_refuses_files(tmp_path):
    needed = r"needs one einstein\*\.csv\[\.gz\] in "
    with pytest.raises(InputError, match=needed + ".*does not exist"):
        hospital.load(tmp_path / "none")
    with pytest.raises(InputError, match=needed + ".*empty folder"):
        hospital.load(tmp_path)
    names = [name for name in NAMES if name != "Monocytes"]
    path = write(tmp_path, table(names=names))
    with pytest.raises(InputError, match="lacks 1 columns, e.g. 'Monocytes'"):
        hospital.load(path)
    write(tmp_path, table() + "a,b\n")
    with pytest.raises(InputError, match="line 4: must have 37 cells, found 2"):
        hospital.load(path)
    other = write(tmp_path, table(), "einstein2.csv.gz")
    with pytest.raises(InputError, match="found einstein.csv, einstein2.csv.gz"):
        hospital.load(tmp_path)
    other.write_bytes(other.read_bytes()[:100])
    with pytest.raises(InputError, match="cut off"):
        hospital.load(other)
    other.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        hospital.load(other)


def test_real_table(real_data):
    examples = hospital.load(real_data)
    assert examples.x.shape == (5644, 37)
    assert examples.y.sum() == 558
    assert np.isfinite(examples.x).all()
    assert examples.x[:, [15, 33, 36]].sum(0).tolist() == [603, 1354, 820]
    # Nobody can be right for 98 % of these patients, as was published.
    assert hospital.ceiling(examples) == pytest.approx(0.689, abs=1e-3)


def test_ceiling_is_that_of_a_guess_for_every_kind_of_patient():
    examples = marked(4, 2)
    x = np.array([[0], [0], [0], [1], [0], [1]], np.float32)
    # Of the positive ones 3/4 are of kind 0, of the negative ones 1/2.
    found = hospital.ceiling(examples._replace(x=x))
    assert found == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert hospital.ceiling(examples) == 1


def marked(num_positive, num_negative):
    """Examples whose only feature is their row."""
    examples = hospital.synthetic(num_positive + num_negative)
    size = num_positive + num_negative
    y = (np.arange(size) < num_positive).astype(np.int32)
    return examples._replace(x=np.arange(size, dtype=np.float32)[:, None], y=y)


def rows_of(split, agent):
    own = split.examples["x"][agent, : split.size[agent], 0]
    return own.astype(int).tolist()


@pytest.mark.parametrize("name", hospital.SPLITS)
def test_splits_have_the_printed_sizes(name):
    split = hospital.SPLITS[name]
    examples = marked(558, 5086)
    world = hospital.world(examples, np.random.default_rng(0), split)
    test = rows_of(world.test, 0)
    assert test == rows_of(world.test, 1)
    assert (len(test), examples.y[test].sum()) == (558, 279)
    trained = []
    for agent, (positive, negative) in enumerate(split.hosts):
        train, held = rows_of(world.train, agent), rows_of(world.valid, agent)
        assert len(train) + len(held) == positive + negative
        assert examples.y[train + held].sum() == positive
        # A fifth of each class is held out.
        assert examples.y[held].sum() == round(0.2 * positive)
        assert len(held) == round(0.2 * positive) + round(0.2 * negative)
        trained += train + held
    assert not set(trained) & set(test)
    counts = np.unique(trained, return_counts=True)[1]
    assert counts.max() == (2 if split.repeats else 1)
    if split.repeats:  # all 279 other positive patients, none more than twice
        assert len({row for row in trained if row < 558}) == 279


def test_runs_deal_other_patients():
    examples, split = marked(558, 5086), hospital.SPLITS["skewed"]
    tests = [
        set(rows_of(hospital.world(examples, np.random.default_rng(s), split).test, 0))
        for s in (0, 0, 1)
    ]
    assert tests[0] == tests[1] != tests[2]


def test_too_few_patients_are_refused():
    with pytest.raises(InputError, match=r"279 \+ 279 positive .* got 400"):
        hospital.world(
            marked(400, 900), np.random.default_rng(0), hospital.SPLITS["skewed"]
        )
    with pytest.raises(InputError, match=r"5 \+ 1 negative .* got 5"):
        split = TableSplit(((1, 1),), test=(1, 5), repeats=True)
        hospital.world(marked(9, 5), np.random.default_rng(0), split)


@pytest.mark.parametrize("name", hospital.SPLITS)
def test_splits_scale_to_any_table(name):
    split = hospital.SPLITS[name]
    assert split.scaled(558, 5086) is split  # the hospital's
    for positive, negative in ((212, 357), (60, 4000), (10_000, 50), (30, 30)):
        own = split.scaled(positive, negative)
        assert own.fits(positive, negative) and not own.repeats
        examples = marked(positive, negative)
        world = hospital.world(examples, np.random.default_rng(0), own)
        assert len(rows_of(world.test, 0)) == sum(own.test)
    # Shares of classes and hosts stay what they are, to a row.
    own = split.scaled(212, 357)
    factor = own.test[0] / split.test[0]
    given, scaled = ((*one.hosts, one.test) for one in (split, own))
    np.testing.assert_allclose(np.asarray(given) * factor, scaled, atol=1.5)
    # The scarcer class is used up, but for what is rounded.
    used = [sum(part[place] for part in (*own.hosts, own.test)) for place in (0, 1)]
    assert max(used[0] - 212, used[1] - 357) in (-3, -2, -1, 0)


def test_synthetic_patients_can_be_told_apart():
    examples = hospital.synthetic(1500, seed=3)
    assert examples.x.shape == (1500, hospital.SYNTHETIC_FEATURES)
    assert abs(examples.y.mean() - 0.5) < 0.01
    # Nearest neighbour, far from the best possible, but no line is near 0.98 either.
    x, y = examples.x[:1000], examples.y[:1000]
    distance = np.square(examples.x[1000:, None] - x[None]).sum(-1)
    nearest = np.argsort(distance, 1)[:, :15]
    right = (y[nearest].mean(1) > 0.5) == examples.y[1000:]
    assert 0.95 < right.mean() < 0.995
    again = hospital.synthetic(1500, seed=3)
    np.testing.assert_array_equal(examples.x, again.x)
    for size, seed in ((0, 0), (1, -1)):
        with pytest.raises(InputError, match="at least one example"):
            hospital.synthetic(size, seed)


def test_hold_out_refuses_and_keeps_one_of_each_part():
    world = partition.federated_data(
        marked(3, 3), [np.array([0, 1]), np.array([3, 4, 5])], [np.array([2])] * 2
    )
    held = partition.hold_out(world, 0.1)
    assert held.train.size.tolist() == [1, 2]
    assert held.valid.size.tolist() == [1, 1]
    for share in (0.0, 1.0):
        with pytest.raises(InputError, match=f"to hold out, got {share}"):
            partition.hold_out(world, share)
    alone = partition.federated_data(marked(3, 3), [np.array([0])], [np.array([2])])
    with pytest.raises(InputError, match="two training examples .* got 1 of agent 0"):
        partition.hold_out(alone, 0.5)
