"""Messages as whole models, for rules that try what they receive.

Most rules read messages block by block. A rule that needs losses needs whole models at
once, so what attackers send and what formats decode is written into stacks here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.class_readers import Manner, class_reader, flattened
from p2pjax.exchange.encoding import parts_of
from p2pjax.exchange.reading import Reader, Sent, Spot, fold, see, with_scale
from p2pjax.types import Array, PyTree


class WholeMessages(NamedTuple):
    """What receivers decode; what is not sent is of any agent."""

    rows: PyTree  # leaves [N, ...]: what each agent sends to all its receivers
    # leaves [N, ...]: what attackers send to receiver n; None: the same to all
    hostile: PyTree = None
    is_hostile: Array | None = None  # [N, K] slots in which they send that


def whole_messages(
    manner: Manner, sent: Sent, own: PyTree, route: Callable[[np.ndarray], Any]
) -> WholeMessages:
    """What receivers decode of all messages.

    Args:
      manner: of the exchange; its attack has a scale.
      sent: `pipeline.transmit`.
      own: the receivers' own models, leaves `[N, ...]`.
      route: owner vector `[N]` of a class -> peers `[N, K]`.
    """
    leaves, structure = jax.tree.flatten(own)
    flat = flattened(sent)
    if flat.assault is None and flat.measures is None:
        return WholeMessages(sent.rows)
    rows, hostile = list(leaves), list(leaves)
    found = None
    parts = parts_of(manner.plan, own)
    for number, owner_class in enumerate(manner.plan.classes):
        if not owner_class.is_shared:
            continue
        reader = class_reader(manner, flat, leaves, parts, number, route)
        if reader.attack is not None:
            assert reader.attack.scale is not None, "checked by check_together"
            is_per_receiver = not reader.attack.per_sender
            reader = with_scale(reader, reader.attack.scale)
            found = reader.is_hostile if is_per_receiver else None

        def write(
            pair: list[Array], spot: Spot, reader: Reader = reader
        ) -> list[Array]:
            seen = see(reader, spot)
            theirs = seen.own if seen.hostile is None else seen.hostile
            blocks = (jnp.broadcast_to(b, seen.own.shape) for b in (seen.rows, theirs))
            return [
                jax.lax.dynamic_update_slice(leaf, block.reshape(spot.sizes), spot.at)
                for leaf, block in zip(pair, blocks, strict=True)
            ]

        for at, part in enumerate(reader.parts):
            pair = [jnp.asarray(rows[part.leaf]), jnp.asarray(hostile[part.leaf])]
            pair = fold(reader, write, pair, statistics=True, only=at)
            rows[part.leaf], hostile[part.leaf] = pair
    message = jax.tree.unflatten(structure, rows)
    if found is None:
        return WholeMessages(message)
    return WholeMessages(message, jax.tree.unflatten(structure, hostile), found)
