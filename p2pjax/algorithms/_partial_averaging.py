"""Partial averaging (Algorithms 1 and 2).

Bouchra Pilet, Frey, Taiani (2021), "Simple, efficient and convenient decentralized
multi-task learning for neural networks", https://hal.science/hal-02373338.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
import optax

from p2pjax.engines.changing_groups import group_changes
from p2pjax.engines.partial_rounds import PartialAveragingState, partial_rounds
from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.robust import Rule
from p2pjax.partial.averaging import Averaging, server
from p2pjax.partial.changing_members import Changing, check_models, group_averaging
from p2pjax.partial.network_cells import NetworkCells
from p2pjax.partial.per_model import PerModel
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.partial.sharing import compile_scheme, known_cells, layout_of
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner
from p2pjax.training.local_updates import LocalUpdates, steps, steps_of
from p2pjax.training.samplers import cyclic_window
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
    Wiring,
    num_agents,
)


def partial_averaging(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    scheme: Scheme | SchemeFn | Changing,
    *,
    batch_size: int,
    wiring: Wiring | NetworkCells | None = None,
    averaging: Averaging | PerModel | Callable[[int], Averaging] = server,
    local_updates: LocalUpdates = steps(1),
    drift_threshold: float | Sequence[float] | None = None,
    shared_init: bool = True,
    update_scale: Array | None = None,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    score_before: bool = False,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Average partial models among those that share them (Bouchra Pilet et al. 2021).

    https://hal.science/hal-02373338. With local steps a round is one mini-batch of each
    agent and, when it is time, one averaging. With local epochs it is these epochs of
    each agent, as many mini-batches as it takes to see all of its examples, and one
    averaging. Agents take consecutive examples of their data, wrapping around. The
    paper's mini-batch is a step per example: pass `per_sample(gradient_descent(task,
    optimizer))` as the optimizer.

    Args:
      task: what each agent learns, on any network. Which cells it has is found when
        the first agents are made (`partial.cells_of`); known for the package's.
      optimizer: of optax, or a `Learner`.
      scheme: the partial models, such as `partial.level(0.8)`, a function of the
        network's layout and the number of agents, or a `Scheme`; or `partial.changing`,
        of which members of models change.
      batch_size: B.
      wiring: which part's cells lie along which axis of which leaf of the parameters,
        or what `partial.cells_of` found; None: as above.
      averaging: how the members of a model average, or a function of the number of
        agents that makes it: `partial.server`, `partial.random_pairs`,
        `partial.metropolis_gossip`, or a gossip per model, `partial.per_model` and
        `partial.private_gossip`.
      local_updates: between two averagings, `steps(k)` or `epochs(e)`.
      drift_threshold: dynamic averaging, a number for all models or one for each: an
        agent asks for an exchange of a model only if its parameters are farther than
        this, in squared distance, from those after their last exchange.
      shared_init: whether all agents start from the same weights.
      update_scale: `[N]` factors of the agents' updates.
      channel: what happens to messages on their way. In pairs an exchange is lost as a
        whole; members whose messages to a server are lost keep what they have.
      attack: what Byzantine agents send or learn from; None: all are honest.
      aggregate: a robust rule in place of the mean, for each partial model by itself:
        any in gossip but `ubar`; `self_centered_clipping` or `balance` in pairs; of a
        server one for a set of messages, such as `median`, whose centre is what the
        server last computed.
      score_before: also score models before they are averaged.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.partial_averaging(
      ...     task, optax.sgd(0.1), pj.partial.level(0.8), batch_size=32)
      >>> method.round_is
      'one mini-batch of each agent, and one averaging after 1 local step'
    """
    cells = known_cells(task, wiring)
    if isinstance(scheme, Changing) and averaging is not server:
        raise InputError(
            "Need averaging by a server for models whose members change, got another "
            "one: leave out averaging, or give a scheme that stays."
        )

    def num_steps(sizes: Array) -> Array:
        return steps_of(local_updates, sizes, batch_size)

    @functools.cache
    def method(size: int) -> Algorithm:
        found = scheme.scheme if isinstance(scheme, Changing) else scheme
        if not isinstance(found, Scheme):
            found = found(layout_of(cells(), task), size)
        sharing, changes = compile_scheme(found, cells(), task), None
        average = averaging
        if isinstance(scheme, Changing):
            below = check_models(found, scheme.num_found)
            average = group_averaging(size, below)
            changes = group_changes(task, scheme, sharing, below, agent_loop)
        elif not isinstance(average, Averaging | PerModel):
            average = average(size)
        return partial_rounds(
            task,
            optimizer,
            cyclic_window(batch_size),
            sharing,
            average,
            average_every=local_updates.num_steps or 1,
            num_steps=num_steps if local_updates.num_epochs else None,
            drift_threshold=drift_threshold,
            changes=changes,
            shared_init=shared_init,
            update_scale=update_scale,
            channel=channel,
            attack=attack,
            aggregate=aggregate,
            score_before=score_before,
            agent_loop=agent_loop,
        )

    def init_fn(key: Key, data: FederatedData) -> PyTree:
        return method(num_agents(data)).init(key, data)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        return method(num_agents(data)).plan(rng, data, num_rounds)

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info]:
        return method(num_agents(data)).round(key, t, inputs, state, data)

    def models_fn(state: PartialAveragingState) -> Models:
        size = jax.tree.leaves(state.variables.params)[0].shape[0]
        return method(size).models(state)

    evaluate = before_and_after(task, agent_loop)
    if attack is not None:
        evaluate = of_honest_agents(evaluate, task, attack, agent_loop)
    return Algorithm(
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        evaluate,
        f"{local_updates.described} of each agent and one averaging"
        if local_updates.num_epochs
        else "one mini-batch of each agent, and one averaging after "
        f"{local_updates.described}",
    )
