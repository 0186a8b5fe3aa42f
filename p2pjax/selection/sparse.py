"""Everybody averages with whom it is permitted to: fixed graphs, the oracle.

The baselines of Sajina (2025), "Deep Learning Personalization Methods in Peer-to-peer
Heterogeneous Systems": `sparse` on `graphs.directed_regular` knows nothing of who is
alike; on `graphs.oracle` it knows everything; on `aucccr.group_graph` what was found
out.
"""

import jax

from p2pjax.selection import tables
from p2pjax.selection.base import Pulled, Selection, View, fetched
from p2pjax.selection.max_in_load import admitted
from p2pjax.types import Array, InputError, Key, Peers


def sparse(num_peers: int | None = None) -> Selection:
    """Fetches and averages the models of all permitted peers in every round.

    Args:
      num_peers: of those, drawn anew in every round; None takes them all. On the
        complete graph that is gossip with random peers.
    """
    if num_peers is not None and num_peers < 1:
        raise InputError(f"Need one peer or more, got num_peers={num_peers}.")

    def init_fn(key: Key, view: View) -> tuple[()]:
        del key, view
        return ()

    def select_fn(
        key: Key, t: Array, state: tuple[()], view: View
    ) -> tuple[Peers, Pulled, tuple[()]]:
        del t
        key_draw, key_admit = jax.random.split(key)
        wanted = view.permitted
        if num_peers is not None:
            wanted = tables.drawn(key_draw, wanted, num_peers)
        chosen = admitted(key_admit, view, wanted)
        return view.averaged(chosen), fetched(chosen, chosen.mask.shape[1]), state

    return Selection(init_fn, select_fn)
