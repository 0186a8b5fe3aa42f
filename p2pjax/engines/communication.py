"""One communication of all agents, at once or kept pending until the next round.

`engines.stepwise` calls it after local training.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from p2pjax.engines.protocol import GossipProtocol, LocalStep, Outgoing
from p2pjax.exchange import shared
from p2pjax.exchange.pipeline import Exchange, Memory, deliver, transmit
from p2pjax.exchange.reading import Sent
from p2pjax.types import Array, Key, Peers, PyTree, Variables

# (what was sent, messages as their senders have them, peers) -> losses [N, K], for
# rules that try what they receive
Judge = Callable[[Sent, PyTree, Peers], Array]


class Pending(NamedTuple):
    """An exchange still to come, where models are scored before and after it."""

    key: Key
    t: Array  # [] round
    graph: PyTree
    before: PyTree  # leaves [N, ...]; () if the protocol does not need it
    is_waiting: Array  # [] bool; False before the first


class GossipState(NamedTuple):
    """All agents' models, what their learners and the protocol remember."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    protocol_state: PyTree  # leaves [N, ...]; `GossipProtocol.init`
    pending: Pending | tuple[()] = ()
    memory: Memory | tuple[()] = ()  # of the exchange


def communicate(
    exchange: Exchange,
    protocol: GossipProtocol,
    key: Key,
    t: Array,
    number: Array | None,
    graph: PyTree,
    step: LocalStep,
    state: GossipState,
    judge: Judge | None = None,
) -> tuple[GossipState, Outgoing, Array]:
    """One communication: the state after it, what was sent and what arrived."""
    outgoing = protocol.send(key, graph, step, state.protocol_state)
    sent, memory = transmit(
        exchange, key, t, outgoing.message, state.memory, step.before
    )
    arrived = arrivals_of(exchange, protocol, key, t, number, graph, outgoing, state)
    learned: list[PyTree] = []  # what attackers remember

    def combine(peers: Peers, arrived: Array | None = None) -> PyTree:
        loss = None
        if judge is not None:
            loss = judge(sent, outgoing.message, peers)
        models, remembered = deliver(
            exchange,
            key,
            t,
            sent,
            outgoing.message,
            outgoing.kept,
            lambda owner: peers,
            arrived,
            loss,
        )
        learned.append(remembered)
        return models

    models, protocol_state = protocol.receive(
        graph,
        None if arrived is outgoing.sent else arrived,
        outgoing,
        step,
        state.protocol_state,
        combine,
    )
    if isinstance(memory, Memory) and jax.tree.leaves(learned[-1]):
        memory = memory._replace(attack=learned[-1])
    variables = shared.with_shared_leaves(state.variables, models)
    state = state._replace(
        variables=variables, protocol_state=protocol_state, memory=memory
    )
    return state, outgoing, arrived


def arrivals_of(
    exchange: Exchange,
    protocol: GossipProtocol,
    key: Key,
    t: Array,
    number: Array | None,
    graph: PyTree,
    outgoing: Outgoing,
    state: GossipState,
) -> Array:
    """Which of the messages arrive, `[N, K]`.

    Args:
      exchange: of the round.
      protocol: of the method.
      key: of the exchange.
      t: round.
      number: of the exchange in the run, for bursts of losses; None if pending.
      graph: prepared by the protocol.
      outgoing: what is sent.
      state: before the exchange.
    """
    return exchange.arrive(
        jax.random.fold_in(key, 1),
        t,
        outgoing.sent,
        protocol.senders(graph),
        number,
        state.memory,
    )


def finished(
    exchange: Exchange,
    protocol: GossipProtocol,
    state: GossipState,
    needs_before: bool,
) -> GossipState:
    """The state after the exchange that was still to come, if there is one."""

    def finish(state: GossipState) -> GossipState:
        assert isinstance(state.pending, Pending)
        key, t, graph, before, _ = state.pending
        after = shared.shared_leaves(state.variables)
        step = LocalStep(before if needs_before else after, after)
        return communicate(exchange, protocol, key, t, None, graph, step, state)[0]

    assert isinstance(state.pending, Pending)
    return jax.lax.cond(state.pending.is_waiting, finish, lambda state: state, state)
