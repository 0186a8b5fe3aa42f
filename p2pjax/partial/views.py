"""Arrays of a network with an axis for each part of units.

A flatten holds positions and channels in one axis, an LSTM its four gates, a skip
connection by concatenation the units of two layers. A view reshapes such arrays, or
cuts them into pieces, so that each axis holds the units of one part or of none.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.paths import leaves_with_paths
from p2pjax.types import Array, PyTree


class Piece(NamedTuple):
    """A rectangle of an array, and the shape that it is given."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    shape: tuple[int, ...]


Views = Mapping[str, tuple[Piece, ...]]  # by path, of arrays that are not as they were


def viewed(params: PyTree, views: Views, *, is_stacked: bool = False) -> PyTree:
    """Parameters with an axis for each part; arrays in pieces become tuples.

    Args:
      params: arrays, or their shapes.
      views: of those that change.
      is_stacked: whether leaves are `[N, ...]`, of all agents.
    """
    if not views:
        return params
    leaves = [
        _cut(leaf, views[path], is_stacked) if path in views else leaf
        for path, leaf in leaves_with_paths(params)
    ]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def restored(
    params: PyTree, like: PyTree, views: Views, *, is_stacked: bool = False
) -> PyTree:
    """What `viewed` was made of.

    Args:
      params: viewed.
      like: any tree with the structure of the parameters as they were.
      views: as for `viewed`.
      is_stacked: whether leaves are `[N, ...]`.
    """
    if not views:
        return params
    paths = iter([path for path, _ in leaves_with_paths(like)])

    def whole(_: PyTree, part: PyTree) -> Array:
        path = next(paths)
        return _join(part, views[path], is_stacked) if path in views else part

    return jax.tree.map(whole, like, params)


def _cut(leaf: PyTree, pieces: tuple[Piece, ...], is_stacked: bool) -> PyTree:
    agents = leaf.shape[:1] if is_stacked else ()
    if isinstance(leaf, jax.ShapeDtypeStruct):
        found = [
            jax.ShapeDtypeStruct((*agents, *piece.shape), leaf.dtype)
            for piece in pieces
        ]
    else:
        every = (slice(None),) * is_stacked
        found = [
            leaf[(*every, *map(slice, piece.start, piece.stop))].reshape(
                *agents, *piece.shape
            )
            for piece in pieces
        ]
    return found[0] if len(found) == 1 else tuple(found)


def _join(parts: PyTree, pieces: tuple[Piece, ...], is_stacked: bool) -> Array:
    if len(pieces) == 1:
        parts = (parts,)
    agents = parts[0].shape[:1] if is_stacked else ()
    blocks = {
        piece.start: part.reshape(*agents, *np.subtract(piece.stop, piece.start))
        for piece, part in zip(pieces, parts, strict=True)
    }
    for axis in reversed(range(len(pieces[0].start))):  # pieces lie in a grid
        rows: dict[tuple[int, ...], list[Array]] = {}
        for start in sorted(blocks):
            rows.setdefault((*start[:axis], 0, *start[axis + 1 :]), []).append(
                blocks[start]
            )
        blocks = {
            start: row[0] if len(row) == 1 else jnp.concatenate(row, axis + is_stacked)
            for start, row in rows.items()
        }
    (whole,) = blocks.values()
    return whole
