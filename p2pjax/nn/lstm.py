"""Sequence classification with an LSTM whose units are cells.

Hochreiter, Schmidhuber (1997), with the forget gate of Gers et al. (2000) and its bias
starting at one (Jozefowicz et al. 2015).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.nn.cells import ABSENT_LOGIT, CellMask, cell_mask, mask_absent
from p2pjax.nn.gru import (
    PADDING,
    embedded,
    glorot_gates,
    orthogonal_gates,
    recurrent_wiring,
)
from p2pjax.nn.kernels.dense import Dense
from p2pjax.types import Array, Key, PyTree, Wiring


class LSTM(nn.Module):
    """Last output of a sequence; padding carries the state through.

    Gates in the order input, forget, candidate, output.
    """

    units: int

    @nn.compact
    def __call__(
        self, x: Array, is_token: Array, cells: CellMask | None = None
    ) -> Array:
        """Output `[B, H]` after inputs `[B, T, I]`; `is_token` `[B, T]`."""
        width = self.units
        kernel = self.param("kernel", glorot_gates, (x.shape[-1], 4, width))
        bias = self.param("bias", _forget_bias, (4, width))
        recurrent_kernel = self.param(
            "recurrent_kernel", orthogonal_gates, (width, 4, width)
        )
        projected = jnp.einsum("bti,igh->tbgh", x, kernel) + bias[None, None]

        def step(carry: PyTree, inputs: PyTree) -> tuple[PyTree, None]:
            output, memory = carry  # [B, H] each
            projected, is_token = inputs  # [B, 4, H], [B]
            gates = projected + jnp.einsum("bi,igh->bgh", output, recurrent_kernel)
            write, keep, read = (nn.sigmoid(gates[:, gate]) for gate in (0, 1, 3))
            new_memory = keep * memory + write * jnp.tanh(gates[:, 2])
            new_output = mask_absent(read * jnp.tanh(new_memory), cells)
            counts = is_token[:, None]
            return (
                jnp.where(counts, new_output, output),
                jnp.where(counts, new_memory, memory),
            ), None

        start = jnp.zeros((x.shape[0], width), projected.dtype)
        (output, _), _ = jax.lax.scan(step, (start, start), (projected, is_token.T))
        return output


class SequenceClassifier(nn.Module):
    """Embedding, LSTM, logits.

    The parts are embedding dimensions, LSTM units, outputs. Agents may have fewer cells
    than the stacked arrays hold (`nn.cells`), but some of every part.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> network = pj.nn.SequenceClassifier(50, 8, 8, 2)
    >>> tokens = jnp.ones((3, 10), jnp.int32)
    >>> network.apply(network.init(jax.random.key(0), tokens), tokens).shape
    (3, 2)

    Attributes:
      vocab_size: tokens, padding (0) included.
      embedding: dimensions of the embedding.
      units: of the LSTM.
      num_classes: outputs.
    """

    vocab_size: int
    embedding: int
    units: int
    num_classes: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Logits `[B, num_classes]` of `tokens` `[B, T]`; 0 is padding on any side."""
        x = embedded(self.vocab_size, self.embedding)(tokens)
        x = LSTM(self.units, name="lstm")(x, tokens != PADDING, cell_mask(self, 1))
        init = nn.initializers.glorot_uniform()
        x = Dense(self.num_classes, kernel_init=init, name="output")(x)
        return mask_absent(x, cell_mask(self, 2), missing=ABSENT_LOGIT)


def wiring(module: SequenceClassifier) -> Wiring:
    """Which part's cells lie along which axis; part 0 is the embedding dimensions."""
    del module  # the same leaves for all sizes
    return {
        "embedding/embedding": (None, 0),
        **recurrent_wiring("lstm", 0, 1),
        "output/kernel": (1, 2),
        "output/bias": (2,),
    }


def _forget_bias(
    key: Key, shape: tuple[int, ...], dtype: PyTree = jnp.float32
) -> Array:
    del key
    return jnp.zeros(shape, dtype).at[1].set(1)
