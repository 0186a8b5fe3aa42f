"""Named entities: files of a word and its tag per line, and worlds of labelled words.

CoNLL-2003 (Tjong Kim Sang, De Meulder 2003), WNUT-2017 (Derczynski et al. 2017),
Few-NERD (Ding et al. 2021); all in columns with empty lines between sentences.

    tagged = load("data", "conll2003")
    labels = label_set(tagged)
    world = world_of_sentences(tagged, pieces, labels, rng, num_agents=20, length=128)
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pjax.datasets import label_sets
from p2pjax.datasets.label_sets import LabelSet
from p2pjax.datasets.loaders.files import not_found, shown
from p2pjax.datasets.loaders.pieces import Pieces
from p2pjax.datasets.loaders.text_files import read_text
from p2pjax.datasets.stacking import stack_agents
from p2pjax.types import FederatedData, InputError, Split

# Names of the parts' files, the public ones last; each may be packed by gzip.
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "conll2003": {
        "train": ("conll2003_train.txt", "eng.train", "train.txt"),
        "valid": ("conll2003_valid.txt", "eng.testa", "valid.txt"),
        "test": ("conll2003_test.txt", "eng.testb", "test.txt"),
    },
    "wnut17": {
        "train": ("wnut17_train.txt", "wnut17train.conll"),
        "valid": ("wnut17_valid.txt", "emerging.dev.conll"),
        "test": ("wnut17_test.txt", "emerging.test.annotated"),
    },
    "few_nerd": {
        "train": ("few_nerd_train.txt", "train.txt"),
        "valid": ("few_nerd_valid.txt", "dev.txt"),
        "test": ("few_nerd_test.txt", "test.txt"),
    },
}


CONTENT = "lines of a word and, last, its tag, and empty lines between sentences"


class Sentence(NamedTuple):
    """Words and their tags, O, B-type or I-type."""

    words: list[str]
    tags: list[str]


class Tagged(NamedTuple):
    """Sentences as a loader returns them."""

    train: list[Sentence]
    valid: list[Sentence]
    test: list[Sentence]


def load(data_dir: str | Path, name: str) -> Tagged:
    """Loads a data set with its own parts.

    Args:
        data_dir: a folder with the three files of `FILES[name]`, packed by gzip or not.
        name: conll2003, wnut17 or few_nerd. Few-NERD's tags name a type and a finer one
            ("person-actor"): the type becomes the tag, I-person.

    Raises:
        InputError: a file is missing or cannot be used.
    """
    folder = Path(data_dir)
    tag = _coarse if name == "few_nerd" else _as_it_is
    parts = []
    for names in FILES[name].values():
        wanted = [file for name in names for file in (name, f"{name}.gz")]
        there = [folder / file for file in wanted if (folder / file).is_file()]
        if not there:
            raise not_found(folder, wanted, name)
        parts.append(read(there[0], tag))
    return Tagged(*parts)


def read(path: Path, tag_of: Callable[[str], str] | None = None) -> list[Sentence]:
    """Reads one file.

    Args:
        path: of the file, packed by gzip or not.
        tag_of: makes O, B-type or I-type of the last column.
    """
    text = read_text(path, CONTENT)
    tag_of = tag_of or _as_it_is
    sentences = [Sentence([], [])]
    for number, line in enumerate(text.split("\n"), 1):
        columns = line.split()
        if not columns:
            if sentences[-1].words:
                sentences.append(Sentence([], []))
        elif columns[0] != "-DOCSTART-":
            tag = tag_of(columns[-1])
            is_tag = tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)
            if len(columns) < 2 or not is_tag:
                raise InputError(
                    f"{path} line {number}: must be a word and its tag, O, B-type or "
                    f'I-type, found "{shown(line.strip())}": see data/README.md'
                )
            sentences[-1].words.append(columns[0])
            sentences[-1].tags.append(tag)
    sentences = [sentence for sentence in sentences if sentence.words]
    if not sentences:
        raise InputError(f"{path} must be {CONTENT}, but has no sentence: get it again")
    return sentences


def _as_it_is(tag: str) -> str:
    return tag


def _coarse(tag: str) -> str:
    return tag if tag == "O" else f"I-{tag.split('-')[0]}"


def label_set(tagged: Tagged) -> LabelSet:
    """The labels of all parts."""
    return label_sets.label_set(
        sorted({tag for part in tagged for sentence in part for tag in sentence.tags})
    )


def world_of_sentences(
    tagged: Tagged,
    pieces: Pieces,
    labels: LabelSet,
    rng: np.random.Generator,
    *,
    num_agents: int,
    length: int,
    share: float = 1.0,
    max_examples: int | None = None,
) -> FederatedData:
    """Every part is shuffled and divided evenly over the agents.

    Examples are tokens `[N, M, length]`, positions and labels `[N, M, length]`: see
    `tagging`. A sentence is [CLS], the pieces of its words and [SEP]; both
    have labels of their own. What does not fit is cut off.

    Args:
        tagged: from `load`.
        pieces: the vocabulary.
        labels: from `label_set`.
        rng: shuffles.
        num_agents: N.
        length: of a sequence of tokens.
        share: of the sentences of every part that is used.
        max_examples: of an agent in a part; None is no limit.
    """

    def divided(sentences: list[Sentence]) -> Split:
        order = rng.permutation(len(sentences))[: round(share * len(sentences))]
        if len(order) < num_agents:
            raise InputError(
                f"Need a sentence or more for each of {num_agents} agents in every "
                f"part, got {len(order)}: lower the number of agents."
            )
        return stack_agents(
            [
                _spelled_out([sentences[i] for i in own], pieces, labels, length)
                for part in np.array_split(order, num_agents)
                for own in [part[:max_examples]]
            ]
        )

    train, valid, test = map(divided, tagged)
    return FederatedData(train, valid, test, np.zeros(num_agents, np.int32))


def texts(sentences: Iterable[Sentence]) -> list[str]:
    """To train a vocabulary on."""
    return [" ".join(sentence.words) for sentence in sentences]


def _spelled_out(
    sentences: Sequence[Sentence], pieces: Pieces, labels: LabelSet, length: int
) -> dict[str, np.ndarray]:
    if length < 3:
        raise InputError(
            "Need sequences of 3 tokens or more, [CLS], a piece and [SEP], got "
            f"{length}."
        )
    number = {name: n for n, name in enumerate(labels.names)}
    dtype = np.int16 if pieces.num_ids < 2**15 else np.int32
    tokens = np.zeros((len(sentences), length), dtype)
    positions = np.zeros((len(sentences), length), np.int16)
    targets = np.zeros((len(sentences), length), np.int8)
    for row, (words, tags) in enumerate(sentences):
        ids, where, label = [pieces.cls], [0], [label_sets.CLS]
        for word, tag in zip(words, tags, strict=True):
            cut = pieces.cut(word)
            if len(ids) < length - 1:
                where.append(len(ids))
                label.append(number[tag])
            ids += cut
        ids = [*ids[: length - 1], pieces.sep]
        where.append(len(ids) - 1)
        label.append(label_sets.SEP)
        tokens[row, : len(ids)] = ids
        positions[row, : len(where)] = where
        targets[row, : len(label)] = label
    return {"tokens": tokens, "positions": positions, "labels": targets}
