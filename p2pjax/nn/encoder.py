"""BERT-style encoder whose attention heads and feed-forward units are cells.

Devlin et al. (2019), https://arxiv.org/abs/1810.04805; the tiny size of Turc et al.
(2019), https://arxiv.org/abs/1908.08962, trained from scratch as in Sajina (2025).
Every sublayer reads the hidden state of a token and adds to it, so its dimensions are
part 0, the heads and the feed-forward units of layer l are parts 2l - 1 and 2l, and the
outputs are the last part. There is no pooler: no task of this package would train it.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.nn.cells import ABSENT_LOGIT, CellMask, cell_mask, mask_absent
from p2pjax.nn.kernels.dense import Dense, DenseGeneral
from p2pjax.types import Array, InputError, Wiring

INIT = nn.initializers.truncated_normal(0.02)


class SelfAttention(nn.Module):
    """Heads that read the hidden states and add to them; a head is one column."""

    num_heads: int
    head_dim: int
    dropout: float

    @nn.compact
    def __call__(
        self,
        x: Array,
        attention_mask: Array,
        cells: CellMask | None,
        deterministic: bool,
    ) -> Array:
        """`[B, T, hidden_size]`; tokens with a False `attention_mask` are not read."""

        def projected(name: str) -> Array:  # [B, T, heads, head_dim]
            shape = (self.num_heads, self.head_dim)
            return DenseGeneral(shape, kernel_init=INIT, name=name)(x)

        query, key, value = map(projected, ("query", "key", "value"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / self.head_dim**0.5
        lowest = jnp.finfo(scores.dtype).min
        scores = jnp.where(attention_mask[:, None, None, :], scores, lowest)
        weights = nn.Dropout(self.dropout)(nn.softmax(scores), deterministic)
        read = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        heads = mask_absent(read, cells, axis=2)
        return DenseGeneral(
            x.shape[-1], axis=(-2, -1), kernel_init=INIT, name="output"
        )(heads)


class FeedForward(nn.Module):
    """Two dense layers with GELU between them, at every position."""

    units: int

    @nn.compact
    def __call__(self, x: Array, cells: CellMask | None) -> Array:
        hidden = Dense(self.units, kernel_init=INIT, name="hidden")(x)
        hidden = mask_absent(nn.gelu(hidden, approximate=False), cells)
        return Dense(x.shape[-1], kernel_init=INIT, name="output")(hidden)


class Encoder(nn.Module):
    """Embeddings and layers; layer norm follows every sublayer (post-LN).

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> encoder = pj.nn.Encoder(50, 8, num_heads=(2,), mlp_dim=(16,), head_dim=4)
    >>> tokens = jnp.ones((3, 10), jnp.int32)
    >>> hidden, _ = jax.jit(encoder.init_with_output)(jax.random.key(0), tokens)
    >>> hidden.shape
    (3, 10, 8)

    Attributes:
      vocab_size: tokens.
      hidden_size: width of the hidden state of a token.
      num_heads: of every layer.
      mlp_dim: feed-forward units of every layer.
      head_dim: of every head.
      num_positions: longest sequence.
      num_segments: of the segment embeddings; 0 leaves them out.
      dropout: rate, of embeddings, attention weights and sublayer outputs.
      norm_epsilon: of the layer norms.
    """

    vocab_size: int
    hidden_size: int
    num_heads: Sequence[int]
    mlp_dim: Sequence[int]
    head_dim: int
    num_positions: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    norm_epsilon: float = 1e-12

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        *,
        attention_mask: Array | None = None,
        segments: Array | None = None,
        deterministic: bool = True,
        cells: Sequence[CellMask | None] | None = None,
    ) -> Array:
        """Hidden states `[B, T, hidden_size]`.

        Args:
          tokens: ids `[B, T]`.
          attention_mask: `[B, T]`, True where a token may be attended to; None is all.
          segments: ids `[B, T]`; None is segment 0.
          deterministic: no dropout; otherwise pass the key `dropout`.
          cells: what the agent has of parts 1 to 2L; None is every cell.
        """
        length = tokens.shape[1]
        if length > self.num_positions or len(self.num_heads) != len(self.mlp_dim):
            raise InputError(
                f"Need at most {self.num_positions} tokens and as many entries in "
                f"num_heads as in mlp_dim, got {length} tokens, {self.num_heads} "
                f"and {self.mlp_dim}: cut the texts or change the encoder."
            )
        if attention_mask is None:
            attention_mask = jnp.ones(tokens.shape, bool)
        if cells is None:
            cells = (None,) * (2 * len(self.num_heads))

        def dropped(x: Array) -> Array:
            return nn.Dropout(self.dropout)(x, deterministic)

        def norm(x: Array, name: str) -> Array:
            return nn.LayerNorm(self.norm_epsilon, use_fast_variance=False, name=name)(
                x
            )

        x = self._embedded(tokens, segments)
        x = dropped(norm(x, "embedding_norm"))
        for layer, (num_heads, units) in enumerate(
            zip(self.num_heads, self.mlp_dim, strict=True)
        ):
            name = f"layer_{layer + 1}"
            attention = SelfAttention(
                num_heads, self.head_dim, self.dropout, name=f"{name}_attention"
            )
            read = attention(x, attention_mask, cells[2 * layer], deterministic)
            x = norm(x + dropped(read), f"{name}_attention_norm")
            mlp = FeedForward(units, name=f"{name}_feed_forward")
            mlp_out = mlp(x, cells[2 * layer + 1])
            x = norm(x + dropped(mlp_out), f"{name}_feed_forward_norm")
        return x

    def _embedded(self, tokens: Array, segments: Array | None) -> Array:
        def embed(size: int, name: str) -> nn.Embed:
            return nn.Embed(size, self.hidden_size, embedding_init=INIT, name=name)

        positions = jnp.arange(tokens.shape[1])
        x = embed(self.vocab_size, "tokens")(tokens)
        x = x + embed(self.num_positions, "positions")(positions)[None]
        if self.num_segments:
            segments = jnp.zeros_like(tokens) if segments is None else segments
            x = x + embed(self.num_segments, "segments")(segments)
        return x


class TokenHead(nn.Module):
    """Logits of tokens: at given positions (masked token, next word) or at all.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> head, hidden = pj.nn.TokenHead(50), jnp.ones((3, 10, 8))
    >>> params = head.init(jax.random.key(0), hidden)
    >>> head.apply(params, hidden, jnp.asarray([0, 4, 9])).shape
    (3, 50)

    Attributes:
      num_outputs: logits of a token.
    """

    num_outputs: int

    @nn.compact
    def __call__(
        self,
        hidden: Array,
        positions: Array | None = None,
        cells: CellMask | None = None,
    ) -> Array:
        """Logits of `hidden` `[B, T, hidden_size]`.

        Args:
          hidden: states of the encoder.
          positions: `[B]` or `[B, P]`; None is all positions.
          cells: what the agent has of the outputs.

        Returns:
          `[B, outputs]`, `[B, P, outputs]` or `[B, T, outputs]`.
        """
        if positions is not None:
            hidden = jax.vmap(lambda states, where: states[where])(hidden, positions)
        output = Dense(self.num_outputs, kernel_init=INIT, name="output")(hidden)
        return mask_absent(output, cells, missing=ABSENT_LOGIT)


class TokenModel(nn.Module):
    """An encoder and the head of a task, as the subtrees `encoder` and `head`.

    Agents of different tasks share the encoder only. Agents may have fewer heads and
    feed-forward units than the stacked arrays hold (`nn.cells`), but some of each;
    `hidden_size` is the same in all agents.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> encoder = pj.nn.Encoder(50, 8, num_heads=(2,), mlp_dim=(16,), head_dim=4)
    >>> network = pj.nn.TokenModel(encoder, pj.nn.TokenHead(5))
    >>> tokens = jnp.ones((3, 10), jnp.int32)
    >>> logits, _ = jax.jit(network.init_with_output)(jax.random.key(0), tokens)
    >>> logits.shape
    (3, 10, 5)

    Attributes:
      encoder: hidden states of tokens.
      head: logits of hidden states.
    """

    encoder: Encoder
    head: TokenHead

    def __call__(
        self,
        tokens: Array,
        *,
        attention_mask: Array | None = None,
        segments: Array | None = None,
        positions: Array | None = None,
        deterministic: bool = True,
    ) -> Array:
        """Logits; the arguments are those of `Encoder` and `TokenHead`."""
        num_hidden = 2 * len(self.encoder.num_heads)
        hidden = self.encoder(
            tokens,
            attention_mask=attention_mask,
            segments=segments,
            deterministic=deterministic,
            cells=[cell_mask(self, part) for part in range(1, num_hidden + 1)],
        )
        return self.head(hidden, positions, cell_mask(self, num_hidden + 1))


def bert_tiny(
    vocab_size: int = 30_522, *, num_segments: int = 2, dropout: float = 0.1
) -> Encoder:
    """BERT-Tiny: 2 layers of 2 heads and 512 units, hidden states of size 128.

    4,369,408 parameters, which is the published 4,385,920 without the pooler's 16,512.

    >>> import p2pjax as pj
    >>> pj.nn.bert_tiny(vocab_size=1000).mlp_dim
    (512, 512)

    Args:
      vocab_size: tokens.
      num_segments: of the segment embeddings; 0 leaves them out.
      dropout: rate.
    """
    return Encoder(
        vocab_size=vocab_size,
        hidden_size=128,
        num_heads=(2, 2),
        mlp_dim=(512, 512),
        head_dim=64,
        num_positions=512,
        num_segments=num_segments,
        dropout=dropout,
    )


def wiring(module: TokenModel) -> Wiring:
    """Which part's cells lie along which axis; part 0 is the hidden dimensions."""
    outputs = 2 * len(module.encoder.num_heads) + 1
    encoder = encoder_wiring(module.encoder)
    return {f"encoder/{path}": parts for path, parts in encoder.items()} | {
        "head/output/kernel": (0, outputs),
        "head/output/bias": (outputs,),
    }


def encoder_wiring(module: Encoder) -> Wiring:
    """The same for an encoder on its own."""
    leaves: Wiring = {"tokens/embedding": (None, 0), "positions/embedding": (None, 0)}
    if module.num_segments:
        leaves["segments/embedding"] = (None, 0)
    norms = ["embedding_norm"]
    for layer in range(1, len(module.num_heads) + 1):
        heads, units = 2 * layer - 1, 2 * layer
        attention = f"layer_{layer}_attention"
        feed_forward = f"layer_{layer}_feed_forward"
        norms += [f"{attention}_norm", f"{feed_forward}_norm"]
        for name in ("query", "key", "value"):
            leaves[f"{attention}/{name}/kernel"] = (0, heads, None)
            leaves[f"{attention}/{name}/bias"] = (heads, None)
        leaves[f"{attention}/output/kernel"] = (heads, None, 0)
        leaves[f"{attention}/output/bias"] = (0,)
        leaves[f"{feed_forward}/hidden/kernel"] = (0, units)
        leaves[f"{feed_forward}/hidden/bias"] = (units,)
        leaves[f"{feed_forward}/output/kernel"] = (units, 0)
        leaves[f"{feed_forward}/output/bias"] = (0,)
    for norm in norms:
        leaves |= {f"{norm}/scale": (0,), f"{norm}/bias": (0,)}
    return leaves
