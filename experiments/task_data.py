"""Data sets of the multi-task study by name: what they hold, their tasks and worlds."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from p2pjax.datasets import stacking
from p2pjax.datasets.loaders import (
    chat,
    masked,
    ner,
    reddit,
    shakespeare,
    speakers,
    stackoverflow,
    text,
)
from p2pjax.datasets.loaders.ner import Tagged
from p2pjax.datasets.loaders.pieces import Pieces, train, whole_words
from p2pjax.datasets.loaders.text import Documents
from p2pjax.nn.encoder import Encoder
from p2pjax.tasks._encoder_tasks import masked_token, tagging
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, InputError, Split

EMBEDDED = ("speakers", "tags", "speakers_2", "tags_2")  # the latter of other habits
TEXTS: dict[str, Callable[[str], Documents]] = {
    "shakespeare": shakespeare.load,
    "chat": chat.load,
    "reddit": reddit.load,
    "stackoverflow": stackoverflow.load,
}
TAGGED: dict[str, Callable[[str], Tagged]] = {
    name: partial(ner.load, name=name) for name in ner.FILES
}
SHARE = {"few_nerd": 0.2}  # of the sentences, as in the thesis


class Limits(NamedTuple):
    """Which users become agents, and how much of their data they have."""

    min_train: int  # samples of a user
    max_train: int | None  # the same; None is no limit
    max_examples: int | None  # of an agent to train, to validate and to test


class Dataset(NamedTuple):
    """Texts of users, to predict masked tokens in, or sentences with tags."""

    name: str
    content: Documents | Tagged

    @property
    def is_masked(self) -> bool:
        """Whether its task is to predict masked tokens."""
        return isinstance(self.content, Documents)

    @property
    def score(self) -> str:
        """The metric that is this task's score."""
        return "accuracy" if self.is_masked else "f1"

    @property
    def metric(self) -> str:
        """Name of the score's mean over agents."""
        return metric(self.name)


def metric(name: str) -> str:
    """Name of a data set's score, a mean over agents: user accuracy or F1."""
    return f"{'f1' if name in (*TAGGED, 'tags', 'tags_2') else 'ua'}_{name}"


def load(
    names: list[str], num_users: int, seed: int, data_dir: str | None
) -> dict[str, Dataset]:
    """Data sets by name.

    Args:
      names: of `EMBEDDED`, `TEXTS` and `TAGGED`.
      num_users: how many are needed of a generated one.
      seed: of generated ones.
      data_dir: where the others are.
    """
    known = (*EMBEDDED, *TEXTS, *TAGGED)
    if not names or not set(names) <= set(known) or len(set(names)) < len(names):
        raise InputError(
            f"Need different data sets among {', '.join(known)}, got "
            f"'{','.join(names)}'."
        )
    return {
        name: Dataset(name, _content(name, num_users, seed, data_dir)) for name in names
    }


def _content(
    name: str, num_users: int, seed: int, data_dir: str | None
) -> Documents | Tagged:
    seed += name.endswith("_2")
    if name.startswith("speakers"):
        return speakers.speakers(num_users, seed=seed)
    if name.startswith("tags"):  # of others than those whose words are predicted
        every = speakers.tagged_speakers(2 * num_users, seed=seed)[num_users:]
        cuts = [np.array([0, 60, 80, 100]) * len(own) // 100 for own in every]
        parts = [
            [
                s
                for own, cut in zip(every, cuts, strict=True)
                for s in own[cut[part] : cut[part + 1]]
            ]
            for part in range(3)
        ]
        return Tagged(*parts)
    if data_dir is None:
        raise InputError(f"Need --data_dir for --dataset={name}, got none.")
    return (TEXTS | TAGGED)[name](data_dir)


def vocabulary(datasets: dict[str, Dataset], num_pieces: int) -> Pieces:
    """All words of generated texts, or pieces that are learned from training texts."""
    texts = [line for dataset in datasets.values() for line in _training_texts(dataset)]
    if set(datasets) <= set(EMBEDDED):
        return whole_words(word for line in texts for word in line.split())
    return train(texts, num_pieces)


def _training_texts(dataset: Dataset) -> list[str]:
    """As the task sees them."""
    content = dataset.content
    if isinstance(content, Tagged):
        return ner.texts(content.train)
    return [
        " ".join(words)
        for own in content.train
        for document in own
        for words in masked.sentences(document)
    ]


def task_of(dataset: Dataset, encoder: Encoder, length: int, pieces: Pieces) -> Task:
    """What its agents learn."""
    if isinstance(dataset.content, Tagged):
        labels = ner.label_set(dataset.content)
        return tagging(encoder, length, labels)
    return masked_token(encoder, length, pieces.mask)


def worlds(
    dataset: Dataset,
    pieces: Pieces,
    limits: Limits,
    *,
    num_agents: int,
    length: int,
    seed: int,
    num_runs: int,
) -> list[FederatedData]:
    """Its agents' examples in every run: other users, or another division.

    All have the same shapes.
    """
    content = dataset.content
    sources = [np.random.default_rng([seed, run]) for run in range(num_runs)]
    if isinstance(content, Tagged):
        divide = partial(
            ner.world_of_sentences,
            content,
            pieces,
            ner.label_set(content),
            num_agents=num_agents,
            length=length,
            share=SHARE.get(dataset.name, 1.0),
            max_examples=limits.max_examples,
        )
        return stacking.pad_to_same_size([divide(rng) for rng in sources])
    corpus = masked.encode(content, pieces)
    every = []
    for run, rng in enumerate(sources):
        users = text.select(
            corpus,
            num_agents=num_agents,
            run=run,
            seed=seed,
            min_train=limits.min_train,
            max_train=limits.max_train,
        )
        every.append(
            masked.world_of_users(
                corpus,
                users,
                rng,
                pieces,
                length=length,
                max_examples=limits.max_examples,
            )
        )
    return stacking.pad_to_same_size(every)


def concatenated(worlds: list[FederatedData]) -> FederatedData:
    """The agents of several worlds with examples of the same kind."""

    def join(*splits: Split) -> Split:
        examples: dict[str, Any] = {
            name: np.concatenate([split.examples[name] for split in splits])
            for name in splits[0].examples
        }
        return Split(examples, np.concatenate([split.size for split in splits]))

    same = stacking.pad_to_same_size(worlds)
    cluster = np.concatenate([world.cluster for world in same])
    return stacking.over_splits(join, same, cluster)
