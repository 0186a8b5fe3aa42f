"""Points of machines, and tasks of texts: the data of `experiments.fedcurv`."""

from collections.abc import Callable
from functools import partial

import numpy as np

from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import data_rng
from experiments.fedcurv.config import Config
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import embedding, points, senteval
from p2pjax.datasets.loaders.senteval import Texts
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData, InputError


def make_data(
    config: Config, geometry: str = "square"
) -> Callable[[int], FederatedData]:
    """The data of a run, a function of its number.

    Args:
      config: of the experiment.
      geometry: of points.
    """
    is_points = config.study == "points"
    if is_points and config.dataset not in (None, "points"):
        raise InputError(
            f"Need --study=texts for --dataset={config.dataset}, got points."
        )
    if not is_points and config.dataset == "points":
        raise InputError("Need --study=points for --dataset=points, got texts.")
    return partial(_points, config, geometry) if is_points else _of_texts(config)


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
