"""MT and MT-EF: asynchronous push gossip between agents with different tasks.

Sajina, Tankovic, Ipsic (2024), "Multi-task peer-to-peer learning using an encoder-only
transformer model"; Sajina (2025), thesis, second study. A model is an encoder, which
all agents have, and the head of a task. An awake agent trains for one local epoch and
pushes its model to its receivers: those of its task average encoder and head, the
others the encoder only. With encoder freeze (MT-EF), an agent that has averaged its
encoder with one of another task trains only its head when it wakes next, which fits the
head to the encoder before both go on.

Baselines are the same method on other graphs and groups: CTS is each task's agents on a
graph of their own, one method per task; Mono is one group of agents whose data differ
but whose heads are the same.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from p2pjax.asynchronous.events import Timing
from p2pjax.asynchronous.task_groups import Group, PerTask, joined, of_group
from p2pjax.asynchronous.wakes import Agent, Wake, WakeFn
from p2pjax.engines.asynchrony import asynchronous
from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.evaluation.test_sets import on_test_sets_of_groups
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.robust import Rule
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import (
    Learner,
    StepContext,
    by_top_level,
    gradient_descent,
)
from p2pjax.training.local_training import take_steps
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
from p2pjax.training.samplers import shuffled_epochs
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    InputError,
    Key,
    PyTree,
    Split,
    Variables,
    num_agents,
)

ENCODER = "encoder"  # the part of the parameters that all tasks share


def multi_task(
    groups: Sequence[Group],
    optimizer: optax.GradientTransformation | Callable[[Task], Learner],
    graph: GraphLike,
    *,
    batch_size: int,
    encoder_freeze: bool = True,
    scores: Sequence[str] | None = None,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    timing: Timing = Timing(),
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    num_mailboxes: int | None = None,
    max_width: int | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Agents with different tasks share an encoder (Sajina et al. 2024).

    A round is a network epoch of wake-up events. All agents start with the same
    encoder. Models are reported after their last training; scores after averaging are
    those with all messages merged that have arrived by the end of the round, and there
    are none with delays.

    Args:
      groups: who has which task (`task_groups.groups`); parameters are the dicts
        `encoder`, of the same shapes in all tasks, and `head`. Agents merge heads
        within a group only, so two data sets of one group are one task to them.
      optimizer: of optax, of which encoder and head have a state each, or a function
        of a task that makes such a learner.
      graph: who receives from whom, see `asynchronous`; `generators.clustered` has one
        sender of another task for each agent.
      batch_size: examples of a mini-batch.
      encoder_freeze: MT-EF, else MT.
      scores: the metric of each task that is its score, such as `accuracy` or `f1`;
        `accuracy` for all if None.
      local_updates: of an agent that is awake, `epochs(e)` or `steps(k)`.
      rewire_every: network epochs after which the next graph comes.
      timing: when agents wake: random or by clocks, present or absent.
      channel: what happens to messages on their way: `channel.drop`, `channel.delay`,
        `channel.quantize`.
      attack: on messages, by Byzantine agents who know only what they have themselves:
        `attacks.sign_flip` of the update or the model, `attacks.gaussian` around zero
        or the own model. None: all are honest.
      aggregate: a robust rule in place of the mean of two encoders, and of two heads,
        each by itself: see `p2p_bn`.
      num_mailboxes: see `asynchronous`.
      max_width: see `asynchronous`.
      agent_loop: see `asynchronous`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> from p2pjax.datasets.label_sets import label_set
      >>> encoder, people = pj.nn.bert_tiny(20), label_set(["O", "B-PER", "I-PER"])
      >>> tasks = pj.masked_token(encoder, 8, mask_id=1), pj.tagging(encoder, 8, people)
      >>> groups, ring = pj.task_groups(tasks, sizes=[4, 2]), pj.graphs.ring(6)
      >>> method = pj.multi_task(groups, optax.sgd(0.1), ring, batch_size=8)
      >>> method.round_is
      'a network epoch of wake-ups: ...'
    """
    learners = [_learner(group.task, optimizer) for group in groups]
    _check_encoders(groups)
    scores = ["accuracy"] * len(groups) if scores is None else scores

    def check_fn(data: FederatedData) -> None:
        """Each task has examples that it can use."""
        _check_agents(groups, data)
        for number, group in enumerate(groups):
            group.task.check_labels(of_group(data, number, group))
            group.task.check()

    def init_fn(key: Key, data: FederatedData) -> Agent:
        _check_agents(groups, data)
        keys = jax.random.split(key, len(groups))
        models = [group.task.init(k) for group, k in zip(groups, keys, strict=True)]
        encoder = models[0].params[ENCODER]
        stacks = []
        for group, model in zip(groups, models, strict=True):
            same = model._replace(params={**model.params, ENCODER: encoder})
            size = group.stop - group.start
            stacks.append(
                jax.tree.map(
                    lambda leaf, size=size: jnp.broadcast_to(leaf, (size, *leaf.shape)),
                    same,
                )
            )
        states = [
            jax.vmap(own.init)(stack)
            for own, stack in zip(learners, stacks, strict=True)
        ]
        params = joined([stack.params for stack in stacks], (ENCODER,))
        opt_state = joined(states, (ENCODER,))
        num_wakes = jnp.zeros(groups[-1].stop, jnp.int32)
        return Agent(Variables(params, {}), opt_state, num_wakes)

    def on_wake_of(learner: Learner) -> WakeFn:
        def on_wake_fn(
            key: Key,
            agent: Agent,
            train: Split,
            valid: Split,
            wake: Wake,
        ) -> tuple[Agent, Array]:
            del valid
            variables, opt_state, num_wakes = agent
            max_size = next(iter(train.examples.values())).shape[0]
            num_steps = steps_of(local_updates, train.size, batch_size)
            (variables, opt_state), loss = take_steps(
                learner,
                shuffled_epochs(batch_size, max_size),
                key,
                train.examples,
                train.size,
                StepContext(
                    frozen={ENCODER: wake.is_partial} if encoder_freeze else None,
                    order_seed=train.order_seed,
                ),
                (variables, opt_state),
                num_wakes * num_steps,
                num_steps,
            )
            return Agent(variables, opt_state, num_wakes + 1), loss

        return on_wake_fn

    evaluate = on_test_sets_of_groups(groups, scores, agent_loop)
    if attack is not None:
        evaluate = of_honest_agents(evaluate, groups[0].task, attack, agent_loop)
    return asynchronous(
        init_fn,
        [on_wake_of(own) for own in learners],
        graph,
        batch_size=batch_size,
        evaluate=evaluate,
        check=check_fn,
        local_updates=local_updates,
        starts=[group.start for group in groups],
        rewire_every=rewire_every,
        timing=timing,
        channel=channel,
        attack=attack,
        aggregate=aggregate,
        name="Multi-task learning",
        num_mailboxes=num_mailboxes,
        max_width=max_width,
        agent_loop=agent_loop,
    )


def _learner(
    task: Task, optimizer: optax.GradientTransformation | Callable[[Task], Learner]
) -> Learner:
    if isinstance(optimizer, optax.GradientTransformation):
        return gradient_descent(task, optimizer, by_top_level)
    return optimizer(task)


def _check_agents(groups: Sequence[Group], data: FederatedData) -> None:
    if num_agents(data) != groups[-1].stop:
        raise InputError(
            f"Need data of {groups[-1].stop} agents, got {num_agents(data)}."
        )
    wanted = [group.stop - group.start for group in groups]
    for split in (data.train, data.valid, data.test):
        if isinstance(split.examples, PerTask):
            parts = split.examples.parts
            found = [len(next(iter(part.values()))) for part in parts]
            if found != wanted:
                raise InputError(
                    f"Need examples of {wanted} agents, those of each task, got "
                    f"{found}: join the data in the order of the groups."
                )


def _check_encoders(groups: Sequence[Group]) -> None:
    def shapes(task: Task) -> PyTree:
        params = shapes_of(task).params
        if set(params) != {ENCODER, "head"}:
            raise InputError(
                f"Need parameters named {ENCODER} and head, got {', '.join(params)}."
            )
        return jax.tree.map(lambda leaf: leaf.shape, params[ENCODER])

    first, *others = (shapes(group.task) for group in groups)
    if any(other != first for other in others):
        raise InputError(
            "Need the same encoder in all tasks, got different shapes: give them the "
            "same vocabulary and sizes."
        )
