"""Texts of many users as next-word samples: cleaning, vocabulary, windows, worlds.

One agent has the texts of one user and predicts every word from up to ten words
before it. Word ids are 0 for padding, 1 for words out of the vocabulary, and from 2 on
the words by rank. Words out of the vocabulary are inputs and targets like others, but
as targets they do not enter the accuracy (`counted`).

    corpus = encode(shakespeare.load("data"), num_words=10_000)
    users = select(corpus, num_agents=100, run=0)
    world = world_of_users(corpus, users, np.random.default_rng(0))
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from p2pjax.datasets.stacking import stack_agents
from p2pjax.types import FederatedData, InputError, Split

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2  # word ids


WINDOW = 10  # words a prediction may look at


_MARKERS = re.compile(r"<(?:bos|eos|pad)>", re.IGNORECASE)


_NOT_WORDS = re.compile(r"[\W_]+")


class Documents(NamedTuple):
    """What users wrote, as a loader returns it, not yet cleaned."""

    users: list[str]  # U names
    train: list[list[str]]  # U lists of texts, in the order of writing
    valid: list[list[str]] | None = None  # where the source has a part of its own
    test: list[list[str]] | None = None  # the same
    group: np.ndarray | None = None  # [U] int32 ground-truth group, where known


def words(text: str) -> list[str]:
    """The lower-case words of a text; all but letters and digits separates them.

    LEAF's markers for the beginning, the end and padding are deleted: "<BOS> He's
    walking! <EOS>" is he, s, walking.
    """
    return _NOT_WORDS.sub(" ", _MARKERS.sub(" ", text)).lower().split()


class Vocabulary(NamedTuple):
    """The most frequent words; `words[i]` has the id i + 2."""

    words: tuple[str, ...]
    ids: Mapping[str, int]

    @property
    def num_ids(self) -> int:
        """Inputs and outputs a network needs: the words, padding and unknown."""
        return len(self.words) + FIRST_WORD


class Samples(NamedTuple):
    """Samples of one user in one split: positions in what the user wrote."""

    ids: np.ndarray  # [words] ids of all texts, one text after the other
    start: np.ndarray  # [words] where the text of each word starts
    target: np.ndarray  # [samples] positions to predict, none the start of a text


def vocabulary(occurrences: Mapping[str, int], num_words: int) -> Vocabulary:
    """The most frequent words; among equally frequent ones the alphabet decides.

    Args:
        occurrences: how often each word occurs, e.g. `collections.Counter(words(...))`.
        num_words: at most; fewer where fewer words occur at all.
    """
    if num_words < 1:
        raise InputError(f"Need a vocabulary of at least one word, got {num_words}.")
    known = [word for word, times in occurrences.items() if times > 0]
    ranked = tuple(sorted(known, key=lambda w: (-occurrences[w], w))[:num_words])
    return Vocabulary(ranked, {word: i + FIRST_WORD for i, word in enumerate(ranked)})


class Corpus(NamedTuple):
    """All users' samples in ids; worlds of any run are cut out of it."""

    vocabulary: Any  # `Vocabulary`, or `Pieces` of `data.masked`
    users: list[str]  # U names
    train: list[Samples]
    valid: list[Samples]
    test: list[Samples]
    group: np.ndarray  # [U] int32, zeros where the source knows no groups


def windows(
    text: str, vocabulary: Vocabulary, length: int = WINDOW
) -> tuple[np.ndarray, np.ndarray]:
    """The samples of one text, one for every word but the first.

    Returns:
        x `[S, length]`, the words before, padded on the left; y `[S]`, the word.
    """
    ids = np.array([vocabulary.ids.get(w, UNKNOWN) for w in words(text)], np.int32)
    start = np.zeros(len(ids), np.int32)
    return _spelled_out(Samples(ids, start, np.arange(1, len(ids))), length)


def counted(y: Any) -> Any:
    """Which targets enter the accuracy: words of the vocabulary, `y`'s shape."""
    return y >= FIRST_WORD


def encode(documents: Documents, num_words: int = 10_000) -> Corpus:
    """Cleans all texts, builds the vocabulary and splits each user's samples.

    Without a test part of its own, the source is cut into consecutive blocks of each
    user's samples, 60 % to train, 20 % to validate, 20 % to test; with a test part but
    none for validation, the last quarter of the training samples validates.

    The vocabulary is that of all users, of what they wrote up to the last training
    sample, so it is the same in all runs.

    Raises:
        InputError: no user wrote two words in a row.
    """
    codes: dict[str, int] = {}  # every word in the order in which they appear

    def read(users: list[list[str]]) -> list[Samples]:
        return [_positions([words(text) for text in texts], codes) for texts in users]

    train, valid, test = split_samples(documents, read)
    occurrences = np.zeros(len(codes), np.int64)
    for samples in train:
        end = samples.target[-1] + 1 if len(samples.target) else 0
        occurrences += np.bincount(samples.ids[:end], minlength=len(codes))
    known = vocabulary(dict(zip(codes, occurrences, strict=True)), num_words)
    dtype = np.int16 if known.num_ids < 2**15 else np.int32
    id_of_code = np.array([known.ids.get(word, UNKNOWN) for word in codes], dtype)

    def with_ids(users: list[Samples]) -> list[Samples]:
        return [samples._replace(ids=id_of_code[samples.ids]) for samples in users]

    group = documents.group
    if group is None:
        group = np.zeros(len(documents.users), np.int32)
    return Corpus(
        known, documents.users, with_ids(train), with_ids(valid), with_ids(test), group
    )


def split_samples(
    documents: Documents, read: Callable[[list[list[str]]], list[Samples]]
) -> tuple[list[Samples], list[Samples], list[Samples]]:
    """Every user's samples to train, validate and test; see `encode`.

    Args:
        documents: all users' texts.
        read: makes samples of the texts of all users.
    """
    train = read(documents.train)
    if documents.test is None:
        train, valid, test = _cut(train, (60, 80))
    else:
        test = read(documents.test)
        if documents.valid is None:
            train, valid = _cut(train, (75,))
        else:
            valid = read(documents.valid)
    if not any(len(samples.target) for samples in train):
        raise InputError(
            "Need texts of at least two words to predict a word from those before it, "
            f"got none from {len(documents.users)} users: choose other data."
        )
    return train, valid, test


def select(
    corpus: Corpus,
    *,
    num_agents: int,
    run: int = 0,
    seed: int = 0,
    min_train: int = 1,
    max_train: int | None = None,
    by_group: bool = False,
) -> np.ndarray:
    """Chooses the users that become agents, different ones in every run.

    Candidates have from `min_train` to `max_train` training samples, and at least one
    target of the vocabulary to validate and one to test on. They are shuffled by the
    seed; run r takes the r-th `num_agents` of them.

    Args:
        corpus: from `encode`.
        num_agents: N.
        run: 0 or more.
        seed: of the order; the same in all runs, or they will not be disjoint.
        min_train: smallest number of training samples.
        max_train: largest; None is no limit.
        by_group: the same number of agents from every group, group after group.

    Returns:
        Numbers of users, `[N]`.

    Raises:
        InputError: too few candidates for this run, or groups that cannot be equal.
    """
    if num_agents < 1 or run < 0 or seed < 0:
        raise InputError(
            "Need at least one agent, and run and seed of 0 or more, got "
            f"{num_agents} agents, run {run} and seed {seed}."
        )
    sizes = np.array([len(samples.target) for samples in corpus.train])
    fits = sizes >= min_train
    if max_train is not None:
        fits &= sizes <= max_train
    for split in (corpus.valid, corpus.test):
        fits &= [bool(counted(samples.ids[samples.target]).any()) for samples in split]
    groups = np.unique(corpus.group) if by_group else np.zeros(1, np.int32)
    each, rest = divmod(num_agents, len(groups))
    if rest:
        raise InputError(
            f"Need a number of agents that {len(groups)} groups can share equally, got "
            f"{num_agents}: make it a multiple of {len(groups)}."
        )
    rng = np.random.default_rng(seed)
    chosen = []
    for group in groups:
        inside = corpus.group == group if by_group else np.ones(len(fits), bool)
        candidates = rng.permutation(np.flatnonzero(fits & inside))
        chosen.append(candidates[run * each : (run + 1) * each])
        if len(chosen[-1]) < each:
            raise InputError(
                f"Run {run} needs users {run * each} to {(run + 1) * each - 1} of those"
                f"{f' of group {group}' if by_group else ''} with {min_train} "
                f"{'or more' if max_train is None else f'to {max_train}'} training "
                f"samples and some known words to validate and test on, but only "
                f"{len(candidates)} of {inside.sum()} users are such: lower the number "
                "of agents or runs, or widen the limits."
            )
    return np.concatenate(chosen)


def world_of_users(
    corpus: Corpus,
    users: Sequence[int] | np.ndarray,
    rng: np.random.Generator,
    length: int = WINDOW,
) -> FederatedData:
    """The world in which agent n has the samples of user `users[n]`.

    Examples are x `[N, M, length]` (int16 or int32 ids) and y `[N, M]` (int32). The
    training samples of each agent are shuffled, because a sampler may take them in
    order; the others stay in order. Groups become clusters, numbered from 0.
    """

    def stacked(split: list[Samples], order: Any) -> Split:
        agents = []
        for user in users:
            samples = split[user]
            target = order(samples.target)
            x, y = _spelled_out(samples._replace(target=target), length)
            agents.append({"x": x, "y": y})
        return stack_agents(agents)

    return FederatedData(
        train=stacked(corpus.train, rng.permutation),
        valid=stacked(corpus.valid, np.asarray),
        test=stacked(corpus.test, np.asarray),
        cluster=np.unique(corpus.group[users], return_inverse=True)[1].astype(np.int32),
    )


def text_world(
    documents: Documents,
    *,
    num_agents: int,
    num_words: int = 10_000,
    run: int = 0,
    seed: int = 0,
    min_train: int = 1,
    max_train: int | None = None,
    by_group: bool = False,
) -> tuple[FederatedData, Vocabulary]:
    """One run's world straight from the texts; see `encode` and `select`.

    For several runs, `encode` once.
    """
    corpus = encode(documents, num_words)
    users = select(
        corpus,
        num_agents=num_agents,
        run=run,
        seed=seed,
        min_train=min_train,
        max_train=max_train,
        by_group=by_group,
    )
    rng = np.random.default_rng([seed, run])
    return world_of_users(corpus, users, rng), corpus.vocabulary


def histograms(world: FederatedData, num_ids: int) -> np.ndarray:
    """How often each agent has each word as training target, `[N, num_ids - 2]`.

    Padding and unknown words are left out: column j is the word with id j + 2.
    """
    size = np.asarray(world.train.size)
    rows = zip(np.asarray(world.train.examples["y"]), size, strict=True)
    return np.stack(
        [np.bincount(y[:n], minlength=num_ids)[FIRST_WORD:] for y, n in rows]
    )


def _positions(texts: Iterable[list[str]], codes: dict[str, int]) -> Samples:
    """One user's words as codes, extending `codes` by the words it lacks."""
    ids: list[int] = []
    start: list[int] = []
    for text in texts:
        start += [len(ids)] * len(text)
        ids += [codes.setdefault(word, len(codes)) for word in text]
    starts = np.array(start, np.int32)
    target = np.flatnonzero(np.arange(len(starts)) > starts)
    return Samples(np.array(ids, np.int32), starts, target)


def _cut(users: list[Samples], percents: tuple[int, ...]) -> list[list[Samples]]:
    """Consecutive blocks of every user's samples, as many lists as blocks."""
    blocks = [
        np.split(s.target, [percent * len(s.target) // 100 for percent in percents])
        for s in users
    ]
    return [
        [s._replace(target=own[b]) for s, own in zip(users, blocks, strict=True)]
        for b in range(len(percents) + 1)
    ]


def _spelled_out(samples: Samples, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows x `[S, length]` in the dtype of the ids, and y `[S]` int32."""
    if length < 1:
        raise InputError(f"Need windows of at least one word, got {length}.")
    before = samples.target[:, None] + np.arange(-length, 0)  # [S, length] positions
    inside = before >= samples.start[samples.target][:, None]
    x = np.where(inside, samples.ids[np.maximum(before, 0)], samples.ids.dtype.type(0))
    return x, samples.ids[samples.target].astype(np.int32)
