"""What agents learn, and how."""

import math

import flax.linen as nn
import jax.numpy as jnp
import optax

from experiments.engine import fitting
from experiments.engine.config import rate
from experiments.robustness.config import Config
from p2pjax.datasets.stacking import Examples
from p2pjax.nn.cnn import CNN, as_images
from p2pjax.nn.mlp import MLP
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.types import Array

WEIGHT_DECAY = 0.01  # of Wu et al. (2023)


class PaddedCNN(nn.Module):
    """A convolution of 16 channels that keeps the size of images, and a dense layer.

    31,530 parameters for MNIST, as in the code of Gaucher et al. (2025).
    """

    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_classes]` of images `[B, H, W, channels]`."""
        padded = jnp.pad(as_images(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
        return CNN((16,), (), self.num_classes, kernel_size=3)(padded)


class SoftmaxRegression(nn.Module):
    """A dense layer on pixels from -1 to 1, as in the code of Wu et al. (2023)."""

    num_classes: int
    init_std: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_classes]` of pixels `[B, ...]` from 0 to 1."""
        drawn = nn.initializers.normal(self.init_std)
        dense = nn.Dense(self.num_classes, kernel_init=drawn, bias_init=drawn)
        return dense(2 * x.reshape(x.shape[0], -1) - 1)


def make_task(config: Config, examples: Examples) -> Task:
    """Classification of the examples; refuses agents that cannot fit.

    Args:
      config: of the experiment.
      examples: of all agents.
    """
    num_classes = examples.num_classes
    network: nn.Module = PaddedCNN(num_classes)
    if config.kind == "mlp":
        network = MLP((config.hidden, num_classes), nn.relu)
    elif config.kind == "softmax":
        network = SoftmaxRegression(num_classes, config.init_std)
    task = classification(network, examples.x.shape[1:], per_class=True)
    example = math.prod(examples.x.shape[1:]) * examples.x.dtype.itemsize
    most = max(config.attackers) if config.study == "two_worlds" else 0
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
    dumbbell, whose authors add gradients up. The study separated has weight decay in
    its place, and a rate that falls with the square root of the steps.

    Args:
      config: of the experiment.
    """
    if config.study == "separated":
        first = rate(config, 0.9)
        return optax.chain(
            optax.add_decayed_weights(WEIGHT_DECAY),
            optax.scale_by_schedule(
                lambda count: -first / jnp.sqrt(1 + jnp.asarray(count, jnp.float32))
            ),
        )
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
