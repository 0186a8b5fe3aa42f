"""Texts of users whose next words agents predict, for all experiments on them."""

from collections.abc import Callable

import optax

from experiments.engine import fitting
from experiments.engine.config import Common
from experiments.engine.datasets import least_words, load_dataset, users_of_runs
from experiments.engine.jobs import data_rng, of_all_runs, own_examples
from p2pjax.datasets.loaders import (
    chat,
    reddit,
    shakespeare,
    speakers,
    stackoverflow,
    text,
)
from p2pjax.datasets.loaders.text import Corpus, Documents
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData

LOADERS: dict[str, Callable[[str], Documents]] = {
    "shakespeare": shakespeare.load,
    "chat": chat.load,
    "reddit": reddit.load,
    "stackoverflow": stackoverflow.load,
}


def load_documents(
    config: Common,
    dataset: str | None,
    num_agents: int,
    num_words: int,
    check: Callable[[int], None],
) -> Documents:
    """The texts that are named, of at least so many users in every run.

    Args:
      config: says where data is.
      dataset: one of `LOADERS`; else texts of speakers are generated.
      num_agents: of a run.
      num_words: of the vocabulary at most.
      check: refuses a vocabulary of so many tokens, at least, before texts are made.
    """

    def written() -> Documents:
        check(least_words(config, num_words))
        return speakers.speakers(users_of_runs(config, num_agents), seed=config.seed)

    note = "generated texts of speakers are used"
    return load_dataset(config, dataset, written, note, LOADERS)


def check_room(
    config: Common,
    num_agents: int,
    task: Task,
    *,
    units: int,
    num_ids: int,
    optimizer: optax.GradientTransformation | None = None,
) -> None:
    """Refuses agents that cannot fit, before their texts are made.

    Args:
      config: of the experiment.
      num_agents: that have a model of their own.
      task: what each agent learns.
      units: of the embedding.
      num_ids: of the vocabulary, at least.
      optimizer: of each agent, if it remembers something.
    """
    batch = config.batch_size * (text.WINDOW * units + num_ids) * 4
    fitting.check_agents(config, num_agents, task, optimizer, batch=batch)


def worlds(
    config: Common,
    corpus: Corpus,
    num_agents: int,
    *,
    min_train: int,
    max_train: int | None,
) -> dict[int, FederatedData]:
    """Other users in every run, by its number; all have the same shapes.

    Args:
      config: says which runs there are.
      corpus: texts of all users.
      num_agents: of a run.
      min_train: fewest training samples of a user.
      max_train: most; None is no limit.
    """

    def of_run(run: int) -> FederatedData:
        users = text.select(
            corpus,
            num_agents=num_agents,
            run=run,
            seed=config.seed,
            min_train=min_train,
            max_train=max_train,
        )
        return text.world_of_users(corpus, users, data_rng(config, run))

    of_runs = of_all_runs(config, of_run)
    return {run: own_examples(config, data) for run, data in of_runs.items()}
