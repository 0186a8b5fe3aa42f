"""PENS: average with those whose models often do well on your data.

Onoszko et al. (2021), "Decentralized federated learning of deep neural networks on
non-iid data"; parameters and stages as in Sajina (2025). In a first stage each agent
tries random peers and keeps the best of them; in the second it averages with peers that
were kept more often than chance.
"""

import jax
import jax.numpy as jnp

from p2pjax.graphs.topology import Topology
from p2pjax.selection import pair_values, tables
from p2pjax.selection.base import Fetched, PeerView, Selection, fetch_cost
from p2pjax.selection.pair_values import PairValues
from p2pjax.selection.request_limits import apply_request_limit
from p2pjax.types import Array, InputError, Key, Peers


def pens(
    *, num_peers: int = 3, num_candidates: int = 6, second_stage: int = 100
) -> Selection:
    """Performance-based neighbour selection.

    Args:
      num_peers: models to average with.
      num_candidates: models to try in a round of the first stage.
      second_stage: the first round, counted from 1, of the second stage. The first
        thus has one round less, though the number of times a peer must have been kept
        follows from all, as published. Chance is one of N, or one of those whom an
        agent may ever fetch from and itself, where these are not all.
    """
    if not 1 <= num_peers <= num_candidates or second_stage < 1:
        raise InputError(
            "Need 1 <= num_peers <= num_candidates and second_stage of 1 or more, got "
            f"num_peers={num_peers}, num_candidates={num_candidates} and "
            f"second_stage={second_stage}."
        )

    def init_fn(key: Key, view: PeerView) -> PairValues:
        """How often agent n kept the model of j."""
        del key
        return pair_values.blank(view.permitted, jnp.int32, forgets=view.forgets)

    def select_fn(
        key: Key, t: Array, kept: PairValues, view: PeerView
    ) -> tuple[Peers, Fetched, PairValues]:
        key_draw, key_admit = jax.random.split(key)
        kept = pair_values.followed(kept, view.permitted)

        def explore(kept: PairValues) -> tuple[Topology, Fetched, PairValues]:
            wanted = tables.sample(key_draw, view.permitted, num_candidates)
            candidates = apply_request_limit(key_admit, view, wanted)
            losses = view.cross_loss(candidates, view.train)
            chosen = tables.top_k(candidates, -losses, num_peers)
            kept = pair_values.noted(
                kept, chosen, pair_values.recalled(kept, chosen) + 1
            )
            return chosen, fetch_cost(candidates, num_candidates), kept

        def exploit(kept: PairValues) -> tuple[Topology, Fetched, PairValues]:
            often = is_kept_often(
                pair_values.recalled(kept, view.permitted),
                num_peers,
                second_stage,
                pair_values.num_known(kept),
            )
            known = tables.where(often, view.permitted)
            has_any = known.mask.any(1, keepdims=True)
            known = tables.where(known.mask | ~has_any, view.permitted)
            chosen = tables.sample(key_draw, known, num_peers)
            chosen = apply_request_limit(
                key_admit, view._replace(permitted=known), chosen
            )
            return chosen, fetch_cost(chosen, num_candidates), kept

        chosen, pulled, kept = jax.lax.cond(
            t + 1 < second_stage, explore, exploit, kept
        )
        return view.averaged(chosen), pulled, kept

    return Selection(init_fn, select_fn)


def is_kept_often(
    kept: Array, num_peers: int, second_stage: int, num_known: Array | int
) -> Array:
    """Whether a peer was kept more often than one of all is on average, `[N, C]`.

    Args:
      kept: how often, `[N, C]`.
      num_peers: that are kept in a round.
      second_stage: the first round, counted from 1, of the second stage.
      num_known: how many agents there are to know, the agent itself included: N, or
        `[N, 1]`.
    """
    most = int(jnp.iinfo(kept.dtype).max)  # more than any peer was kept
    return kept * num_known > min(num_peers * second_stage, most)
