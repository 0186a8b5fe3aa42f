"""Next words at several hosts: texts and network of `experiments.combination`."""

from collections.abc import Callable

from experiments.combination.config import TEXTS, Config
from experiments.engine import fitting
from experiments.engine.datasets import least_words, load_dataset, users_of_runs
from experiments.engine.jobs import data_rng, of_all_runs, own_examples
from p2pjax.datasets.loaders import speakers, text
from p2pjax.datasets.loaders.text import Corpus, Documents
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

    def written() -> Documents:
        _check_room(config, least_words(config, config.num_words))
        users = users_of_runs(config, max(config.hosts))
        return speakers.speakers(users, seed=config.seed)

    note = "generated texts of speakers are used"
    documents = load_dataset(config, config.dataset, written, note, TEXTS)
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

    def of_run(run: int) -> FederatedData:
        users = text.select(
            corpus,
            num_agents=num_hosts,
            run=run,
            seed=config.seed,
            min_train=config.min_train,
            max_train=config.max_train,
        )
        return text.world_of_users(corpus, users, data_rng(config, run))

    found = of_all_runs(config, of_run)
    return {n: own_examples(config, data) for n, data in found.items()}.__getitem__


def _check_room(config: Config, num_ids: int) -> None:
    """Refuses hosts that cannot fit."""
    fitting.check_agents(
        config,
        max(config.hosts),
        next_word_task(config, num_ids),
        batch=config.batch_size * (text.WINDOW * config.units + num_ids) * 4,
    )
