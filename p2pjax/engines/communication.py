"""One communication of all agents, at once or kept pending until the next round.

`engines.stepwise` calls it after local training.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.engines.protocol import (
    GossipProtocol,
    LocalStep,
    Outgoing,
    check_sent,
    check_shaped_like_models,
)
from p2pjax.exchange import shared
from p2pjax.exchange.aggregation import Combined
from p2pjax.exchange.pipeline import Exchange, Memory, deliver, transmit
from p2pjax.exchange.reading import Sent
from p2pjax.exchange.rejections import kept_of
from p2pjax.training.rates import Rated, rate_change
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
    """All exchanges after local training: the state, what was sent, what arrived.

    Of several exchanges `sent` and what arrived are numbers of messages.
    """
    several = protocol.num_exchanges
    if several == 1:
        return _exchanged(exchange, protocol, key, t, number, graph, step, state, judge)

    def one(again: int, state: GossipState, step: LocalStep) -> tuple:
        own = jax.random.fold_in(key, again)
        counted = None if number is None else number * several + again
        return _exchanged(
            exchange, protocol, own, t, counted, graph, step, state, judge
        )

    state, outgoing, arrived = one(0, state, step)
    counts = [outgoing.sent.astype(jnp.int32), arrived.astype(jnp.int32)]
    for again in range(1, several):
        step = LocalStep(step.before, shared.shared_leaves(state.variables))
        state, outgoing, arrived = one(again, state, step)
        counts = [
            count + more.astype(jnp.int32)
            for count, more in zip(counts, (outgoing.sent, arrived), strict=True)
        ]
    return state, outgoing._replace(sent=counts[0]), counts[1]


def _exchanged(
    exchange: Exchange,
    protocol: GossipProtocol,
    key: Key,
    t: Array,
    number: Array | None,
    graph: PyTree,
    step: LocalStep,
    state: GossipState,
    judge: Judge | None,
) -> tuple[GossipState, Outgoing, Array]:
    """One exchange."""
    step = step._replace(opt_state=state.opt_state)
    outgoing = protocol.send(key, graph, step, state.protocol_state)
    for what, leaves in (("send", outgoing.message), ("keep", outgoing.kept)):
        check_shaped_like_models(leaves, step.after, f"what agents {what}")
    check_sent(outgoing.sent, protocol.senders(graph))
    sent, memory = transmit(
        exchange, key, t, outgoing.message, state.memory, step.before
    )
    arrived = arrivals_of(exchange, protocol, key, t, number, graph, outgoing, state)
    delivered: list[Combined] = []

    def combine(
        peers: Peers, arrived: Array | None = None, message: PyTree = None
    ) -> PyTree:
        if message is not None:  # it travels beside the one that was sent
            assert exchange.manner is None, "only exact messages have a second part"
            return exchange.combine(message, message, lambda owner: peers, None)
        loss = None
        if judge is not None:
            loss = judge(sent, outgoing.message, peers)
        found = deliver(
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
        delivered.append(found)
        return found.models

    models, protocol_state = protocol.receive(
        graph,
        None if arrived is outgoing.sent else arrived,
        outgoing,
        step,
        state.protocol_state,
        combine,
    )
    check_shaped_like_models(models, step.after, "what a protocol's receive returns")
    if delivered:
        memory = kept_of(memory, delivered[-1])
    variables = shared.with_shared_leaves(state.variables, models)
    if protocol.adjust_learners is not None:
        opt_state, protocol_state = protocol.adjust_learners(
            state.opt_state, protocol_state
        )
        state = state._replace(opt_state=opt_state)
    state = state._replace(
        variables=variables, protocol_state=protocol_state, memory=memory
    )
    return state, outgoing, arrived


def at_new_rate(
    protocol: GossipProtocol, state: GossipState, opt_state: PyTree
) -> GossipState:
    """The state after training, with memories in units of the new learning rate.

    Args:
      protocol: of the method.
      state: after training.
      opt_state: before it.
    """
    if protocol.rescale is None or not isinstance(state.opt_state, Rated):
        return state
    factor = rate_change(opt_state, state.opt_state)
    return state._replace(protocol_state=protocol.rescale(state.protocol_state, factor))


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
