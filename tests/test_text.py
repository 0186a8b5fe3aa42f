"""Texts to samples: cleaning, vocabulary, windows, splits, agents; the speakers."""

import re
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pjax.datasets.loaders import speakers, text
from p2pjax.types import InputError

STREET = text.Vocabulary(
    ("he", "is", "walking", "down", "the", "street"),
    {"he": 2, "is": 3, "walking": 4, "down": 5, "the": 6, "street": 7},
)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("He is\nwalking", ["he", "is", "walking"]),
        ("don't_stop--now!!", ["don", "t", "stop", "now"]),
        ("<BOS> a <EOS> <PAD> <PAD>", ["a"]),
        ("a<eos>b <URL>", ["a", "b", "url"]),
        ("  Ünïcode\t«quotes» 42€ ", ["ünïcode", "quotes", "42"]),
        ("?!\r\n", []),
    ],
)
def test_cleaning(raw, expected):
    assert text.words(raw) == expected


def test_vocabulary_ranks_by_frequency_then_alphabet():
    seen = Counter("ccbbaddd")
    ranked = text.vocabulary(seen, 3)
    assert ranked.words == ("d", "b", "c")
    assert ranked.ids == {"d": 2, "b": 3, "c": 4}
    assert ranked.num_ids == 5
    assert text.vocabulary(seen, 10_000).words == ("d", "b", "c", "a")
    assert text.vocabulary({"never": 0, "once": 1}, 5).words == ("once",)
    with pytest.raises(InputError, match="at least one word, got 0"):
        text.vocabulary(seen, 0)


def test_the_example_of_the_papers():
    x, y = text.windows("he is walking down the street", STREET)
    np.testing.assert_array_equal(
        x,
        [
            [0] * 9 + [2],
            [0] * 8 + [2, 3],
            [0] * 7 + [2, 3, 4],
            [0] * 6 + [2, 3, 4, 5],
            [0] * 5 + [2, 3, 4, 5, 6],
        ],
    )
    np.testing.assert_array_equal(y, [3, 4, 5, 6, 7])


def test_unknown_words_are_inputs_and_targets():
    x, y = text.windows("He was WALKING", STREET, length=2)
    np.testing.assert_array_equal(x, [[0, 2], [2, 1]])
    np.testing.assert_array_equal(y, [1, 4])


def test_unknown_targets_do_not_count():
    target, predicted = np.array([5, 1, 7, 9]), np.array([5, 1, 2, 9])
    counted = text.counted(target)
    assert counted.sum() == 3
    assert (target == predicted)[counted].mean() == pytest.approx(2 / 3)


@pytest.mark.parametrize("short", ["", "...", "street"])
def test_texts_too_short_for_a_sample(short):
    x, y = text.windows(short, STREET)
    assert x.shape == (0, 10)
    assert y.shape == (0,)
    with pytest.raises(InputError, match="at least one word, got 0"):
        text.windows("he is", STREET, length=0)


def naive_samples(texts, ids, length):
    samples = []
    for words in texts:
        numbers = [ids.get(word, 1) for word in words]
        for t in range(1, len(numbers)):
            before = numbers[max(0, t - length) : t]
            samples.append(([0] * (length - len(before)) + before, numbers[t]))
    return samples


def blocks(samples, *percents):
    borders = [0, *(p * len(samples) // 100 for p in percents), len(samples)]
    return [samples[a:b] for a, b in pairwise(borders)]


def samples_of(split, agent):
    size = split.size[agent]
    x, y = (split.examples[name][agent, :size].tolist() for name in ("x", "y"))
    assert not split.examples["x"][agent, size:].any()
    return list(zip(x, y, strict=True))


TEXTS = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=14), max_size=6)


@given(users=st.lists(TEXTS, min_size=1, max_size=4), length=st.integers(1, 12))
def test_worlds_equal_a_plain_loop(users, length):
    """Cut after the samples are listed; words of training samples are known."""
    documents = text.Documents(
        [str(u) for u in range(len(users))],
        [[" ".join(words) for words in texts] for texts in users],
    )
    every_train = [
        blocks(naive_samples(texts, {}, length), 60, 80)[0] for texts in users
    ]
    if not any(every_train):
        with pytest.raises(InputError, match="at least two words"):
            text.encode(documents, 5)
        return
    corpus = text.encode(documents, 5)
    agents = range(len(users))
    world = text.world_of_users(corpus, agents, np.random.default_rng(0), length)
    for u, texts in enumerate(users):
        expected = blocks(naive_samples(texts, corpus.vocabulary.ids, length), 60, 80)
        assert sorted(samples_of(world.train, u)) == sorted(expected[0])
        assert samples_of(world.valid, u) == expected[1]
        assert samples_of(world.test, u) == expected[2]


def test_the_vocabulary_is_of_the_training_words_only():
    documents = text.Documents(["ann"], [["a b c d e f g h i j k"]])  # 10 samples
    known = text.encode(documents, 100).vocabulary
    assert known.words == tuple("abcdefg")  # 6 training samples have targets b .. g


def test_own_splits_of_the_source():
    texts = {"train": [["a b c d e"]], "valid": [["a c"]], "test": [["a d", "z z"]]}
    three = text.encode(text.Documents(["ann"], **texts), 100)
    sizes = [len(s[0].target) for s in (three.train, three.valid, three.test)]
    assert sizes == [4, 1, 2]
    two = text.encode(text.Documents(["ann"], texts["train"], test=texts["test"]), 100)
    sizes = [len(s[0].target) for s in (two.train, two.valid, two.test)]
    assert sizes == [3, 1, 2]
    assert two.vocabulary.words == tuple("abcd")  # e validates
    world = text.world_of_users(two, [0], np.random.default_rng(0))
    assert samples_of(world.test, 0)[1] == ([0] * 9 + [1], 1)  # z is unknown


def test_ids_are_small_where_they_fit():
    many = text.Documents(["ann"], [[" ".join(f"w{i}" for i in range(60_000))]])
    for num_words, dtype in ((1000, np.int16), (33_000, np.int32)):
        corpus = text.encode(many, num_words)
        assert corpus.train[0].ids.dtype == dtype
        world = text.world_of_users(corpus, [0], np.random.default_rng(0))
        assert world.train.examples["x"].dtype == dtype
        assert world.train.examples["x"].max() == num_words + 1
        assert world.train.examples["y"].dtype == np.int32


def chatter(sizes, group=None):
    """User u has sizes[u] training samples of the same word."""
    texts = [["a " * (n * 10 // 6 + 1)] for n in sizes]
    names = [str(u) for u in range(len(sizes))]
    return text.encode(text.Documents(names, texts, group=group), 10)


def test_runs_have_disjoint_agents():
    corpus = chatter([12] * 11)
    runs = [text.select(corpus, num_agents=3, run=r, seed=4) for r in range(3)]
    assert len(set(np.concatenate(runs).tolist())) == 9
    np.testing.assert_array_equal(
        runs[1], text.select(corpus, num_agents=3, run=1, seed=4)
    )
    others = [text.select(corpus, num_agents=3, run=r, seed=5) for r in range(3)]
    assert not np.array_equal(runs, others)
    with pytest.raises(InputError, match="Run 3 needs users 9 to 11 .*only 11 of 11"):
        text.select(corpus, num_agents=3, run=3)


def test_sizes_decide_who_is_chosen():
    corpus = chatter([6, 12, 30, 60, 0])
    chosen = text.select(corpus, num_agents=2, min_train=12, max_train=30)
    assert sorted(chosen) == [1, 2]
    assert sorted(text.select(corpus, num_agents=3, min_train=12)) == [1, 2, 3]
    assert sorted(text.select(corpus, num_agents=4)) == [0, 1, 2, 3]
    with pytest.raises(InputError, match=r"12 to 30 training .*only 2 of 5.*lower"):
        text.select(corpus, num_agents=3, min_train=12, max_train=30)
    with pytest.raises(InputError, match="at least one agent, .* got 0 agents"):
        text.select(corpus, num_agents=0)


def test_agents_have_known_words_to_be_judged_by():
    texts = [["a b a b a"], ["a b a b a"], ["a b a b a"]]
    tests = [["a b"], ["z z z"], ["a"]]
    corpus = text.encode(text.Documents(list("xyz"), texts, test=tests), 10)
    assert text.select(corpus, num_agents=1).tolist() == [0]
    with pytest.raises(InputError, match="known words .* only 1 of 3"):
        text.select(corpus, num_agents=2)


def test_groups_in_turn():
    group = np.array([7, 3, 7, 3, 7, 3, 7], np.int32)
    corpus = chatter([12] * 7, group)
    chosen = [text.select(corpus, num_agents=2, run=r, by_group=True) for r in range(3)]
    np.testing.assert_array_equal(group[np.stack(chosen)], [[3, 7]] * 3)
    assert len(np.unique(chosen)) == 6
    world = text.world_of_users(corpus, chosen[0], np.random.default_rng(0))
    np.testing.assert_array_equal(world.cluster, [0, 1])
    with pytest.raises(InputError, match="2 groups .* got 3: make it a multiple of 2"):
        text.select(corpus, num_agents=3, by_group=True)
    with pytest.raises(InputError, match="of group 3 with .* only 3 of 3"):
        text.select(corpus, num_agents=8, by_group=True)


def test_one_call_for_one_run():
    documents = text.Documents(
        [str(u) for u in range(6)], [[f"a b w{u} c " * (u + 3)] for u in range(6)]
    )
    world, known = text.text_world(documents, num_agents=3, num_words=4, run=1, seed=2)
    corpus = text.encode(documents, 4)
    users = text.select(corpus, num_agents=3, run=1, seed=2)
    assert known == corpus.vocabulary
    assert known.num_ids == 6
    np.testing.assert_array_equal(
        world.train.size, [len(corpus.train[u].target) for u in users]
    )
    np.testing.assert_array_equal(world.cluster, [0, 0, 0])
    in_order = samples_of(world.valid, 0)
    assert in_order != sorted(in_order)


def test_training_samples_are_shuffled_whole():
    documents = text.Documents(["ann"], [[" ".join(f"w{i}" for i in range(101))]])
    corpus = text.encode(documents)
    known = corpus.vocabulary.words
    world = text.world_of_users(corpus, [0], np.random.default_rng(0))
    number_of = {i + 2: int(word[1:]) for i, word in enumerate(known)}
    pairs = [(number_of[x[-1]], number_of[y]) for x, y in samples_of(world.train, 0)]
    assert sorted(pairs) == [(i, i + 1) for i in range(60)]
    assert pairs != sorted(pairs)


def test_histograms_count_known_training_targets():
    documents = text.Documents(
        ["ann", "bob"],
        [["a b a b a b"], ["c c c c z"]],
        test=[["a b a"], ["c c"]],
    )
    corpus = text.encode(documents, 2)  # b or c, whichever the alphabet prefers, and a
    assert corpus.vocabulary.words == ("c", "a")
    world = text.world_of_users(corpus, [0, 1], np.random.default_rng(0))
    # Targets b a b | a b validate; c c c | z validates.
    np.testing.assert_array_equal(
        text.histograms(world, corpus.vocabulary.num_ids), [[0, 1], [3, 0]]
    )


def test_speakers_follow_from_seed_and_number():
    few, many = speakers.speakers(3, 5), speakers.speakers(7, 5)
    assert many.users[:3] == few.users
    assert many.train[:3] == few.train
    assert speakers.speakers(3, 5, seed=1).train != few.train
    assert many.group.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert [len(texts) for texts in many.train] == [5] * 7
    for wrong in ({"num_speakers": 0}, {"num_texts": 0}, {"seed": -1}):
        with pytest.raises(InputError, match="at least one speaker"):
            speakers.speakers(**{"num_speakers": 1, **wrong})
    for num_topics in (0, 7):
        with pytest.raises(InputError, match=f"1 to 6 topics, got {num_topics}"):
            speakers.speakers(1, num_topics=num_topics)


def test_speakers_say_what_the_grammar_has():
    sizes = {tuple(len(words) for words in topic) for topic in speakers.TOPICS}
    assert sizes == {(12, 8, 8, 5)}
    patterns = " ".join(speakers.PATTERNS).split()
    spoken = " ".join(
        t for own in speakers.speakers(24, num_topics=6).train for t in own
    )
    known = {word for word in patterns if word.islower()} | set(speakers.DAYS)
    known |= {w for topic in speakers.TOPICS for words in topic for w in words}
    known |= set(text.words(" ".join((*speakers.OPENINGS, *speakers.CLOSINGS))))
    others = set(text.words(spoken)) - known  # names of friends
    assert all(re.fullmatch("([bdfgklmnprstvz][aeiou]){3}", name) for name in others)
    assert 40 <= len(others) <= 48


def pairs(split, agent):
    """The last word before and the word of each sample."""
    size = split.size[agent]
    last = split.examples["x"][agent, :size, -1].tolist()
    return list(zip(last, split.examples["y"][agent, :size].tolist(), strict=True))


def bigram_accuracy(train, test):
    following = defaultdict(Counter)
    for last, word in train:
        following[last][word] += 1
    guess = {last: words.most_common(1)[0][0] for last, words in following.items()}
    return np.mean([guess.get(last) == word for last, word in test if word >= 2])


def test_speakers_can_be_learned_and_help_each_other():
    world, known = text.text_world(speakers.speakers(32), num_agents=32, num_words=200)
    assert known.num_ids == 202
    assert 200 < world.train.size.mean() < 500
    assert 0 < np.mean(world.test.examples["y"] == 1) < 0.1
    train, test = ([pairs(s, n) for n in range(32)] for s in (world.train, world.test))
    kin = [np.flatnonzero(world.cluster == c) for c in world.cluster]
    total = {"constant": 0.0, "stranger": 0.0, "sibling": 0.0, "own": 0.0, "kin": 0.0}
    for n in range(32):
        sibling = next(m for m in kin[n] if m != n)
        stranger = next(m for m in range(32) if m not in kin[n])
        all_kin = [pair for m in kin[n] for pair in train[m]]
        sources = {
            "stranger": train[stranger],
            "sibling": train[sibling],
            "own": train[n],
            "kin": all_kin + 8 * train[n],  # own habits, and theirs where it has none
        }
        nothing_before = [(0, word) for _, word in test[n]]
        constant = bigram_accuracy([(0, word) for _, word in train[n]], nothing_before)
        total["constant"] += constant / 32
        for name, source in sources.items():
            total[name] += bigram_accuracy(source, test[n]) / 32
    assert total["constant"] < 0.2 < total["stranger"]
    assert total["stranger"] + 0.02 < total["sibling"]
    assert total["sibling"] + 0.1 < total["own"]
    assert total["own"] + 0.01 < total["kin"]
