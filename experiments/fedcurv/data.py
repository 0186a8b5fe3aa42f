"""The data of `experiments.fedcurv`: points, tasks of texts, own examples."""

from collections.abc import Callable
from functools import partial

import numpy as np

from experiments.engine.datasets import FORMATS, is_format, load_dataset
from experiments.engine.jobs import data_rng
from experiments.fedcurv.config import POINTS, TEXTS, Config
from p2pjax.datasets import partition, split
from p2pjax.datasets._federate import federate_examples
from p2pjax.datasets.loaders import embedding, needs, points, senteval
from p2pjax.datasets.loaders.senteval import Texts
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData, InputError


def make_data(
    config: Config, geometry: str = "square", examples: Examples | None = None
) -> Callable[[int], FederatedData]:
    """The data of a run, a function of its number.

    Args:
      config: of the experiment.
      geometry: of points.
      examples: of the study of that name, see `load_own`.
    """
    if config.study == "examples":
        found = load_own(config) if examples is None else examples
        return partial(_of_users, config, found)
    known = POINTS if config.study == "points" else TEXTS
    if config.dataset is not None and config.dataset not in known:
        study = {**dict.fromkeys(POINTS, "points"), **dict.fromkeys(TEXTS, "texts")}
        raise InputError(
            f"Need --study={study.get(config.dataset, 'examples')} for "
            f"--dataset={config.dataset}, got {config.study}."
        )
    if config.study == "points":
        return partial(_points, config, geometry)
    return _of_texts(config)


def load_own(config: Config) -> Examples:
    """Labelled examples of two users or more, who are the agents."""
    if config.dataset is None or not is_format(config.dataset):
        raise InputError(
            f"Need labelled examples for --study=examples, --dataset="
            f"{', '.join(FORMATS)}, got {config.dataset}."
        )
    found: Examples = load_dataset(config, config.dataset, dict, "", {})
    return needs.need_users(found, config.dataset)


def _of_users(config: Config, examples: Examples, run: int) -> FederatedData:
    """A tenth of each user's examples, other ones in every run, is the test."""
    return federate_examples(
        examples,
        examples.user,
        num_agents=len(np.unique(examples.user)),
        split=split.by_user(),
        test_fraction=0.1,
        valid_fraction=0.0,
        seed=data_rng(config, run),
    )


def _points(config: Config, geometry: str, run: int) -> FederatedData:
    """Points drawn anew in every run."""
    rng = data_rng(config, run)
    return points.world(rng, config.train_size, config.test_size, geometry)


def _of_texts(config: Config) -> Callable[[int], FederatedData]:
    """One task per agent; a tenth of its texts, other ones in every run, is the test.

    Rarities of words, and principal axes, are those of the training texts of all tasks
    together, so agents have shared that much before they begin.
    """
    texts = load_texts(config)
    counts = embedding.count_ngrams([text for task in texts for text in task.texts])
    y = np.concatenate([task.y for task in texts])
    agent = np.repeat(np.arange(len(texts)), [len(task.y) for task in texts])

    def of_run(run: int) -> FederatedData:
        rng = data_rng(config, run)
        train, test = [], []
        for number in range(len(texts)):
            own = rng.permutation(np.flatnonzero(agent == number))
            cut = max(1, len(own) // 10)
            test.append(own[:cut])
            train.append(own[cut:])
        is_train = np.isin(np.arange(len(y)), np.concatenate(train))
        x = embedding.embed(
            counts,
            is_train,
            config.num_dims,
            config.seed,
            principal=config.axes == "principal",
        )
        examples = Examples(x, y, agent.astype(np.int32), 2)
        cluster = np.arange(len(texts), dtype=np.int32)
        return partition.federated_data(examples, train, test, cluster)

    return of_run


def load_texts(config: Config) -> list[Texts]:
    """The tasks that the config names."""
    return load_dataset(
        config,
        config.dataset,
        partial(senteval.topics, seed=config.seed),
        "generated texts about topics are used",
        {"senteval": lambda path: senteval.load(path, config.tasks)},
    )
