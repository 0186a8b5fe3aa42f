"""How receivers read each owner class of an exchange."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from p2pjax.exchange.attacks.base import Attack, hostile_slots
from p2pjax.exchange.compression import Format
from p2pjax.exchange.encoding import Part
from p2pjax.exchange.mixing import BLOCK_BYTES
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.reading import Reader, Sent, prepared_reader
from p2pjax.exchange.robust.base import Rule
from p2pjax.types import Array, Peers, PyTree


class Manner(NamedTuple):
    """How messages of an exchange are formed, attacked and combined; static."""

    plan: MixPlan
    format: Format | None = None
    attack: Attack | None = None
    rule: Rule | None = None


def class_reader(
    manner: Manner,
    flat: Sent,
    leaves: list[Array],
    parts: tuple[Part, ...],
    number: int,
    route: Callable[[np.ndarray], Any],
) -> Reader:
    """How one owner class is read; its attack is None where there is none on it.

    Args:
      manner: of the exchange.
      flat: messages, `flattened`.
      leaves: the receivers' own models, `[N, ...]` each.
      parts: of all classes.
      number: of the class.
      route: as `combine` has it.
    """
    owner = manner.plan.classes[number].owner
    of_class = [i for i, part in enumerate(parts) if part.owner_class == number]
    peers = route(owner)
    assert isinstance(peers, Peers), "checked by the methods' constructors"
    if flat.measures is not None:
        flat = flat._replace(measures=tuple(flat.measures[i] for i in of_class))
    reader = Reader(
        tuple(parts[i] for i in of_class),
        owner,
        peers,
        flat,
        leaves,
        format=manner.format,
        block_bytes=_block_bytes(manner.rule, peers),
    )
    if flat.assault is None or not _has_parameters(reader):
        return reader
    assert manner.attack is not None
    is_hostile = hostile_slots(
        peers, flat.assault.is_byzantine, manner.attack.num_attached
    )
    return prepared_reader(reader._replace(attack=manner.attack, is_hostile=is_hostile))


def _block_bytes(rule: Rule | None, peers: Peers) -> int:
    """Of a block; of rules that look at each number, its K copies stay in cache."""
    if rule is None or rule.combine is None:
        return BLOCK_BYTES
    return max(1, 2 * BLOCK_BYTES // peers.ids.shape[1])


def _has_parameters(reader: Reader) -> bool:
    return any(not part.is_statistic for part in reader.parts)


def flattened(sent: Sent) -> Sent:
    """With lists of leaves in place of trees."""

    def listed(tree: PyTree) -> PyTree:
        return None if tree is None else jax.tree.leaves(tree)

    assault = sent.assault
    if assault is not None:
        assault = assault._replace(
            before=listed(assault.before), memory=jax.tree.leaves(assault.memory)
        )
    return sent._replace(
        rows=listed(sent.rows),
        mask=listed(sent.mask),
        current=listed(sent.current),
        assault=assault,
    )
