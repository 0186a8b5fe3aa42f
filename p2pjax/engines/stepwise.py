"""Methods in which each agent takes one mini-batch step and then communicates.

`gossip` owns what they have in common: the clock, the graphs, the loop over steps, the
counting. A `GossipProtocol` is what distinguishes D-PSGD, D2, SGP and GoSGD: what an
agent sends after a step and what it makes of what arrives.

A round is one network epoch (`training.epochs`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing, shared
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.shared import message_size, sharing_plan, where_shared
from p2pjax.graphs import schedule
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.tasks.task import Task
from p2pjax.training import epochs, samplers
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner
from p2pjax.training.local_training import identical_models, local_training
from p2pjax.training.samplers import max_size
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Links,
    Peers,
    PyTree,
    Variables,
    num_agents,
)

MixingWeights = Callable[[Topology], Peers]  # a mixing matrix of a graph; may be traced


# (what goes out, what stays at home, who counts how much) -> what everybody has then
ExchangeFn = Callable[[PyTree, PyTree, Peers], PyTree]


class CommunicationResult(NamedTuple):
    """Outcome of one communication of all agents."""

    message: PyTree  # leaves [N, ...]: the models that everybody goes on with
    memory: PyTree  # leaves [N, ...]
    sent: Array  # [N, K] whether each of the agent's senders sent it a message
    arrived: Array  # [N, K] and whether that arrived


class GossipProtocol(NamedTuple):
    """How all agents communicate after a step; models are `shared.shared_leaves`."""

    # host: a sequence of graphs [G, N, D] -> what the device needs of them, [G, ...]
    wire: Callable[[Topology], PyTree]
    senders: Callable[[PyTree], Array]  # wires of one graph -> [N, K]
    # all agents' models at the start -> what the protocol remembers, leaves [N, ...]
    init: Callable[[PyTree], PyTree]
    # (key, wires of one graph, models before the step, after it, memory, exchange)
    communicate: Callable[
        [Key, PyTree, PyTree, PyTree, PyTree, ExchangeFn], CommunicationResult
    ]
    # memory -> push-sum weights [N], None for protocols without
    weight: Callable[[PyTree], Array | None] = lambda memory: None


class GossipState(NamedTuple):
    """All agents' models, what their learners and the protocol remember."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    memory: PyTree  # leaves [N, ...]; `GossipProtocol.init`


class GossipInputs(NamedTuple):
    """What the host knows of every round; leaves `[R, ...]`."""

    first_step: Array  # [R] steps taken before
    num_steps: Array  # [R]
    wires: PyTree  # [R, ...]; `GossipProtocol.wire`


def gossip(
    task: Task,
    learner: Learner,
    protocol: GossipProtocol,
    graph: Graphs,
    *,
    batch_size: int,
    rewire_every: int | None = None,
    local: Sequence[str] = shared.FULL,
    agent_loop: int = AUTO,
    steps_of: Callable[..., Callable] = local_training,
) -> Algorithm:
    """A method in which steps and communications of all agents alternate.

    Args:
      task: what every agent learns.
      learner: how.
      protocol: `dpsgd()`, `d2()`, `sgp()` or `gosgd()`.
      graph: who receives from whom: one graph, a sequence `[G, N, D]` that is used in
        turn, or a function that draws a graph.
      batch_size: B.
      rewire_every: network epochs after which the next graph comes; None keeps the
        first.
      local: leaves that are not sent, see `exchange`.
      agent_loop: see `agent_loop.map_agents`.
      steps_of: makes the function that trains all agents, as
        `local_training.local_training` does; others exchange something before a step is
        complete.
    """
    schedule.check_rewiring(graph, rewire_every)

    def init_fn(key: Key, data: FederatedData) -> GossipState:
        variables = identical_models(key, task, num_agents(data))
        opt_state = jax.vmap(learner.init)(variables)
        memory = protocol.init(shared.shared_leaves(variables))
        return GossipState(variables, opt_state, memory)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> GossipInputs:
        sizes = np.asarray(data.train.size)
        num_steps = epochs.steps_of_epochs(sizes, batch_size, num_rounds)
        first_step = np.cumsum(num_steps, dtype=np.int32) - num_steps
        graphs, of_round = schedule.graphs_of_rounds(
            rng, graph, rewire_every, num_agents(data), num_rounds
        )
        wires = protocol.wire(graphs)
        wires = jax.tree.map(lambda leaf: np.asarray(leaf)[of_round], wires)
        return GossipInputs(first_step, num_steps, wires)

    def round_fn(
        key: Key,
        t: Array,
        inputs: GossipInputs,
        state: GossipState,
        data: FederatedData,
    ) -> tuple[GossipState, Info]:
        del t
        sampler = samplers.shuffled_epochs(batch_size, max_size(data))
        train = steps_of(learner, sampler, 1, agent_loop)
        plan = sharing_plan(state.variables, local)
        exchange_shared = _exchange(plan)

        def one_step(step: Array, carry: PyTree) -> PyTree:
            (variables, opt_state, memory), totals = carry
            key_train, key_send = jax.random.split(jax.random.fold_in(key, step))
            before = shared.shared_leaves(variables)
            variables, opt_state, loss = train(
                key_train,
                inputs.first_step + step,
                variables,
                opt_state,
                data.train,
            )
            after = shared.shared_leaves(variables)
            message, memory, *used = protocol.communicate(
                key_send, inputs.wires, before, after, memory, exchange_shared
            )
            used = [slots.astype(jnp.float32) for slots in used]
            state = GossipState(
                shared.with_shared_leaves(variables, message), opt_state, memory
            )
            examples = samplers.num_drawn(
                sampler, inputs.first_step + step, data.train.size
            )
            return state, jax.tree.map(jnp.add, totals, (loss, examples, *used))

        senders = protocol.senders(inputs.wires)
        none = jnp.zeros(senders.shape, jnp.float32)
        zero = none[:, 0]
        state, (loss, examples, used, arrived) = jax.lax.fori_loop(
            0, inputs.num_steps, one_step, (state, (zero, zero, none, none))
        )
        loss = loss / jnp.maximum(inputs.num_steps, 1).astype(jnp.float32)
        sent = jnp.zeros_like(loss).at[senders].add(used)
        payload = sent * message_size(plan)
        info = Info(
            loss,
            sent,
            arrived.sum(1),
            payload,
            links=Links(senders, arrived),
            weight=protocol.weight(state.memory),
            examples=examples,
        )
        return state, info

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)


def _exchange(plan: MixPlan) -> ExchangeFn:
    def exchange_fn(outgoing: PyTree, kept: PyTree, peers: Peers) -> PyTree:
        mixed = mixing.mix(
            outgoing, plan, lambda owner: mixing.fastest_combine(peers, owner)
        )
        return where_shared(plan, mixed, kept)

    return exchange_fn


def prepare_weights(weigh: MixingWeights) -> Callable[[Topology], Peers]:
    """A `GossipProtocol.wire` for protocols that need one matrix of every graph."""
    return lambda graphs: jax.vmap(weigh)(jax.tree.map(jnp.asarray, graphs))


def peer_ids(peers: Peers) -> Array:
    """A `GossipProtocol.senders` for wires that are one matrix."""
    return jnp.asarray(peers.ids)
