"""What every way of choosing peers is made of.

A `Selection` is asked after each round of local training. It sees the agents through a
`PeerView` and answers with whom each agent averages next and what was fetched to find
out.
Tables of peers are `Topology`: slots with a mask, whose padding points at the agent.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from p2pjax.exchange import mixing
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.topology import Topology
from p2pjax.selection import pair_values, tables
from p2pjax.selection.pair_values import PairValues
from p2pjax.types import Array, Batch, Key, Peers, PyTree, Split, Variables

# (an agent's model, a peer's model, the agent's examples) -> a number
PairFn = Callable[[Variables, Variables, Batch], Array]


class PeerView(NamedTuple):
    """What agents can find out when they choose; what is not used costs nothing."""

    permitted: Topology  # [N, V] whom each agent may fetch from
    sizes: Array  # [N] what a model counts in a mean: training examples
    params: PyTree  # leaves [N, ...]: the trained models, as they reach others
    before: PyTree  # leaves [N, ...]: the same before this round's training
    train: Split
    valid: Split
    loss: Callable[[Variables, Batch], Array]  # of ONE model, without training it
    # (function, who looks at whom, split of the data) -> [N, C]; 0 in unused slots
    over_pairs: Callable[[PairFn, Topology, Split], Array]
    mix: Callable[[PyTree, Peers], PyTree]  # of any tree like `params`
    sent: Callable[[PyTree], list[Array]]  # of any such tree, the leaves that are sent
    gradient: Callable[[PyTree, Split], PyTree]  # of the loss of other parameters
    # class probabilities of the trained models on common examples, [N, Q, k]
    predictions: Callable[[], Array]
    model_size: int  # parameters of one model
    max_requests: int | None = None  # see `request_limits.limit_requests`
    # whether what agent n asks of j arrives in this round; None: all of it
    arrived: PairValues | None = None
    # agents keep nothing of those outside `permitted`, see `pair_values.blank`
    forgets: bool = False

    @property
    def num_agents(self) -> int:
        """N."""
        return self.sizes.shape[0]

    def heard(self, table: Topology) -> Topology:
        """Those of a table whose messages arrive in this round."""
        if self.arrived is None:
            return table
        return tables.where(pair_values.recalled(self.arrived, table), table)

    def cross_loss(self, table: Topology, split: Split) -> Array:
        """Mean losses of peers' models on the agents' own examples, `[N, C]`.

        Infinite in slots that are not used, for models that did not arrive and for
        those whose loss is not a number.
        """
        table = self.heard(table)
        losses = self.over_pairs(
            lambda own, theirs, batch: self.loss(theirs, batch), table, split
        )
        return jnp.where(table.mask & ~jnp.isnan(losses), losses, jnp.inf)

    def cosines(self, before: PyTree, table: Topology) -> Array:
        """Cosines of what became of `before` in agents and their peers, `[N, C]`."""
        return mixing.cosines(self.learned(before), table.neighbor)

    def learned(self, before: PyTree) -> mixing.Change:
        """What became of `before`, in the leaves that are sent."""
        return mixing.Change(self.sent(self.params), self.sent(before))

    def averaged(self, table: Topology) -> Peers:
        """Means of the agents' and their peers' models, weighted by training data."""
        return mixing_matrices.size_weighted(table, self.sizes)


class Fetched(NamedTuple):
    """What each agent fetched, whether it was merged or not: this costs messages."""

    ids: Array  # [N, C]; the agent itself in slots that were not used
    mask: Array  # [N, C]
    payload: Array  # [N, C] numbers sent, in models
    counted: Array | None = None  # [N, C] those that a source counts, if not all


def fetch_cost(
    table: Topology,
    num_slots: int,
    payload: Array | float = 1.0,
    counted: Array | None = None,
) -> Fetched:
    """What a round cost, in `num_slots` slots.

    Args:
      table: who fetched from whom, `[N, C]`.
      num_slots: a constant of the selection, whatever this round's C is.
      payload: `[N, C]` or a number: what was sent, in models.
      counted: `[N, C]` which of them a source counts, where it leaves some out.

    Returns:
      `Fetched`, `[N, num_slots]`.

    Example:
      >>> from p2pjax.graphs import ring
      >>> fetch_cost(ring(4), num_slots=3).payload[0].tolist()  # a slot is unused
      [1.0, 1.0, 0.0]
    """
    models = jnp.where(table.mask, jnp.asarray(payload, jnp.float32), 0)
    more = num_slots - models.shape[1]
    if counted is not None:
        counted = jnp.pad(table.mask & counted, ((0, 0), (0, more)))
    table = tables.padded(table, num_slots)
    return Fetched(*table, jnp.pad(models, ((0, 0), (0, more))), counted)


class Selection(NamedTuple):
    """A way of choosing peers. `select` is safe to jit, scan and vmap over seeds.

    Example:
      >>> def select(key, t, state, view):  # all that are permitted, in every round
      ...     num_slots = view.permitted.mask.shape[1]
      ...     fetched = fetch_cost(view.permitted, num_slots)
      ...     return view.averaged(view.permitted), fetched, state
      >>> Selection(lambda key, view: (), select).merges_updates
      False
    """

    init: Callable[[Key, PeerView], PyTree]  # state; leaves [N, ...] of constant shape
    # (key, round number, state, view) -> (whom to average next, what it cost, state)
    select: Callable[[Key, Array, PyTree, PeerView], tuple[Peers, Fetched, PyTree]]
    # peers count by what they learned in the round, not by their models
    merges_updates: bool = False
