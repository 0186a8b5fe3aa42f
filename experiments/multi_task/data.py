"""Data sets of the multi-task study by name: contents, tasks, agents' examples."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from experiments.engine.datasets import users_of_runs
from experiments.engine.jobs import data_rng, of_all_runs
from experiments.multi_task import images
from experiments.multi_task.config import EMBEDDED, IMAGES, TAGGED, TEXTS, Config
from p2pjax.datasets import stacking
from p2pjax.datasets.loaders import masked, ner, speakers, text
from p2pjax.datasets.loaders.ner import Tagged
from p2pjax.datasets.loaders.pieces import Pieces, read, train, whole_words
from p2pjax.datasets.loaders.text import Corpus, Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.nn.encoder import Encoder
from p2pjax.tasks._encoder_tasks import masked_token, tagging
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, InputError, Split

SHARE = {"few_nerd": 0.2}  # of the sentences, as in the thesis


class Dataset(NamedTuple):
    """Texts of users, to predict masked tokens in, sentences with tags, or images."""

    name: str
    content: Documents | Tagged | Examples

    @property
    def is_masked(self) -> bool:
        """Whether its task is to predict masked tokens."""
        return isinstance(self.content, Documents)

    @property
    def head(self) -> str:
        """Equal for tasks whose heads are the same, which can be one task."""
        if isinstance(self.content, Examples):
            return f"{self.content.num_classes} classes"
        return "tokens" if self.is_masked else f"tags of {self.name}"

    @property
    def score(self) -> str:
        """The metric that is this task's score."""
        return "f1" if isinstance(self.content, Tagged) else "accuracy"

    @property
    def metric(self) -> str:
        """Name of the score's mean over agents."""
        return metric(self.name)


def metric(name: str) -> str:
    """Name of a data set's score, a mean over agents: user accuracy or F1."""
    return f"{'f1' if name in (*TAGGED, 'tags', 'tags_2') else 'ua'}_{name}"


def load(config: Config) -> dict[str, Dataset]:
    """Data sets by name, generated or from where the config says."""
    if has_images(config) and not set(config.dataset) <= set(IMAGES):
        raise InputError(
            "Need texts or images, which have no encoder in common, got "
            f"--dataset={','.join(config.dataset)}: leave out one kind."
        )
    return {name: Dataset(name, _content(config, name)) for name in config.dataset}


def has_images(config: Config) -> bool:
    """Whether any task is on images."""
    return not set(config.dataset).isdisjoint(IMAGES)


def _content(config: Config, name: str) -> Documents | Tagged | Examples:
    if name in IMAGES:
        return images.load(config, name)
    seed = config.seed + name.endswith("_2")
    if name in EMBEDDED:
        return _generated(name, users_of_runs(config, config.num_agents), seed)
    if config.data_dir is None:
        raise InputError(f"Need --data_dir for --dataset={name}, got none.")
    return (TEXTS | TAGGED)[name](config.data_dir)


def _generated(name: str, num_users: int, seed: int) -> Documents | Tagged:
    if name.startswith("speakers"):
        return speakers.speakers(num_users, seed=seed)
    # Of others than those whose words are predicted.
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


def needs_training(config: Config) -> bool:
    """Whether the vocabulary has to be learned from training texts."""
    has_own_words = set(config.dataset) <= {*EMBEDDED, *IMAGES}
    return config.vocabulary is None and not has_own_words


def vocabulary(config: Config, datasets: Mapping[str, Dataset]) -> Pieces:
    """That of the file named, all words of generated texts, or pieces learned."""
    if config.vocabulary is not None:
        return read(config.vocabulary)
    texts = [line for dataset in datasets.values() for line in _training_texts(dataset)]
    if needs_training(config):
        return train(texts, config.num_pieces)
    return whole_words(word for line in texts for word in line.split())


def _training_texts(dataset: Dataset) -> list[str]:
    """As the task sees them."""
    content = dataset.content
    if isinstance(content, Examples):
        return []
    if isinstance(content, Tagged):
        return ner.texts(content.train)
    return [
        " ".join(words)
        for own in content.train
        for document in own
        for words in masked.sentences(document)
    ]


def task_of(config: Config, dataset: Dataset, encoder: Encoder, pieces: Pieces) -> Task:
    """What its agents learn."""
    if isinstance(dataset.content, Examples):
        return images.task_of(config, dataset.content.num_classes)
    length = config.length
    if isinstance(dataset.content, Tagged):
        labels = ner.label_set(dataset.content)
        return tagging(encoder, length, labels)
    return masked_token(encoder, length, pieces.mask)


def make_data(
    config: Config, dataset: Dataset, pieces: Pieces
) -> dict[int, FederatedData]:
    """Its agents' examples by run: other users, or another division.

    All have the same shapes.
    """
    if isinstance(dataset.content, Examples):
        return images.make_data(config, dataset.name, dataset.content)
    if isinstance(dataset.content, Tagged):
        divide = partial(
            ner.world_of_sentences,
            dataset.content,
            pieces,
            ner.label_set(dataset.content),
            num_agents=config.num_agents,
            length=config.length,
            share=SHARE.get(dataset.name, 1.0),
            max_examples=config.max_examples,
        )
        return of_all_runs(config, lambda run: divide(data_rng(config, run)))
    corpus = masked.encode(dataset.content, pieces)
    return of_all_runs(config, partial(_of_users, config, corpus, pieces))


def _of_users(
    config: Config, corpus: Corpus, pieces: Pieces, run: int
) -> FederatedData:
    users = text.select(
        corpus,
        num_agents=config.num_agents,
        run=run,
        seed=config.seed,
        min_train=config.min_train,
        max_train=config.max_train,
    )
    return masked.world_of_users(
        corpus,
        users,
        data_rng(config, run),
        pieces,
        length=config.length,
        max_examples=config.max_examples,
    )


def concatenated(several: Sequence[FederatedData]) -> FederatedData:
    """The agents of several data sets with examples of the same kind."""

    def join(*splits: Split) -> Split:
        examples: dict[str, Any] = {
            name: np.concatenate([split.examples[name] for split in splits])
            for name in splits[0].examples
        }
        return Split(examples, np.concatenate([split.size for split in splits]))

    same = stacking.pad_to_same_size(several)
    cluster = np.concatenate([data.cluster for data in same])
    return stacking.over_splits(join, same, cluster)
