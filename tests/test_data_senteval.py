"""SentEval's texts, their stand-in, and vectors of texts."""

import gzip
import json

import numpy as np
import pytest

from p2pjax.datasets.loaders import embedding, points, senteval
from p2pjax.types import InputError

GOOD = {
    name: {"neg": [f"bad {name}", "worse"], "pos": [f"good {name}"]}
    for name in senteval.TASKS
}


def write_json(path, content):
    raw = json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def write_folders(folder):
    for name, files in senteval.FILES.items():
        (folder / name).mkdir()
        for file, texts in zip(files, GOOD[name].values(), strict=True):
            lines = "\n".join([*texts, ""])
            (folder / name / file).write_text(lines, encoding="latin-1")


@pytest.mark.parametrize("form", ["senteval.json", "senteval_4.json.gz", "folders"])
def test_load(tmp_path, form):
    if form == "folders":
        write_folders(tmp_path)
    else:
        write_json(tmp_path / form, GOOD)
    tasks = senteval.load(tmp_path)
    assert [task.name for task in tasks] == ["MR", "CR", "SUBJ", "MPQA"]
    for task in tasks:
        assert task.texts == [f"bad {task.name}", "worse", f"good {task.name}"]
        assert task.y.tolist() == [0, 0, 1]
    some = senteval.load(tmp_path, ("MPQA", "MR"))
    assert [task.name for task in some] == ["MPQA", "MR"]


def test_load_keeps_bytes_that_are_not_utf8(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "MR" / "rt-polarity.pos").write_bytes(b"caf\xe9\n\nnoir\x85\n")
    assert senteval.load(tmp_path)[0].texts[2:] == ["caf\xe9", "noir\x85"]


def test_load_refuses(tmp_path):
    with pytest.raises(InputError, match="tasks among MR, CR, SUBJ, MPQA, got 'SST'"):
        senteval.load(tmp_path, ("SST",))
    with pytest.raises(InputError, match="SentEval needs folders MR, CR"):
        senteval.load(tmp_path)
    path = write_json(tmp_path / "senteval.json", {"MR": GOOD["MR"]})
    with pytest.raises(InputError, match="no such texts for CR"):
        senteval.load(path)
    write_json(path, GOOD | {"CR": {"neg": ["a"], "pos": []}})
    with pytest.raises(InputError, match="CR needs texts of both classes.*1 and 0"):
        senteval.load(path)
    write_json(path, GOOD | {"CR": {"neg": ["a"], "pos": [3]}})
    with pytest.raises(InputError, match="no such texts for CR"):
        senteval.load(path)
    write_json(path, [1])
    with pytest.raises(InputError, match="no such texts for MR"):
        senteval.load(path)
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        senteval.load(path)
    write_json(tmp_path / "senteval.json.gz", GOOD)
    with pytest.raises(InputError, match="found senteval.json, senteval.json.gz"):
        senteval.load(tmp_path)


def test_missing_part_of_a_task_is_named(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "SUBJ" / "subj.objective").unlink()
    with pytest.raises(InputError, match="subj.objective .* is missing"):
        senteval.load(tmp_path)


def test_real_texts(real_data):
    tasks = senteval.load(real_data)
    sizes = {task.name: len(task.texts) for task in tasks}
    assert sizes["MR"] == 10662
    assert sizes["SUBJ"] == 10000
    assert 3700 < sizes["CR"] < 3800
    assert 10600 <= sizes["MPQA"] <= 10606


def test_topics_stand_in():
    tasks = senteval.topics(5)
    assert len(tasks) == 4
    for task in tasks:
        assert len(task.texts) == 10
        assert task.y.tolist() == [0] * 5 + [1] * 5
    assert tasks[0].texts[5:] == tasks[1].texts[:5]  # topic 1 is in both


def test_counts_are_those_of_hashed_ngrams():
    texts = ["Good, good film!", "a film", ""]
    counts = embedding.count_ngrams(texts)
    assert counts.shape == (3, embedding.NUM_BINS)
    assert embedding.ngrams(texts[0]) == [
        *("good", "good", "film", "!"),
        *("good good", "good film", "film !"),
    ]
    # Signed: what two texts share has a positive product.
    assert counts.nnz == 6 + 3
    assert (counts @ counts.T)[0, 1] == 1  # film
    assert (counts @ counts.T)[0, 0] == 4 + 5
    assert counts[2].nnz == 0
    assert set(counts.data) <= {-2, -1, 1, 2}


@pytest.mark.slow
def test_vectors_keep_the_angles_of_tf_idf():
    texts = [f"word{i} word{i + 1} common" for i in range(40)]
    is_train = np.arange(40) < 30
    counts = embedding.count_ngrams(texts)
    vectors = embedding.embed(counts, is_train, num_dims=130, seed=1)
    assert vectors.shape == (40, 130)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)

    dense = counts[:, np.unique(counts.indices)].toarray()
    in_texts = (dense[:30] != 0).sum(0)
    weighted = dense * (np.log(31 / (1 + in_texts)) + 1)
    weighted /= np.linalg.norm(weighted, axis=1, keepdims=True)
    angles = vectors @ vectors.T
    # A random projection to 130 numbers is right to about 1 / sqrt(130) each.
    assert abs(angles - weighted @ weighted.T).max() < 5 / np.sqrt(130)
    again = embedding.embed(counts, is_train, num_dims=130, seed=1)
    np.testing.assert_array_equal(vectors, again)
    other = embedding.embed(counts, is_train, num_dims=130, seed=2)
    assert abs(vectors - other).max() > 0.01


def test_principal_axes_are_those_of_a_singular_value_decomposition():
    rng = np.random.default_rng(0)
    words = [[f"a{i} b{i} c{i}", f"d{i} e{i}"] for i in range(3)]  # three themes
    texts = [
        " ".join(words[n % 3][k] for k in rng.integers(0, 2, 4)) + f" own{n}"
        for n in range(60)
    ]
    is_train = np.arange(60) < 45
    counts = embedding.count_ngrams(texts)
    vectors = embedding.embed(counts, is_train, num_dims=3, principal=True)
    dense = counts[:, np.unique(counts.indices)].toarray()
    weighted = dense * (np.log(46 / (1 + (dense[:45] != 0).sum(0))) + 1)
    axes = np.linalg.svd(weighted[:45], full_matrices=False)[2][:3]
    expected = weighted @ axes.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    # The same up to a rotation of the axes: angles between texts agree.
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=0.02)


def test_vectors_of_nothing_and_of_bad_arguments():
    counts = embedding.count_ngrams(["", "some words"])
    both = np.ones(2, bool)
    vectors = embedding.embed(counts, both, num_dims=3)
    assert not vectors[0].any() and vectors[1].any()
    for is_train, num_dims, seed in ((~both, 3, 0), (both, 0, 0), (both, 3, -1)):
        with pytest.raises(InputError, match="Need 1 training texts"):
            embedding.embed(counts, is_train, num_dims, seed)
    with pytest.raises(InputError, match="Need 3 training texts.* got 2, 3 and 0"):
        embedding.embed(counts, both, num_dims=3, principal=True)


def test_points():
    world = points.world(np.random.default_rng(0), 2000, 4000)
    train, test = world.train.examples, world.test.examples
    for machine in range(3):
        found = np.bincount(train["y"][machine], minlength=4)
        assert found[machine] == found[machine + 1] == 1000
    assert np.bincount(test["y"][0]).tolist() == [1000] * 4
    np.testing.assert_array_equal(test["x"][0], test["x"][2])
    # The best possible guess is the nearest centre: right for 75.12 % of the points.
    distance = np.square(test["x"][0][:, None] - points.CENTERS).sum(-1)
    right = (distance.argmin(1) == test["y"][0]).mean()
    assert right == pytest.approx(0.7512, abs=0.02)
    for sizes in ((3, 4), (2, 6), (0, 4)):
        with pytest.raises(InputError, match="multiple of 2 training points"):
            points.world(np.random.default_rng(0), *sizes)
