"""Data sets of the multi-task study by name: what they hold, their tasks and worlds."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from data import (
    chat,
    masked,
    ner,
    reddit,
    shakespeare,
    speakers,
    stackoverflow,
    text,
)
from data import pieces as word_pieces
from data.ner import Tagged
from data.pieces import Pieces
from data.text import Documents
from experiments import common
from p2pjax import InputError, token_tasks
from p2pjax import data as agent_data
from p2pjax.data import AgentData, World
from p2pjax.models.encoder import Encoder
from p2pjax.tasks import Task

EMBEDDED = ("speakers", "tags")
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

_DATASET = flags.DEFINE_list(
    "dataset",
    list(EMBEDDED),
    "Data sets, joined by commas, a task each: generated texts of speakers and their "
    f"tags, or from --data_dir {', '.join([*TEXTS, *TAGGED])}.",
)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary",
    None,
    "File with a word piece per line, such as BERT's vocab.txt; if not given, one is "
    "trained on the training texts and kept in --workdir.",
)
_NUM_PIECES = flags.DEFINE_integer(
    "num_pieces", 30_522, "Word pieces of a vocabulary that is trained.", lower_bound=6
)
_MIN_TRAIN = flags.DEFINE_integer(
    "min_train", 1, "Fewest training samples of a user.", 1
)
_MAX_TRAIN = flags.DEFINE_integer(
    "max_train", None, "Most training samples of a user; no limit if not given."
)
_MAX_EXAMPLES = flags.DEFINE_integer(
    "max_examples",
    None,
    "Most examples of an agent to train, to validate and to test; the others are left "
    "out. No limit if not given.",
    lower_bound=1,
)


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
        """Name of the score's mean over agents: user accuracy or F1."""
        return f"{'ua' if self.is_masked else 'f1'}_{self.name}"


def is_embedded() -> bool:
    """Whether all data sets are generated."""
    return set(_DATASET.value) <= set(EMBEDDED)


def metrics() -> dict[str, str]:
    """Names of the scores, and what they are."""
    named: dict[str, str] = {}
    for name in _DATASET.value:
        if name in ("tags", *TAGGED):
            named[f"f1_{name}"] = f"{name}: F1 of entities, mean over agents"
        else:
            named[f"ua_{name}"] = f"{name}: user accuracy"
    return named


def load(num_users: int) -> dict[str, Dataset]:
    """The data sets that the flags name.

    Args:
      num_users: how many are needed of a generated one.
    """
    names, known = _DATASET.value, (*EMBEDDED, *TEXTS, *TAGGED)
    if not names or not set(names) <= set(known) or len(set(names)) < len(names):
        raise InputError(
            f"Need different data sets among {', '.join(known)}, got "
            f"'{','.join(names)}'."
        )
    return {name: Dataset(name, _content(name, num_users)) for name in names}


def _content(name: str, num_users: int) -> Documents | Tagged:
    seed = common.SEED.value
    if name == "speakers":
        return speakers.speakers(num_users, seed=seed)
    if name == "tags":  # of others than those whose words are predicted
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
    if common.DATA_DIR.value is None:
        raise InputError(f"Need --data_dir for --dataset={name}, got none.")
    return (TEXTS | TAGGED)[name](common.DATA_DIR.value)


def vocabulary(datasets: dict[str, Dataset]) -> Pieces:
    """All tasks' pieces: given, of generated words, or trained and kept."""
    if _VOCABULARY.value is not None:
        return word_pieces.read(_VOCABULARY.value)
    texts = [text for dataset in datasets.values() for text in _training_texts(dataset)]
    if is_embedded():
        return word_pieces.whole_words(word for line in texts for word in line.split())
    pieces = word_pieces.train(texts, _NUM_PIECES.value)
    if common.WORKDIR.value is not None:
        _keep(pieces, Path(common.WORKDIR.value) / "vocabulary.txt")
    return pieces


def _keep(pieces: Pieces, path: Path) -> None:
    """Writes a vocabulary and names it in the flags: training it again may differ."""
    if path.exists():
        raise InputError(
            f"Need a work folder without results, but {path} exists: choose another "
            f"--workdir, or use it by --vocabulary={path}."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    word_pieces.write(path, pieces)
    flags.FLAGS["vocabulary"].value = str(path)


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
        return token_tasks.tagging(encoder, length, labels)
    return token_tasks.masked_token(encoder, length, pieces.mask)


def world(
    dataset: Dataset, pieces: Pieces, num_agents: int, length: int, run: int
) -> World:
    """Its agents' examples in one run: other users, or another division."""
    rng = np.random.default_rng([common.SEED.value, run])
    content = dataset.content
    if isinstance(content, Tagged):
        return ner.world_of_sentences(
            content,
            pieces,
            ner.label_set(content),
            rng,
            num_agents=num_agents,
            length=length,
            share=SHARE.get(dataset.name, 1.0),
            max_examples=_MAX_EXAMPLES.value,
        )
    corpus = masked.encode(content, pieces)
    users = text.select(
        corpus,
        num_agents=num_agents,
        run=run,
        seed=common.SEED.value,
        min_train=_MIN_TRAIN.value,
        max_train=_MAX_TRAIN.value,
    )
    return masked.world_of_users(
        corpus, users, rng, pieces, length=length, max_examples=_MAX_EXAMPLES.value
    )


def concatenated(worlds: list[World]) -> World:
    """The agents of several worlds with examples of the same kind."""

    def join(*splits: AgentData) -> AgentData:
        examples: dict[str, Any] = {
            name: np.concatenate([split.examples[name] for split in splits])
            for name in splits[0].examples
        }
        return AgentData(examples, np.concatenate([split.size for split in splits]))

    same = agent_data.same_widths(worlds)
    return World(
        *(join(*(world[part] for world in same)) for part in range(3)),
        cluster=np.concatenate([world.cluster for world in same]),
    )
