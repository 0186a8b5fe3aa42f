"""TensorFlow Federated's sqlite files: images, texts, and what is refused."""

import lzma
import sqlite3

import numpy as np
import pytest
from sqlite_files import character, example, ink, write_emnist, write_sqlite

from p2pjax.datasets.loaders import (
    client_sqlite,
    femnist,
    packed,
    shakespeare,
    stackoverflow,
    tff,
)
from p2pjax.types import InputError

TRAIN = {"f2_9": [3, 61], "f1_4": [10]}
TEST = {"f1_4": [36, 7], "f2_9": [0]}


def refused(load, path, *facts):
    with pytest.raises(InputError) as error:
        load(path)
    for fact in facts:
        assert str(fact) in str(error.value)
    assert "\n" not in str(error.value)


def check(examples):
    assert examples.y.tolist() == [3, 61, 10, 36, 7, 0] == ink(examples)
    assert examples.user.tolist() == [1, 1, 0, 0, 0, 1]  # f1_4, then f2_9
    assert examples.x.shape == (6, 28, 28)
    assert examples.x.dtype == np.uint8
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert examples.num_classes == 62


def test_emnist(tmp_path):
    path = write_emnist(tmp_path / "emnist_all.sqlite", TRAIN, TEST)
    for place in (path, str(path), tmp_path):
        examples = tff.load(place)
        check(examples)
        assert examples.is_test.tolist() == [False] * 3 + [True] * 3
        own = femnist.load(place)  # as the other formats of FEMNIST
        check(own)
        assert own.is_test is None


@pytest.mark.parametrize("form", [lzma.FORMAT_XZ, lzma.FORMAT_ALONE])
def test_packed(tmp_path, form):
    plain = write_emnist(tmp_path / "emnist_all.sqlite", TRAIN, TEST)
    path = tmp_path / "emnist_all.sqlite.lzma"
    path.write_bytes(lzma.compress(plain.read_bytes(), form))
    plain.unlink()
    for place in (path, tmp_path):
        check(tff.load(place))
        check(femnist.load(place))


def test_chosen_splits_and_users(tmp_path):
    path = write_emnist(tmp_path / "emnist_all.sqlite", TRAIN, TEST)
    digits = tff.load(path, splits=("digits_only_train", "digits_only_test"))
    assert digits.y.tolist() == [3, 7, 0]
    assert digits.user.tolist() == [1, 0, 1]
    one = tff.load(path, splits=["all_test"])
    assert (one.y.tolist(), one.is_test) == ([36, 7, 0], None)
    first = tff.load(path, max_users=1)
    assert first.y.tolist() == [10, 36, 7]  # f1_4 in both
    refused(
        lambda p: tff.load(p, splits=["dev"]), path, "splits dev", "found all_test, all"
    )
    refused(lambda p: tff.load(p, max_users=0), path, "max_users of at least one")


def test_without_an_index_and_in_any_order(tmp_path):
    rows = [("train", c, character(i)) for i, c in enumerate("baabca")]
    path = write_sqlite(tmp_path / "own.sqlite", rows)
    assert tff.load(path).user.tolist() == [1, 0, 0, 1, 2, 0]
    some = tff.load(path, max_users=2)
    assert dict(zip(some.y.tolist(), some.user.tolist(), strict=True)) == {
        0: 1,
        1: 0,
        2: 0,
        3: 1,
        5: 0,
    }


def test_one_split_of_any_name(tmp_path):
    """As `save_to_sql_client_data` writes it."""
    path = write_sqlite(tmp_path / "own.sqlite", [("N/A", "a", character(4))])
    examples = tff.load(path)
    assert (examples.y.tolist(), examples.is_test) == ([4], None)
    write_sqlite(path, [("one", "a", character(4)), ("two", "a", character(4))])
    refused(tff.load, path, "all_train and all_test", "found one, two", "to read")


def colours(label, size=4, **more):
    return example(image=[label] * (size * size * 3), label=label, **more)


def test_colours(tmp_path):
    """CIFAR-100 numbers its training and its test clients from 0, they are others."""
    rows = [("train", "0", 5), ("train", "1", 200), ("test", "0", 7)]
    write = [(s, c, colours(label, coarse_label=1)) for s, c, label in rows]
    examples = tff.load(write_sqlite(tmp_path / "cifar100.sqlite", write))
    assert examples.x.shape == (3, 4, 4, 3)
    np.testing.assert_array_equal(examples.x[:, 0, 0, 0], [5, 200, 7])
    assert examples.user.tolist() == [0, 1, 2]
    first = tff.load(tmp_path / "cifar100.sqlite", max_users=1)
    assert (first.y.tolist(), first.is_test) == ([5], None)
    plain = [(s, c, colours(label)) for s, c, label in rows]
    examples = tff.load(
        write_sqlite(tmp_path / "own.sqlite", plain).rename(tmp_path / "another.sqlite")
    )
    assert examples.user.tolist() == [0, 1, 0]


def test_another_label(tmp_path):
    faces = [example(image=[i] * 27, smiling=i % 2, male=1) for i in range(4)]
    rows = [
        (f"split_by_{k}_train", "9", f) for f in faces for k in ("examples", "clients")
    ]
    path = write_sqlite(tmp_path / "celeba.sqlite", rows)
    examples = tff.load(path, label="smiling")
    assert examples.y.tolist() == [0, 1, 0, 1]
    assert examples.x.shape == (4, 3, 3, 3)
    refused(tff.load, path, "label is needed", "image, smiling, male", "name one of")


def test_many_images(tmp_path):
    """More than are converted at once."""
    labels = [i % 62 for i in range(2100)]
    rows = [("train", f"w{i % 7}", character(label)) for i, label in enumerate(labels)]
    examples = tff.load(write_sqlite(tmp_path / "many.sqlite", rows))
    assert examples.y.tolist() == labels == ink(examples)
    assert examples.user.tolist() == [i % 7 for i in range(2100)]


SPOKEN = [
    ("train", "PLAY_B", "Who's there?"),
    ("train", "PLAY_A", "Nay, answer me."),
    ("train", "PLAY_A", "Long live the king!"),
    ("test", "PLAY_A", "Bernardo?"),
    ("test", "PLAY_C", "He."),
]


def test_shakespeare(tmp_path):
    rows = [(split, role, example(snippets=text)) for split, role, text in SPOKEN]
    path = write_sqlite(tmp_path / "shakespeare.sqlite", rows, index=True)
    for place in (path, tmp_path):
        for load in (tff.load_texts, shakespeare.load):
            documents = load(place)
            assert documents.users == ["PLAY_A", "PLAY_B"]
            assert documents.train == [
                ["Nay, answer me.", "Long live the king!"],
                ["Who's there?"],
            ]
            assert documents.test == [["Bernardo?"], []]
            assert documents.valid is None
    assert tff.load_texts(path, max_users=1).users == ["PLAY_A"]
    refused(stackoverflow.load, path, "a text is needed, tokens", "found snippets")


def test_stackoverflow(tmp_path):
    rows = [
        (split, user, example(tokens=text.encode("latin-1"), score=3, title="t"))
        for split, user, text in [
            ("train", "22", "how to"),
            ("train", "11", "caf\xe9"),
            ("train", "22", "use it"),
            ("heldout", "33", "not read"),
            ("test", "22", "nor this"),
        ]
    ]
    packed_path = tmp_path / "stackoverflow.sqlite.lzma"
    plain = write_sqlite(tmp_path / "stackoverflow.sqlite", rows, index=True)
    for place in (plain, tmp_path):
        documents = stackoverflow.load(place)
        assert documents.users == ["11", "22"]
        assert documents.train == [["caf\ufffd"], ["how to", "use it"]]
        assert documents.test is None
    assert stackoverflow.load(plain, max_users=1).users == ["11"]
    packed_path.write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
    assert stackoverflow.load(tmp_path).users == ["11", "22"]
    assert tff.load_texts(tmp_path).users == ["11", "22"]


def test_images_are_no_texts_nor_the_other_way(tmp_path):
    path = write_emnist(tmp_path / "emnist_all.sqlite", TRAIN, TEST)
    refused(tff.load_texts, path, "snippets or tokens", "pixels, label", "of texts")
    path = write_sqlite(tmp_path / "a.sqlite", [("train", "a", example(tokens="a"))])
    refused(tff.load, path, "images are needed", "found tokens", "data set of images")


@pytest.mark.parametrize(
    ("proto", "facts"),
    [
        (b"\x0a\x05abc", ["tf.train.Example", "5 bytes must follow, found 3"]),
        ("text", ["must be bytes, found str"]),
        (example(other=1), ["images are needed", "found other"]),
        (b"", ["images are needed", "found nothing"]),
        (example(pixels=[0.5] * 784), ["label is needed", "found pixels"]),
        (example(pixels=[0.5] * 784, label=[1, 2]), ["one whole number", "2 int64"]),
        (example(pixels=[0.5] * 784, label=0.5), ["one whole number", "1 float32"]),
        (example(pixels=[0.5] * 784, label="A"), ["one whole number", "1 strings"]),
        (example(pixels=[0.5] * 784, label=-1), ["label must lie in 0", "found -1"]),
        (example(pixels=[0.5] * 783, label=1), ["[examples, 784]", "[1, 783]"]),
        (example(pixels=[255.0] * 784, label=1), ["0..1", "255..255"]),
        (example(pixels=[1] * 784, label=1), ["pixels must be floats", "int64"]),
        (example(image=[1] * 7, label=1), ["must be square", "found 7 numbers"]),
        (example(image=[256] * 9, label=1), ["0..255", "256..256"]),
        (example(image=b"\x89PNG", label=1), ["whole numbers", "found bytes", "decod"]),
    ],
)
def test_bad_examples(tmp_path, proto, facts):
    path = write_sqlite(tmp_path / "own.sqlite", [("train", "a", proto)])
    refused(tff.load, path, path, *facts)


def test_images_of_two_sizes(tmp_path):
    small, large = colours(1), colours(1, size=5)
    path = write_sqlite(
        tmp_path / "own.sqlite", [("train", "a", small), ("train", "a", large)]
    )
    refused(tff.load, path, "48 numbers image", "found 75 image")
    write_sqlite(path, [("train", "a", small), ("test", "a", large)])
    refused(tff.load, path, "one size", "[4, 4, 3] and [5, 5, 3]")


def test_other_files(tmp_path):
    refused(tff.load, tmp_path, "one *.sqlite", "empty folder")
    path = tmp_path / "own.sqlite"
    refused(tff.load, path, "does not exist")
    path.touch()
    refused(tff.load, path, "sqlite file", "is empty")
    path.write_text("x,y,user\n")
    refused(tff.load, path, "of another format", "name a .sqlite")
    path.write_bytes(lzma.compress(b"x,y,user\n"))
    refused(tff.load, path, "of another format")
    write_sqlite(path, [])
    refused(tff.load, path, "found no examples")
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE weights (w)")
    connection.close()
    refused(tff.load, path, "table examples", "holds weights")
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE examples (split_name, client)")
    connection.close()
    refused(tff.load, path, "must have split_name, client_id", "split_name, client:")
    write_sqlite(tmp_path / "b.sqlite", [])
    refused(tff.load, tmp_path, "b.sqlite, own.sqlite", "name the file")


@pytest.mark.parametrize("kept", [60, 100, 5000, -4096, -1])
def test_cut_off(tmp_path, kept):
    path = write_emnist(tmp_path / "own.sqlite", TRAIN, TEST)
    path.write_bytes(path.read_bytes()[:kept])
    refused(tff.load, path, path, "cut off")


def test_damaged_pages_end_in_a_sentence(tmp_path):
    path = write_emnist(tmp_path / "own.sqlite", TRAIN, TEST)
    raw = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(16, len(raw), 60):
        damaged = bytearray(raw)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            tff.load(path)
        except InputError as error:
            assert "\n" not in str(error)


def hostile(path, *statements):
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def test_no_view_is_run(tmp_path):
    endless = (
        "CREATE VIEW examples AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'train' AS split_name, "
        "'a' AS client_id, x'' AS serialized_example_proto FROM n"
    )
    path = hostile(tmp_path / "own.sqlite", endless)
    refused(tff.load, path, "table examples", "but holds examples")


def test_nothing_is_computed(tmp_path):
    """A column that is computed can be of any size, at no cost to the file."""
    computed = (
        "CREATE TABLE examples (split_name, client_id, "
        "serialized_example_proto GENERATED ALWAYS AS (zeroblob(1000000000)))"
    )
    insert = "INSERT INTO examples VALUES ('train', 'a')"
    path = hostile(tmp_path / "a.sqlite", computed, insert)
    refused(tff.load, path, "must have split_name, client_id, serialized")


def test_rows_have_a_largest_size(tmp_path, monkeypatch):
    path = write_emnist(tmp_path / "own.sqlite", TRAIN, TEST)
    monkeypatch.setattr(client_sqlite, "MAX_ROW", 3000)
    refused(tff.load, path, "cannot be read", "too big")


def test_rows_are_no_larger_than_the_file(tmp_path):
    """A damaged tree can have the same rows again and again."""
    path = write_emnist(tmp_path / "own.sqlite", TRAIN, TEST)
    connection = sqlite3.connect(path)
    database = client_sqlite.Database(path, connection, size=7000)
    rows = database.rows("all_train")
    next(rows)
    next(rows)
    with pytest.raises(InputError, match="rows are larger than the file"):
        next(rows)
    connection.close()


def test_a_read_that_never_ends_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(client_sqlite, "_STEPS", 10)
    rows = [("other", "a", b"")] * 5000
    path = write_sqlite(tmp_path / "own.sqlite", rows)
    refused(tff.load, path, "images are needed")  # read to its first example
    monkeypatch.setattr(client_sqlite, "_max_steps", lambda size: 20)
    refused(tff.load, path, "may be cut off", "interrupted")


def test_the_table_is_found_in_packed_bombs_never(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "ALWAYS_ALLOWED", 2**20)
    path = tmp_path / "bomb.sqlite.lzma"
    path.write_bytes(lzma.compress(bytes(2**22)))
    refused(tff.load, path, "unpacks to more than 1048576 bytes")
