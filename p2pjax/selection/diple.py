"""DiPLe's choice: how far towards each peer's model your loss falls.

Zheng, Naghizadeh, Yener (2022), "DiPLe: Learning directed collaboration graphs for
peer-to-peer personalized learning". On the line from the agent's model to a peer's, the
loss on the agent's data is least at some share of the peer's: that is its weight. Peers
with weight 0 are not asked again, unless they get another chance. `algorithms._diple`
is the whole method.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from p2pjax.graphs.topology import Topology
from p2pjax.selection import pair_values, tables
from p2pjax.selection.base import Fetched, PeerView, Selection, fetch_cost
from p2pjax.selection.pair_values import PairValues
from p2pjax.selection.request_limits import apply_request_limit
from p2pjax.types import Array, Batch, InputError, Key, Peers, Variables

SELF_WEIGHT = 0.5


NOT_TRIED = 0.5  # share of a peer that was never looked at


def line_search(
    *,
    num_peers: int = 3,
    tolerance: float = 0.005,
    on_valid: bool = False,
    return_probability: float = 0.0,
) -> Selection:
    """Weights of a few random peers by bisection.

    An agent that has learned its training examples by heart finds that its loss on them
    rises towards any peer, and so gives all of them up: hence the last two arguments.

    Args:
      num_peers: to look at in a round.
      tolerance: to which a peer's share is known; below half of it is 0.
      on_valid: whether the loss is that of validation examples; of training examples if
        not.
      return_probability: of a peer with share 0 to be among those that are drawn from
        in a round all the same.

    Example:
      >>> selection = line_search(on_valid=True, return_probability=0.1)
    """
    if num_peers < 1 or not 0 < tolerance < 0.5:
        raise InputError(
            "Need one peer or more and a tolerance between 0 and 0.5, got "
            f"num_peers={num_peers} and tolerance={tolerance}."
        )
    if not 0 <= return_probability <= 1:
        raise InputError(
            "Need a return_probability between 0 and 1, got "
            f"{return_probability}: 0 asks peers with share 0 never again."
        )

    def init_fn(key: Key, view: PeerView) -> PairValues:
        """Share of j that agent n found last."""
        del key
        if on_valid and next(iter(view.valid.examples.values())).shape[1] == 0:
            raise InputError(
                "Need validation examples for a line search on them, got none: hold "
                "some out."
            )
        return pair_values.blank(
            view.permitted, jnp.float32, NOT_TRIED, forgets=view.forgets
        )

    def select_fn(
        key: Key, t: Array, shares: PairValues, view: PeerView
    ) -> tuple[Peers, Fetched, PairValues]:
        del t
        shares = pair_values.followed(shares, view.permitted, NOT_TRIED)
        key_draw, key_admit = jax.random.split(key)
        is_useful = pair_values.recalled(shares, view.permitted) > 0
        if return_probability:
            is_useful |= jax.random.bernoulli(
                jax.random.fold_in(key, 1), return_probability, is_useful.shape
            )
        useful = tables.where(is_useful, view.permitted)
        wanted = tables.sample(key_draw, useful, num_peers)
        asked = apply_request_limit(key_admit, view._replace(permitted=useful), wanted)

        def best_share(own: Variables, theirs: Variables, batch: Batch) -> Array:
            def loss_at(share: Array) -> Array:
                return view.loss(between(own, theirs, share), batch)

            # Backwards: forward mode is not defined for networks with a `custom_vjp`.
            return bisected(jax.grad(loss_at), tolerance)

        heard = view.heard(asked)
        found = view.over_pairs(
            best_share, heard, view.valid if on_valid else view.train
        )
        found = jnp.where(found < tolerance / 2, 0, found)
        return (
            normalised(heard, found),
            fetch_cost(asked, num_peers),
            pair_values.noted(shares, heard, found),
        )

    return Selection(init_fn, select_fn)


def between(own: Variables, theirs: Variables, share: Array) -> Variables:
    """The model that lies `share` of the way from one to the other."""

    def blend(a: Array, b: Array) -> Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return a
        return a + share.astype(a.dtype) * (b - a)

    stats = jax.tree.map(blend, own.stats, theirs.stats)
    return Variables(jax.tree.map(blend, own.params, theirs.params), stats)


def bisected(slope: Callable[[Array], Array], tolerance: float) -> Array:
    """Where in [0, 1] a function with this slope is least, to within the tolerance.

    A slope that is not a number counts as rising.
    """

    def rising(share: Array) -> Array:
        return jnp.nan_to_num(slope(share), nan=jnp.inf)

    def proceed(ends: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (ends[1] - ends[0]) / 2 > tolerance

    def halve(ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = (ends[0] + ends[1]) / 2
        rise = rising(middle)
        return (
            jnp.where(rise <= 0, middle, ends[0]),
            jnp.where(rise >= 0, middle, ends[1]),
        )

    zero, one = jnp.zeros(()), jnp.ones(())
    is_zero = rising(zero) >= 0
    is_one = jax.lax.cond(is_zero, jnp.zeros_like, lambda _: rising(one) <= 0, is_zero)
    start = jnp.where(is_one, one, zero), jnp.where(is_zero, zero, one)
    ends = jax.lax.while_loop(proceed, halve, start)
    return (ends[0] + ends[1]) / 2


def normalised(table: Topology, shares: Array) -> Peers:
    """Weights of an agent's own model and its peers', which sum to one.

    Peers without any weight point at the agent, so that nothing leaks through 0 * inf.
    """
    own = tables.self_only(table.mask.shape[0])
    shares = jnp.where(table.mask, shares, 0)
    used = tables.where(shares > 0, table)
    weight = jnp.concatenate([jnp.full((len(shares), 1), SELF_WEIGHT), shares], 1)
    return Peers(
        tables.joined(own, used).neighbor, weight / weight.sum(1, keepdims=True)
    )
