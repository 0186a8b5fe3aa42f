"""Perceptrons whose weights are normal, and a client network that reads a server's.

Corinzia, Buhmann (2019), "Variational federated multi-task learning"; flipout is Wen
et al. (2018), "Flipout: efficient pseudo-independent weight perturbations on
mini-batches".

Collection `params` holds the means and collection `deviation`, of the same structure,
the deviations. Applied without deviations a network computes with its means.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.types import Array, InputError, Key

KERNEL_INIT = nn.initializers.glorot_uniform()
GATE_INIT = nn.initializers.uniform(0.1)  # as in the authors' code: nearly shut


class Weights(nn.Module):
    """Base of layers that own normal weights.

    Attributes:
      flipout: every example of a batch sees perturbations of its own signs; else all
        examples of a batch see the same weights.
      dropout: share of a dense layer's inputs that training leaves out.
    """

    flipout: bool = True
    dropout: float = 0.0

    def vector(self, name: str, init: nn.initializers.Initializer, size: int) -> Array:
        """One draw of a vector of weights."""
        mean = self.param(name, init, (size,))
        perturbation = self._perturbation(name, mean)
        return mean if perturbation is None else mean + perturbation

    def dense(self, name: str, x: Array, features: int, train: bool) -> Array:
        """`x` times one draw of a matrix of weights, `[B, features]`."""
        mean = self.param(name, KERNEL_INIT, (x.shape[-1], features))
        if train and self.dropout > 0:
            x = dropped(self.make_rng("dropout"), x, self.dropout)
        perturbation = self._perturbation(name, mean)
        if perturbation is None:
            return x @ mean
        if not self.flipout:
            return x @ (mean + perturbation)
        key_in, key_out = jax.random.split(self.make_rng("sample"))
        signs_in = random_signs(key_in, x)
        signs_out = random_signs(key_out, jnp.zeros((len(x), features), x.dtype))
        return flipped(x, mean, perturbation, signs_in, signs_out)

    def _perturbation(self, name: str, mean: Array) -> Array | None:
        if not self.has_variable("deviation", name):
            return None
        noise = jax.random.normal(self.make_rng("sample"), mean.shape, mean.dtype)
        return self.get_variable("deviation", name) * noise


def flipped(
    x: Array, mean: Array, perturbation: Array, signs_in: Array, signs_out: Array
) -> Array:
    """Flipout: `x` times a matrix whose perturbation has other signs per example."""
    return x @ mean + ((x * signs_in) @ perturbation) * signs_out


def random_signs(key: Key, like: Array) -> Array:
    """-1 or 1, of the shape of `like`."""
    bits = jax.random.bits(key, like.shape, jnp.uint8) & jnp.uint8(1)
    return 2 * bits.astype(like.dtype) - 1


def dropped(key: Key, x: Array, rate: float) -> Array:
    """Dropout that keeps the expectation."""
    is_kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(is_kept, x / (1 - rate), jnp.zeros_like(x))


class Dense(Weights):
    """A dense layer without its activation.

    Attributes:
      features: cells of the layer.
    """

    features: int = 1

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        output = self.dense("kernel", x, self.features, train)
        bias = self.vector("bias", nn.initializers.zeros, self.features)
        return output + bias[None]


class LateralDense(Weights):
    """A client's layer, which reads a layer of the server (equation 4).

    Attributes:
      features: cells of the layer.
    """

    features: int = 1

    @nn.compact
    def __call__(self, client: Array, server: Array, train: bool = False) -> Array:
        zeros = nn.initializers.zeros
        shift = self.vector("lateral_bias", zeros, server.shape[-1])
        lateral = self.dense(
            "lateral", nn.relu(server + shift[None]), self.features, train
        )
        gate = self.vector("gate", GATE_INIT, self.features)
        own = self.dense("kernel", client, self.features, train)
        bias = self.vector("bias", zeros, self.features)
        return own + gate[None] * lateral + bias[None]


class VariationalMLP(nn.Module):
    """Dense layers `layer_1` .. `layer_L` with ReLU; the last one gives logits.

    Attributes:
      features: cells of every layer, without the input.
      flipout: see `Weights`.
      dropout: see `Weights`.
    """

    features: Sequence[int]
    flipout: bool = True
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        hidden = x.reshape(x.shape[0], -1)
        for layer, features in enumerate(self.features, start=1):
            dense = Dense(self.flipout, self.dropout, features, name=f"layer_{layer}")
            hidden = dense(hidden, train)
            if layer < len(self.features):
                hidden = nn.relu(hidden)
        return hidden


class Columns(nn.Module):
    """A server's column and a client's beside it, which alone gives logits.

    The weights are `server/layer_1` .. and `client/layer_1` ..: the former are what
    clients have in common. A client's layer reads the server's layer below it, so the
    server has no layer at the height of the logits.

    Attributes:
      features: cells of every layer, without the input.
      flipout: see `Weights`.
      dropout: see `Weights`.
      same_depth: a client's layer reads the server's at its own height instead, as in
        the authors' code; the server then has as many layers as the client.
    """

    features: Sequence[int]
    flipout: bool = True
    dropout: float = 0.0
    same_depth: bool = False

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        if len(self.features) < 2:
            raise InputError(
                f"Need a hidden layer for clients to read, got layers {self.features}."
            )
        x = x.reshape(x.shape[0], -1)
        num_server = len(self.features) - (0 if self.same_depth else 1)
        heights = ServerColumn(
            self.flipout, self.dropout, self.features[:num_server], name="server"
        )(x, train)
        read = heights[1:] if self.same_depth else heights
        return ClientColumn(self.flipout, self.dropout, self.features, name="client")(
            x, read, train
        )


class ServerColumn(nn.Module):
    """All heights of the server's network, the input first.

    Attributes:
      flipout: see `Weights`.
      dropout: see `Weights`.
      features: cells of every layer, without the input.
    """

    flipout: bool
    dropout: float
    features: Sequence[int]

    @nn.compact
    def __call__(self, x: Array, train: bool) -> list[Array]:
        heights = [x]
        for layer, features in enumerate(self.features, start=1):
            dense = Dense(self.flipout, self.dropout, features, name=f"layer_{layer}")
            heights.append(nn.relu(dense(heights[-1], train)))
        return heights


class ClientColumn(nn.Module):
    """A client's network; the last layer gives logits.

    Attributes:
      flipout: see `Weights`.
      dropout: see `Weights`.
      features: cells of every layer, without the input.
    """

    flipout: bool
    dropout: float
    features: Sequence[int]

    @nn.compact
    def __call__(self, x: Array, server: Sequence[Array], train: bool) -> Array:
        hidden = x
        for layer, features in enumerate(self.features, start=1):
            dense = LateralDense(
                self.flipout, self.dropout, features, name=f"layer_{layer}"
            )
            hidden = dense(hidden, server[layer - 1], train)
            if layer < len(self.features):
                hidden = nn.relu(hidden)
        return hidden
