"""Partial averaging (Algorithms 1 and 2).

Bouchra Pilet, Frey, Taiani (2021). Every agent trains on its own data; after every
`average_every` mini-batches the agents that implement a partial model average the
parameters it owns. Nothing shared is local training, everything shared is FedAvg or
gossip of whole networks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.graphs.topology import Topology
from p2pjax.partial.averaging import Averaging, messages_and_payload, warn_if_split
from p2pjax.partial.drift import squared_distance, updated
from p2pjax.partial.sharing import SharingPlan, initial_variables
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.local_training import local_training
from p2pjax.training.samplers import Sampler, num_drawn
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    PyTree,
    Variables,
    num_agents,
)


class PartialAveragingState(NamedTuple):
    """All agents' networks and what their learners remember (never averaged)."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]
    reference: PyTree = ()  # parameters after the last exchange, for dynamic averaging


def partial_averaging(
    task: Task,
    learner: Learner,
    sampler: Sampler,
    sharing: SharingPlan,
    averaging: Averaging,
    *,
    average_every: int = 1,
    drift: float | None = None,
    shared_init: bool = True,
    rate: Array | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round is one mini-batch of every agent and, if it is time, one averaging.

    Args:
      task: what every agent learns.
      learner: how; `per_sample(gradient_descent(...))` is the paper's.
      sampler: which examples a mini-batch has.
      sharing: the partial models.
      averaging: how their members average.
      average_every: mini-batches between two averagings.
      drift: dynamic averaging (Kamp et al. 2018): when it is time, an agent asks for an
        exchange only if the squared distance of its shared parameters from those it
        had after its last exchange is larger than this. None: everybody, always.
      shared_init: whether all agents start from the same weights.
      rate: `[N]` factors of the agents' updates.
      agent_loop: see `agent_loop.map_agents`.
    """
    if average_every < 1:
        raise InputError(f"Need average_every of 1 or more, got {average_every}.")
    if drift is not None and not 0 <= drift < float("inf"):
        raise InputError(f"Need a drift of 0 or more, got {drift}.")
    num_members = len(sharing.cells[0])
    if averaging.num_agents != num_members:
        raise InputError(
            f"Need an averaging of the {num_members} agents of the scheme, got one of "
            f"{averaging.num_agents}."
        )
    if rate is not None and np.shape(rate) != (num_members,):
        raise InputError(
            f"Need a rate for each of {num_members} agents, got {np.shape(rate)}."
        )
    train = local_training(learner, sampler, 1, agent_loop)
    context = StepContext(None if rate is None else jnp.asarray(rate))

    def init_fn(key: Key, data: FederatedData) -> PartialAveragingState:
        size = num_agents(data)
        if size != num_members:
            raise InputError(
                f"Need as many agents in the data as in the scheme, got {size} and "
                f"{num_members}."
            )
        variables = initial_variables(key, task, sharing, shared_init)
        reference = () if drift is None else jax.tree.map(jnp.copy, variables.params)
        opt_state = jax.vmap(learner.init)(variables)
        return PartialAveragingState(variables, opt_state, reference)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        del data
        inputs = averaging.plan(rng, num_rounds)
        if isinstance(inputs, Topology):
            warn_if_split(inputs, sharing.plan)
        return inputs

    def round_fn(
        key: Key,
        t: Array,
        inputs: PyTree,
        state: PartialAveragingState,
        data: FederatedData,
    ) -> tuple[PartialAveragingState, Info]:
        variables, opt_state, loss = train(
            key, t, state.variables, state.opt_state, data.train, context
        )

        def average(params: PyTree, reference: PyTree) -> tuple[PyTree, ...]:
            used = inputs
            if drift is not None:
                drifted = squared_distance(params, reference, sharing.plan)
                used = averaging.only(inputs, drifted > drift)
            params = mixing.mix(
                params, sharing.plan, lambda owner: averaging.combine(used, owner)
            )
            if drift is not None:
                reference = updated(
                    reference,
                    params,
                    sharing.plan,
                    lambda owner: jnp.any(averaging.links(used, owner), axis=1),
                )
            return (
                params,
                reference,
                *messages_and_payload(averaging, used, sharing.plan),
            )

        def wait(params: PyTree, reference: PyTree) -> tuple[PyTree, ...]:
            none = jnp.zeros(num_members, jnp.float32)
            return params, reference, none, none

        before = variables.params, state.reference
        if average_every == 1:
            params, reference, sent, payload = average(*before)
        else:
            is_time = (t + 1) % average_every == 0
            params, reference, sent, payload = jax.lax.cond(
                is_time, average, wait, *before
            )
        variables = variables._replace(params=params)
        state = PartialAveragingState(variables, opt_state, reference)
        examples = num_drawn(sampler, t, data.train.size)
        # Every exchange goes both ways.
        return state, Info(loss, sent, sent, payload, examples=examples)

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)
