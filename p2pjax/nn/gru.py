"""Next-word prediction with a GRU whose units are cells, with or without batch norm.

Sajina (2025), "Deep Learning Personalization Methods in Peer-to-peer Heterogeneous
Systems". The GRU is the reset-after form with two bias vectors. Every kernel keeps its
gates on an axis of their own, so that a unit is one column of one axis.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.nn.cells import ABSENT_LOGIT, CellMask, cell_mask, mask_absent
from p2pjax.nn.kernels.dense import Dense
from p2pjax.nn.kernels.recurrence import gru_state, to_gates
from p2pjax.types import Array, Key, PyTree, Wiring

PADDING = 0  # the token that fills up short sequences


class GRU(nn.Module):
    """Last state of a sequence; padding carries the state through.

    Gates in the order update, reset, candidate.
    """

    units: int

    @nn.compact
    def __call__(
        self, x: Array, is_token: Array, cells: CellMask | None = None
    ) -> Array:
        """State `[B, H]` after inputs `[B, T, I]`; `is_token` is `[B, T]`."""
        width, zeros = self.units, nn.initializers.zeros
        kernel = self.param("kernel", glorot_gates, (x.shape[-1], 3, width))
        bias = self.param("bias", zeros, (3, width))
        recurrent_kernel = self.param(
            "recurrent_kernel", orthogonal_gates, (width, 3, width)
        )
        recurrent_bias = self.param("recurrent_bias", zeros, (3, width))
        projected = to_gates(x.swapaxes(0, 1), kernel) + bias[None, None]
        return gru_state(projected, is_token.T, recurrent_kernel, recurrent_bias, cells)


class BatchNorm(nn.Module):
    """Normalises every column by batch or running statistics.

    The statistics are the collection `batch_stats`; a training call has to make it
    mutable. Examples that are not valid enter nothing, and a batch without a valid
    example leaves the running values as they are. flax's own has neither a momentum
    that may be traced nor statistics that stay when no example is valid. Nothing is
    trained unless it is `affine`: then a scale and a bias of each column are.
    """

    epsilon: float = 1e-3
    affine: bool = False

    @nn.compact
    def __call__(
        self,
        x: Array,
        *,
        train: bool,
        momentum: Array | float,
        valid: Array | None = None,
    ) -> Array:
        """Normalised `[B, n]`; see `NextWord.__call__` for the arguments."""
        width = x.shape[-1]
        mean = self.variable("batch_stats", "mean", jnp.zeros, (width,), x.dtype)
        var = self.variable("batch_stats", "var", jnp.ones, (width,), x.dtype)
        if not train:
            return self._scaled(_normalised(x, mean.value, var.value, self.epsilon))
        counts = jnp.ones((x.shape[0], 1), bool) if valid is None else valid[:, None]
        total = counts.sum().astype(x.dtype)

        def batch_mean_of(values: Array) -> Array:
            return jnp.where(counts, values, 0).sum(0) / jnp.maximum(total, 1)

        batch_mean = batch_mean_of(x)
        batch_var = batch_mean_of(jnp.square(x - batch_mean[None]))
        if not self.is_initializing():
            keep = jnp.where(total > 0, jnp.asarray(momentum, x.dtype), 1)
            mean.value = keep * mean.value + (1 - keep) * batch_mean
            var.value = keep * var.value + (1 - keep) * batch_var
        return self._scaled(_normalised(x, batch_mean, batch_var, self.epsilon))

    def _scaled(self, x: Array) -> Array:
        """With what is trained, if anything is."""
        if not self.affine:
            return x
        width, init = (x.shape[-1],), nn.initializers
        scale = self.param("scale", init.ones, width, x.dtype)
        bias = self.param("bias", init.zeros, width, x.dtype)
        return x * scale[None] + bias[None]


class NextWord(nn.Module):
    """Embedding, GRU, [batch norm], linear dense layer, [batch norm], logits.

    The parts are embedding dimensions, GRU units, dense units, outputs. Agents may have
    fewer cells than the stacked arrays hold (`nn.cells`), but some of every part.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> network, tokens = pj.nn.NextWord(50, 8, 8, 8), jnp.ones((3, 10), jnp.int32)
    >>> network.apply(network.init(jax.random.key(0), tokens), tokens).shape
    (3, 50)

    Attributes:
      vocab_size: tokens, padding (0) included; also the outputs.
      embedding: dimensions of the embedding.
      units: of the GRU.
      dense: units of the dense layer.
      batch_norm: whether to normalise after the GRU and after the dense layer.
      affine: whether batch norm has a scale and a bias that are trained, which the
        network of the thesis leaves out.
    """

    vocab_size: int = 10_002
    embedding: int = 100
    units: int = 100
    dense: int = 100
    batch_norm: bool = False
    affine: bool = False

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        *,
        train: bool = False,
        momentum: Array | float = 0.9,
        valid: Array | None = None,
    ) -> Array:
        """Logits `[B, vocab_size]` of the token that follows `tokens` `[B, T]`.

        Args:
          tokens: ids; 0 is padding, on either side.
          train: normalise by the batch and update the running statistics.
          momentum: what the running statistics keep; may be traced.
          valid: `[B]`, examples that enter the batch statistics; None is all.
        """
        init = nn.initializers.glorot_uniform()

        def normalised(x: Array, name: str) -> Array:
            if not self.batch_norm:
                return x
            norm = BatchNorm(affine=self.affine, name=name)
            return norm(x, train=train, momentum=momentum, valid=valid)

        x = embedded(self.vocab_size, self.embedding)(tokens)
        x = GRU(self.units, name="gru")(x, tokens != PADDING, cell_mask(self, 1))
        x = mask_absent(normalised(x, "gru_norm"), cell_mask(self, 1))
        x = Dense(self.dense, kernel_init=init, name="dense")(x)
        x = mask_absent(normalised(x, "dense_norm"), cell_mask(self, 2))
        x = Dense(self.vocab_size, kernel_init=init, name="output")(x)
        return mask_absent(x, cell_mask(self, 3), missing=ABSENT_LOGIT)


def wiring(module: NextWord) -> Wiring:
    """Which part's cells lie along which axis; part 0 is the embedding dimensions.

    Batch-norm statistics are not parameters and not in it.
    """
    norms: Wiring = {
        f"{name}/{leaf}": (part,)
        for name, part in (("gru_norm", 1), ("dense_norm", 2))
        for leaf in ("scale", "bias")
    }
    return (norms if module.batch_norm and module.affine else {}) | {
        "embedding/embedding": (None, 0),
        **recurrent_wiring("gru", 0, 1),
        "gru/recurrent_bias": (None, 1),
        "dense/kernel": (1, 2),
        "dense/bias": (2,),
        "output/kernel": (2, 3),
        "output/bias": (3,),
    }


def recurrent_wiring(name: str, inputs: int, units: int) -> Wiring:
    """Kernels of a gated layer: a unit is on both axes of the recurrent one."""
    return {
        f"{name}/kernel": (inputs, None, units),
        f"{name}/recurrent_kernel": (units, None, units),
        f"{name}/bias": (None, units),
    }


def embedded(vocab_size: int, features: int) -> nn.Embed:
    """Embedding `[vocab_size, features]`, uniform in (-0.05, 0.05)."""
    return nn.Embed(
        vocab_size, features, embedding_init=within_a_twentieth, name="embedding"
    )


def glorot_gates(
    key: Key, shape: tuple[int, ...], dtype: PyTree = jnp.float32
) -> Array:
    """Input kernel `[inputs, gates, units]`, drawn as one matrix of all gates."""
    inputs, gates, units = shape
    flat = nn.initializers.glorot_uniform()(key, (inputs, gates * units), dtype)
    return flat.reshape(shape)


def orthogonal_gates(
    key: Key, shape: tuple[int, ...], dtype: PyTree = jnp.float32
) -> Array:
    """Recurrent kernel `[units, gates, units]`, the rows of one orthonormal matrix."""
    inputs, gates, units = shape
    flat = nn.initializers.orthogonal()(key, (inputs, gates * units), dtype)
    return flat.reshape(shape)


def within_a_twentieth(
    key: Key, shape: tuple[int, ...], dtype: PyTree = jnp.float32
) -> Array:
    """Initial embeddings, uniform in (-0.05, 0.05).

    Args:
      key: source of everything random.
      shape: of the result.
      dtype: of the result.
    """
    return jax.random.uniform(key, shape, dtype, -0.05, 0.05)


def _normalised(x: Array, mean: Array, var: Array, epsilon: float) -> Array:
    return (x - mean[None]) * jax.lax.rsqrt(var + epsilon)[None]
