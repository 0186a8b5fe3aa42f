"""What agents of `experiments.levels` learn: images of writers, texts of users."""

import math
from collections.abc import Callable
from typing import NamedTuple

import optax

from experiments.engine import fitting, texts
from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import data_rng, kept, of_all_runs
from experiments.levels.config import IMAGES, NETWORKS, TEXTS, Config
from p2pjax import nn as networks
from p2pjax.datasets import split
from p2pjax.datasets._federate import federate_examples, with_channels
from p2pjax.datasets.loaders import femnist, glyphs, needs, text
from p2pjax.datasets.stacking import Examples
from p2pjax.tasks._classification import classification
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, InputError


class Subject(NamedTuple):
    """A task and the agents' data."""

    task: Task
    data: Callable[[int], FederatedData]  # of a run
    head: tuple[str, ...]  # paths of the leaves of the last layer


def subject_of(config: Config, optimizer: optax.GradientTransformation) -> Subject:
    """What the config names; agents that cannot fit are refused.

    Args:
      config: of the experiment.
      optimizer: of each agent.
    """
    has_texts = config.dataset in TEXTS
    name = config.network or ("gru" if has_texts else "cnn")
    if has_texts != (NETWORKS[name] is TEXTS):
        raise InputError(
            f"Need --network={' or '.join(_networks_for(has_texts))} for "
            f"--dataset={config.dataset or IMAGES[0]}, got --network={name}."
        )
    return (_texts if has_texts else _images)(config, name, optimizer)


def _networks_for(has_texts: bool) -> list[str]:
    return [name for name, data in NETWORKS.items() if (data is TEXTS) == has_texts]


def _images(
    config: Config, name: str, optimizer: optax.GradientTransformation
) -> Subject:
    del name  # there is one

    def network(num_classes: int) -> networks.CNN:
        return networks.CNN(config.channels, config.hidden, num_classes)

    def check_room(num_classes: int, shape: tuple[int, ...] = (*glyphs.SHAPE, 1)):
        task = classification(network(num_classes), shape)
        pixels = config.batch_size * math.prod(shape)
        fitting.check_agents(config, config.num_agents, task, optimizer, batch=pixels)

    def of_variant(examples: Examples) -> Examples:
        return femnist.variant(examples, config.variant)

    def drawn() -> Examples:
        num_classes = 10 if config.variant == "d" else 62
        check_room(10)
        made = glyphs.glyphs(
            config.num_agents,
            config.samples,
            seed=config.seed,
            num_classes=num_classes,
        )
        return of_variant(made)

    note = "procedural handwriting (glyphs) is used"
    loaders = {
        "femnist": lambda folder: of_variant(femnist.load(folder)),
        **texts.LOADERS,  # what one could have named
    }
    found = load_dataset(config, config.dataset, drawn, note, loaders)
    needs.need_users(found, config.dataset or IMAGES[0], 2)
    examples = with_channels(found)
    check_room(examples.num_classes, examples.x.shape[1:])

    def of_run(run: int) -> FederatedData:
        return federate_examples(
            examples,
            examples.user,
            num_agents=config.num_agents,
            split=split.by_user(),
            test_fraction=config.test_fraction,
            valid_fraction=config.valid_fraction,
            seed=data_rng(config, run),
        )

    data = kept(config, of_all_runs(config, of_run).__getitem__)
    task = classification(
        network(examples.num_classes), data(config.first_run), per_class=True
    )
    last = len(config.channels) + len(config.hidden) + 1
    return Subject(task, data, (f"params/layer_{last}/.*",))


def _texts(
    config: Config, name: str, optimizer: optax.GradientTransformation
) -> Subject:
    units = config.units

    def task_of(num_ids: int) -> Task:
        network = (
            networks.NextWord(num_ids, units, units, units)
            if name == "gru"
            else networks.SequenceClassifier(num_ids, units, units, num_ids)
        )
        unknown = text.UNKNOWN
        return next_token(network, text.WINDOW, ignore_token=unknown, momentum=None)

    def check_room(num_ids: int) -> None:
        texts.check_room(
            config,
            config.num_agents,
            task_of(num_ids),
            units=units,
            num_ids=num_ids,
            optimizer=optimizer,
        )

    documents = texts.load_documents(
        config, config.dataset, config.num_agents, config.num_words, check_room
    )
    corpus = text.encode(documents, config.num_words)
    check_room(corpus.vocabulary.num_ids)
    data = texts.worlds(
        config,
        corpus,
        config.num_agents,
        min_train=config.min_train,
        max_train=config.max_train,
    )
    task = task_of(corpus.vocabulary.num_ids)
    return Subject(task, data.__getitem__, ("params/output/.*",))
