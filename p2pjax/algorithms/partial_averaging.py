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

from p2pjax import mixing, owners, placement, references
from p2pjax.algorithms.base import Algorithm
from p2pjax.averaging import Averaging, traffic, warn_if_split
from p2pjax.data import Sampler, World, num_agents, num_drawn
from p2pjax.owners import MixPlan
from p2pjax.slices import Cells, Scheme, Wiring
from p2pjax.tasks import Task
from p2pjax.topology import Topology
from p2pjax.training import AUTO, Extra, Learner, local_training
from p2pjax.types import Array, Info, InputError, Key, PyTree, Variables


class PartialAveragingState(NamedTuple):
    """All agents' networks and what their learners remember (never averaged)."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]
    reference: PyTree = ()  # parameters after the last exchange, for dynamic averaging


class Sharing(NamedTuple):
    """A scheme, ready for stacked networks of one shape."""

    cells: Cells  # aligned
    order: Cells  # aligned column -> the agent's own column
    wiring: Wiring
    plan: MixPlan


def share(scheme: Scheme, wiring: Wiring, task: Task) -> Sharing:
    """Who owns what when the agents' networks are those of `task`.

    Build the task's network with `placement.widths(align(attach(scheme))[0])`.
    """
    attached = placement.attach(scheme)
    owners.check_parts(attached, wiring)
    cells, order = placement.align(attached)
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    return Sharing(cells, order, wiring, owners.mix_plan(scheme, cells, wiring, shapes))


def partial_averaging(
    task: Task,
    learner: Learner,
    sampler: Sampler,
    sharing: Sharing,
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
      agent_loop: see `training.map_agents`.
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
    extra = Extra(None if rate is None else jnp.asarray(rate))

    def init_fn(key: Key, world: World) -> PartialAveragingState:
        size = num_agents(world)
        if size != num_members:
            raise InputError(
                f"Need as many agents in the data as in the scheme, got {size} and "
                f"{num_members}."
            )
        variables = initial_variables(key, task, sharing, shared_init)
        reference = () if drift is None else jax.tree.map(jnp.copy, variables.params)
        opt_state = jax.vmap(learner.init)(variables)
        return PartialAveragingState(variables, opt_state, reference)

    def plan_fn(rng: np.random.Generator, world: World, num_rounds: int) -> PyTree:
        del world
        inputs = averaging.plan(rng, num_rounds)
        if isinstance(inputs, Topology):
            warn_if_split(inputs, sharing.plan)
        return inputs

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: PartialAveragingState, world: World
    ) -> tuple[PartialAveragingState, Info]:
        variables, opt_state, loss = train(
            key, t, state.variables, state.opt_state, world.train, extra
        )

        def average(params: PyTree, reference: PyTree) -> tuple[PyTree, ...]:
            used = inputs
            if drift is not None:
                drifted = references.squared_distance(params, reference, sharing.plan)
                used = averaging.only(inputs, drifted > drift)
            params = mixing.mix(
                params, sharing.plan, lambda owner: averaging.combine(used, owner)
            )
            if drift is not None:
                reference = references.updated(
                    reference,
                    params,
                    sharing.plan,
                    lambda owner: jnp.any(averaging.links(used, owner), axis=1),
                )
            return params, reference, *traffic(averaging, used, sharing.plan)

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
        examples = num_drawn(sampler, t, world.train.size)
        # Every exchange goes both ways.
        return state, Info(loss, sent, sent, payload, examples=examples)

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)


def initial_variables(
    key: Key, task: Task, sharing: Sharing, shared_init: bool
) -> Variables:
    """Stacked networks; parameters that an agent does not have are zero."""
    size = len(sharing.cells[0])
    if shared_init:
        one = task.init(key)
        params, stats = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), one
        )
    else:
        params, stats = jax.vmap(task.init)(jax.random.split(key, size))
    masks = placement.cell_masks(sharing.cells)
    if masks:
        stats = stats | {"cells": jax.tree.map(jnp.asarray, masks)}
        shapes = jax.eval_shape(task.init, key).params
        present = owners.presence(sharing.cells, sharing.wiring, shapes)
        params = jax.tree.map(lambda p, has: jnp.where(has, p, 0), params, present)
    return Variables(params, stats)
