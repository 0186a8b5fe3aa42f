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
import optax

from p2pjax.asynchronous.events import Timing
from p2pjax.asynchronous.wakes import Agent, Wake
from p2pjax.engines.asynchrony import asynchronous
from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange import shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import Local
from p2pjax.graphs.conversion import GraphLike
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.partial.slices import what_is_sent
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext, as_learner, norm_and_rest
from p2pjax.training.local_training import identical_models, take_steps
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
from p2pjax.training.poisoning import poisoned, poisoned_batch
from p2pjax.training.samplers import shuffled_epochs, whole_set
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    InputError,
    Key,
    Split,
    Variables,
    num_agents,
)

MOMENTUM, MOMENTUM_GROWTH, MAX_MOMENTUM = 0.9, 1.01, 0.99


class Progress(NamedTuple):
    """What an agent remembers; leaves `[N]` in the state."""

    is_frozen: Array
    num_wakes: Array  # so far


def p2p_bn(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    fine_tuning: bool = True,
    growing_momentum: bool = False,
    update_scale: Array | None = None,
    timing: Timing = Timing(),
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    local_patterns: Local = shared.FULL,
    scheme: Scheme | SchemeFn | None = None,
    num_mailboxes: int | None = None,
    max_width: int | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Asynchronous push gossip with batch-norm fine-tuning (Sajina et al. 2023).

    https://doi.org/10.1016/j.eswa.2022.119159. Fine-tuning needs validation data and a
    network with normalisation layers. A round is a network epoch of wake-up events.
    Models are reported after their last training; scores after averaging are those with
    all messages merged that have arrived by the end of the round, and there are none
    with delays.

    Args:
      task: what each agent learns.
      optimizer: of optax. With fine-tuning, normalisation layers and all other
        parameters have a state of it each.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      local_updates: of an agent that is awake, `epochs(e)` or `steps(k)`.
      rewire_every: network epochs after which the next graph comes.
      fine_tuning: whether agents that do not improve freeze all but normalisation.
      growing_momentum: let the running statistics keep more and more, up to 0.99.
      update_scale: `[N]` factors of the agents' updates.
      timing: when agents wake: random or by clocks, present or absent.
      channel: what happens to messages on their way: `channel.drop`, `channel.delay`,
        `channel.quantize`.
      attack: of Byzantine agents, who know only what they have themselves:
        `attacks.label_flip`, `backdoor`, `sign_flip` of the update or the model,
        `gaussian` around zero or the own model. None: all are honest.
      aggregate: a robust rule for one message at a time, in the order in which they
        arrive, in place of the mean of two models: `robust.self_centered_clipping` or
        `robust.balance`. With delays an agent merges when it wakes, and each message
        needs a mailbox of its own until then.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      scheme: partial models of all agents, of which alone agents send what they share,
        such as `partial.level(0.5)`; statistics then stay, as with `SILO_BN`.
      num_mailboxes: per agent; 1 without delays and 8 with them if not given.
      max_width: most trainings of a wave where they are batched; no limit if not given.
      agent_loop: see `asynchrony.asynchronous`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(
      ...     num_agents=4, split=pj.split.iid(), valid_fraction=0.1)
      >>> task = pj.classification(pj.nn.BatchNormCNN((4,), (), 10), data)
      >>> method = pj.p2p_bn(task, optax.adam(1e-3), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      'a network epoch of wake-ups: ...'
    """
    local = what_is_sent(task, local_patterns, scheme)
    if fine_tuning and isinstance(optimizer, Learner):
        raise InputError(
            "P2P-BN keeps an optimizer state for normalisation layers and one for the "
            "rest, so it needs an optimizer of optax, got a learner: pass the "
            "optimizer, or fine_tuning=False."
        )
    labels = norm_and_rest(task.norm) if fine_tuning else None
    learner = as_learner(task, optimizer, labels)
    poison = None if attack is None else attack.poison
    if poison is not None:
        learner = poisoned(learner, poison)
    if fine_tuning and not task.norm:
        raise InputError(
            "P2P-BN fine-tunes normalisation layers, and this network has none: add "
            "batch norm to it, or pass fine_tuning=False."
        )

    def init_fn(key: Key, data: FederatedData) -> Agent:
        check_fn(data)
        size = num_agents(data)
        variables = identical_models(key, task, size)
        if growing_momentum and "momentum" not in variables.stats:
            raise InputError(
                "Need a network that is called with a momentum to let it grow, as "
                "nn.NextWord is, got one without."
            )
        opt_state = jax.vmap(learner.init)(variables)
        progress = Progress(jnp.zeros(size, bool), jnp.zeros(size, jnp.int32))
        scale = jnp.ones(size) if update_scale is None else jnp.array(update_scale)
        return Agent(variables, opt_state, (progress, scale))

    def check_fn(data: FederatedData) -> None:
        has_none = next(iter(data.valid.examples.values())).shape[1] == 0
        if fine_tuning and has_none:
            raise InputError(
                "P2P-BN decides by validation data what to fine-tune, and there is "
                "none: hold some out (valid_fraction=0.1), or pass fine_tuning=False."
            )

    def on_wake_fn(
        key: Key, agent: Agent, train: Split, valid: Split, wake: Wake
    ) -> tuple[Agent, Array]:
        variables, opt_state, (progress, scale) = agent
        frozen = None
        if fine_tuning:
            before = accuracy(key, variables, valid, wake)
            frozen = {"rest": progress.is_frozen}
        max_size = next(iter(train.examples.values())).shape[0]
        num_steps = steps_of(local_updates, train.size, batch_size)
        (variables, opt_state), loss = take_steps(
            learner,
            shuffled_epochs(batch_size, max_size),
            key,
            train.examples,
            train.size,
            StepContext(
                None if update_scale is None else scale,
                frozen,
                order_seed=train.order_seed,
                is_byzantine=wake.is_byzantine,
            ),
            (variables, opt_state),
            progress.num_wakes * num_steps,
            num_steps,
        )
        is_frozen = progress.is_frozen
        if fine_tuning:
            has_improved = accuracy(key, variables, valid, wake) > before
            is_frozen = ~has_improved & (valid.size > 0)
        num_wakes = progress.num_wakes + 1
        if growing_momentum:
            now = momentum(num_wakes)
            variables = variables._replace(stats={**variables.stats, "momentum": now})
        memory = (Progress(is_frozen, num_wakes), scale)
        return Agent(variables, opt_state, memory), loss

    def accuracy(key: Key, variables: Variables, data: Split, wake: Wake) -> Array:
        batch = whole_set(data.examples, data.size)
        if poison is not None:  # or attackers would freeze what they have learned
            batch = poisoned_batch(poison, key, batch, wake.is_byzantine)
        total, weight = task.evaluate(variables, batch)["accuracy"]
        return total / jnp.maximum(weight, 1)

    def check_all(data: FederatedData) -> None:
        task.check_labels(data)
        check_fn(data)
        task.check()

    evaluate = before_and_after(task, agent_loop)
    if attack is not None:
        evaluate = of_honest_agents(evaluate, task, attack, agent_loop)
    return asynchronous(
        init_fn,
        (on_wake_fn,),
        graph,
        batch_size=batch_size,
        evaluate=evaluate,
        check=check_all,
        local_updates=local_updates,
        rewire_every=rewire_every,
        timing=timing,
        channel=channel,
        attack=attack,
        aggregate=aggregate,
        name="P2P-BN",
        local=local,
        num_mailboxes=num_mailboxes,
        max_width=max_width,
        agent_loop=agent_loop,
    )


def momentum(num_wakes: Array) -> Array:
    """What running statistics keep after so many wake-ups of an agent."""
    grown = MOMENTUM * MOMENTUM_GROWTH ** (num_wakes.astype(jnp.float32) / 5)
    return jnp.minimum(grown, MAX_MOMENTUM)
