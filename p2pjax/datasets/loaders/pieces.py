"""WordPiece: words as pieces of a vocabulary (Schuster, Nakajima 2012; Devlin 2019).

A vocabulary is a text file with a piece per line, as BERT's are: the line is the id,
and "##" begins a piece that continues a word. Any such file can be read; training one
on texts needs the `tokenizers` library.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pjax.datasets.loaders.text_files import read_text
from p2pjax.types import InputError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


LONGEST_WORD = 100  # characters; longer ones are unknown


_WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")


class Pieces(NamedTuple):
    """A vocabulary and how words are cut into its pieces."""

    pieces: tuple[str, ...]  # by id; id 0 is padding
    unknown: int
    cls: int
    sep: int
    mask: int
    continues: np.ndarray  # [ids] whether a piece continues a word
    cut: Callable[[str], tuple[int, ...]]  # a word -> one piece or more

    @property
    def num_ids(self) -> int:
        """Inputs a network needs."""
        return len(self.pieces)


def basic_words(text: str) -> list[str]:
    """Lower-case words without accents; every punctuation mark is a word.

    >>> basic_words("Café, isn't it?")
    ['cafe', ',', 'isn', "'", 't', 'it', '?']
    """
    letters = unicodedata.normalize("NFD", text.lower())
    return _WORDS.findall(
        "".join(c for c in letters if unicodedata.category(c) != "Mn")
    )


def from_vocabulary(pieces: Sequence[str], source: str = "The vocabulary") -> Pieces:
    """Cuts words greedily into the longest pieces of a vocabulary.

    Args:
        pieces: by id.
        source: where they are from, for messages.
    """
    ids = {piece: number for number, piece in enumerate(pieces)}
    missing = [piece for piece in SPECIAL if piece not in ids]
    if missing or ids["[PAD]"] != 0:
        raise InputError(
            f"{source} must have the pieces {', '.join(SPECIAL)}, [PAD] in the first "
            f"line, but lacks {', '.join(missing) or 'it there'}: use the vocabulary "
            "of a BERT model, or train one"
        )
    unknown = ids["[UNK]"]
    known: dict[str, tuple[int, ...]] = {}  # words cut before

    def cut(word: str) -> tuple[int, ...]:
        if word not in known:
            parts = (_greedy(part, ids, unknown) for part in basic_words(word))
            known[word] = tuple(itertools.chain.from_iterable(parts)) or (unknown,)
        return known[word]

    return Pieces(
        pieces=tuple(pieces),
        unknown=unknown,
        cls=ids["[CLS]"],
        sep=ids["[SEP]"],
        mask=ids["[MASK]"],
        continues=np.array([piece.startswith("##") for piece in pieces]),
        cut=cut,
    )


def whole_words(words: Iterable[str]) -> Pieces:
    """A vocabulary of these words, for generated texts, in which there are few."""
    every = sorted({part for word in words for part in basic_words(word)})
    return from_vocabulary([*SPECIAL, *every])


def train(texts: Iterable[str], num_pieces: int) -> Pieces:
    """A vocabulary of at most `num_pieces` pieces, learned from texts."""
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise InputError(
            "Training a vocabulary needs the tokenizers library: pip install "
            "'p2pjax[text]', or name a vocabulary file by --vocabulary."
        ) from error
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=num_pieces, special_tokens=list(SPECIAL), show_progress=False
    )
    lines = (" ".join(basic_words(text)) for text in texts)
    tokenizer.train_from_iterator(lines, trainer)
    ids = tokenizer.get_vocab()
    return from_vocabulary(sorted(ids, key=lambda piece: ids[piece]))


def read(path: str | Path) -> Pieces:
    """Reads a vocabulary file."""
    path = Path(path)
    text = read_text(path, "a vocabulary, one piece per line")
    return from_vocabulary(text.splitlines(), str(path))


def write(path: Path, pieces: Pieces) -> None:
    """Writes a vocabulary file."""
    path.write_text("".join(f"{piece}\n" for piece in pieces.pieces), encoding="utf-8")


def _greedy(word: str, ids: dict[str, int], unknown: int) -> tuple[int, ...]:
    found: list[int] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        stop = len(word) if len(word) <= LONGEST_WORD else start
        while stop > start and prefix + word[start:stop] not in ids:
            stop -= 1
        if stop == start:
            return (unknown,)
        found.append(ids[prefix + word[start:stop]])
        start = stop
    return tuple(found)
