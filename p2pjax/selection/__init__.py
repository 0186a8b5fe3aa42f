"""Whom to learn from: one rule per file.

A rule is a `Selection` (`selection.base`), for `engines.pulling.pull`.
"""

from p2pjax.selection.aucccr import by_value, root_of_size
from p2pjax.selection.base import Fetched, PeerView, Selection, fetch_cost
from p2pjax.selection.d_cliques import label_cliques
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.peer_sampling import partial_view
from p2pjax.selection.request_limits import apply_request_limit, limit_requests
from p2pjax.selection.similarity import (
    agreement,
    inverse_loss,
    negative_loss,
    update_cosine,
)

__all__ = [
    "Fetched",
    "PeerView",
    "Probe",
    "Selection",
    "agreement",
    "apply_request_limit",
    "by_value",
    "fetch_cost",
    "inverse_loss",
    "label_cliques",
    "limit_requests",
    "negative_loss",
    "partial_view",
    "root_of_size",
    "update_cosine",
]
