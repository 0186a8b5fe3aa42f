"""Each agent averages with whom it is permitted to: fixed graphs, the oracle.

The baselines of Sajina (2025), "Deep Learning Personalization Methods in Peer-to-peer
Heterogeneous Systems": `sparse` on `graphs.directed_regular` knows nothing of who is
alike; on `graphs.oracle` it knows everything; on `aucccr.group_graph` what was found
out.
"""

import jax

from p2pjax.selection import tables
from p2pjax.selection.base import Fetched, PeerView, Selection, fetch_cost
from p2pjax.selection.request_limits import apply_request_limit
from p2pjax.types import Array, InputError, Key, Peers


def sparse(num_peers: int | None = None) -> Selection:
    """Fetches and averages the models of all permitted peers in every round.

    Args:
      num_peers: of those, drawn anew in every round; None takes them all. On the
        complete graph that is gossip with random peers.
    """
    if num_peers is not None and num_peers < 1:
        raise InputError(f"Need one peer or more, got num_peers={num_peers}.")

    def init_fn(key: Key, view: PeerView) -> tuple[()]:
        del key, view
        return ()

    def select_fn(
        key: Key, t: Array, state: tuple[()], view: PeerView
    ) -> tuple[Peers, Fetched, tuple[()]]:
        del t
        key_draw, key_admit = jax.random.split(key)
        wanted = view.permitted
        if num_peers is not None:
            wanted = tables.sample(key_draw, wanted, num_peers)
        chosen = apply_request_limit(key_admit, view, wanted)
        return view.averaged(chosen), fetch_cost(chosen, chosen.mask.shape[1]), state

    return Selection(init_fn, select_fn)
