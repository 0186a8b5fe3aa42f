"""Next-word networks whose weights are normal, with a server's column or without.

The layers of `nn.gru.NextWord` without batch norm; equation 4 of Corinzia, Buhmann
(2019), "Variational federated multi-task learning": what a client's GRU adds of the
server is read at every time, with a gate for each number that enters its gates. Words
are common to both columns, so the embedding reads nothing. A draw and its signs of
flipout are the same at all times, as Fortunato et al. (2017), "Bayesian recurrent
neural networks", draw a matrix per sequence.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.nn.gru import PADDING, within_a_twentieth
from p2pjax.nn.variational import GATES, Dense, LateralDense, Weights
from p2pjax.types import Array, PyTree


class Embedding(Weights):
    """A vector of weights for each token.

    Attributes:
      vocab_size: tokens.
      features: dimensions.
    """

    vocab_size: int
    features: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        shape = (self.vocab_size, self.features)
        return self.rows("kernel", tokens, shape, within_a_twentieth)


class Recurrence(Weights):
    """Last state of a GRU in the reset-after form; padding carries the state through.

    Gates in the order update, reset, candidate.

    Attributes:
      units: H.
    """

    units: int

    @nn.compact
    def __call__(self, projected: Array, is_token: Array) -> Array:
        """State `[B, H]` of what inputs add to the gates, `[B, T, 3 H]`."""
        width = 3 * self.units
        orthogonal = nn.initializers.orthogonal()
        times = self.matrix("recurrent_kernel", self.units, width, orthogonal)
        bias = self.vector("recurrent_bias", nn.initializers.zeros, width)

        def step(state: PyTree, inputs: PyTree) -> tuple[PyTree, None]:
            projected, is_token = inputs  # [B, 3 H], [B]
            recurrent = jnp.split(times(state) + bias[None], 3, axis=1)
            entering = jnp.split(projected, 3, axis=1)
            update, reset = (nn.sigmoid(entering[g] + recurrent[g]) for g in (0, 1))
            candidate = jnp.tanh(entering[2] + reset * recurrent[2])
            new = update * state + (1 - update) * candidate
            return jnp.where(is_token[:, None], new, state), None

        start = jnp.zeros((len(projected), self.units), projected.dtype)
        return jax.lax.scan(step, start, (projected.swapaxes(0, 1), is_token.T))[0]


class VariationalGRU(nn.Module):
    """Embedding, GRU, linear dense layer, logits: `layer_1` .. `layer_4`.

    The GRU's recurrent part is `recurrence`.

    Attributes:
      vocab_size: tokens, padding (0) included; also the outputs.
      embedding: dimensions of the embedding.
      units: of the GRU.
      dense: units of the dense layer.
    """

    vocab_size: int
    embedding: int
    units: int
    dense: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        hidden = Embedding(self.vocab_size, self.embedding, name="layer_1")(tokens)
        projected = Dense(3 * self.units, name="layer_2")(hidden)
        is_token = tokens != PADDING
        state = Recurrence(self.units, name="recurrence")(projected, is_token)
        hidden = Dense(self.dense, name="layer_3")(state)
        return Dense(self.vocab_size, name="layer_4")(hidden)


class ColumnsGRU(nn.Module):
    """A server's column and a client's beside it, which alone gives logits.

    As `variational.Columns`: a client's layer reads the server's layer below it.

    Attributes:
      vocab_size: tokens, padding (0) included; also the outputs.
      embedding: dimensions of the embedding.
      units: of the GRU.
      dense: units of the dense layer.
      gates: between which the gates of what clients read start, uniformly.
    """

    vocab_size: int
    embedding: int
    units: int
    dense: int
    gates: tuple[float, float] = GATES

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        sizes = (self.vocab_size, self.embedding, self.units, self.dense)
        heights = _ServerGRU(*sizes, name="server")(tokens)
        return _ClientGRU(*sizes, self.gates, name="client")(tokens, heights)


class _ServerGRU(nn.Module):
    """Embedding `[B, T, E]`, state `[B, H]` and dense layer of the server."""

    vocab_size: int
    embedding: int
    units: int
    dense: int

    @nn.compact
    def __call__(self, tokens: Array) -> tuple[Array, Array, Array]:
        words = Embedding(self.vocab_size, self.embedding, name="layer_1")(tokens)
        projected = Dense(3 * self.units, name="layer_2")(words)
        is_token = tokens != PADDING
        state = Recurrence(self.units, name="recurrence")(projected, is_token)
        return words, state, Dense(self.dense, name="layer_3")(state)


class _ClientGRU(nn.Module):
    """A client's network beside the heights of the server's."""

    vocab_size: int
    embedding: int
    units: int
    dense: int
    gates: tuple[float, float]

    @nn.compact
    def __call__(self, tokens: Array, server: tuple[Array, Array, Array]) -> Array:
        def lateral(features: int, layer: int) -> LateralDense:
            return LateralDense(features, self.gates, name=f"layer_{layer}")

        words = Embedding(self.vocab_size, self.embedding, name="layer_1")(tokens)
        projected = lateral(3 * self.units, 2)(words, server[0])
        is_token = tokens != PADDING
        state = Recurrence(self.units, name="recurrence")(projected, is_token)
        hidden = lateral(self.dense, 3)(state, server[1])
        return lateral(self.vocab_size, 4)(hidden, server[2])
