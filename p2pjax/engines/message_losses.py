"""How well received models do on a batch of their receiver, for rules that ask."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from p2pjax.engines.communication import Judge
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.pipeline import Exchange
from p2pjax.exchange.reading import Sent
from p2pjax.exchange.shared import shared_leaves, where_shared, with_shared_leaves
from p2pjax.exchange.whole_messages import whole_messages
from p2pjax.graphs.topology import Topology
from p2pjax.selection.peer_evaluation import over_pairs
from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import map_agents
from p2pjax.training.local_updates import LocalUpdates, steps_of
from p2pjax.types import (
    Array,
    Batch,
    FederatedData,
    Key,
    Peers,
    PyTree,
    Variables,
)


def judges(
    task: Task,
    exchange: Exchange,
    local_updates: LocalUpdates,
    batch_size: int,
    data: FederatedData,
    agent_loop: int,
) -> Callable[[Key, Array, Variables], Judge]:
    """Makes functions that try received models on a batch of their receivers.

    It is the batch from which an agent will learn next: no model knows it yet.

    Args:
      task: what each agent learns.
      exchange: of the round, with a rule.
      local_updates: between two exchanges.
      batch_size: B.
      data: of all agents.
      agent_loop: see `agent_loop.map_agents`.

    Returns:
      `(key, exchanges with this one, the agents' own models) -> judge`.
    """
    sampler = samplers.shuffled_epochs(batch_size, samplers.max_size(data))
    agents = data.train

    def one_agent(key: Key, step: Array, agent: PyTree) -> Batch:
        examples, size, order_seed = agent
        draw = sampler(key, step, size, order_seed)
        return samplers.take_batch(examples, draw)

    def judge_of(key: Key, num_exchanges: Array, variables: Variables) -> Judge:
        sizes = jnp.asarray(agents.size)
        step = num_exchanges * steps_of(local_updates, sizes, batch_size)  # [N]
        keys = jax.random.split(key, sizes.shape[0])
        own = (agents.examples, sizes, agents.order_seed)
        batches = jax.vmap(one_agent)(keys, step, own)

        def judge(sent: Sent, message: PyTree, peers: Peers) -> Array:
            return message_losses(
                task, exchange, sent, message, variables, peers, batches, agent_loop
            )

        return judge

    return judge_of


def message_losses(
    task: Task,
    exchange: Exchange,
    sent: Sent,
    message: PyTree,
    variables: Variables,
    peers: Peers,
    batches: Batch,
    agent_loop: int,
) -> Array:
    """Loss of each model that an agent receives on its own batch, `[N, K]`.

    Slot 0 is the agent's own model. What is not sent is the receiver's own.

    Args:
      task: what each agent learns.
      exchange: of the round, with a rule.
      sent: `pipeline.transmit`.
      message: what each agent sent, as it has it itself, leaves `[N, ...]`.
      variables: the agents' own, leaves `[N, ...]`.
      peers: whom each agent hears, `[N, K]`.
      batches: one of each agent, leaves `[N, B, ...]`.
      agent_loop: see `agent_loop.map_agents`.
    """
    manner = exchange.manner
    assert manner is not None
    found = whole_messages(manner, sent, message, lambda owner: peers)

    def loss_of(message: PyTree, agent: PyTree) -> Array:
        own, batch = agent
        message = where_shared(manner.plan, message, shared_leaves(own))
        variables = with_shared_leaves(own, message)
        total, weight = task.evaluate(variables, batch)["loss"]
        return jnp.asarray(total / jnp.maximum(weight, 1), jnp.float32)

    def of_each(messages: PyTree) -> Array:
        """Of the message in an agent's own row, `[N]`."""

        def one_agent(_: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            return (), loss_of(*inputs)

        return map_agents(one_agent, agent_loop)((), (messages, (variables, batches)))[
            1
        ]

    ids = jnp.asarray(peers.ids)
    asked = is_peer(peers) & (peers.weight > 0)
    if found.is_hostile is not None:
        asked = asked & ~found.is_hostile
    loss = over_pairs(
        loss_of, found.rows, (variables, batches), Topology(ids, asked), agent_loop
    )
    loss = jnp.asarray(loss).at[:, 0].set(of_each(message))
    if found.is_hostile is None:
        return loss
    return jnp.where(found.is_hostile, of_each(found.hostile)[:, None], loss)
