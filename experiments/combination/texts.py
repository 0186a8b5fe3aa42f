"""Next words at several hosts: texts and network of `experiments.combination`."""

from collections.abc import Callable

from experiments.combination.config import TEXTS, Config
from experiments.engine import texts
from p2pjax.datasets.loaders import text
from p2pjax.datasets.loaders.text import Corpus
from p2pjax.nn.gru import NextWord
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, InputError


def load_corpus(config: Config) -> Corpus:
    """The texts that the config names, of at least so many users in every run."""
    if config.dataset not in (None, "speakers", *TEXTS):
        raise InputError(
            f"Need --dataset=speakers or {' or '.join(TEXTS)} for --study=texts, got "
            f"--dataset={config.dataset}."
        )
    if config.activation != ("relu",):
        raise InputError(
            "Need no --activation for --study=texts, whose cells are a GRU's, got "
            f"{', '.join(config.activation)}."
        )

    documents = texts.load_documents(
        config,
        config.dataset,
        max(config.hosts),
        config.num_words,
        lambda num_ids: _check_room(config, num_ids),
    )
    corpus = text.encode(documents, config.num_words)
    _check_room(config, corpus.vocabulary.num_ids)
    return corpus


def next_word_task(config: Config, num_ids: int) -> Task:
    """The network of every host: an embedding, a GRU, a dense layer.

    Args:
      config: of the experiment.
      num_ids: of the vocabulary.
    """
    network = NextWord(num_ids, config.units, config.units, config.units)
    return next_token(network, text.WINDOW, ignore_token=1, momentum=None)


def texts_data(
    config: Config, corpus: Corpus, num_hosts: int
) -> Callable[[int], FederatedData]:
    """Of a run: other users in each, who test on what they wrote last.

    Args:
      config: of the experiment.
      corpus: texts of all users.
      num_hosts: in a run.
    """
    return texts.worlds(
        config,
        corpus,
        num_hosts,
        min_train=config.min_train,
        max_train=config.max_train,
    ).__getitem__


def _check_room(config: Config, num_ids: int) -> None:
    """Refuses hosts that cannot fit."""
    task = next_word_task(config, num_ids)
    texts.check_room(
        config, max(config.hosts), task, units=config.units, num_ids=num_ids
    )
