"""Files that would be read without end or beyond all memory: refused in a sentence."""

import contextlib
import json
import os
import resource
import signal
import socket
import zlib

import h5py
import numpy as np
import pytest
from femnist_files import leaf, picture, write_hdf5, write_json
from file_readers import READERS, parts_of, put
from test_fuzzed_files import TooSlow, bounded, check_sentence, check_sound

from experiments.engine import config
from experiments.mnist.config import Config
from p2pjax.datasets.loaders import (
    chat,
    femnist,
    files,
    packed,
    reddit,
    shakespeare,
    stackoverflow,
    text_files,
)
from p2pjax.datasets.loaders import leaf as leaf_loader
from p2pjax.types import InputError

HUGE = 100 * 2**30  # bytes


@contextlib.contextmanager
def in_seconds(seconds=10):
    """Stops what waits for ever, which takes no time of the processor."""

    def stop(signum, frame):
        del signum, frame
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(load, path, *facts):
    """Checks that loading ends in one sentence that states all the facts."""
    with in_seconds(), bounded(), pytest.raises(InputError) as error:
        load(path)
    check_sentence(str(error.value))
    for fact in facts:
        assert str(fact) in str(error.value)


@pytest.fixture
def small_limits(monkeypatch):
    """As if files were a thousand times as large as these."""
    monkeypatch.setattr(packed, "ALWAYS_ALLOWED", 2**20)


# Item 9, declared sizes of HDF5.


def one_client(path, **options):
    """A file of FEMNIST with pixels as said; the file's own limits stay."""
    with h5py.File(path, "w") as file:
        file["examples/bob/label"] = np.array([1])
        file.create_dataset("examples/bob/pixels", **options)
    return path


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_hdf5_declares_more_than_it_stores(tmp_path, options):
    path = one_client(
        tmp_path / "a.h5",
        shape=(10**9, 28, 28),
        dtype="f4",
        chunks=(1, 28, 28),
        **options,
    )
    assert path.stat().st_size < 10_000
    refused(femnist.load, path, path, "unpacks to more than 1073741824 bytes")
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "examples/bob/tokens", (10**12,), h5py.string_dtype(), chunks=(9,)
        )
    refused(stackoverflow.load, path, path, "unpacks to more than 1073741824 bytes")


def test_hdf5_with_one_array_under_many_names(tmp_path, small_limits, monkeypatch):
    monkeypatch.setattr(packed, "MAX_RATIO", 20)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.ones((200, 28, 28), np.float32), np.ones(200, int)
        for number in range(100):
            file[f"examples/{number}/pixels"] = file["x"]
            file[f"examples/{number}/label"] = file["y"]
    refused(femnist.load, path, path, "unpacks to more than", "as no such file does")
    monkeypatch.setattr(packed, "MAX_RATIO", 200)
    assert len(femnist.load(path).y) == 100 * 200


def test_hdf5_with_one_string_at_many_places(tmp_path, small_limits, monkeypatch):
    monkeypatch.setattr(packed, "MAX_RATIO", 20)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        texts = np.array(["long " * 2000, *["x"] * 999], object)
        file["examples/bob/tokens"] = texts.astype(h5py.string_dtype())
        start = file["examples/bob/tokens"].id.get_offset()
    raw = bytearray(path.read_bytes())
    raw[start : start + 16 * 1000] = raw[start : start + 16] * 1000  # where it is
    path.write_bytes(raw)
    refused(stackoverflow.load, path, path, "unpacks to more than", "no such file")
    monkeypatch.setattr(packed, "MAX_RATIO", 400)
    assert stackoverflow.load(path).train == [["long " * 2000] * 1000]


@pytest.mark.parametrize("chunks", [None, (1, 28, 28)])
def test_hdf5_that_was_never_written(tmp_path, chunks):
    """Its pixels would be zeros, all ink."""
    path = one_client(tmp_path / "a.h5", shape=(1, 28, 28), dtype="f4", chunks=chunks)
    refused(femnist.load, path, "client bob: pixels", "never written")


def test_hdf5_chunk_that_unpacks_to_more_than_it_should(tmp_path, small_limits):
    path = one_client(
        tmp_path / "a.h5",
        data=np.ones((1, 28, 28)),
        chunks=(1, 28, 28),
        compression="gzip",
    )
    bomb = zlib.compress(bytes(64 * 2**20), 9)
    with h5py.File(path, "r+") as file:
        file["examples/bob/pixels"].id.write_direct_chunk((0, 0, 0), bomb)
    refused(femnist.load, path, path, "unpacks to more than")


def test_hdf5_packed_twice(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk((1, 28, 28))
        layout.set_deflate(9)
        layout.set_deflate(9)
        space = h5py.h5s.create_simple((1, 28, 28))
        group = file.create_group("examples/bob")
        h5py.h5d.create(group.id, b"pixels", h5py.h5t.IEEE_F32LE, space, layout)
        group["pixels"][...] = 1
        group["label"] = np.array([1])
    refused(femnist.load, path, "client bob: pixels", "the filters 1, 1", "anew")


# Item 9, HDF5 that would read other files.


def linked(path, kind):
    """A file whose pixels, or more, are not in it; the other file is sound."""
    other = write_hdf5(path.with_name("other.h5"), bob=[1])
    with h5py.File(path, "w") as file:
        if kind == "external examples":
            file["examples"] = h5py.ExternalLink(other, "/examples")
        elif kind == "external client":
            file.create_group("examples")
            file["examples/bob"] = h5py.ExternalLink(other, "/examples/bob")
        elif kind == "soft client":
            file["aside/pixels"], file["aside/label"] = np.ones((1, 28, 28)), [1]
            file.create_group("examples")
            file["examples/bob"] = h5py.SoftLink("/aside")
        else:
            group = file.create_group("examples/bob")
            group["label"] = [1]
            if kind == "external pixels":
                group["pixels"] = h5py.ExternalLink(other, "/examples/bob/pixels")
            elif kind == "external storage":
                (path.parent / "raw").write_bytes(bytes(4 * 784))
                storage = [(path.parent / "raw", 0, 4 * 784)]
                group.create_dataset("pixels", (1, 28, 28), "f4", external=storage)
            else:
                layout = h5py.VirtualLayout((1, 28, 28), "f4")
                layout[:] = h5py.VirtualSource(
                    other, "examples/bob/pixels", shape=(1, 28, 28)
                )
                group.create_virtual_dataset("pixels", layout)
    return path


@pytest.mark.parametrize(
    "kind",
    [
        *("external examples", "external client", "external pixels", "soft client"),
        *("external storage", "virtual"),
    ],
)
def test_hdf5_reads_no_other_file(tmp_path, kind):
    path = linked(tmp_path / "a.h5", kind)
    refused(femnist.load, path, path, "must be in the file itself", "write a copy")


def test_hdf5_whose_groups_go_in_a_circle(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", bob=[1])
    with h5py.File(path, "r+") as file:
        file["examples/again"] = file["examples"]
    refused(femnist.load, path, "client again: pixels and label needed", "again, bob")


# Item 9, what is no ordinary file, and files of holes.


def fifo(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
        server.bind(path.name)


@pytest.mark.parametrize("kind", [fifo, device, unix_socket])
@pytest.mark.parametrize("name", READERS)
def test_only_ordinary_files_are_read(tmp_path, name, kind):
    """In place of each file of each reader, also deep in a folder."""
    put(tmp_path, parts_of(name))
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            aside = path.rename(tmp_path / "aside")
            kind(path)
            refused(READERS[name].read, tmp_path)
            path.unlink()
            aside.rename(path)


@pytest.mark.parametrize("kind", [fifo, device, unix_socket])
@pytest.mark.parametrize("load", [femnist.load, leaf_loader.load, shakespeare.load])
def test_what_is_named_must_be_a_file(tmp_path, load, kind):
    kind(tmp_path / "data")
    refused(load, tmp_path / "data", tmp_path / "data", "which is a ")


# A run folder may be someone else's: links in it are not followed.
REFUSE_LINKS = {"checkpoint", "report"}


@pytest.mark.parametrize("name", [name for name in READERS if name not in REFUSE_LINKS])
def test_links_to_ordinary_files_are_read(tmp_path, name):
    (tmp_path / "real").mkdir()
    put(tmp_path / "real", parts_of(name))
    for path in sorted((tmp_path / "real").rglob("*")):
        if path.is_file():
            link = tmp_path / "links" / path.relative_to(tmp_path / "real")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    check_sound(READERS[name].read(tmp_path / "links"))


@pytest.mark.parametrize("name", READERS)
def test_files_of_holes(tmp_path, name):
    """Each file of each reader with its right start and then 100 GB of nothing."""
    put(tmp_path, parts_of(name))
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            os.truncate(path, HUGE)
            refused(READERS[name].read, tmp_path)
            os.truncate(path, size)


def test_a_file_that_memory_cannot_hold(tmp_path, monkeypatch):
    """Such as gigabytes of text without an end of line."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * 1000)
    monkeypatch.setattr(packed, "free_bytes", lambda: 999)
    facts = ("takes 1000 bytes of memory, of which 999 are left", "a larger machine")
    refused(lambda path: text_files.read_text(path, "a text"), path, path, *facts)
    monkeypatch.setattr(packed, "free_bytes", lambda: None)  # some do not tell
    assert text_files.read_text(path, "a text") == "a" * 1000


@pytest.mark.parametrize("name", ["npz", "npz_members", "femnist_npz", "vsn"])
def test_arrays_that_memory_cannot_hold(tmp_path, monkeypatch, name):
    put(tmp_path, parts_of(name))
    monkeypatch.setattr(packed, "free_bytes", lambda: 100)
    refused(READERS[name].read, tmp_path, ".npz", "of memory, of which 100 are left")


def test_hdf5_that_memory_cannot_hold(tmp_path, monkeypatch):
    data = np.ones((6000, 28, 28), np.float32)
    path = one_client(tmp_path / "a.h5", data=data)
    monkeypatch.setattr(packed, "free_bytes", lambda: 10**6)
    refused(femnist.load, path, path, f"takes {data.nbytes} bytes of memory")


def test_json_that_memory_cannot_hold(tmp_path, monkeypatch):
    """A list of empty lists takes thirty times its text."""
    path = tmp_path / "a.json"
    path.write_bytes(b"[" + b"[]," * 999 + b"[]]")
    monkeypatch.setattr(packed, "free_bytes", lambda: 20 * path.stat().st_size)
    refused(lambda path: text_files.read_json(path, "JSON"), path, path, "of memory")
    monkeypatch.setattr(packed, "free_bytes", lambda: 50 * path.stat().st_size)
    assert text_files.read_json(path, "JSON") == [[]] * 1000


def test_too_little_memory_is_said_of_the_file(tmp_path):
    def read(path):
        with files.reading(path, "a text"):
            raise MemoryError

    refused(read, tmp_path, tmp_path, "takes more memory than is left", "smaller part")


def test_a_reader_that_runs_out_of_memory(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(2**20))
    os.truncate(path, 2**30)  # allowed, whatever is stored of it
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**26, limits[1]))
    try:
        with pytest.raises(InputError, match=r"a\.txt must be a text but takes more"):
            text_files.read_text(path, "a text")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


# Item 9, deep JSON and huge integers.


@pytest.mark.parametrize("depth", [*range(900, 1000, 3), 10**5])
def test_deep_json(tmp_path, depth):
    """Deeper than Python can follow, or just less deep, and then shown in an error."""
    deep = "[" * depth + "]" * depth
    leafs = f'{{"users": ["a"], "num_samples": [1], "user_data": {{"a": {deep}}}}}'
    in_x = leafs.replace(deep, f'{{"x": {deep}, "y": [1]}}')
    role = f'{{"train": {{"KING": {deep}}}}}'
    for load, content in (
        *((leaf_loader.load, leafs), (leaf_loader.load, in_x), (femnist.load, in_x)),
        *((chat.load, f"[{deep}]"), (shakespeare.load, role)),
    ):
        path = tmp_path / "a.json"
        path.write_text(content)
        refused(load, path, path)
    for split in reddit.SPLITS:
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.json").write_text(in_x)
    refused(reddit.load, tmp_path, tmp_path / "train" / "a.json")


@pytest.mark.parametrize("pixels", [True, False])
@pytest.mark.parametrize(
    ("key", "value", "facts"),
    [
        ("y", "1" + "0" * 5000, ["cannot be read", "4300 digits"]),
        ("y", "1" + "0" * 100, ["y must be numbers", "more than 64 bits"]),
        ("y", str(2**64 - 1), ["y must lie in 0..", f"found {2**64 - 1}"]),
        ("y", str(2**63), ["y must lie in 0..", f"found {2**63}"]),
        ("y", str(2**31), ["y must lie in 0..", f"found {2**31}"]),
        ("y", str(-(2**63)), ["y must lie in 0..", f"found {-(2**63)}"]),
        ("y", "1.0", ["y must be whole numbers", "float64"]),
        ("y", "NaN", ["y must be whole numbers", "float64"]),
        ("y", "true", ["y must be numbers", "'True'"]),
        ("y", "null", ["y must be numbers", "'None'"]),
        ("x", "1" + "0" * 100, ["x must be numbers", "more than 64 bits"]),
        ("x", "1" + "0" * 400, ["x must be numbers", "more than 64 bits"]),
        ("x", "NaN", ["x must be", "NaN"]),
        ("x", "-Infinity", ["x must be"]),
        ("x", "1e300", ["x must be"]),
        ("x", '{"a": 1}', ["x must be numbers"]),
    ],
)
def test_numbers_of_leaf(tmp_path, pixels, key, value, facts):
    content = leaf(bob=[1])
    content["user_data"]["bob"][key] = [picture(0, "HERE")] if key == "x" else ["HERE"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content).replace('"HERE"', value))
    refused(lambda path: leaf_loader.load(path, pixels=pixels), path, path, *facts)


def test_one_long_text_among_numbers(tmp_path):
    """NumPy would make all of them as long: 40 GB here."""
    content = leaf(bob=[1])
    content["user_data"]["bob"]["x"] = [["a" * 10**5, *[0] * 10**5]]
    path = write_json(tmp_path / "a.json", content)
    refused(leaf_loader.load, path, path, "user bob: x must be numbers", "'aaaa")


# Item 9, flagfiles.


def test_flagfiles(tmp_path):
    path = tmp_path / "own.flags"

    def parse(path):
        return config.parse(Config, [f"--flagfile={path}"])

    refused(parse, "/dev/zero", "/dev/zero", "Not an ordinary file but a device")
    fifo(path)
    refused(parse, path, path, "a pipe")
    path.unlink()
    path.write_bytes(b"--seed=1\n\xff")
    refused(parse, path, path, "it is no text")
    path.write_bytes(b"#" * 2**21)
    refused(parse, path, path, "at most 1048576 bytes")
    path.write_text(f"--flagfile={path}\n")
    refused(parse, path, path, "do not contain themselves")
    path.write_text("--flagfile=/dev/zero\n")
    refused(parse, path, "/dev/zero", "a device")
    path.write_text(f"--{'a' * 5000}=1\n")
    refused(parse, path, "name of a flag")
    inner = tmp_path / "inner.flags"
    inner.write_text("--seed=5\n")
    path.write_text(f"# A comment.\n--flagfile={inner}\n")
    assert parse(path).seed == 5
    assert config.parse(Config, ["--flagfile", str(path)]).seed == 5
