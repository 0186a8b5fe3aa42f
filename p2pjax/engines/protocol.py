"""What distinguishes methods that communicate after local steps: their protocols.

A protocol says what an agent sends and what it makes of what arrives. Everything else,
the loop over steps, graphs, channel, counting, is the engine's (`engines.stepwise`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.exchange.compression import Format
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.shared import shared_leaves
from p2pjax.graphs import analysis, mixing_matrices
from p2pjax.graphs.topology import Topology, check_undirected
from p2pjax.paths import leaves_with_paths
from p2pjax.types import Array, InputError, Key, Peers, PyTree, Variables

MixingWeights = Callable[[Topology], Peers]  # a mixing matrix of a graph; may be traced
# Mixes the messages that were sent by a matrix; given what arrived [N, K], what others
# would have counted is counted for the receiver's own model. Given another `message`,
# shaped like the first, it mixes that one: for protocols that take exact messages only.
Combine = Callable[..., PyTree]


OWN_RULE = (
    "Need a protocol that leaves it to a rule how messages count, such as D-PSGD, for "
    "a robust rule, got one with weights of its own."
)


class LocalStep(NamedTuple):
    """What local training did: trees of `shared_leaves`, leaves `[N, ...]`."""

    before: PyTree
    after: PyTree
    gradient: PyTree = None  # of the parameters, where the protocol needs it
    update: PyTree = None  # the optimizer's, likewise
    opt_state: PyTree = None  # what learners remember, for `GossipProtocol.receive`


class Outgoing(NamedTuple):
    """What all agents send, and to whom.

    Example:
      >>> models = {"params": jnp.zeros((2, 3))}  # of two agents
      >>> Outgoing(models, models, sent=jnp.array([[False, True]] * 2)).route is None
      True
    """

    message: PyTree  # leaves [N, ...]
    kept: PyTree  # leaves [N, ...]: values of the leaves that are not sent
    # [N, K] bool: whether each of an agent's senders sends to it; or how many messages
    # it sends, for protocols that take no losses
    sent: Array
    route: Any = None  # what else `receive` has to know


class GossipProtocol(NamedTuple):
    """How all agents communicate after local training.

    Example:
      >>> from p2pjax.exchange.mixing import is_peer
      >>> from p2pjax.graphs import uniform_receive
      >>> def send(key, peers, step, state):  # what each agent has learned
      ...     return Outgoing(step.after, step.after, is_peer(peers))
      >>> def receive(peers, arrived, sent, step, state, combine):  # the mean
      ...     return combine(peers), state
      >>> prepare = prepare_weights(uniform_receive)
      >>> GossipProtocol(prepare, peer_ids, remembers_nothing, send, receive).num_models
      1
    """

    # host: graphs [G, N, D], or weighted [G, N, K] -> what the device needs, [G, ...]
    prepare_graph: Callable[[Topology | Peers], PyTree]
    senders: Callable[[PyTree], Array]  # a prepared graph -> ids [N, K]
    # all agents' models at the start -> what the protocol remembers, leaves [N, ...]
    init: Callable[[PyTree], PyTree]
    # (key, prepared graph, local step, protocol state) -> what is sent
    send: Callable[[Key, PyTree, LocalStep, PyTree], Outgoing]
    # (prepared graph, what arrived [N, K] or None for all of it, what was sent, local
    # step, protocol state, combine) -> (models with which agents go on, state)
    receive: Callable[
        [PyTree, Array | None, Outgoing, LocalStep, PyTree, Combine],
        tuple[PyTree, PyTree],
    ]
    # protocol state -> push-sum weights [N], None for protocols without
    weight: Callable[[PyTree], Array | None] = lambda state: None
    needs_gradient: bool = False  # whether it reads `LocalStep.gradient` or `.update`
    needs_before: bool = True  # whether it reads `LocalStep.before`
    num_models: int = 1  # in a message
    takes_losses: bool = True  # whether messages may be lost
    loss_warning: str = ""  # what a user should know where they may
    formats: tuple[str, ...] = ()  # names of the formats that its messages can have
    takes_noise: bool = False  # whether messages may be noisy
    takes_stale: bool = False  # whether messages of the exchange before will do
    rule_refusal: str = OWN_RULE  # why no robust rule; "" where there may be one
    attack_refusal: str = ""  # why no attack; "" where there may be one
    # why no attack that reverses or scales what was learned; "" where there may be one
    update_attack_refusal: str = ""
    # why no attack that sends other messages; "" where there may be one
    message_attack_refusal: str = ""
    num_attached: int = 0  # last slots of a prepared graph that are attached attackers'
    # (who shares what, models [N, ...]) -> bits of a message; None: 32 of each number
    bits: Callable[[MixPlan, PyTree], int] | None = None
    weight_bits: int = 0  # of what travels along with models
    # (protocol state, learning rate over that of the exchange before [N]) -> protocol
    # state: for memories in units of the learning rate; None where there is none
    rescale: Callable[[PyTree, Array], PyTree] | None = None
    # exchanges after local training, of which each sends what the one before made
    num_exchanges: int = 1
    # (learners' states, protocol state) -> both, after an exchange: for learners that
    # begin anew or are corrected; None where exchanges do not concern them
    adjust_learners: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]] | None = None


def bytes_sent(
    protocol: GossipProtocol,
    plan: MixPlan,
    variables: Variables,
    sent: Array,
    format: Format | None = None,
) -> Array | None:
    """By each agent, `[N]`; None where numbers are sent as they are.

    Args:
      protocol: of the messages.
      plan: who shares what.
      variables: leaves `[N, ...]`.
      sent: `[N]` messages.
      format: of the channel.
    """
    message = shared_leaves(variables)
    if protocol.bits is not None:
        return sent * num_bytes(protocol.bits(plan, message))
    if format is None:
        return None
    bits = protocol.num_models * message_bits(format, plan, message)
    return sent * num_bytes(bits + protocol.weight_bits)


def check_shaped_like_models(found: PyTree, models: PyTree, what: str) -> None:
    """Refuses what has not the leaves of the models; only shapes are looked at.

    Args:
      found: what a protocol made.
      models: of all agents, leaves `[N, ...]`.
      what: was found, for the message.

    Example:
      >>> models = {"params": {"w": jnp.zeros((4, 3))}}
      >>> check_shaped_like_models({"params": {}}, models, "what is kept")
      Traceback (most recent call last):
      p2pjax.types.InputError: Need what is kept shaped like the models of all agents, \
got no params/w: which leaves travel is said by scheme= or local_patterns=.
    """
    expected, given = _shapes(models), _shapes(found)
    wrong = [f"no {path}" for path in expected if path not in given]
    wrong += [f"{path}, which no model has" for path in given if path not in expected]
    wrong += [
        f"{path} of {given[path]} instead of {shape}"
        for path, shape in expected.items()
        if path in given and given[path] != shape
    ]
    if wrong:
        raise InputError(
            f"Need {what} shaped like the models of all agents, got {wrong[0]}: which "
            "leaves travel is said by scheme= or local_patterns=."
        )


def check_sent(sent: Array, senders: Array) -> None:
    """Refuses what does not say of each sender of each agent whether it sends.

    Args:
      sent: `Outgoing.sent`; only shape and kind are looked at.
      senders: ids `[N, K]`.

    Example:
      >>> check_sent(jnp.ones(4), jnp.zeros((4, 3), jnp.int32))
      Traceback (most recent call last):
      p2pjax.types.InputError: Need Outgoing.sent as bool[4, 3], whether each of an \
agent's senders sends to it, or as whole numbers of messages, got float32[4].
    """
    kind = jnp.result_type(sent)
    is_known = any(jnp.issubdtype(kind, one) for one in (jnp.bool_, jnp.integer))
    if jnp.shape(sent) != jnp.shape(senders) or not is_known:
        raise InputError(
            f"Need Outgoing.sent as bool{list(jnp.shape(senders))}, whether each of an "
            "agent's senders sends to it, or as whole numbers of messages, got "
            f"{_shape(sent)}."
        )


def _shape(leaf: Array) -> str:
    """Such as `float32[4, 3]`."""
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _shapes(tree: PyTree) -> dict[str, str]:
    """By path."""
    return {path: _shape(leaf) for path, leaf in leaves_with_paths(tree)}


def prepare_weights(
    mixing_weights: MixingWeights, *, push_sum: bool = False
) -> Callable[[Topology | Peers], Peers]:
    """A `GossipProtocol.prepare_graph` for protocols that need one matrix per graph.

    Graphs that bring their weights keep them. Weights that do not sum to 1 are refused,
    and so are Metropolis-Hastings weights of directed graphs.

    Args:
      mixing_weights: the matrix of a graph, such as `graphs.metropolis_hastings`.
      push_sum: whether columns, not rows, have to sum to 1.

    Example:
      >>> from p2pjax.graphs import ring, uniform_receive
      >>> graphs = jax.tree.map(lambda leaf: leaf[None], ring(4))  # a sequence of one
      >>> prepare_weights(uniform_receive)(graphs).weight.shape  # [G, N, K]
      (1, 4, 3)
    """

    def prepare_fn(graphs: Topology | Peers) -> Peers:
        graphs = jax.tree.map(jnp.asarray, graphs)
        if isinstance(graphs, Topology):
            if mixing_weights is mixing_matrices.metropolis_hastings:
                check_undirected(graphs)
            graphs = jax.vmap(mixing_weights)(graphs)
        analysis.check_sums(graphs, push_sum=push_sum)
        return graphs

    return prepare_fn


def peer_ids(peers: Peers) -> Array:
    """A `GossipProtocol.senders` for prepared graphs that are one matrix.

    Args:
      peers: `[N, K]`.

    Example:
      >>> from p2pjax.graphs import ring, uniform_receive
      >>> peer_ids(uniform_receive(ring(4)))[0].tolist()  # slot 0 is the agent itself
      [0, 1, 3]
    """
    return jnp.asarray(peers.ids)


def zero_params(message: PyTree) -> PyTree:
    """A `GossipProtocol.init` for protocols that correct parameters, not at first.

    Args:
      message: all agents' models at the start, leaves `[N, ...]`.

    Example:
      >>> zero_params({"params": jnp.ones((1, 2)), "batch_stats": jnp.ones(1)}).tolist()
      [[0.0, 0.0]]
    """
    return jax.tree.map(jnp.zeros_like, message["params"])


def rescaled(memory: PyTree, factor: Array) -> PyTree:
    """A `GossipProtocol.rescale` for memories that are multiples of learning rates.

    Args:
      memory: leaves `[N, ...]`.
      factor: `[N]`.

    Example:
      >>> rescaled({"x": jnp.ones((2, 1))}, jnp.array([1.0, 0.5]))["x"].tolist()
      [[1.0], [0.5]]
    """

    def scaled(leaf: Array) -> Array:
        return leaf * factor.astype(leaf.dtype).reshape((-1,) + (1,) * (leaf.ndim - 1))

    return jax.tree.map(scaled, memory)


def check_momentum(value: float, argument: str, name: str) -> None:
    """Refuses what is not from 0 to less than 1.

    Args:
      value: what was given.
      argument: its name.
      name: of the method.
    """
    if not 0 <= value < 1:
        raise InputError(
            f"Need a {argument} from 0 to less than 1 for {name}, got {value}."
        )


def with_params(step: LocalStep, params: PyTree) -> PyTree:
    """A message of these parameters, with batch-norm statistics as training left them.

    Args:
      step: of all agents.
      params: leaves `[N, ...]`.

    Example:
      >>> with_params(LocalStep({}, {"params": 1, "batch_stats": 2}), 3)
      {'params': 3, 'batch_stats': 2}
    """
    return {**step.after, "params": params}


def updates_of(step: LocalStep) -> PyTree:
    """What local training added to the parameters, leaves `[N, ...]`.

    Args:
      step: of all agents.

    Example:
      >>> print(updates_of(LocalStep({"params": 1.0}, {"params": 3.0})))
      2.0
    """
    return jax.tree.map(jnp.subtract, step.after["params"], step.before["params"])


def remembers_nothing(message: PyTree) -> PyTree:
    """A `GossipProtocol.init` for protocols without a state.

    Args:
      message: all agents' models at the start, leaves `[N, ...]`.

    Example:
      >>> remembers_nothing({"params": jnp.zeros((4, 3))})
      ()
    """
    del message
    return ()
