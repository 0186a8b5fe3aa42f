"""What the agents of `experiments.connections` learn: networks for images and texts."""

from typing import Any

import optax

from experiments.connections.config import Config
from experiments.connections.data import cluster_of
from experiments.connections.subject import Subject
from experiments.engine.config import rate
from p2pjax.datasets.loaders import text
from p2pjax.datasets.stacking import Examples
from p2pjax.nn import cnn, mlp
from p2pjax.nn.gru import NextWord
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks._next_token import next_token
from p2pjax.types import InputError

SMALLEST_CONVOLVED = 24  # pixels of a side


def image_subject(config: Config, examples: Examples) -> Subject:
    """The network of every agent for images."""
    shape, num_classes = examples.x.shape[1:], examples.num_classes
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
    return Subject(
        config,
        classification(module, shape, losses.softmax_cross_entropy),
        optax.adam(rate(config, 1e-3), eps=1e-7),  # as in Keras
        cluster_of(config, num_classes),
        num_classes,
        is_text=False,
    )


def text_subject(config: Config, num_ids: int) -> Subject:
    """The network of every agent for texts."""
    units = config.gru_units
    module = NextWord(num_ids, units, units, units, batch_norm=True)
    return Subject(
        config,
        next_token(module, text.WINDOW, ignore_token=text.UNKNOWN, momentum=0.9),
        optax.adam(rate(config, 5e-3), eps=1e-7),
        cluster_of(config, num_ids),
        num_ids,
        is_text=True,
    )
