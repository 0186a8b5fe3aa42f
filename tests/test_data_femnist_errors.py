"""FEMNIST: what the loader refuses, and what it then says."""

import sys

import h5py
import numpy as np
import pytest
from femnist_files import (
    check_loaded,
    check_refused,
    leaf,
    picture,
    write_hdf5,
    write_json,
    write_npz,
)

from p2pjax.datasets.loaders import femnist


def test_nothing_there(tmp_path):
    wanted = ["femnist*.npz", "fed_emnist_train.h5", "train/*.json", "all_data*.json"]
    check_refused(tmp_path / "none", *wanted, tmp_path / "none", "does not exist")
    check_refused(tmp_path, *wanted, "is an empty folder", "data/README.md")
    (tmp_path / "fed_emnist.tar.bz2").touch()
    check_refused(tmp_path, *wanted, "holds fed_emnist.tar.bz2")


def test_two_archives(tmp_path):
    for name in ("femnist_a.npz", "femnist_b.npz"):
        write_npz(tmp_path / name)
    check_refused(
        tmp_path, "one femnist*.npz", "femnist_a.npz, femnist_b.npz", "name the"
    )


def test_one_half_only(tmp_path):
    write_json(tmp_path / "train" / "a.json", leaf(bob=[1]))
    check_refused(
        tmp_path, "train/*.json and test/*.json", "only train/*.json", "add test"
    )
    check_loaded(femnist.load(tmp_path / "train"), [1], [0])
    write_hdf5(tmp_path / "fed_emnist_test.h5", bob=[1])
    check_refused(tmp_path, "found only fed_emnist_test.h5", "add fed_emnist_train.h5")


def test_empty_and_cut_off_files(tmp_path):
    (tmp_path / "empty").touch()
    check_refused(tmp_path / "empty", "is empty")
    files = [
        (write_json(tmp_path / "a.json", leaf(bob=[1])), "LEAF JSON"),
        (write_hdf5(tmp_path / "a.h5", bob=[1]), "HDF5 with examples"),
        (write_npz(tmp_path / "a.npz"), "an npz archive with x, y, user"),
    ]
    for path, content in files:
        raw = path.read_bytes()
        for kept in (8, 100, len(raw) // 2, len(raw) - 1):
            path.write_bytes(raw[:kept])
            check_refused(path, path, content, "may be cut off")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"y": np.array([0, 62, 7])}, ["y must lie in 0..61", "found 62"]),
        ({"y": np.array([0, -1, 7])}, ["y must lie in 0..61", "found -1"]),
        ({"y": np.array([0, 0.5, 7])}, ["whole numbers", "float64"]),
        ({"y": np.array([0, 1])}, ["same length", "x 3, y 2, user 3"]),
        ({"user": np.array([0, -1, 7])}, ["user must lie in", "found -1"]),
        ({"x": np.zeros((3, 784), np.uint8)}, ["uint8 images", "uint8 [3, 784]"]),
        ({"x": np.zeros((3, 28, 28))}, ["uint8 images", "float64 [3, 28, 28]"]),
        ({"x": np.array([None] * 3, object)}, ["pickled objects", "plain arrays"]),
        (
            {
                "x": np.zeros((0, 28, 28), np.uint8),
                "y": np.zeros(0, int),
                "user": np.zeros(0, int),
            },
            ["at least one example"],
        ),
    ],
)
def test_bad_npz(tmp_path, changes, facts):
    path = write_npz(tmp_path / "femnist.npz", **changes)
    check_refused(tmp_path, path, *facts)


def test_npz_without_user(tmp_path):
    np.savez(tmp_path / "femnist.npz", x=np.zeros(1), y=np.zeros(1))
    check_refused(tmp_path, "with x, y, user", "has only x, y", "add user")


BOB = {"x": [picture(1)], "y": [1]}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"num_samples": [2]}, ["user bob", "num_samples 2 and 1 labels"]),
        ({"num_samples": [None]}, ["user bob", "num_samples None and 1 labels"]),
        ({"num_samples": []}, ["1 users", "0 num_samples"]),
        ({"users": ["bob", "bob"], "num_samples": [1, 1]}, ["distinct", "2 users, 1"]),
        ({"users": ["eve"]}, ["user eve", "must have x and y", "found nothing"]),
        ({"users": [["bob"]]}, ["users must be a list of names"]),
        ({"users": "bob"}, ["users must be a list of names", "found str"]),
        ({"user_data": [BOB]}, ["user_data an object", "and list"]),
        ({"user_data": {"bob": {"x": []}}}, ["must have x and y", "found x"]),
        ({"user_data": {"bob": {**BOB, "x": []}}}, ["[examples, 784]", "[0]"]),
        ({"user_data": {"bob": {**BOB, "x": 3}}}, ["must be lists", "int and list"]),
        ({"user_data": {"bob": {**BOB, "x": [[1, 2]]}}}, ["[examples, 784]", "[1, 2]"]),
        ({"user_data": {"bob": {**BOB, "x": [[1], 2]}}}, ["numbers, 784", "unequal"]),
        (
            {"user_data": {"bob": {**BOB, "x": [["1"] * 784]}}},
            ["x must be numbers", "'1'"],
        ),
        ({"user_data": {"bob": {**BOB, "x": [picture(0, 255)]}}}, ["0..1", "..255"]),
        ({"user_data": {"bob": {**BOB, "x": [picture(0, -1)]}}}, ["0..1", "found -1"]),
        ({"user_data": {"bob": {**BOB, "x": [picture(0, np.nan)]}}}, ["0..1", "nan"]),
        (
            {"user_data": {"bob": {"x": [picture(0)] * 2, "y": [1]}}},
            ["user bob", "same length", "x 2, y 1"],
        ),
        ({"user_data": {"bob": {**BOB, "y": [62]}}}, ["0..61", "found 62"]),
        ({"user_data": {"bob": {**BOB, "y": [-1]}}}, ["0..61", "found -1"]),
        ({"user_data": {"bob": {**BOB, "y": [0.5]}}}, ["whole numbers", "float64"]),
        ({"user_data": {"bob": {**BOB, "y": ["A"]}}}, ["y must be numbers", "'A'"]),
        ({"users": [], "num_samples": []}, ["at least one example", "no writer"]),
    ],
)
def test_bad_json(tmp_path, changes, facts):
    content = {"users": ["bob"], "num_samples": [1], "user_data": {"bob": BOB}}
    write_json(tmp_path / "all_data.json", {**content, **changes})
    check_refused(tmp_path, tmp_path, *facts)


def test_json_of_something_else(tmp_path):
    path = write_json(tmp_path / "a.json", {"users": [], "name": 1})
    check_refused(path, "users, num_samples, user_data", "the keys users, name")
    check_refused(
        write_json(path, [1, 2]), "users, num_samples, user_data", "holds list"
    )
    path.write_bytes(b"[" * 100_000)
    check_refused(path, "LEAF JSON", "cannot be read")
    path.write_bytes(b"\xff\xfe\x00 neither text nor anything")
    check_refused(path, "LEAF JSON", "cannot be read")


@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        (
            "label",
            np.array([62]),
            ["client bob", "label must lie in 0..61", "found 62"],
        ),
        ("label", np.array([-1]), ["label must lie in 0..61", "found -1"]),
        ("label", np.array([1.0]), ["label must be whole numbers", "float64"]),
        ("label", np.array([1, 2]), ["same length", "pixels 1, label 2"]),
        ("label", np.array(1), ["label must be an array of numbers", "int64 []"]),
        ("label", "A", ["label must be an array of numbers", "object []"]),
        ("label", None, ["pixels and label needed", "found pixels"]),
        ("pixels", np.ones((1, 27, 28)), ["[examples, 28, 28]", "[1, 27, 28]"]),
        ("pixels", np.full((1, 28, 28), np.nan), ["0..1", "nan"]),
        ("pixels", np.full((1, 28, 28), 255), ["0..1", "255..255"]),
    ],
)
def test_bad_hdf5(tmp_path, name, value, facts):
    path = write_hdf5(tmp_path / "bad.h5", bob=[1])
    with h5py.File(path, "r+") as file:
        del file[f"examples/bob/{name}"]
        if value is not None:
            file[f"examples/bob/{name}"] = value
    check_refused(path, path, *facts)


def test_hdf5_of_something_else(tmp_path):
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file["weights"] = np.ones(3)
    check_refused(path, "examples/<client>", "has weights")
    with h5py.File(path, "w") as file:
        file["examples"] = np.ones(3)
    check_refused(path, "examples/<client>", "has examples")
    with h5py.File(path, "w") as file:
        file["examples/bob"] = np.ones(3)
    check_refused(path, "client bob", "pixels and label", "found nothing")
    with h5py.File(path, "w") as file:
        file.create_group("examples")
    check_refused(path, "at least one example")


def test_hdf5_without_h5py(tmp_path, monkeypatch):
    path = write_hdf5(tmp_path / "one.h5", bob=[1])
    monkeypatch.setitem(sys.modules, "h5py", None)
    check_refused(path, "h5py is not installed", "pip install 'p2pjax[hdf5]'")
