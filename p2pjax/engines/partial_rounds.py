"""Partial averaging: agents average the parts of their networks that they share.

Bouchra Pilet, Frey, Taiani (2021), "Simple, efficient and convenient decentralized
multi-task learning for neural networks", https://hal.science/hal-02373338, Algorithms 1
and 2. Each agent trains on its own data; after a few mini-batches or local epochs the
agents that implement a partial model average the parameters it owns. Nothing shared is
local training, everything shared is FedAvg or gossip of whole networks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.adverse_partial import (
    check_groups,
    check_partial,
    prepared_attack,
)
from p2pjax.engines.adversity import (
    attacked,
    byzantine_agents,
    inputs_and_attackers,
    no_attackers,
    poisoned_agents,
    with_attackers,
)
from p2pjax.engines.assembly import assemble
from p2pjax.engines.changing_groups import GroupChanges, GroupState
from p2pjax.engines.partial_exchange import Carried, Cost, no_cost, partial_exchange
from p2pjax.engines.partial_servers import begin_servers, check_members
from p2pjax.engines.partial_training import partial_training
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.attacks.attackers import byzantine_mask
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.pipeline import Memory, begin, make_exchange
from p2pjax.exchange.rejections import none_rejected, rejected_of
from p2pjax.exchange.robust import Rule
from p2pjax.graphs.schedule import check_width
from p2pjax.graphs.topology import Topology
from p2pjax.partial.averaging import Averaging, warn_if_split
from p2pjax.partial.drift import thresholds_of
from p2pjax.partial.per_model import PerModel, Situation
from p2pjax.partial.sharing import SharingPlan, initial_variables, update_rates
from p2pjax.partial.views import restored, viewed
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.poisoning import poisoned
from p2pjax.training.samplers import Sampler, num_drawn
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
    Variables,
    num_agents,
)


class Pending(NamedTuple):
    """An averaging still to come, where models are scored before and after it."""

    key: Key
    t: Array  # [] round
    inputs: PyTree
    is_waiting: Array  # [] bool


class PartialAveragingState(NamedTuple):
    """All agents' networks and what their learners remember (never averaged)."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]
    reference: PyTree = ()  # parameters after the last exchange, for dynamic averaging
    pending: Pending | tuple[()] = ()
    before: PyTree = ()  # parameters after the last averaging, for some attacks
    memory: Memory | tuple[()] = ()  # of the exchange
    groups: GroupState | tuple[()] = ()  # of models whose members change


def partial_rounds(
    task: Task,
    optimizer: Learner | optax.GradientTransformation,
    sampler: Sampler,
    sharing: SharingPlan,
    averaging: Averaging | PerModel,
    *,
    average_every: int = 1,
    num_steps: Callable[[Array], Array] | None = None,
    drift_threshold: float | Sequence[float] | None = None,
    changes: GroupChanges | None = None,
    shared_init: bool = True,
    update_scale: Array | None = None,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    score_before: bool = False,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round is one mini-batch of each agent and, if it is time, one averaging.

    With `num_steps` a round has as many mini-batches of each agent, such as those of
    local epochs.

    Args:
      task: what each agent learns.
      optimizer: of optax, or a `Learner`; `per_sample(gradient_descent(...))` is the
        paper's.
      sampler: which examples a mini-batch has.
      sharing: the partial models.
      averaging: how their members average.
      average_every: rounds between two averagings.
      num_steps: examples of each agent `[N]` -> its mini-batches of a round, int32
        `[N]`; None for one.
      drift_threshold: dynamic averaging (Kamp et al. 2018,
        https://arxiv.org/abs/1807.03210): when it is time, an agent asks for an
        exchange of a model only if the squared distance of its parameters of that
        model from those after their last exchange is larger than this, or than the
        number of this model, where there is one for each. Models that have their own
        in the scheme keep it. None: all agents and other models, always.
      changes: how members change, with `changing.group_averaging`; None: they stay.
      shared_init: whether all agents start from the same weights.
      update_scale: `[N]` factors of the agents' updates.
      channel: what happens to messages on their way.
      attack: what Byzantine agents send or learn from; None: all are honest.
      aggregate: a robust rule in place of the mean, for each partial model by itself.
      score_before: also score models before they are averaged.
      agent_loop: see `agent_loop.map_agents`.
    """
    if average_every < 1:
        raise InputError(f"Need average_every of 1 or more, got {average_every}.")
    if isinstance(averaging, PerModel):
        lost = channel.loss_probability
        averaging = averaging.among(Situation(sharing.plan, average_every, lost))
    check_partial(averaging, channel, attack, aggregate)
    threshold = thresholds_of(sharing, drift_threshold)
    if threshold is not None and (averaging.settle or averaging.disturb):
        raise InputError(
            "Need no drift_threshold for a gossip with a tolerance or with noise, got "
            "both: who drifts and who agrees would decide about the same exchanges."
        )
    num_members = len(sharing.cells[0])
    if averaging.num_agents != num_members:
        raise InputError(
            f"Need an averaging of the {num_members} agents of the scheme, got one of "
            f"{averaging.num_agents}."
        )
    if update_scale is not None and np.shape(update_scale) != (num_members,):
        raise InputError(
            f"Need an update_scale for each of {num_members} agents, got "
            f"{np.shape(update_scale)}."
        )
    if averaging.peers is None:
        check_members(aggregate, sharing.plan)
    learner = as_learner(task, optimizer)
    if attack is not None and attack.poison is not None:
        learner = poisoned(learner, attack.poison)
    train = partial_training(learner, sampler, num_steps, agent_loop, sharing)
    view = partial(viewed, views=sharing.views, is_stacked=True)
    restore = partial(restored, views=sharing.views, is_stacked=True)
    exchange = make_exchange(
        sharing.plan, channel, attack, aggregate, eager=averaging.peers is None
    )
    if changes is not None and (
        channel != PERFECT or (attack, aggregate, threshold) != (None,) * 3
    ):
        raise InputError(
            "Need a perfect channel, honest agents, the mean and no drift_threshold "
            "where members of models change, got something else: give a scheme that "
            "stays."
        )
    needs_before = attack is not None and attack.needs_before
    average, cost = partial_exchange(
        exchange, averaging, sharing.plan, threshold, needs_before
    )

    def init_fn(key: Key, data: FederatedData) -> PartialAveragingState:
        size = num_agents(data)
        if size != num_members:
            raise InputError(
                f"Need as many agents in the data as in the scheme, got {size} and "
                f"{num_members}."
            )
        variables = initial_variables(key, task, sharing, shared_init)
        params = view(variables.params)
        reference: PyTree = ()
        if threshold is not None:
            reference = jax.tree.map(jnp.copy, params)
        opt_state = jax.vmap(learner.init)(variables)
        groups: GroupState | tuple[()] = ()
        if changes is not None:
            changes.check(data)
            groups = changes.begin(variables)
        pending: Pending | tuple[()] = ()
        if score_before:
            inputs = averaging.plan(np.random.default_rng(0), 1)  # for its shapes
            inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], inputs)
            if isinstance(groups, GroupState):
                inputs = jax.tree.map(jnp.copy, groups.now)
            pending = Pending(
                jax.random.fold_in(key, 0), jnp.int32(0), inputs, jnp.zeros((), bool)
            )
        before: PyTree = ()
        if needs_before:
            before = jax.tree.map(jnp.copy, params)
        attackers = no_attackers(attack, size)
        if attackers is not None and attackers.prepared is not None:
            empty = jnp.zeros((len(sharing.plan.classes), size))
            attackers = attackers._replace(prepared=empty)
        memory = begin(exchange, key, params, attackers)
        memory = begin_servers(exchange, averaging, memory, params)
        return PartialAveragingState(
            variables, opt_state, reference, pending, before, memory, groups
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        del data
        inputs = averaging.plan(rng, num_rounds)
        prepared = None
        if attack is not None:
            is_byzantine = byzantine_mask(attack, num_members)
            prepared = prepared_attack(attack, inputs, sharing.plan, is_byzantine)
        if isinstance(inputs, Topology):
            warn_if_split(inputs, sharing.plan)
            check_groups(aggregate, inputs, sharing.plan)
            if score_before:
                first = averaging.plan(np.random.default_rng(0), 1)
                check_width(inputs.mask.shape[2], first.mask.shape[2])
        return attacked(attack, inputs, num_members, num_rounds, prepared)

    def finished(state: PartialAveragingState) -> PartialAveragingState:
        """The state after the averaging that was still to come, if there is one."""
        if not isinstance(state.pending, Pending):
            return state
        key, t, inputs, is_waiting = state.pending
        carried = jax.lax.cond(
            is_waiting,
            lambda carried: average(key, t, inputs, carried),
            lambda carried: carried,
            _carried(state, view(state.variables.params)),
        )
        params = restore(carried.params, state.variables.params)
        variables = state.variables._replace(params=params)
        return state._replace(variables=variables, **_kept(carried))

    def by_groups(params: PyTree, groups: PyTree) -> PyTree:
        """The means of groups, in an exchange that needs no key."""
        carried = Carried(view(params), (), (), ())
        means = average(jax.random.key(0), jnp.int32(0), groups, carried).params
        return restore(means, params)

    def round_fn(
        key: Key,
        t: Array,
        inputs: PyTree,
        state: PartialAveragingState,
        data: FederatedData,
    ) -> tuple[PartialAveragingState, Info]:
        inputs, attackers = inputs_and_attackers(inputs)
        state = finished(state._replace(memory=none_rejected(state.memory)))
        state = state._replace(memory=with_attackers(state.memory, attackers))
        context = StepContext(
            None if update_scale is None else jnp.asarray(update_scale),
            is_byzantine=poisoned_agents(attack, attackers),
            rates=update_rates(sharing, state.variables.params),
        )
        variables, opt_state, loss = train(
            key, t, state.variables, state.opt_state, data.train, context
        )
        groups = state.groups
        if changes is not None and isinstance(groups, GroupState):
            groups = changes.look(t, variables, data, by_groups, groups)
            inputs = groups.now
        is_time = (t + 1) % average_every == 0

        def act(carried: Carried) -> tuple[Carried, Cost]:
            found = cost(key, t, inputs, carried)
            if not score_before:
                carried = average(key, t, inputs, carried)
            return carried, found

        def wait(carried: Carried) -> tuple[Carried, Cost]:
            return carried, no_cost(lambda: cost(key, t, inputs, carried))

        trained = _carried(state, view(variables.params))
        carried, found = (
            act(trained)
            if average_every == 1
            else jax.lax.cond(is_time, act, wait, trained)
        )
        params = restore(carried.params, variables.params)
        variables = variables._replace(params=params)
        pending: Pending | tuple[()] = ()
        if score_before:
            pending = Pending(key, t, inputs, is_time)
        state = PartialAveragingState(
            variables, opt_state, pending=pending, groups=groups, **_kept(carried)
        )
        examples = num_drawn(sampler, t, data.train.size)
        steps = jnp.ones(num_members, jnp.float32)
        if num_steps is not None:
            steps = jnp.asarray(num_steps(data.train.size), jnp.float32)
            examples = steps * examples
        info = Info(loss, **found._asdict(), examples=examples, steps=steps)
        return state, info._replace(rejected=rejected_of(state.memory))

    def models_fn(state: PartialAveragingState) -> Models:
        byzantine = byzantine_agents(attack, state.memory)
        observed = None
        if isinstance(state.groups, GroupState):
            observed = state.groups.observed
        trained = state.variables if score_before else None
        averaged = finished(state).variables if score_before else state.variables
        return Models(averaged, trained, averaged, byzantine, observed)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=(
            "one mini-batch of each agent"
            if num_steps is None
            else "mini-batches of each agent, as many as its data asks for"
        )
        + (
            " and one averaging"
            if average_every == 1
            else f", and one averaging after every {average_every} rounds"
        ),
        agent_loop=agent_loop,
        attack=attack,
    )


def _carried(state: PartialAveragingState, params: PyTree) -> Carried:
    return Carried(params, state.reference, state.before, state.memory)


def _kept(carried: Carried) -> dict[str, PyTree]:
    """Fields of the state beside the models."""
    return {
        "reference": carried.reference,
        "before": carried.before,
        "memory": carried.memory,
    }
