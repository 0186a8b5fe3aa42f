"""Users' texts as masked-token samples: predict a piece from those before it.

As `text`, one agent per user, but in pieces of words (`pieces`) for an encoder. A text
is cut into sentences at full stops; every piece that begins a word is a target, also
the first of a sentence:

    [CLS] pieces before it [MASK] [SEP] [PAD] ...

    corpus = encode(shakespeare.load("data"), pieces)
    users = text.select(corpus, num_agents=20, min_train=700)
    world = world_of_users(corpus, users, rng, pieces, length=128)
"""

from collections.abc import Iterable, Sequence

import numpy as np

from p2pjax.datasets.loaders import text
from p2pjax.datasets.loaders.pieces import Pieces
from p2pjax.datasets.loaders.text import Corpus, Documents, Samples
from p2pjax.datasets.stacking import stack_agents
from p2pjax.types import FederatedData, InputError, Split


def sentences(document: str) -> list[list[str]]:
    """The words of every sentence, in lower case and without punctuation."""
    found = [text.words(sentence) for sentence in document.split(".")]
    return [words for words in found if words]


def encode(documents: Documents, pieces: Pieces) -> Corpus:
    """All users' samples; they are split as `text.encode` does."""

    def read(users: list[list[str]]) -> list[Samples]:
        return [_positions(own, pieces) for own in users]

    train, valid, test = text.split_samples(documents, read)
    group = documents.group
    if group is None:
        group = np.zeros(len(documents.users), np.int32)
    return Corpus(pieces, documents.users, train, valid, test, group)


def world_of_users(
    corpus: Corpus,
    users: Sequence[int] | np.ndarray,
    rng: np.random.Generator,
    pieces: Pieces,
    *,
    length: int,
    max_examples: int | None = None,
) -> FederatedData:
    """The world in which agent n has the samples of user `users[n]`.

    Examples are tokens `[N, M, length]` and y `[N, M]`: see `masked_token`.
    Samples are shuffled.

    Args:
        corpus: from `encode`.
        users: from `text.select`.
        rng: shuffles.
        pieces: the vocabulary.
        length: of a sequence of tokens, of which three are [CLS], [MASK] and [SEP].
        max_examples: of an agent in a part; None is no limit.
    """

    def stacked(split: list[Samples]) -> Split:
        agents = []
        for user in users:
            target = rng.permutation(split[user].target)[:max_examples]
            agents.append(
                _spelled_out(split[user]._replace(target=target), pieces, length)
            )
        return stack_agents(agents)

    return FederatedData(
        stacked(corpus.train),
        stacked(corpus.valid),
        stacked(corpus.test),
        cluster=np.unique(corpus.group[users], return_inverse=True)[1].astype(np.int32),
    )


def _positions(documents: Iterable[str], pieces: Pieces) -> Samples:
    """One user's pieces; a sentence is what `Samples` calls a text."""
    ids: list[int] = []
    start: list[int] = []
    for document in documents:
        for words in sentences(document):
            own = [piece for word in words for piece in pieces.cut(word)]
            start += [len(ids)] * len(own)
            ids += own
    every = np.array(ids, np.int32)
    return Samples(
        every, np.array(start, np.int32), np.flatnonzero(~pieces.continues[every])
    )


def _spelled_out(
    samples: Samples, pieces: Pieces, length: int
) -> dict[str, np.ndarray]:
    if length < 4:
        raise InputError(
            "Need sequences of 4 tokens or more, [CLS], a piece, [MASK] and [SEP], got "
            f"{length}."
        )
    target = samples.target
    number = np.minimum(target - samples.start[target], length - 3)  # pieces before it
    place = np.arange(length)[None] - 1  # [1, length]; 0 is the first piece
    before = (target - number)[:, None] + place  # [S, length] positions in `ids`
    number = number[:, None]
    tokens = np.where(
        place < number, samples.ids[np.clip(before, 0, len(samples.ids) - 1)], 0
    )
    tokens = np.where(place == number, pieces.mask, tokens)
    tokens = np.where(place == number + 1, pieces.sep, tokens)
    tokens[:, 0] = pieces.cls
    dtype = np.int16 if pieces.num_ids < 2**15 else np.int32
    return {
        "tokens": tokens.astype(dtype),
        "y": samples.ids[target].astype(np.int32),
    }
