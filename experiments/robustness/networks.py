"""What agents learn, and how."""

import math

import flax.linen as nn
import jax.numpy as jnp
import optax

from experiments.engine import fitting
from experiments.engine.config import rate
from experiments.robustness.config import Config
from p2pjax.datasets.stacking import Examples
from p2pjax.nn.cnn import CNN
from p2pjax.nn.mlp import MLP
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.types import Array


class PaddedCNN(nn.Module):
    """A convolution of 16 channels that keeps the size of images, and a dense layer.

    31,530 parameters for MNIST, as in the code of Gaucher et al. (2025).
    """

    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_classes]` of images `[B, H, W, channels]`."""
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return CNN((16,), (), self.num_classes, kernel_size=3)(padded)


def make_task(config: Config, examples: Examples) -> Task:
    """Classification of the examples; refuses agents that cannot fit.

    Args:
      config: of the experiment.
      examples: of all agents.
    """
    network: nn.Module = PaddedCNN(examples.num_classes)
    if config.network == "mlp":
        network = MLP((config.hidden, examples.num_classes), nn.relu)
    task = classification(network, examples.x.shape[1:])
    example = math.prod(examples.x.shape[1:]) * examples.x.dtype.itemsize
    most = max(config.num_byzantine) if config.study == "two_worlds" else 0
    fitting.check_agents(
        config,
        config.size + most,
        task,
        make_optimizer(config),
        examples=config.test_size * example,
        batch=config.batch_size * example,
    )
    return task


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """SGD with momentum; a hyperbolic rate where one is asked for.

    Momentum is an average of gradients (dampening as large as momentum), but on the
    dumbbell, whose authors add gradients up.

    Args:
      config: of the experiment.
    """
    adds_up = config.study == "dumbbell"
    start = rate(config, 0.01 if adds_up else 0.1)
    every = config.decay_every or (40 if config.study == "two_worlds" else None)
    if adds_up:
        averaged = optax.trace(config.momentum)
    else:
        averaged = optax.ema(config.momentum, debias=False)

    def hyperbolic(count: Array) -> Array:
        part = 1 if every is None else 1 + jnp.asarray(count) // every
        return -start / jnp.asarray(part, jnp.float32)

    return optax.chain(averaged, optax.scale_by_schedule(hyperbolic))
