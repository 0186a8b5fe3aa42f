"""Loaders of texts by user: tiny files of each public format, and the real files."""

import gzip
import json
import sys

import h5py
import numpy as np
import pytest

from p2pjax.datasets.loaders import chat, reddit, shakespeare, stackoverflow, text
from p2pjax.types import InputError


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def write_hdf5(path, field, clients, **others):
    with h5py.File(path, "w") as file:
        for client, texts in clients.items():
            strings = h5py.string_dtype()
            data = np.array(texts, object)
            file.create_dataset(f"examples/{client}/{field}", data=data, dtype=strings)
            for name, value in others.items():
                file[f"examples/{client}/{name}"] = value
    return path


def refused(load, path, *facts, **options):
    """Checks that loading ends in one sentence that states all the facts."""
    with pytest.raises(InputError) as error:
        load(path, **options)
    for fact in facts:
        assert str(fact) in str(error.value)
    assert "\n" not in str(error.value)


def leaf(comments):
    """LEAF's form of {user: [(subreddit, "words of a comment"), ...]}."""

    def chunks(words):
        tokens = ["<BOS>", *words.split(), "<EOS>"]
        tokens += ["<PAD>"] * (-len(tokens) % 10)
        return [tokens[i : i + 10] for i in range(0, len(tokens), 10)]

    return {
        "users": list(comments),
        "num_samples": [99] * len(comments),  # LEAF's are of all splits together
        "user_data": {
            user: {
                "x": [chunks(words) for _, words in own],
                "y": [{"subreddit": name, "score": 3} for name, _ in own],
            }
            for user, own in comments.items()
        },
    }


LONG = "one two three four five six seven eight nine ten eleven ."


def write_reddit(folder, train, val, test):
    for split, comments in (("train", train), ("val", val), ("test", test)):
        write_json(folder / split / f"reddit_0_{split}.json", leaf(comments))


def test_reddit_joins_chunks_and_keeps_the_split(tmp_path):
    write_reddit(
        tmp_path,
        train={"1": [("nba", LONG), ("nba", "b c")], "2": [("aww", "d e")]},
        val={"1": [("nba", "f g")], "2": [("aww", "h i")]},
        test={"2": [("aww", "j k")]},
    )
    more = leaf({"3": [("nba", "l m n")]})
    write_json(tmp_path / "train" / "reddit_1_train.json", more)
    documents = reddit.load(tmp_path)
    assert documents.users == ["1", "2", "3"]
    assert documents.group is None
    corpus = text.encode(documents, 100)
    assert text.words(documents.train[0][0]) == LONG.split()[:-1]
    sizes = [
        [len(samples.target) for samples in split]
        for split in (corpus.train, corpus.valid, corpus.test)
    ]
    assert sizes == [[11, 1, 2], [1, 1, 0], [0, 1, 0]]
    assert reddit.load(tmp_path, max_users=1).users == ["1"]


def test_reddit_by_subreddit(tmp_path):
    nba, politics, aww = (("nba", "a b"), ("politics", "c d"), ("aww", "e f"))
    good = {"fan": [nba] * 9 + [aww], "voter": [politics]}
    train = {
        **good,
        "both": [nba, politics],
        "loose": [nba] * 8 + [aww] * 2,
        "none": [aww],
        "changed": [nba],
        "silent": [nba],
    }
    val = {user: own[:1] for user, own in train.items()}
    test = {**val, "changed": [nba] * 9 + [politics], "silent": []}
    write_reddit(tmp_path, train, val, test)
    documents = reddit.load(tmp_path, subreddits=("politics", "nba"))
    assert documents.users == ["fan", "voter"]
    assert documents.group.tolist() == [1, 0]
    assert len(documents.train[0]) == 10
    assert documents.test == [
        ["<BOS> " + a + " <EOS>" + " <PAD>" * 6] for a in ("a b", "c d")
    ]
    facts = ("in only one of chess", "found none among 7", "other subreddits")
    refused(reddit.load, tmp_path, *facts, subreddits=("chess",))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"users": "bob"}, ["users must be a list of names", "found str"]),
        ({"user_data": []}, ["an object", "list"]),
        ({"user_data": {}}, ["user bob", "must have x", "found None"]),
        ({"user_data": {"bob": {"x": [], "y": [{}]}}}, ["each of 0 comments", "1"]),
        ({"user_data": {"bob": {"x": [[["a"]]]}}}, ["each of 1 comments", "NoneType"]),
        (
            {"user_data": {"bob": {"x": ["a raw comment"], "y": [{}]}}},
            ["lists of tokens", "found a raw comment", "preprocess.py"],
        ),
        ({"user_data": {"bob": {"x": [[[1]]], "y": [{}]}}}, ["tokens", "found [[1]]"]),
    ],
)
def test_reddit_refuses(tmp_path, changes, facts):
    write_reddit(tmp_path, *[{"bob": [("nba", "a b")]}] * 3)
    path = tmp_path / "val" / "reddit_0_val.json"
    write_json(path, {**leaf({"bob": [("nba", "a b")]}), **changes})
    refused(reddit.load, tmp_path, path, *facts)


def test_reddit_files(tmp_path):
    wanted = "train/*.json and val/*.json and test/*.json"
    refused(reddit.load, tmp_path / "none", wanted, "does not exist", "data/README.md")
    refused(reddit.load, tmp_path, wanted, "is an empty folder")
    write_reddit(tmp_path, {}, {}, {})
    refused(reddit.load, tmp_path, "at least one user is needed", "none among 0")
    path = write_json(tmp_path / "train" / "reddit_0_train.json", {"train": {}})
    refused(reddit.load, tmp_path, path, "LEAF JSON of Reddit", "holds the keys train")
    path.write_bytes(path.read_bytes()[:-1])
    refused(reddit.load, tmp_path, path, "may be cut off")


SPOKEN = {"KING": ["To be, or", "not to be."], "QUEEN": ["Ay."]}
HEARD = {"QUEEN": ["Good night, good night."], "GHOST": ["Swear!"]}


def check_shakespeare(documents):
    assert documents.users == ["KING", "QUEEN"]
    assert documents.train == [["To be, or", "not to be."], ["Ay."]]
    assert documents.valid is None
    assert documents.test == [[], ["Good night, good night."]]


def test_shakespeare_in_hdf5(tmp_path):
    train = write_hdf5(tmp_path / "shakespeare_train.h5", "snippets", SPOKEN)
    refused(shakespeare.load, tmp_path, "only shakespeare_train.h5", "add the other")
    refused(shakespeare.load, train, "the one file", "name their folder")
    write_hdf5(tmp_path / "shakespeare_test.h5", "snippets", HEARD)
    write_json(tmp_path / "shakespeare.json", {"train": {}})  # HDF5 wins
    check_shakespeare(shakespeare.load(tmp_path))


@pytest.mark.parametrize("name", ["shakespeare_tff.json.gz", "shakespeare.json"])
def test_shakespeare_in_json(tmp_path, name):
    path = write_json(tmp_path / name, {"train": SPOKEN, "test": HEARD})
    check_shakespeare(shakespeare.load(tmp_path))
    renamed = path.rename(tmp_path / "own")  # how it is packed shows in the content
    check_shakespeare(shakespeare.load(renamed))
    assert shakespeare.load(write_json(renamed, {"train": SPOKEN})).test is None


def test_shakespeare_refuses(tmp_path):
    wanted = ["shakespeare_train.h5", "shakespeare*.json"]
    refused(shakespeare.load, tmp_path, *wanted, "is an empty folder")
    refused(shakespeare.load, tmp_path / "none", *wanted, "does not exist")
    for content, *facts in [
        ([], "train", "holds list"),
        ({"KING": ["a b"]}, "train", "holds KING"),
        ({"train": ["a b"]}, "train: must be an object", "found list"),
        ({"train": {"KING": "a b"}}, "user KING", "list of strings", "found a b"),
        (
            {"train": {"KING": []}, "test": {"KING": [1]}},
            "test, user KING",
            "found [1]",
        ),
        ({"train": {}}, "at least one user"),
    ]:
        path = write_json(tmp_path / "shakespeare.json", content)
        refused(shakespeare.load, tmp_path, path, *facts)
    packed = write_json(tmp_path / "shakespeare.json.gz", {"train": SPOKEN})
    refused(shakespeare.load, tmp_path, "json, shakespeare.json.gz", "name the file")
    raw = packed.read_bytes()
    for kept in (3, 12, len(raw) // 2, len(raw) - 1):
        packed.write_bytes(raw[:kept])
        refused(shakespeare.load, packed, packed, "may be cut off")
    packed.write_bytes(b"")
    refused(shakespeare.load, packed, "is empty")


POSTS = {"00001": ["edit :", "i found <URL> to be free ."], "00002": ["thanks .", "ok"]}


def test_stackoverflow(tmp_path):
    others = {"title": np.array([b"x", b"y"]), "score": np.array([3, -1])}
    path = write_hdf5(tmp_path / "stackoverflow_train.h5", "tokens", POSTS, **others)
    for place in (path, str(tmp_path)):
        documents = stackoverflow.load(place)
        assert documents.users == ["00001", "00002"]
        assert documents.train == list(POSTS.values())
        assert documents.test is None
    assert text.words(documents.train[0][1]) == [
        "i",
        "found",
        "url",
        "to",
        "be",
        "free",
    ]
    assert stackoverflow.load(path, max_users=1).users == ["00001"]
    with h5py.File(path, "r+") as file:  # strings of fixed length
        del file["examples/00002/tokens"]
        file["examples/00002/tokens"] = np.array([b"caf\xc3\xa9", b"\xff"])
    assert stackoverflow.load(path).train[1] == ["café", "\ufffd"]


def test_stackoverflow_refuses(tmp_path, monkeypatch):
    load = stackoverflow.load
    refused(load, tmp_path, "stackoverflow_train.h5", "empty folder", "data/README.md")
    path = write_hdf5(tmp_path / "stackoverflow_train.h5", "snippets", POSTS)
    refused(load, path, "client 00001", "tokens needed", "found snippets")
    for bad, found in [(np.ones((2, 2)), "float64 [2, 2]"), (np.array(b"a"), "S1 []")]:
        with h5py.File(path, "w") as file:
            file["examples/bob/tokens"] = bad
        refused(load, path, "client bob", "must be strings [n]", found)
    with h5py.File(path, "w") as file:
        file["examples/bob/tokens/deeper"] = 1
    refused(load, path, "client bob", "must be strings [n]", "found a group")
    with h5py.File(path, "w") as file:
        file["weights"] = 1
    refused(load, path, "examples/<client>/tokens", "has weights")
    with h5py.File(path, "w") as file:
        file.create_group("examples")
    refused(load, path, "at least one user")
    path.write_bytes(path.read_bytes()[:100])
    refused(load, path, "may be cut off")
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(load, path, "h5py is not installed", "pip install 'p2pjax[hdf5]'")


def test_chat(tmp_path):
    rows = [
        ["10-19-20s_706posts.xml", "10-19-20sUser7", "Greet", "hi 10-19-20sUser12!"],
        ["10-19-20s_706posts.xml", "10-19-20sUser12", "System", "JOIN"],
        ["10-19-20s_706posts.xml", "10-19-20sUser9", "Emotion", "lol"],
        ["10-19-20s_706posts.xml", "10-19-20sUser7", "Statement", "how are you"],
    ]
    path = write_json(tmp_path / "nps_chat.json.gz", rows)
    for place in (path, tmp_path):
        documents = chat.load(place)
        assert documents.users == ["10-19-20sUser7", "10-19-20sUser9"]
        words = [[text.words(post) for post in posts] for posts in documents.train]
        assert words == [[["hi", "user"], ["how", "are", "you"]], [["lol"]]]
        assert documents.test is None


def test_chat_refuses(tmp_path):
    refused(chat.load, tmp_path, "nps_chat.json.gz", "is an empty folder")
    for content, *facts in [
        ({"a": 1}, "[session, user, act, post]", "holds dict"),
        ([["s", "u", "a", "p"], ["s", "u", "a"]], "row 1", "four strings"),
        ([["s", "u", "a", 4]], "row 0", "four strings", "4]"),
        ([["s", "u", "System", "JOIN"]], "at least one post", "none among 1"),
    ]:
        path = write_json(tmp_path / "nps_chat.json", content)
        refused(chat.load, tmp_path, path, *facts)


def jsd(p, q):
    m = (p + q) / 2

    def divergence(a):
        return np.sum(a[a > 0] * np.log2(a[a > 0] / m[a > 0]))

    return (divergence(p) + divergence(q)) / 2


def mean_jsd(counts):
    shares = counts / counts.sum(1, keepdims=True)
    n = len(shares)
    return np.mean([jsd(shares[i], shares[j]) for i in range(n) for j in range(i)])


def test_the_real_shakespeare(real_data):
    path = real_data / "shakespeare_tff.json.gz"
    if not path.exists():
        pytest.skip(f"needs the real {path}")
    documents = shakespeare.load(path)
    assert len(documents.users) == 715
    corpus = text.encode(documents)
    assert corpus.vocabulary.num_ids == 10_002
    assert corpus.vocabulary.words[:4] == ("the", "and", "i", "to")
    runs = [text.select(corpus, num_agents=60, run=r, min_train=300) for r in range(3)]
    assert len(np.unique(runs)) == 180
    world = text.world_of_users(corpus, runs[0], np.random.default_rng(0))
    assert world.train.size.min() >= 300
    share = world.valid.size.sum() / (world.train.size.sum() + world.valid.size.sum())
    assert share == pytest.approx(0.25, abs=0.005)
    counts = text.histograms(world, corpus.vocabulary.num_ids)
    assert counts.shape == (60, 10_000)
    # At most a tenth of all classes in most agents' training data, and a divergence
    # like that of the papers' corpora (0.57 StackOverflow, 0.66 Reddit).
    assert np.median((counts > 0).mean(1)) < 0.1
    assert 0.4 < mean_jsd(counts) < 0.7


def test_the_real_chat(real_data):
    path = real_data / "nps_chat.json.gz"
    if not path.exists():
        pytest.skip(f"needs the real {path}")
    documents = chat.load(path)
    assert sum(len(posts) for posts in documents.train) == 10567 - 2632
    world, known = text.text_world(documents, num_agents=40, min_train=30)
    assert world.train.size.shape == (40,)
    assert "user" in known.ids
    assert not any("user" in word and word != "user" for word in known.words[:300])
