"""Tasks on images: digits, and letters, whose agents share an encoder.

An agent is a writer, and no writer has two tasks. Capital and small letters are one
class, 26 in all, since a writer has few of each.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import optax

from experiments.engine import fitting
from experiments.engine.datasets import users_of_runs
from experiments.engine.jobs import data_rng, of_all_runs
from experiments.multi_task.config import IMAGES_READ, Config
from p2pjax.datasets import split
from p2pjax.datasets._federate import federate_examples
from p2pjax.datasets.loaders import femnist, glyphs
from p2pjax.datasets.stacking import Examples
from p2pjax.nn.cnn import CNN, ImageModel
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, InputError, Split

SHAPE = (*glyphs.SHAPE, 1)
NUM_DIGITS, NUM_LETTERS = 10, 26
FEWEST = 10  # images of an agent, which are split in three
SAMPLES = {"digits": 100, "letters": 124}  # of a generated writer; two of a character


def load(config: Config, name: str) -> Examples:
    """Digits, or letters, of the writers who have this task.

    Args:
      config: of the experiment.
      name: of the data set: where the images come from, and what is in them.
    """
    content = name.rpartition("_")[2]
    if name not in IMAGES_READ:
        return _OF[content](_generated(config, content))
    if config.data_dir is None:
        raise InputError(f"Need --data_dir for --dataset={name}, got none.")
    examples = femnist.load(config.data_dir)
    order = np.random.default_rng(config.seed).permutation(np.unique(examples.user))
    own = order[[*_OF].index(content) :: len(_OF)]
    return _OF[content](_only(examples, np.isin(examples.user, own)))


def _generated(config: Config, content: str) -> Examples:
    """Handwriting by other writers for each content."""
    return glyphs.glyphs(
        users_of_runs(config, config.num_agents),
        SAMPLES[content],
        seed=config.seed + [*_OF].index(content),
        num_classes=NUM_DIGITS if content == "digits" else 62,
    )


def _only(examples: Examples, chosen: np.ndarray) -> Examples:
    """Some of the examples."""
    return examples._replace(
        x=examples.x[chosen],
        y=examples.y[chosen],
        user=examples.user[chosen],
        is_test=None,
    )


def _digits(examples: Examples) -> Examples:
    found = _only(examples, examples.y < NUM_DIGITS)
    return found._replace(num_classes=NUM_DIGITS)


def _letters(examples: Examples) -> Examples:
    found = _only(examples, examples.y >= NUM_DIGITS)
    return found._replace(
        y=(found.y - NUM_DIGITS) % NUM_LETTERS, num_classes=NUM_LETTERS
    )


_OF: Mapping[str, Callable[[Examples], Examples]] = {
    "digits": _digits,
    "letters": _letters,
}


def task_of(config: Config, num_classes: int) -> Task:
    """Classification by a convolutional encoder, which all have, and a head."""
    encoder = CNN(config.channels, (), config.features, kernel_size=3)
    return classification(ImageModel(encoder, num_classes), SHAPE)


def check_room(config: Config, optimizer: optax.GradientTransformation) -> None:
    """Refuses agents that cannot fit, before their images are there.

    Args:
      config: of the experiment.
      optimizer: of each agent.
    """
    fitting.check_agents(
        config,
        config.num_agents,
        task_of(config, NUM_LETTERS),
        optimizer,
        batch=config.batch_size * int(np.prod(SHAPE)),
    )


def make_data(
    config: Config, name: str, examples: Examples
) -> dict[int, FederatedData]:
    """The images of other writers in each run; all have the same shapes.

    Args:
      config: of the experiment.
      name: of the data set.
      examples: of all its writers.
    """
    writers, sizes = np.unique(examples.user, return_counts=True)
    writers = writers[sizes >= FEWEST]
    writers = np.random.default_rng(config.seed).permutation(writers)
    needed = config.runs.stop * config.num_agents
    if len(writers) < needed:
        raise InputError(
            f"Need {needed} writers of {name} for runs 0 to {config.runs[-1]} with "
            f"{FEWEST} images or more, got {len(writers)}: lower the number of agents "
            "or of runs."
        )
    return of_all_runs(config, partial(_of_run, config, examples, writers))


def _of_run(
    config: Config, examples: Examples, writers: np.ndarray, run: int
) -> FederatedData:
    own = writers[run * config.num_agents : (run + 1) * config.num_agents]
    chosen = _only(examples, np.isin(examples.user, own))
    chosen = chosen._replace(x=chosen.x[..., None])
    data = federate_examples(
        chosen,
        chosen.user,
        num_agents=config.num_agents,
        split=split.by_user(),
        test_fraction=0.2,
        valid_fraction=0.2,
        seed=data_rng(config, run),
    )
    return data._replace(
        train=_cut(data.train, config.max_examples),
        valid=_cut(data.valid, config.max_examples),
        test=_cut(data.test, config.max_examples),
    )


def _cut(split: Split, most: int | None) -> Split:
    """At most so many examples of each agent; they are in random order."""
    if most is None:
        return split
    examples = {name: leaf[:, :most] for name, leaf in split.examples.items()}
    return split._replace(examples=examples, size=np.minimum(split.size, most))
