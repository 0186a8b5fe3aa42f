"""P2P-BN: asynchronous push gossip with batch-norm fine-tuning.

Sajina, Tankovic, Ipsic (2023), "Peer-to-peer deep learning with non-IID data"; Sajina
(2025), thesis. An awake agent trains for one local epoch and pushes its model to its
receivers, who average it into theirs. If an epoch did not improve the accuracy on its
validation data, the agent's weights are frozen in its next one: only batch norm then
follows the local data. A frozen agent still averages what it receives and sends.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.asynchronous.events import Timing
from p2pjax.asynchronous.wave_executor import Agent
from p2pjax.engines.asynchrony import asynchronous
from p2pjax.exchange import shared
from p2pjax.graphs.topology import Graphs
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.local_training import identical_models, take_steps
from p2pjax.training.samplers import shuffled_epochs, steps_per_epoch, whole_set
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Key,
    Split,
    Variables,
    num_agents,
)

MOMENTUM, MOMENTUM_GROWTH, MAX_MOMENTUM = 0.9, 1.01, 0.99


class Progress(NamedTuple):
    """What an agent remembers; leaves `[N]` in the state."""

    is_frozen: Array
    num_epochs: Array  # local ones, so far


def p2p_bn(
    task: Task,
    learner: Learner,
    graph: Graphs,
    *,
    batch_size: int,
    rewire_every: int | None = None,
    fine_tuning: bool = True,
    growing_momentum: bool = False,
    rate: Array | None = None,
    timing: Timing = Timing(),
    local: tuple[str, ...] = shared.FULL,
    num_mailboxes: int | None = None,
    max_width: int | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round is a network epoch.

    Args:
      task: what every agent learns.
      learner: how; with fine-tuning, its optimizer has to be made `per_module_state`.
      graph: who receives from whom, see `asynchronous`.
      batch_size: examples of a mini-batch.
      rewire_every: network epochs after which the next graph comes.
      fine_tuning: whether agents that do not improve freeze all but batch norm. Without
        it, or for networks without batch norm, validation data is not used.
      growing_momentum: let the running statistics keep more and more, up to 0.99.
      rate: `[N]` factors of the agents' updates.
      timing: when agents wake and messages arrive.
      local: leaves that are not exchanged: `exchange.FULL`, `FED_BN` or `SILO_BN`.
      num_mailboxes: see `asynchronous`.
      max_width: see `asynchronous`.
      agent_loop: see `asynchronous`.
    """

    def init_fn(key: Key, data: FederatedData) -> Agent:
        size = num_agents(data)
        variables = identical_models(key, task, size)
        opt_state = jax.vmap(learner.init)(variables)
        progress = Progress(jnp.zeros(size, bool), jnp.zeros(size, jnp.int32))
        rates = jnp.ones(size) if rate is None else jnp.asarray(rate)
        return Agent(variables, opt_state, (progress, rates))

    def awake_fn(
        key: Key, agent: Agent, train: Split, valid: Split, is_partial: Array
    ) -> tuple[Agent, Array]:
        del is_partial
        variables, opt_state, (progress, own_rate) = agent
        frozen = None
        if fine_tuning:
            before = accuracy(variables, valid)
            frozen = {
                name: progress.is_frozen
                for name in variables.params
                if "norm" not in name
            }
        max_size = next(iter(train.examples.values())).shape[0]
        sampler = shuffled_epochs(batch_size, max_size)
        num_steps = steps_per_epoch(train.size, batch_size)
        (variables, opt_state), loss = take_steps(
            learner,
            sampler,
            key,
            train.examples,
            train.size,
            StepContext(None if rate is None else own_rate, frozen),
            (variables, opt_state),
            progress.num_epochs * num_steps,
            num_steps,
        )
        is_frozen = progress.is_frozen
        if fine_tuning:
            has_improved = accuracy(variables, valid) > before
            is_frozen = ~has_improved & (valid.size > 0)
        num_epochs = progress.num_epochs + 1
        if growing_momentum:
            now = momentum(num_epochs)
            variables = variables._replace(stats={**variables.stats, "momentum": now})
        memory = (Progress(is_frozen, num_epochs), own_rate)
        return Agent(variables, opt_state, memory), loss

    def accuracy(variables: Variables, data: Split) -> Array:
        total, weight = task.evaluate(variables, whole_set(data.examples, data.size))[
            "accuracy"
        ]
        return total / jnp.maximum(weight, 1)

    return asynchronous(
        init_fn,
        (awake_fn,),
        graph,
        rewire_every=rewire_every,
        timing=timing,
        local=local,
        num_mailboxes=num_mailboxes,
        max_width=max_width,
        agent_loop=agent_loop,
    )


def momentum(num_epochs: Array) -> Array:
    """What running statistics keep after so many local epochs of an agent."""
    grown = MOMENTUM * MOMENTUM_GROWTH ** (num_epochs.astype(jnp.float32) / 5)
    return jnp.minimum(grown, MAX_MOMENTUM)
