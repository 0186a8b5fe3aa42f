"""What an attack is: who attacks, and what they send or train on.

Message attacks work on column blocks of the stacked messages. There are two kinds:
where an attack is `per_sender`, row j is what Byzantine agent j sends to all its
receivers; else row i is what all Byzantine neighbours of agent i send to it, so that
one row per receiver is enough. Who attacks is data: another set of attackers does not
recompile.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs.topology import Topology
from p2pjax.types import Array, Batch, Key, Peers, PyTree


class Scene(NamedTuple):
    """What attackers see of one column block in one round."""

    rows: Array  # [N, c] messages; those of Byzantine agents as if they were honest
    is_byzantine: Array  # [N] bool; none where attackers are attached
    peers: Peers  # [N, K] whom receivers hear, and the mixing weights
    is_hostile: Array  # [N, K] slots in which attackers send, see `hostile_slots`
    key: Key  # of the round, the same for all blocks
    block: Array | int = 0  # [] number of the block in its round
    t: Array | int = 0  # [] round
    before: Array | None = None  # [N, c] models before local training (`needs_before`)
    # [N] static: owners of these columns, agents with equal values average. None: all.
    owner: np.ndarray | None = None
    prepared: Array | None = None  # what `Attack.prepare` returned
    measured: PyTree = None  # the sum of `Attack.measure` over all blocks
    memory: Array | None = None  # [c] this block of what the attack remembers


class Hostile(NamedTuple):
    """Hostile rows `base + scale * direction`; one row where it is the same for all."""

    base: Array  # [N, c] or [1, c]
    direction: Array | None = None  # [N, c] or [1, c]; None: the base alone


class Attack(NamedTuple):
    """Who attacks, and how. Data attacks have `poison`, message attacks `hostile`.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> attack = attacks.foe(byzantine=(1, 5), scale=0.1)
      >>> attack.name, attack.byzantine, attack.scale
      ('foe', (1, 5), 0.1)
    """

    name: str
    byzantine: tuple[int, ...] = ()  # agents that attack
    num_attached: int = 0  # or: attackers beside each agent, who are no agents
    # (key, batch) of ONE Byzantine agent -> what it trains on
    poison: Callable[[Key, Batch], Batch] | None = None
    # test examples -> those whose accuracy is the success of a backdoor
    triggered: Callable[[Batch], Batch] | None = None
    hostile: Callable[[Scene], Hostile] | None = None
    scale: float | None = 1.0  # of the direction; None: found by `line_search`
    per_sender: bool = False  # hostile row j is of sender j, else of receiver j
    needs_others: bool = True  # messages of a round, not only what the sender has
    needs_before: bool = False  # models before local training
    # host: (graph, is_byzantine [N], owner [N] or None) -> `Scene.prepared`
    prepare: Callable[[Topology, np.ndarray, np.ndarray | None], np.ndarray] | None = (
        None
    )
    # what has to be known of all columns first: summed over blocks, then `hostile`
    measure: Callable[[Scene], PyTree] | None = None
    # (key, ONE agent's message) -> memory of the same shapes, and its next value [c]
    begin: Callable[[Key, PyTree], PyTree] | None = None
    remember: Callable[[Scene], Array] | None = None


def senders(peers: Peers) -> Array:
    """`[N, K]`: slots in which another agent sends something that counts."""
    return is_peer(peers) & (peers.weight != 0)


def hostile_slots(peers: Peers, is_byzantine: Array, num_attached: int = 0) -> Array:
    """`[N, K]` bool: slots in which attackers send.

    Args:
      peers: `[N, K]`; the last slots are those of attached attackers.
      is_byzantine: `[N]` agents that attack.
      num_attached: attackers beside each agent.

    Example:
      >>> from p2pjax.graphs import ring, uniform_receive
      >>> hostile_slots(uniform_receive(ring(4)), jnp.arange(4) == 1)[0].tolist()
      [False, True, False]
    """
    num_slots = peers.ids.shape[1]
    is_attached = jnp.arange(num_slots) >= num_slots - num_attached
    from_byzantine = senders(peers) & jnp.asarray(is_byzantine)[peers.ids]
    return from_byzantine | is_attached[None]


def at_scale(hostile: Hostile, scale: Array | float) -> Array:
    """The rows that are sent, `[N, c]`, or `[1, c]` where it is one for all.

    Args:
      hostile: rows of a block.
      scale: a number, or one per row `[N]`, as from `line_search`.

    Example:
      >>> print(at_scale(Hostile(jnp.ones((2, 1)), jnp.ones((1, 1))), 0.5))
      [[1.5]
       [1.5]]
    """
    if hostile.direction is None:
        return hostile.base
    factor = jnp.asarray(scale, hostile.base.dtype).reshape(-1, 1)
    return hostile.base + factor * hostile.direction
