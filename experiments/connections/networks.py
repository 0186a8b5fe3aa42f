"""What the agents of `experiments.connections` learn: networks for images and texts."""

import math
from typing import Any

import optax

from experiments.connections.config import Config
from experiments.connections.data import cluster_of
from experiments.connections.subject import Subject
from experiments.engine import fitting
from experiments.engine.config import rate
from p2pjax.datasets.loaders import text
from p2pjax.datasets.stacking import Examples
from p2pjax.nn import cnn, mlp
from p2pjax.nn.gru import NextWord
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.task import Task
from p2pjax.types import InputError

SMALLEST_CONVOLVED = 24  # pixels of a side


def image_task(config: Config, shape: tuple[int, ...], num_classes: int) -> Task:
    """The network of every agent for images of a shape."""
    name = config.network
    if name is None:
        is_large = len(shape) > 1 and min(shape[:2]) >= SMALLEST_CONVOLVED
        name = "cnn" if is_large else "mlp"
    if name != "mlp" and len(shape) not in (2, 3):
        raise InputError(
            f"Need images of shape [height, width] or [height, width, channels] for "
            f"--network={name}, got {list(shape)}: choose --network=mlp."
        )
    module: Any = mlp.MLP((config.hidden, num_classes))
    if name == "cnn":
        module = cnn.CNN((6, 16), (120,), num_classes, kernel_size=5, pool=2)
    elif name == "cnn_table":
        module = cnn.CNN((6, 16), (128,), num_classes, kernel_size=5, pool=3)
    loss = losses.softmax_cross_entropy
    return classification(module, shape, loss, per_class=True)


def text_task(config: Config, num_ids: int) -> Task:
    """The network of every agent for texts."""
    units = config.gru_units
    module = NextWord(num_ids, units, units, units, batch_norm=True)
    return next_token(module, text.WINDOW, ignore_token=text.UNKNOWN, momentum=0.9)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Adam as in Keras."""
    default = 5e-3 if config.study == "text" else 1e-3
    return optax.adam(rate(config, default), eps=1e-7)


def check_room(config: Config, task: Task, inputs: int, examples: int = 0) -> None:
    """Refuses agents that cannot fit, before their data is made.

    Args:
      config: of the experiment.
      task: what each agent learns.
      inputs: bytes of one example, at least.
      examples: of each agent, at least.
    """
    fitting.check_agents(
        config,
        config.num_agents,
        task,
        make_optimizer(config),
        examples=examples * inputs,
        batch=config.batch_size * inputs,
    )


def image_subject(config: Config, examples: Examples) -> Subject:
    """What agents learn from images."""
    shape, num_classes = examples.x.shape[1:], examples.num_classes
    task = image_task(config, shape, num_classes)
    check_room(config, task, math.prod(shape))
    cluster = cluster_of(config, num_classes)
    optimizer = make_optimizer(config)
    return Subject(config, task, optimizer, cluster, num_classes, is_text=False)


def text_subject(config: Config, num_ids: int) -> Subject:
    """What agents learn from texts."""
    task = text_task(config, num_ids)
    check_room(config, task, text.WINDOW)
    cluster = cluster_of(config, num_ids)
    return Subject(config, task, make_optimizer(config), cluster, num_ids, is_text=True)
