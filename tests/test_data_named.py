"""Every data set by name, what it lacks in a sentence, and the formats' front door."""

import json

import femnist_files
import numpy as np
import pytest
from idx_files import write as write_idx
from sqlite_files import character, example, write_emnist, write_sqlite

from p2pjax import datasets
from p2pjax.datasets import split
from p2pjax.datasets.loaders.named import (
    EXAMPLES,
    TEXTS,
    load_documents,
    load_examples,
)
from p2pjax.datasets.loaders.needs import need_classes, need_images, need_users
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError


def write_npz(folder, name, num_features, num_classes):
    x = np.zeros((12, num_features), np.float32)
    path = folder / f"{name}.npz"
    np.savez(path, x=x, y=np.arange(12) % num_classes, user=np.arange(12) % 3)
    return folder


def write_cifar(folder):
    x, y = np.zeros((3, 32, 32, 3), np.uint8), np.arange(3)
    np.savez(folder / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return folder


def write_leaf(folder):
    content = femnist_files.leaf(ann=[0, 40], bob=[3, 50, 7])
    femnist_files.write_json(folder / "all_data.json", content)
    return folder


# name -> how its files are written, x's shape, users
FILES = {
    "mnist": (write_idx, (5, 28, 28), 1),
    "idx": (write_idx, (5, 28, 28), 1),
    "femnist": (write_leaf, (5, 28, 28), 2),
    "leaf": (write_leaf, (5, 28, 28), 2),
    "cifar10": (write_cifar, (6, 32, 32, 3), 1),
    "har": (lambda folder: write_npz(folder, "uci_har", 561, 6), (12, 561), 3),
    "vsn": (lambda folder: write_npz(folder, "vsn", 100, 2), (12, 100), 3),
    "npz": (lambda folder: write_npz(folder, "own", 7, 4) / "own.npz", (12, 7), 3),
    "tff": (
        lambda folder: write_emnist(folder / "a.sqlite", {"a": [1], "b": [2]}, {}),
        (2, 28, 28),
        2,
    ),
}


def check(examples, shape, num_users):
    assert isinstance(examples, Examples)
    assert examples.x.shape == shape
    assert examples.y.shape == examples.user.shape == shape[:1]
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert 0 <= examples.y.min() <= examples.y.max() < examples.num_classes
    assert len(np.unique(examples.user)) == num_users
    assert examples.is_test is None or examples.is_test.dtype == bool


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name):
    write, shape, num_users = FILES[name]
    check(load_examples(name, write(tmp_path)), shape, num_users)
    with pytest.raises(InputError, match=f"folder or file of the data set {name}, got"):
        load_examples(name)


def test_without_files():
    check(load_examples("digits"), (1797, 8, 8), 1)
    drawn = load_examples("glyphs", num_users=3, samples_per_user=4, seed=1)
    check(drawn, (12, 28, 28), 3)
    with pytest.raises(InputError, match="Need no files for the data set digits, got"):
        load_examples("digits", "data")


def test_tensorflow_datasets(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    with tfds.testing.mock_data(num_examples=3):
        for name, shape in (("mnist", (6, 28, 28)), ("cifar100", (6, 32, 32, 3))):
            examples = load_examples(f"tfds:{name}", tmp_path, download=True)
            check(examples, shape, 1)
    with pytest.raises(InputError, match="'mnist' must be prepared in .*not there"):
        load_examples("tfds:mnist", tmp_path)


def test_all_names_are_tested():
    assert {*FILES, "digits", "glyphs", "tfds"} == set(EXAMPLES)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnizt", {}, "mnist, .* idx or tfds:NAME, got 'mnizt', which is none"),
        (
            "mnist",
            {"allow": ["npz", "tfds"]},
            "npz or tfds:NAME, got 'mnist', which is",
        ),
        ("tfds:x", {"allow": ["npz"]}, "data set, npz, got 'tfds', which is not to be"),
        ("tfds", {}, "after tfds:, got 'tfds': give for example tfds:cifar100"),
        ("tfds:", {}, "after tfds:, got 'tfds:'"),
        ("mnist:a", {}, "after a colon of tfds only, got 'mnist:a'"),
        (
            "shakespeare",
            {},
            "labelled examples are needed, found texts by user: choose",
        ),
        ("reddit", {"allow": ["npz"]}, "found texts by user: choose npz$"),
        ("mnist", {"variant": "d"}, r"data set mnist has \(none\), got variant"),
        ("femnist", {"seed": 1}, r"data set femnist has \(variant\), got seed"),
        ("tff", {"path": "a"}, r"\(label, splits, max_users\), got path"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(InputError, match=message):
        load_examples(name, "data", **options)


def test_options(tmp_path):
    write_leaf(tmp_path)
    assert load_examples("femnist", tmp_path, variant="d").num_classes == 10
    assert load_examples("leaf", tmp_path, num_classes=62).num_classes == 62
    path = write_emnist(tmp_path / "a.sqlite", {"a": [1], "b": [2]}, {})
    assert len(load_examples("tff", path, max_users=1).y) == 1
    np.savez(tmp_path / "own.npz", x=np.zeros((3, 2)), y=np.arange(3))
    assert load_examples("npz", tmp_path / "own.npz").user.tolist() == [0, 0, 0]


def write_text(folder, name):
    if name == "stackoverflow" or name == "tff":
        rows = [("train", "ann", example(tokens="to be"))]
        return write_sqlite(folder / "own.sqlite", rows)
    if name == "chat":
        content = [["10-19-20s", "10-19-20sUser7", "Statement", "to be"]]
        (folder / "nps_chat.json").write_text(json.dumps(content))
    elif name == "reddit":
        record = {"x": [[["to", "be"]]], "y": [{"subreddit": "a"}]}
        for part in ("train", "val", "test"):
            femnist_files.write_json(
                folder / part / "a.json",
                {"users": ["ann"], "user_data": {"ann": record}},
            )
    else:
        path = folder / "shakespeare.json"
        path.write_text(json.dumps({"train": {"ann": ["to be"]}}))
    return folder


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "speakers"])
def test_texts(tmp_path, name):
    documents = load_documents(name, write_text(tmp_path, name))
    assert isinstance(documents, Documents)
    assert documents.train == [["to be"]]


def test_texts_without_files():
    documents = load_documents("speakers", num_speakers=3, num_texts=2)
    assert [len(texts) for texts in documents.train] == [2, 2, 2]
    assert len(load_documents("speakers", num_texts=1).users) == 100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mnist",
            "mnist: texts by user are needed, found labelled examples: choose sp",
        ),
        ("tfds:mnist", "tfds:mnist: texts by user are needed"),
        ("reddid", "got 'reddid', which is none"),
    ],
)
def test_no_texts(name, message):
    with pytest.raises(InputError, match=message):
        load_documents(name, "data")


def some(x, users=2, num_classes=2):
    y = (np.arange(len(x)) % num_classes).astype(np.int32)
    user = (np.arange(len(x)) % users).astype(np.int32)
    return Examples(x, y, user, num_classes)


def test_need_users():
    examples = some(np.zeros((6, 3)))
    assert need_users(examples, "own") is examples
    with pytest.raises(
        InputError, match="own: at least 3 users .* found 2 of all 6 ex"
    ):
        need_users(examples, "own", num_users=3)
    with pytest.raises(
        InputError, match="digits: at least 2 users .* found 1 of all 17"
    ):
        need_users(load_examples("digits"), "digits")


def test_need_images():
    grey, channel, colour = (
        some(np.zeros((6, *shape), np.uint8))
        for shape in ((28, 28), (28, 28, 1), (28, 28, 3))
    )
    for examples in (grey, channel, colour):
        assert need_images(examples, "own") is examples
    for examples in (grey, channel):
        assert need_images(examples, "own", (28, 28)) is examples
    assert need_images(colour, "own", (28, 28, 3)) is colour
    with pytest.raises(
        InputError, match="own: images of 28 x 28 pixels .* 28 x 28 x 3"
    ):
        need_images(colour, "own", (28, 28))
    for x in (np.zeros((6, 28, 28)), np.zeros((6, 5), np.uint8)):
        with pytest.raises(
            InputError, match=r"own: images are needed.* found \w+ \[6, "
        ):
            need_images(some(x), "own")


def test_need_classes():
    examples = some(np.zeros((6, 3)))
    assert need_classes(examples, "own", 2) is examples
    with pytest.raises(InputError, match="own: 10 classes are needed, found 2"):
        need_classes(examples, "own", 10)


class TestFrontDoor:
    def test_leaf(self, tmp_path):
        write_leaf(tmp_path)
        data = datasets.leaf(tmp_path)
        assert (data.train.size + data.test.size).tolist() == [2, 3]
        assert data.train.examples["x"].shape[2:] == (28, 28, 1)
        assert (
            len(datasets.leaf(tmp_path, num_agents=2, split=split.iid()).cluster) == 2
        )

    def test_leaf_keeps_its_split(self, tmp_path):
        content = {u: femnist_files.leaf(ann=[u], bob=[u + 1]) for u in (0, 40)}
        femnist_files.write_json(tmp_path / "train" / "a.json", content[0])
        femnist_files.write_json(tmp_path / "test" / "a.json", content[40])
        data = datasets.leaf(tmp_path, test_fraction=None)
        assert data.train.examples["y"].tolist() == [[0], [1]]
        assert data.test.examples["y"].tolist() == [[40], [41]]

    def test_tff(self, tmp_path):
        path = write_emnist(
            tmp_path / "emnist_all.sqlite", {"b": [1, 2, 30], "a": [4]}, {"a": [5]}
        )
        data = datasets.tff(path)
        assert (data.train.size + data.test.size).tolist() == [2, 3]
        assert data.train.examples["x"].shape[2:] == (28, 28, 1)
        digits = ("digits_only_train", "digits_only_test")
        data = datasets.tff(path, splits=digits)
        assert (data.train.size + data.test.size).tolist() == [2, 2]
        with pytest.raises(InputError, match="at least 2 users are needed"):
            datasets.tff(path, max_users=1)
        alone = write_sqlite(
            tmp_path / "one.sqlite", [("train", "a", character(i)) for i in range(8)]
        )
        data = datasets.tff(alone, num_agents=2, split=split.iid())
        assert data.train.size.tolist() == [3, 3]
        with pytest.raises(InputError, match="users to split by user, got none"):
            datasets.tff(alone, split=split.by_user())

    def test_idx(self, tmp_path):
        write_idx(tmp_path)
        data = datasets.idx(tmp_path, num_agents=2, split=split.iid())
        assert data.train.examples["x"].shape == (2, 1, 28, 28, 1)

    def test_npz_without_users(self, tmp_path):
        path = tmp_path / "own.npz"
        np.savez(path, x=np.zeros((20, 3)), y=np.array(["a", "b"] * 10))
        data = datasets.npz(path, num_agents=2, split=split.iid())
        assert data.train.size.tolist() == [8, 8]
        with pytest.raises(InputError, match="has only x, y: add user"):
            datasets.npz(path)
        np.savez(path, x=np.zeros((20, 3)), y=np.zeros(20, int), user=np.zeros(20, int))
        with pytest.raises(InputError, match=r"own\.npz: at least 2 users are needed"):
            datasets.npz(path)

    def test_tfds_of_any_size(self, tmp_path):
        tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
        options = {"num_agents": 2, "split": split.iid(), "data_dir": tmp_path}
        with tensorflow_datasets.testing.mock_data(num_examples=10):
            data = datasets.tfds("cifar100", download=True, **options)
        assert data.train.examples["x"].shape == (2, 8, 32, 32, 3)
