"""Strings of any length in HDF5, against h5py's own reader."""

import h5py
import numpy as np
import pytest
from file_readers import parts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pjax.datasets.loaders import hdf5_strings
from p2pjax.datasets.loaders.hdf5 import read_strings
from p2pjax.types import InputError

LAYOUTS = {
    "in one piece": {},
    "in chunks": {"chunks": (3,)},
    "that can grow": {"maxshape": (None,), "chunks": (4,)},
    "gzip": {"chunks": (5,), "compression": "gzip"},
    "gzip and shuffle": {"chunks": (5,), "compression": "gzip", "shuffle": True},
    "in one large chunk": {"chunks": (64,), "shuffle": True},
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def write(path, clients, **options):
    with h5py.File(path, "w", libver=options.pop("libver", None)) as file:
        for name, texts in clients.items():
            file.create_dataset(
                f"examples/{name}/tokens",
                data=np.array([text.encode() for text in texts], object),
                dtype=h5py.string_dtype(),
                **options,
            )
    return path


def read(path):
    return {name: texts for name, (texts,), _ in read_strings(path, "tokens", "a.h5")}


def read_by_h5py(path):
    with h5py.File(path) as file:
        clients = file["examples"]
        return {name: clients[name]["tokens"][()].tolist() for name in clients}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=15)
@given(clients=st.lists(st.lists(TEXTS, min_size=1, max_size=12), max_size=4))
def test_equals_h5py(tmp_path_factory, layout, clients):
    path = tmp_path_factory.mktemp("strings") / "a.h5"
    options = dict(LAYOUTS[layout])
    named = {f"u{n}": texts for n, texts in enumerate(clients)}
    if "chunks" in options and "maxshape" not in options:
        options["maxshape"] = (None,)  # chunks may be larger than the array then
    if not named:
        named = {"u0": ["a"]}
    write(path, named, **options)
    found = read(path)
    assert found == read_by_h5py(path)
    assert found == {n: [t.encode() for t in texts] for n, texts in named.items()}


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_many_heaps(tmp_path, libver):
    """Long strings have a heap each, short ones share one: more than are kept."""
    texts = ["word " * (n * 37 % 2000) for n in range(500)]
    clients = {"ann": texts, "bob": texts[::-1]}
    path = write(tmp_path / "a.h5", clients, libver=libver)
    assert read(path) == read_by_h5py(path)
    assert path.read_bytes().count(b"GCOL") > hdf5_strings._NUM_HEAPS


def test_an_empty_array(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("examples/u/tokens", (0,), h5py.string_dtype())
    assert read(path) == {"u": []}


def damaged(tmp_path, at, raw):
    """A sound file with other bytes at a place after the start of its heap."""
    path = tmp_path / "a.h5"
    path.write_bytes(parts_of("shakespeare_hdf5")["shakespeare_train.h5"])
    whole = bytearray(path.read_bytes().replace(b"snippets", b"tokens\0\0"))
    start = whole.index(b"GCOL") + at
    whole[start : start + len(raw)] = raw
    path.write_bytes(whole)
    return path


@pytest.mark.parametrize(
    ("at", "raw", "reason"),
    [
        (0, b"", None),
        # An object of no size, which HDF5 2.0 never comes past.
        (16 + 32, bytes(16), "longer than what is stored"),
        (0, b"none", "in no heap"),
        (8, b"\xff" * 8, "unpacks to more than"),
        (8, bytes(8), "longer than what is stored"),  # a heap of no size
        (16 + 8, b"\xff" * 8, "larger than its heap"),
        (16 + 32 + 8, b"\x09", "longer than what is stored"),
    ],
)
def test_damaged_heaps(tmp_path, at, raw, reason):
    path = damaged(tmp_path, at, raw)
    if reason is None:
        assert sum(map(len, read(path).values())) == 3
        return
    with pytest.raises(InputError, match=reason):
        read(path)


def test_addresses_of_another_kind(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["examples/u/tokens"] = np.array([b"a"], h5py.string_dtype())
    with pytest.raises(InputError, match="addresses are not of the usual kind"):
        read(path)


def test_strings_packed_by_lzf(tmp_path):
    path = write(tmp_path / "a.h5", {"u": ["a", "b"]}, compression="lzf")
    with pytest.raises(InputError, match="something else than gzip"):
        read(path)
