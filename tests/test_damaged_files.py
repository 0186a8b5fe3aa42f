"""What fuzzing and a look at the readers have found, each mended and tried again."""

import io
import json
import pickle
import struct
import zipfile

import h5py
import idx_files
import numpy as np
import pytest
import test_fuzzed_files
from femnist_files import write_hdf5, write_json
from file_readers import READERS, parts_of, put
from sqlite_files import character, example, write_sqlite
from test_fuzzed_files import bounded, check_sentence

from p2pjax.datasets.loaders import (
    chat,
    cifar10,
    femnist,
    hospital,
    idx,
    leaf,
    ner,
    npz,
    pieces,
    reddit,
    stackoverflow,
    tff,
)
from p2pjax.datasets.loaders.pickled_arrays import read_pickle
from p2pjax.graphs import edge_lists
from p2pjax.types import InputError


def refused(load, path, *facts):
    """Checks that loading ends in one sentence that states all the facts."""
    with bounded(), pytest.raises(InputError) as error:
        load(path)
    check_sentence(str(error.value))
    for fact in facts:
        assert str(fact) in str(error.value)


# npz.


def write_member(path, raw, name="x.npy", kind=zipfile.ZIP_STORED):
    """An archive of one's own data, of which x is these bytes."""
    put(path.parent, {n: r for n, r in parts_of("npz_members").items() if "x" not in n})
    with zipfile.ZipFile(path, "a", kind) as archive:
        archive.writestr(name, raw)
    return path


def npy(array, shape=None):
    """The array's file, which may lie about its shape."""
    file = io.BytesIO()
    np.save(file, array)
    raw = file.getvalue()
    if shape is None:
        return raw
    start, end = raw.index(b"(", 10), raw.index(b")", 10) + 1
    spaces = raw.index(b"\n") - len(raw)
    header = raw[:start] + shape.encode() + raw[end:spaces].rstrip()
    return header.ljust(len(raw[:spaces])) + raw[spaces:]


@pytest.fixture
def own(tmp_path):
    return tmp_path / "own.npz"


def test_npy_is_as_sound_as_it_looks(own):
    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
    assert npz.load(write_member(own, npy(x))).x.tolist() == x.tolist()


def test_npy_header_without_an_end(own):
    """Python's tokenizer raised TokenError."""
    raw = npy(np.zeros((4, 3))).replace(b"}", b" ", 1)
    refused(npz.load, write_member(own, raw), own, "cannot be read")


def test_npy_shape_beyond_64_bits(own):
    """NumPy raised OverflowError."""
    raw = npy(np.zeros((4, 3)), f"({10**20},)")
    refused(npz.load, write_member(own, raw), own, "cannot be read")


def test_npy_whose_dtype_is_no_dtype(own):
    """NumPy raised SyntaxError."""
    raw = npy(np.zeros((4, 3))).replace(b"<f8", b"(,)f4").replace(b"  \n", b"\n", 1)
    refused(npz.load, write_member(own, raw), own, "cannot be read", "invalid syntax")


@pytest.mark.parametrize("shape", ["(4, 2)", "(1, 3)"])
def test_npy_with_more_than_its_shape(own, shape):
    """The rest was left out in silence."""
    raw = npy(np.zeros((4, 3)), shape)
    refused(npz.load, write_member(own, raw), own, "x has more bytes than its shape")


def test_npy_of_strings_without_letters(own):
    """They take no bytes, however many they are."""
    raw = npy(np.array([""] * 4), f"({10**12},)").replace(b"<U1", b"<U0")
    raw = raw[: raw.index(b"\n") + 1]
    refused(npz.load, write_member(own, raw), own, "neither numbers nor strings")


def test_npy_of_many_fields(own):
    """Its dtype filled pages of the error."""
    fields = np.dtype([(f"field_{n}", "f4") for n in range(300)])
    raw = npy(np.zeros(4, fields))
    refused(npz.load, write_member(own, raw), own, "neither numbers nor strings")


def test_npz_with_two_members_of_one_name(own, monkeypatch):
    """The size of one was checked, the other was read."""
    monkeypatch.setattr(npz.packed, "ALWAYS_ALLOWED", 2**20)
    large, small = np.zeros((4, 2**20)), np.zeros((4, 3))
    write_member(own, npy(large), "x", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(own, "a") as archive:
        archive.writestr("x.npy", npy(small))
    assert npz.load(own).x.shape == (4, 3)


def test_npz_packed_as_numpy_never_does(own):
    """The size of lzma's dictionary is up to who wrote it."""
    raw = npy(np.zeros((4, 3)))
    write_member(own, raw, kind=zipfile.ZIP_LZMA)
    refused(npz.load, own, own, "x is no array: write it with numpy.savez")


def test_npz_with_names_of_many_lines(own):
    write_member(own, npy(np.zeros(4)), "a\n\x00" + "b" * 3000)
    refused(npz.load, own, own, "add x with numpy.savez")


# Images and features.


def test_images_without_pixels(tmp_path):
    empty = np.zeros((3, 0, 28), np.uint8)
    idx_files.write(tmp_path, x_train=empty, x_test=empty[:2])
    refused(idx.load, tmp_path, tmp_path, "one number in each", "none in train-images")


def test_examples_without_features(tmp_path):
    user = {"x": [[], []], "y": [0, 1]}
    content = {"users": ["a"], "num_samples": [2], "user_data": {"a": user}}
    path = write_json(tmp_path / "a.json", content)
    refused(lambda path: leaf.load(path, pixels=False), path, "user a", "none in x")


# HDF5.


def test_hdf5_whose_client_is_damaged(tmp_path):
    """Errors of h5py went through, as groups were read outside of the reader."""
    path = write_hdf5(tmp_path / "a.h5", bob=[1], eve=[2])
    raw = path.read_bytes()
    places = [n for n in range(len(raw)) if raw.startswith((b"TREE", b"SNOD"), n)]
    assert len(places) > 4
    for place in places:
        path.write_bytes(raw[:place] + b"none" + raw[place + 4 :])
        refused(femnist.load, path, path, "cannot be read")


def test_hdf5_whose_chunk_is_damaged(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["examples/bob/label"] = [1]
        pixels = file.create_dataset(
            "examples/bob/pixels", data=np.ones((1, 28, 28)), compression="gzip"
        )
        chunk = pixels.id.get_chunk_info(0)
    raw = bytearray(path.read_bytes())
    raw[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(raw)
    refused(femnist.load, path, path, "cannot be read", "filter")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.dtype("f4"), "float32 []"),  # a type that is stored by itself
        (h5py.Empty("f4"), "float32 []"),
        (np.array([(1, 2.0)], "i4,f4"), "[1]"),
    ],
)
def test_hdf5_of_other_kinds(tmp_path, value, found):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("pixels", "label", "tokens"):
            file[f"examples/bob/{name}"] = value
    refused(femnist.load, path, "client bob: pixels must be an array of numbers", found)
    refused(stackoverflow.load, path, "client bob: tokens must be strings", found)


def test_hdf5_of_lists_instead_of_strings(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        kind = h5py.vlen_dtype(np.int32)
        tokens = file.create_dataset("examples/bob/tokens", (1,), kind)
        tokens[0] = [1, 2]
    refused(stackoverflow.load, path, "client bob: tokens must be strings [n]")


# Pickles.


def write_batches(folder, raw):
    put(folder, parts_of("cifar10_batches"))
    (folder / "data_batch_2").write_bytes(raw)


BOMBS = {
    # Python keeps a list of all places up to the largest one that is named.
    "a far place": b"\x80\x02}r\x00\x00\x00\x08.",
    # Each call doubles what it is given.
    "doubled": b"\x80\x02" + b"c_codecs\nencode\n" * 30 + b"U\x01a"
    b"" + b"X\x03\x00\x00\x00hex\x86R" * 30 + b".",
    # A string that is there once, and made of it many times.
    "repeated": b"\x80\x02X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"q\x00("
    b"" + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 3000 + b"t.",
    # Memory that nobody has written.
    "unwritten": b"\x80\x02}(U\x06labels](K\x03K\x07eU\x04datacnumpy\nndarray\n"
    b"K\x02M\x00\x0c\x86X\x02\x00\x00\x00u1\x86Ru.",
    # Pairs of pairs of pairs, of which a number is made to find them again.
    "pairs": b"\x80\x02}K\x01" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
    "pairs as a name": b"\x80\x04U\x01aK\x01" + b"q\x00h\x00\x86" * 60 + b"\x93.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_pickles_that_take_all_memory_or_time(tmp_path, name):
    write_batches(tmp_path, BOMBS[name])
    refused(cifar10.load, tmp_path, tmp_path / "data_batch_2", "again")


def test_pickled_labels_in_lists_of_lists(tmp_path):
    """Each list is the one before, twice."""
    nested = b"](" * 40 + b"](K\x01e" + b"q\x00h\x00e" * 40
    raw = b"\x80\x02}(U\x06labels" + nested + b"U\x04dataK\x01u."
    write_batches(tmp_path, raw)
    refused(cifar10.load, tmp_path, "data_batch_2", "int and list as these")


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["u1", "i8", ">i4", "f4"])
def test_pickled_arrays(protocol, dtype):
    array = np.arange(12).astype(dtype).reshape(3, 4)
    content = {b"a": array, "b": array.T, b"c": [1, -2, 2**40, None, True, (b"x", "y")]}
    found = read_pickle(pickle.dumps(content, protocol))
    assert list(found) == list(content)
    np.testing.assert_array_equal(found[b"a"], array)
    np.testing.assert_array_equal(found["b"], array.T)
    assert found[b"a"].dtype == array.dtype
    assert found[b"c"] == content[b"c"]


def test_pickles_of_python_2():
    raw = b"\x80\x02}q\x01(U\x06labels]q\x02(K\x03K\x01eU\x04dataU\x02\xff\x00u."
    assert read_pickle(raw) == {b"labels": [3, 1], b"data": b"\xff\x00"}


# Tables and texts.


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("19,", "1\r9,", "cannot be read"),  # csv.Error
        ("19,", f"{'1' * 200_000},", "cannot be read"),  # csv.Error
        ("0.25", "1e300", "finite float32"),  # became infinite in silence
        ("0.25", "a\x1bb", "must be a number, found 'a\\x1bb'"),
    ],
)
def test_cells_of_the_hospital(tmp_path, old, new, fact):
    put(tmp_path, parts_of("hospital"))
    path = tmp_path / "einstein.csv"
    path.write_bytes(path.read_bytes().decode().replace(old, new, 1).encode())
    refused(hospital.load, tmp_path, path, fact)


@pytest.mark.parametrize("number", [str(2**63), "9" * 5000, "1" * 20_000])
def test_edges_of_agents_beyond_all_numbers(tmp_path, number):
    """OverflowError, ValueError, and a line without end."""
    path = tmp_path / "edges.txt"
    path.write_text(f"0 1\n1 {number}\n")
    refused(edge_lists.from_edge_list, path, f"{path} line 2")


def test_a_subreddit_that_is_no_name(tmp_path):
    """A list cannot be counted: TypeError."""
    put(tmp_path, parts_of("reddit"))
    for path in tmp_path.rglob("*.json"):
        path.write_text(path.read_text().replace('"nba"', '["nba"]'))
    documents = reddit.load(tmp_path, subreddits=("nba", "chess"))
    assert documents.users == ["bob"]


@pytest.fixture
def two_seconds(monkeypatch):
    monkeypatch.setattr(test_fuzzed_files, "MOST_SECONDS", 2)


def test_a_long_post_without_spaces(tmp_path, two_seconds):
    """A name was looked for from each of its letters on."""
    rows = [["s", "u", "Greet", f"hi 10-19User7User12! {'a' * 10**6}"]]
    path = write_json(tmp_path / "a.json", rows)
    with bounded():
        (found,) = chat.load(path).train
    assert found == [f"hi  user ! {'a' * 10**6}"]


def test_a_long_word_of_punctuation(two_seconds):
    """All pieces so far were copied for each of them."""
    with bounded():
        known = pieces.from_vocabulary([*pieces.SPECIAL, "!"])
        assert known.cut("!" * 300_000) == (5,) * 300_000


def test_many_empty_lines_of_entities(tmp_path):
    """Each became an empty sentence, of two hundred times its size."""
    path = tmp_path / "a.txt"
    path.write_text("\n" * 4 * 10**6 + "John B-PER\n")
    with bounded():
        assert ner.read(path) == [(["John"], ["B-PER"])]


def test_one_client_with_a_long_name(tmp_path):
    """NumPy made all names as long: 12 GB here."""
    rows = [("train", name, character(1)) for name in ["a" * 10**6, *["b"] * 3000]]
    path = write_sqlite(tmp_path / "own.sqlite", rows)
    with bounded():
        examples = tff.load(path)
    assert examples.user.tolist() == [0] + [1] * 3000


# Names that are shown in errors.

STRANGE = "a\nb\x1b[31m" + "c" * 3000


@pytest.mark.parametrize("name", ["leaf_features", "shakespeare_json", "reddit"])
def test_strange_names_of_users_are_shown_on_one_line(tmp_path, name):
    put(tmp_path, parts_of(name))
    for path in tmp_path.rglob("*.json"):
        content = path.read_text().replace("bob", "BRUTUS").replace("BRUTUS", "HERE")
        content = content.replace("HERE", json.dumps(STRANGE)[1:-1])
        at = content.rindex(json.dumps(STRANGE)) + len(json.dumps(STRANGE)) + 2
        path.write_text(content[:at] + '"none", "other": ' + content[at:])
    refused(READERS[name].read, tmp_path)


def test_strange_names_in_tables_are_shown_on_one_line(tmp_path):
    path = write_sqlite(
        tmp_path / "a.sqlite", [("train", "a", example(**{STRANGE: 1}))]
    )
    refused(tff.load, path, "images are needed", "a\\nb\\x1b[31m")
    rows = [(STRANGE, "a", b""), ("other", "b", b"")]
    refused(tff.load, write_sqlite(path, rows), "found a\\nb")
    put(tmp_path, {"a.txt": b"John\x1b[31m not a tag\n"})
    refused(ner.read, tmp_path / "a.txt", "John\\x1b[31m not a tag")
    path = write_hdf5(tmp_path / "a.h5", **{STRANGE: [70]})
    refused(femnist.load, path, "client a\\nb\\x1b[31m")
