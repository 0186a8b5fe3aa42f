"""Mixing matrices of protocols with corrections, for which not every matrix will do."""

import warnings
from collections.abc import Callable

import numpy as np

from p2pjax.engines.protocol import MixingWeights, prepare_weights
from p2pjax.graphs import analysis, mixing_matrices
from p2pjax.graphs.topology import Topology, unstack
from p2pjax.types import InputError, Peers

SYMMETRIC_TO = 1e-6  # float32 weights


def prepare_doubly_stochastic(
    mixing_weights: MixingWeights, name: str
) -> Callable[[Topology | Peers], Peers]:
    """As `prepare_weights`; weights whose columns do not sum to 1 are refused.

    Args:
      mixing_weights: the matrix of a graph, such as `graphs.metropolis_hastings`.
      name: of the method, for messages.
    """
    prepare = prepare_weights(mixing_weights)

    def prepare_fn(graphs: Topology | Peers) -> Peers:
        peers = prepare(graphs)
        if not analysis.is_doubly_stochastic(peers):
            raise InputError(
                f"Need a doubly stochastic mixing matrix for {name}, whose corrections "
                "have to sum to 0, got one whose columns do not sum to 1: use "
                "Metropolis-Hastings weights of an undirected graph."
            )
        return peers

    return prepare_fn


def prepare_symmetric(
    mixing_weights: MixingWeights, name: str, *, lazy: bool = False
) -> Callable[[Topology | Peers], Peers]:
    """As `prepare_weights`; matrices that are not symmetric are refused.

    Where there are several, which theory does not have, it says so.

    Args:
      mixing_weights: the matrix W of a graph, such as `graphs.metropolis_hastings`.
      name: of the method, for messages.
      lazy: use `(W + I) / 2`.
    """
    prepare = prepare_weights(mixing_weights)

    def prepare_fn(graphs: Topology | Peers) -> Peers:
        peers = prepare(graphs)
        if not all(map(_is_symmetric, unstack(peers))):
            raise InputError(
                f"Need a symmetric mixing matrix for {name}, got one that is not: use "
                "Metropolis-Hastings weights of an undirected graph."
            )
        if len(peers.ids) > 1:
            warnings.warn(
                f"The theory of {name} needs one graph that stays, and here graphs "
                "change: results are outside theory; use gradient_tracking, qg_dsgdm.",
                stacklevel=2,
            )
        return mixing_matrices.lazy(peers) if lazy else peers

    return prepare_fn


def _is_symmetric(peers: Peers) -> bool:
    matrix = analysis.dense_matrix(peers)
    return np.allclose(matrix, matrix.T, rtol=0, atol=SYMMETRIC_TO)
