"""Packed files: what comes out, and how much of it."""

import gzip
import lzma
import zipfile

import numpy as np
import pytest

from p2pjax.datasets.loaders import idx, npz, packed
from p2pjax.types import InputError

TEXT = b"to be or not to be " * 200_000  # several chunks


@pytest.fixture
def small_limits(monkeypatch):
    """As if files were a thousand times as large as these."""
    monkeypatch.setattr(packed, "ALWAYS_ALLOWED", 2**20)


PACK = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "lzma": lambda raw: lzma.compress(raw, lzma.FORMAT_ALONE),
    "two_streams": lambda raw: lzma.compress(raw[:99]) + lzma.compress(raw[99:]),
}


@pytest.mark.parametrize("kind", PACK)
def test_unpacks(tmp_path, kind):
    path = tmp_path / "any.name"
    path.write_bytes(PACK[kind](TEXT))
    assert packed.read_unpacked(path, "a text") == TEXT
    with packed.unpacked_file(path, "a text") as file:
        assert file.read_bytes() == TEXT
        assert (file == path) == (kind == "plain")
    assert file.exists() == (kind == "plain")  # the copy is gone


@pytest.mark.parametrize("kind", ["gzip", "xz", "lzma"])
def test_cut_off(tmp_path, kind):
    path = tmp_path / "packed"
    raw = PACK[kind](TEXT)
    for kept in (8, 40, len(raw) // 2, len(raw) - 3):
        path.write_bytes(raw[:kept])
        with pytest.raises(InputError, match=r"packed must be a text .* cut off"):
            packed.read_unpacked(path, "a text")


@pytest.mark.parametrize("kind", ["gzip", "xz", "lzma"])
def test_bombs_are_refused(tmp_path, small_limits, monkeypatch, kind):
    path = tmp_path / "bomb"
    path.write_bytes(PACK[kind](bytes(3 * 2**20)))
    message = r"bomb must be a text but unpacks to more than 1048576 bytes from"
    with pytest.raises(InputError, match=message):
        packed.read_unpacked(path, "a text")
    with (
        pytest.raises(InputError, match=message),
        packed.unpacked_file(path, "a text"),
    ):
        pass
    monkeypatch.setattr(packed, "MAX_RATIO", 10**6)
    assert len(packed.read_unpacked(path, "a text")) == 3 * 2**20


def test_what_is_not_packed_may_be_large(tmp_path, small_limits):
    path = tmp_path / "plain"
    path.write_bytes(bytes(3 * 2**20))
    assert len(packed.read_unpacked(path, "a text")) == 3 * 2**20


def test_bombs_in_idx_and_npz(tmp_path, small_limits):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 3)) + bytes(2**21)))
    with pytest.raises(InputError, match="idx3 .* unpacks to more than 1048576 bytes"):
        idx.read_idx(path, ndim=3)
    path = tmp_path / "own.npz"
    arrays = {"y": np.zeros(1, int), "user": np.zeros(1, int)}
    np.savez_compressed(path, x=np.zeros((1, 2**20)), **arrays)
    with pytest.raises(InputError, match="npz .* unpacks to more than 17[0-9]+ bytes"):
        npz.load(path)
    np.savez_compressed(path, x=np.zeros((1, 2**10)), other=np.zeros(2**20), **arrays)
    assert npz.load(path).x.shape == (1, 2**10)  # what is not read does no harm


def test_a_member_cannot_be_larger_than_it_says(tmp_path, small_limits):
    path = tmp_path / "own.npz"
    arrays = {"y": np.zeros(1, int), "user": np.zeros(1, int)}
    np.savez_compressed(path, x=np.zeros((1, 2**20)), **arrays)
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("x.npy").file_size
    raw = path.read_bytes()
    path.write_bytes(
        raw.replace(size.to_bytes(4, "little"), (99).to_bytes(4, "little"))
    )
    with pytest.raises(InputError, match="npz archive .* cannot be read"):
        npz.load(path)
