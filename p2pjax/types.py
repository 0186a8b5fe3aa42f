"""Names that every module shares: aliases, the axis letters, one agent's variables.

Axis letters, used in every shape comment: N agents, K peer slots (slot 0 is the
agent itself), D padded neighbours, M padded examples, B batch, R rounds, C owner
classes, S runs (seeds). Masks are True where something is active.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array | np.ndarray


Key = jax.Array  # typed key, `jax.random.key`


PyTree = Any


Batch = Mapping[str, Array]  # leaves [B, ...]; "valid" [B] marks real examples


class InputError(ValueError):
    """A setting or a file cannot be used; the message says what to change."""


class Variables(NamedTuple):
    """What one agent's model holds; stacked over agents every leaf gains an axis N."""

    params: PyTree  # trained
    stats: PyTree  # dict of flax collections that are not trained


class Ratio(NamedTuple):
    """A mean kept as its two sums, so that ragged sets add up exactly.

    Example:
      >>> one, other = Ratio(3.0, 4.0), Ratio(6.0, 12.0)  # sums of two test sets
      >>> (one.total + other.total) / (one.weight + other.weight)
      0.5625
    """

    total: Array
    weight: Array


class Links(NamedTuple):
    """Who received from whom in a round, slot by slot."""

    sender: Array  # [N, K]
    arrived: Array  # [N, K] messages; 0 in slots that were not used


class ModelTraffic(NamedTuple):
    """What agents send of each partial model, in increasing order of models."""

    messages: Array  # [N, M]
    payload: Array  # [N, M] parameters


class Info(NamedTuple):
    """What a round reports; nothing here is needed by the next round."""

    train_loss: Array  # [N]
    sent: Array  # [N] messages
    received: Array  # [N] messages
    payload: Array  # [N] parameters sent
    time: Array | None = None  # [] simulated, when the round ended
    links: Links | None = None  # where agents have peers, not a server
    weight: Array | None = None  # [N] push-sum weights; lost messages take theirs along
    merged: Links | None = None  # where some of what arrives is only looked at
    examples: Array | None = None  # [N] that were trained on, repeated ones included
    delivered: Array | None = None  # [N] parameters that a server sent to the agent
    epochs: Array | None = None  # [N] passes over own data, where agents decide
    steps: Array | None = None  # [N] mini-batch steps
    served: Array | None = None  # [N] messages that a server sent to the agent
    bytes: Array | None = None  # [N] sent; None: 4 for each parameter of the payload
    models: ModelTraffic | None = None  # where each partial model has its own gossip
    # [N] messages that a robust rule did not count since they were not finite: of those
    # that the agent received or, where a server dropped them, sent. None without a rule
    rejected: Array | None = None
    # [N] of what is sent, what a source counts, if not all
    counted: Array | None = None


class Split(NamedTuple):
    """One split (train, validation or test) of all agents."""

    examples: Mapping[str, Array]  # leaves [N, M, ...]
    size: Array  # [N] int32, real examples of each agent
    # [N] uint32: of the order in which agents go through their examples; `simulate`
    # draws it from the key of a run. None: the same order for all agents and runs.
    order_seed: Array | None = None


class FederatedData(NamedTuple):
    """All that the agents learn from and are judged by.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.rotated(2))
      >>> data.train.size.tolist(), data.cluster.tolist()
      ([359, 359, 359, 359], [0, 0, 1, 1])
    """

    train: Split
    valid: Split
    test: Split
    cluster: Array  # [N] int32, ground-truth group or zeros


class Models(NamedTuple):
    """The agents' models after a round, leaves `[N, ...]`, as evaluation reads them.

    A method that averages has models before and after; where only one of them exists,
    the other is None. Methods that never average have neither.
    """

    reported: Variables  # what the method's paper evaluates: one of the two below
    trained: Variables | None = None  # after local training, before averaging
    averaged: Variables | None = None  # after averaging
    is_byzantine: Array | None = None  # [N] bool: agents whose models are not judged
    observed: Mapping[str, Array] | None = None  # [N] each: told beside the scores


# (models of all agents, data) -> named values, [N] per agent or any other shape
Evaluate = Callable[[Models, FederatedData], dict[str, Array]]


class Algorithm(NamedTuple):
    """A learning method. `round` is safe to jit, scan and vmap over seeds."""

    # (key, data) -> state; leaves [N, ...], no array twice, so that it can be donated
    init: Callable[[Key, FederatedData], PyTree]
    # host: (random generator, data, number of rounds R) -> inputs, leaves [R, ...]
    plan: Callable[[np.random.Generator, FederatedData, int], PyTree]
    # (key, round number, this round's inputs, state, data) -> (state, info)
    round: Callable[[Key, Array, PyTree, PyTree, FederatedData], tuple[PyTree, Info]]
    models: Callable[[PyTree], Models]  # of a state
    evaluate: Evaluate  # on the agents' own test sets
    round_is: str  # what happens in a round, in a sentence


def num_agents(data: FederatedData) -> int:
    """N, the number of agents.

    Args:
      data: of all agents.

    Example:
      >>> import p2pjax as pj
      >>> num_agents(pj.datasets.digits(num_agents=4, split=pj.split.iid()))
      4
    """
    return data.train.size.shape[0]


class Peers(NamedTuple):
    """Whom each agent combines, and how much each of them counts.

    Example:
      >>> swap = Peers(np.array([[0, 1], [1, 0]]), np.array([[0.5, 0.5], [0.5, 0.5]]))
      >>> swap.weight.sum(1).tolist()  # rows of a mean sum to 1
      [1.0, 1.0]
    """

    ids: Array  # [N, K] int32; ids[n, 0] == n
    weight: Array  # [N, K]


LOCAL = -1  # a cell or a parameter that its agent shares with no other
ABSENT = -2  # padding: a cell that the agent does not have

Layout = tuple[int, ...]  # cells of every part, the input first
Wiring = dict[str, tuple[int | None, ...]]  # leaf path -> part along each axis
Cells = tuple[np.ndarray, ...]  # per part [N, n]: the model of every cell
