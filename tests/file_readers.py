"""Every reader of a user's files, with small sound files in its format."""

import gzip
import io
import json
import lzma
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import femnist_files
import h5py
import idx_files
import jax.numpy as jnp
import numpy as np
import sqlite_files

from experiments.combination import config as flags_of
from experiments.engine import config
from experiments.report.reading import read_folder
from p2pjax import checkpoint
from p2pjax.datasets.loaders import (
    cifar10,
    femnist,
    har,
    hospital,
    mnist,
    named,
    ner,
    npz,
    pieces,
    reddit,
    senteval,
    tff,
)
from p2pjax.graphs import edge_lists

Parts = dict[str, bytes]  # by name; "a.npz/x.npy" is a member of an archive


class Reader(NamedTuple):
    """How files are read, and files to read."""

    read: Callable[[Path], Any]  # of the folder
    make: Callable[[], Parts]
    is_quick: bool = True  # a read takes milliseconds


def put(folder: Path, parts: Parts) -> None:
    """Writes the parts; members of an archive or a table into one file."""
    inside: dict[str, Parts] = {}
    for name, raw in parts.items():
        outer, ending, member = name.rpartition("!")
        if ending:
            inside.setdefault(outer, {})[member] = raw
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(raw)
    for outer, members in inside.items():
        if outer.endswith(".npz"):
            with zipfile.ZipFile(folder / outer, "w") as archive:
                for name, raw in members.items():
                    archive.writestr(zipfile.ZipInfo(name), raw)
        else:
            rows = [(*name.split("/")[:2], raw) for name, raw in members.items()]
            sqlite_files.write_sqlite(folder / outer, rows)


def _files(write: Callable[[Path], object]) -> Parts:
    """What a function writes to a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _json(name: str, content: object) -> Parts:
    return {name: json.dumps(content).encode()}


def _members(name: str, **arrays: np.ndarray) -> Parts:
    found = {}
    for key, array in arrays.items():
        file = io.BytesIO()
        np.save(file, array)
        found[f"{name}!{key}.npy"] = file.getvalue()
    return found


def _archive(name: str, **arrays: np.ndarray) -> Parts:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return {name: file.getvalue()}


_OWN = {
    "x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "y": np.array(["cat", "dog", "cat", "dog"]),
    "user": np.array([0, 0, 1, 1]),
    "split": np.array([0, 1, 0, 1]),
}
_ROLES = {"BRUTUS": ["Nay, answer me.", "Long live"], "CINNA": ["Who is there?"]}
_ACTS = [
    ["10-19", "10-19User7", "Greet", "hi 10-19User12!"],
    ["10-19", "10-19User12", "System", "JOIN"],
    ["10-19", "10-19User9", "Statement", "how are you"],
]


def _leaf_pixels() -> Parts:
    train, test = femnist_files.leaf(bob=[10], eve=[5, 3]), femnist_files.leaf(eve=[7])
    return _json("train/a.json", train) | _json("test/a.json", test)


def _leaf_features() -> Parts:
    users = {"ann": [[0.5, -3, 7]], "bob": [[1, 2, 3], [4, 5, 6]]}
    content = {
        "users": list(users),
        "num_samples": [len(x) for x in users.values()],
        "user_data": {
            user: {"x": x, "y": list(range(len(x)))} for user, x in users.items()
        },
    }
    return _json("all_data_0.json", content)


def _reddit() -> Parts:
    content = {
        "users": ["ann", "bob"],
        "num_samples": [2, 1],
        "user_data": {
            user: {
                "x": [[["<BOS>", "so", "long", "<EOS>"], ["<PAD>"]]],
                "y": [{"subreddit": name}],
            }
            for user, name in (("ann", "nba"), ("bob", "chess"))
        },
    }
    parts: Parts = {}
    for split in reddit.SPLITS:
        parts |= _json(f"{split}/reddit_0.json", content)
    return parts


def _hdf5_images(folder: Path) -> None:
    femnist_files.write_hdf5(folder / "fed_emnist_train.h5", ann=[3, 40], bob=[1])
    femnist_files.write_hdf5(folder / "fed_emnist_test.h5", ann=[9])


def _hdf5_texts(path: Path, field: str, compression: str | None = None) -> None:
    with h5py.File(path, "w") as file:
        for user, texts in _ROLES.items():
            file.create_dataset(
                f"examples/{user}/{field}",
                data=np.array(texts, object),
                dtype=h5py.string_dtype(),
                compression=compression,
            )


def _hdf5_roles(folder: Path) -> None:
    for name in ("shakespeare_train.h5", "shakespeare_test.h5"):
        _hdf5_texts(folder / name, "snippets")


def _packed_images(folder: Path) -> None:
    with h5py.File(folder / "fed_emnist.h5", "w") as file:
        pixels = np.ones((3, 28, 28), np.float32)
        group = file.create_group("examples/ann")
        group.create_dataset("pixels", data=pixels, compression="gzip", shuffle=True)
        group.create_dataset("label", data=[[1], [2], [3]])


def _characters(file: str) -> Parts:
    rows = [("all_train", "ann", 3), ("all_train", "bob", 8), ("all_test", "ann", 4)]
    return {
        f"{file}!{split}/{user}/{number}": sqlite_files.character(label)
        for number, (split, user, label) in enumerate(rows)
    }


def _colours() -> Parts:
    examples = [
        sqlite_files.example(image=list(range(48)), label=label, coarse_label=1)
        for label in (0, 300)
    ]
    return {
        f"own.sqlite!{split}/7/{split}": example
        for split, example in zip(("train", "test"), examples, strict=True)
    }


def _spoken() -> Parts:
    return {
        f"own.sqlite!{split}/{role}/{number}": sqlite_files.example(snippets=said)
        for split in ("train", "test")
        for role, texts in _ROLES.items()
        for number, said in enumerate(texts)
    }


def _database(parts: Parts) -> Parts:
    """The table itself as one part."""
    return _files(lambda folder: put(folder, parts))


def _by_lzma() -> Parts:
    ((name, raw),) = _database(_spoken()).items()
    return {f"{name}.lzma": lzma.compress(raw)}


def _batches() -> Parts:
    names = [*cifar10.BATCHES["train"], *cifar10.BATCHES["test"]]
    batch = {
        b"batch_label": b"one of six",
        b"labels": [3, 7],
        b"data": np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072),
    }
    return {name: pickle.dumps(batch, protocol=2) for name in names}


def _motions() -> Parts:
    features = " ".join(f"{n / 561:.7e}" for n in range(har.NUM_FEATURES))
    tables = {"X": f"  {features}\n  {features}\n", "y": "1\n6\n", "subject": "1\n3\n"}
    return {
        f"{part}/{name}_{part}.txt": table.encode()
        for part in har.PARTS
        for name, table in tables.items()
    }


def _patients() -> Parts:
    names = (hospital.AGE, hospital.RESULT, *hospital.BLOOD, *hospital.PATHOGENS)
    names += hospital.RAPID
    rows = ({hospital.AGE: "19", hospital.RESULT: "positive", "Hematocrit": "0.25"},)
    rows += ({hospital.AGE: "0", hospital.RESULT: "negative"},)
    lines = [",".join(f'"{name}"' for name in names)]
    lines += [",".join(row.get(name, "") for name in names) for row in rows]
    return {"einstein.csv": "\n".join([*lines, ""]).encode()}


def _packed(name: str, parts: Parts) -> Parts:
    ((_, raw),) = parts.items()
    return {name: gzip.compress(raw, mtime=0)}


def _opinions() -> Parts:
    texts = {"neg": ["dull and long", "no"], "pos": ["a joy", "see it"]}
    return _json("senteval.json", dict.fromkeys(senteval.TASKS, texts))


def _opinions_by_line() -> Parts:
    return {
        f"{task}/{file}": b"a text\nanother one\n"
        for task, files in senteval.FILES.items()
        for file in files
    }


def _entities() -> Parts:
    text = "-DOCSTART- -X- O O\n\nJohn NNP B-PER\nsays VBZ O\n\nParis NNP B-LOC\n"
    return {names[0]: text.encode() for names in ner.FILES["conll2003"].values()}


def _vocabulary() -> Parts:
    known = (*pieces.SPECIAL, "walk", "##ing", "the", "dog", "##s")
    return {"vocab.txt": "".join(f"{piece}\n" for piece in known).encode()}


def _read_vocabulary(folder: Path) -> pieces.Pieces:
    found = pieces.read(folder / "vocab.txt")
    for word in ("walking", "The dogs", "\u0301", ""):
        assert all(0 <= number < found.num_ids for number in found.cut(word))
    return found


def _prepared() -> Parts:
    from test_data_mnist_tfds import prepare

    return _files(lambda folder: prepare(folder, train=range(3), test=range(3, 5)))


_STATE = {"x": jnp.arange(3.0), "n": jnp.zeros((), jnp.int32)}


def _saved() -> Parts:
    return _files(lambda folder: checkpoint.save_state(folder, 3, _STATE))


def _ended_run() -> Parts:
    row = {"scheme": "dpsgd", "setting": {"rate": 0.1}, "run": 0, "round": 2}
    links = {**row, "cluster": [0, 0, 1], "links": [[0, 1, 4], [2, 0, 1]]}
    lines = {
        "metrics.jsonl": {**row, "accuracy": 0.5},
        "links.jsonl": links,
        "summary.json": {
            "experiment": "compare",
            "rows": [],
            "environment": {"jax": "0.10"},
        },
    }
    found = {name: json.dumps(line).encode() + b"\n" for name, line in lines.items()}
    return found | {"run.flags": b"--seed=1\n--num_rounds=2\n"}


def _read_flags(folder: Path) -> object:
    return config.parse(flags_of.Config, [f"--flagfile={folder / 'own.flags'}"])


_SIDES = {"x": np.zeros((3, 32, 32, 3), np.uint8), "y": np.array([0, 1, 9])}
_IMAGES = {
    f"{name}_{part}": array
    for part in ("train", "test")
    for name, array in _SIDES.items()
}
_DIGITS = idx_files.tiny()
_WRITERS = {"w_train": np.array([0, 1, 1]), "w_test": np.array([0, 2])}
_MOTION = {
    "x": np.zeros((3, har.NUM_FEATURES), np.float32),
    "y": np.array([0, 5, 1]),
    "user": np.array([1, 3, 3]),
}
_SENSED = {**_MOTION, "x": np.zeros((3, 100)), "y": np.array([0, 1, 1])}
_WRITTEN = {
    "x": np.zeros((3, 28, 28), np.uint8),
    "y": np.array([0, 61, 7], np.uint8),
    "user": np.array(["ann", "bob", "ann"]),
}

_examples = partial(partial, named.load_examples)
_documents = partial(partial, named.load_documents)

READERS = {
    # Labelled examples.
    "npz": Reader(
        lambda folder: named.load_examples("npz", folder / "own.npz"),
        partial(_archive, "own.npz", **_OWN),
    ),
    "npz_members": Reader(
        lambda folder: npz.load(folder / "own.npz"),
        partial(_members, "own.npz", **_OWN),
    ),
    "idx": Reader(_examples("idx"), partial(_files, idx_files.write)),
    "idx_gzip": Reader(
        _examples("idx"), partial(_files, partial(idx_files.write, packed=True))
    ),
    "mnist_idx": Reader(_examples("mnist"), partial(_files, idx_files.write)),
    "mnist_npz": Reader(
        _examples("mnist"),
        lambda: (
            _members("mnist.npz", **_DIGITS)
            | _members("mnist_writer_ids.npz", **_WRITERS)
        ),
    ),
    "femnist_npz": Reader(femnist.load, partial(_members, "femnist.npz", **_WRITTEN)),
    "femnist_hdf5": Reader(_examples("femnist"), partial(_files, _hdf5_images)),
    "femnist_hdf5_packed": Reader(
        lambda folder: femnist.load(folder / "fed_emnist.h5"),
        partial(_files, _packed_images),
    ),
    "femnist_sqlite": Reader(
        _examples("femnist"), partial(_characters, "emnist_all.sqlite")
    ),
    "femnist_leaf": Reader(_examples("femnist"), _leaf_pixels),
    "leaf_images": Reader(_examples("leaf"), _leaf_pixels),
    "leaf_features": Reader(_examples("leaf", pixels=False), _leaf_features),
    "tff_table": Reader(tff.load, lambda: _database(_characters("own.sqlite"))),
    "tff_rows": Reader(_examples("tff"), _colours),
    "cifar10_batches": Reader(_examples("cifar10"), _batches),
    "cifar10_npz": Reader(
        _examples("cifar10"), partial(_members, "cifar10_a.npz", **_IMAGES)
    ),
    "har_text": Reader(_examples("har"), _motions),
    "har_npz": Reader(_examples("har"), partial(_members, "uci_har.npz", **_MOTION)),
    "vsn": Reader(_examples("vsn"), partial(_members, "vsn.npz", **_SENSED)),
    "hospital": Reader(hospital.load, _patients),
    "hospital_gzip": Reader(
        hospital.load, lambda: _packed("einstein.csv.gz", _patients())
    ),
    "tfds": Reader(lambda folder: mnist.load_tfds("mnist", folder), _prepared, False),
    # Texts.
    "shakespeare_json": Reader(
        _documents("shakespeare"),
        partial(_json, "shakespeare.json", {"train": _ROLES, "test": _ROLES}),
    ),
    "shakespeare_hdf5": Reader(_documents("shakespeare"), partial(_files, _hdf5_roles)),
    "stackoverflow_hdf5": Reader(
        _documents("stackoverflow"),
        lambda: _files(
            lambda folder: _hdf5_texts(
                folder / "stackoverflow_train.h5", "tokens", "gzip"
            )
        ),
    ),
    "tff_texts": Reader(_documents("tff"), _spoken),
    "tff_texts_lzma": Reader(_documents("tff"), _by_lzma),
    "chat": Reader(_documents("chat"), partial(_json, "nps_chat.json", _ACTS)),
    "chat_gzip": Reader(
        _documents("chat"),
        lambda: _packed("nps_chat.json.gz", _json("nps_chat.json", _ACTS)),
    ),
    "reddit": Reader(_documents("reddit", subreddits=("nba", "chess")), _reddit),
    "senteval_json": Reader(senteval.load, _opinions),
    "senteval_lines": Reader(senteval.load, _opinions_by_line),
    "ner": Reader(partial(ner.load, name="conll2003"), _entities),
    "pieces": Reader(_read_vocabulary, _vocabulary),
    # Others.
    "edge_list": Reader(
        lambda folder: edge_lists.from_edge_list(folder / "edges.txt"),
        lambda: {"edges.txt": b"0 1  # neighbours\n1 2\n2 3\n"},
    ),
    "checkpoint": Reader(
        lambda folder: checkpoint.load_state(folder, _STATE), _saved, False
    ),
    "report": Reader(lambda folder: read_folder(folder, "own"), _ended_run),
    "flagfile": Reader(
        _read_flags,
        lambda: {"own.flags": b"# A comment.\n--seed=1\n--num_runs=2\n"},
    ),
}


@cache
def parts_of(name: str) -> Parts:
    """The sound files of a reader, made once."""
    return READERS[name].make()
