"""Perceptrons whose weights are normal, and a client network that reads a server's.

Corinzia, Buhmann (2019), "Variational federated multi-task learning"; flipout is Wen
et al. (2018), "Flipout: efficient pseudo-independent weight perturbations on
mini-batches".

Modules draw nothing: everything random of one network is in collections that `draw`
makes. `params` holds the means, `perturbation` what the draw adds to them, `signs` the
signs of flipout and `kept` the inputs that dropout leaves. With `params` alone a
network is an ordinary one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.nn.gaussian import Gaussian
from p2pjax.nn.kernels.convolution import Geometry, convolve
from p2pjax.types import Array, InputError, Key, PyTree

KERNEL_INIT = nn.initializers.glorot_uniform()


GATES = (0.0, 0.1)  # between which gates start, as in the authors' code: nearly shut


def gates_between(gates: tuple[float, float]) -> nn.initializers.Initializer:
    """Initial gates, uniformly between two numbers.

    Args:
      gates: the lowest and the highest.

    Example:
      >>> gates_between((1.0, 1.0))(jax.random.key(0), (3,)).tolist()
      [1.0, 1.0, 1.0]
    """
    low, high = gates
    if not -float("inf") < low <= high < float("inf"):
        raise InputError(f"Need gates between two finite numbers, got {gates}.")
    uniform = nn.initializers.uniform(high - low)

    def init(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        return low + uniform(key, shape, dtype)

    return uniform if low == 0 else init


def draw(
    key: Key, q: Gaussian, batch_size: int, *, flipout: bool, dropout: float
) -> dict[str, PyTree]:
    """Collections of one network, to be applied to one batch.

    Args:
      key: source of everything random.
      q: the network's weights.
      batch_size: B.
      flipout: every example sees the perturbation with signs of its own; else all
        examples see the same weights.
      dropout: share of every dense layer's inputs that is left out; of a recurrent
        one the same at all times. Convolutions keep theirs.
    """
    key_noise, key_signs, key_kept = jax.random.split(key, 3)
    leaves, structure = jax.tree.flatten(q.mean)
    dtype = leaves[0].dtype
    # One call for all layers: compiling a random number generator takes long.
    collections = {"params": q.mean}
    if jax.tree.leaves(q.stddev):
        num_weights = sum(leaf.size for leaf in leaves)
        noise = _once(partial(jax.random.normal, key_noise, (num_weights,), dtype))
        parts = _cut(noise, [leaf.size for leaf in leaves])
        drawn = [part.reshape(w.shape) for part, w in zip(parts, leaves, strict=True)]
        drawn = jax.tree.unflatten(structure, drawn)
        collections["perturbation"] = jax.tree.map(jnp.multiply, q.stddev, drawn)
        if flipout:  # of inputs and outputs of every matrix, of channels of kernels
            widths = [sum(leaf.shape[-2:]) if leaf.ndim > 1 else 0 for leaf in leaves]
            shape = (batch_size, sum(widths))
            bits = jax.random.bits(key_signs, shape, jnp.uint8) & jnp.uint8(1)
            signs = _cut(2 * bits.astype(dtype) - 1, widths)
            collections["signs"] = jax.tree.unflatten(structure, signs)
    if dropout > 0:
        widths = [leaf.shape[0] if leaf.ndim == 2 else 0 for leaf in leaves]
        is_kept = jax.random.bernoulli(key_kept, 1 - dropout, (batch_size, sum(widths)))
        kept = _cut(is_kept.astype(dtype) / (1 - dropout), widths)
        collections["kept"] = jax.tree.unflatten(structure, kept)
    return collections


def _once(draw: Callable[[], Array]) -> Array:
    """What is drawn, in a loop of one step.

    XLA:CPU otherwise repeats the last part of it, some sixty operations that make
    noise of bits, in the code of everything that reads a piece of it.
    """
    drawn = jax.eval_shape(draw)
    one = jax.lax.optimization_barrier(jnp.int32(1))  # or it sees that it is one step
    nothing = jnp.zeros(drawn.shape, drawn.dtype)
    return jax.lax.fori_loop(0, one, lambda *_: draw(), nothing)


def _cut(values: Array, widths: Sequence[int]) -> Sequence[Array]:
    """Consecutive pieces of the last axis."""
    return jnp.split(values, np.cumsum(widths)[:-1], axis=-1)


def flipped(
    x: Array, mean: Array, perturbation: Array, signs_in: Array, signs_out: Array
) -> Array:
    """Flipout: `x` times a matrix whose perturbation has other signs per example."""
    return x @ mean + ((x * signs_in) @ perturbation) * signs_out


class Weights(nn.Module):
    """Base of layers whose weights were drawn."""

    def vector(self, name: str, init: nn.initializers.Initializer, size: int) -> Array:
        """A vector of weights."""
        mean = self.param(name, init, (size,))
        perturbation = self._drawn("perturbation", name)
        return mean if perturbation is None else mean + perturbation

    def dense(self, name: str, x: Array, features: int) -> Array:
        """`x` times a matrix of weights, `[B, ..., features]`."""
        return self.matrix(name, x.shape[-1], features)(x)

    def matrix(
        self,
        name: str,
        inputs: int,
        features: int,
        init: nn.initializers.Initializer = KERNEL_INIT,
    ) -> Callable[[Array], Array]:
        """The function that multiplies `[B, ..., inputs]` by a matrix of weights."""
        mean = self.param(name, init, (inputs, features))
        perturbation = self._drawn("perturbation", name)
        signs = self._drawn("signs", name)
        kept = self._drawn("kept", name)

        def times(x: Array) -> Array:
            def along(factors: Array) -> Array:
                return factors.reshape(len(x), *(1,) * (x.ndim - 2), -1)

            if kept is not None:
                x = x * along(kept)
            if perturbation is None:
                return x @ mean
            if signs is None:
                return x @ (mean + perturbation)
            of_inputs, of_outputs = along(signs[:, :inputs]), along(signs[:, inputs:])
            return flipped(x, mean, perturbation, of_inputs, of_outputs)

        return times

    def rows(
        self,
        name: str,
        tokens: Array,
        shape: tuple[int, int],
        init: nn.initializers.Initializer,
    ) -> Array:
        """Rows of a matrix of weights that tokens `[B, T]` name, `[B, T, features]`."""
        mean = self.param(name, init, shape)
        perturbation = self._drawn("perturbation", name)
        signs = self._drawn("signs", name)
        if perturbation is None:
            return mean[tokens]
        if signs is None:
            return (mean + perturbation)[tokens]
        of_rows = jnp.take_along_axis(signs[:, : shape[0]], tokens, axis=1)
        of_columns = signs[:, None, shape[0] :]
        return mean[tokens] + perturbation[tokens] * of_rows[..., None] * of_columns

    def convolution(self, name: str, x: Array, features: int, size: int) -> Array:
        """Images `[B, H, W, C]` convolved with kernels of weights, unpadded.

        Signs of flipout are of channels, the same at all positions.
        """
        channels = x.shape[-1]
        mean = self.param(name, KERNEL_INIT, (size, size, channels, features))
        perturbation = self._drawn("perturbation", name)
        signs = self._drawn("signs", name)
        if perturbation is None:
            return convolve(x, mean, Geometry())
        if signs is None:
            return convolve(x, mean + perturbation, Geometry())
        signs = signs[:, None, None]
        of_inputs, of_outputs = signs[..., :channels], signs[..., channels:]
        perturbed = convolve(x * of_inputs, perturbation, Geometry())
        return convolve(x, mean, Geometry()) + perturbed * of_outputs

    def _drawn(self, collection: str, name: str) -> Array | None:
        return self.get_variable(collection, name)


def _along(vector: Array, x: Array) -> Array:
    """A number for each of the last axis of `x`, `[1, ..., features]`."""
    return vector.reshape(*(1,) * (x.ndim - 1), -1)


class Dense(Weights):
    """A dense layer without its activation.

    Attributes:
      features: cells of the layer.
    """

    features: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        output = self.dense("kernel", x, self.features)
        bias = self.vector("bias", nn.initializers.zeros, self.features)
        return output + _along(bias, output)


class LateralDense(Weights):
    """A client's layer, which reads a layer of the server (equation 4).

    Attributes:
      features: cells of the layer.
      gates: between which gates start.
    """

    features: int
    gates: tuple[float, float] = GATES

    @nn.compact
    def __call__(self, client: Array, server: Array) -> Array:
        zeros = nn.initializers.zeros
        shift = self.vector("lateral_bias", zeros, server.shape[-1])
        read = nn.relu(server + _along(shift, server))
        lateral = self.dense("lateral", read, self.features)
        gate = self.vector("gate", gates_between(self.gates), self.features)
        own = self.dense("kernel", client, self.features)
        bias = self.vector("bias", zeros, self.features)
        return own + _along(gate, own) * lateral + _along(bias, own)


class VariationalMLP(nn.Module):
    """Dense layers `layer_1` .. `layer_L` with ReLU; the last one gives logits.

    Attributes:
      features: cells of every layer, without the input.
    """

    features: Sequence[int]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        hidden = x.reshape(x.shape[0], -1)
        for layer, features in enumerate(self.features, start=1):
            dense = Dense(features, name=f"layer_{layer}")
            hidden = dense(hidden)
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
      same_depth: a client's layer reads the server's at its own height instead, as in
        the authors' code; the server then has as many layers as the client.
      gates: between which the gates of what clients read start, uniformly.
    """

    features: Sequence[int]
    same_depth: bool = False
    gates: tuple[float, float] = GATES

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if len(self.features) < 2:
            raise InputError(
                f"Need a hidden layer for clients to read, got layers {self.features}."
            )
        x = x.reshape(x.shape[0], -1)
        num_server = len(self.features) - (0 if self.same_depth else 1)
        heights = ServerColumn(self.features[:num_server], name="server")(x)
        read = heights[1:] if self.same_depth else heights
        return ClientColumn(self.features, self.gates, name="client")(x, read)


class ServerColumn(nn.Module):
    """All heights of the server's network, the input first.

    Attributes:
      features: cells of every layer, without the input.
    """

    features: Sequence[int]

    @nn.compact
    def __call__(self, x: Array) -> list[Array]:
        heights = [x]
        for layer, features in enumerate(self.features, start=1):
            dense = Dense(features, name=f"layer_{layer}")
            heights.append(nn.relu(dense(heights[-1])))
        return heights


class ClientColumn(nn.Module):
    """A client's network; the last layer gives logits.

    Attributes:
      features: cells of every layer, without the input.
      gates: between which gates start.
    """

    features: Sequence[int]
    gates: tuple[float, float] = GATES

    @nn.compact
    def __call__(self, x: Array, server: Sequence[Array]) -> Array:
        hidden = x
        for layer, features in enumerate(self.features, start=1):
            dense = LateralDense(features, self.gates, name=f"layer_{layer}")
            hidden = dense(hidden, server[layer - 1])
            if layer < len(self.features):
                hidden = nn.relu(hidden)
        return hidden
