"""Networks of the papers as flax modules, and a fast convolution for your own.

Each network is a Linen module of one agent; methods stack the parameters of all agents.
Modules beside `kernels` are free to import; `kernels` is for this package only.

>>> import jax, jax.numpy as jnp
>>> import p2pjax as pj
>>> network = pj.nn.MLP((32, 10))
>>> params = network.init(jax.random.key(0), jnp.ones((1, 64)))
>>> network.apply(params, jnp.ones((5, 64))).shape
(5, 10)
"""

from p2pjax.nn.batch_norm_cnn import BatchNormCNN
from p2pjax.nn.cnn import CNN, ImageModel, cifar_cnn_code, cifar_cnn_table
from p2pjax.nn.encoder import Encoder, TokenHead, TokenModel, bert_tiny
from p2pjax.nn.fast_convolution import fast_conv
from p2pjax.nn.fast_gradients import with_fast_gradients
from p2pjax.nn.gru import NextWord
from p2pjax.nn.lstm import SequenceClassifier
from p2pjax.nn.mlp import MLP
from p2pjax.nn.slow_convolutions import (
    SlowConvolutionWarning,
    has_slow_convolutions,
    warn_of_slow_convolutions,
)

__all__ = [
    "CNN",
    "MLP",
    "BatchNormCNN",
    "Encoder",
    "ImageModel",
    "NextWord",
    "SequenceClassifier",
    "SlowConvolutionWarning",
    "TokenHead",
    "TokenModel",
    "bert_tiny",
    "cifar_cnn_code",
    "cifar_cnn_table",
    "fast_conv",
    "has_slow_convolutions",
    "warn_of_slow_convolutions",
    "with_fast_gradients",
]
