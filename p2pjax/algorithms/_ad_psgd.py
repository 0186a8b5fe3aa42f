"""AD-PSGD: agents that never wait average with one neighbour after each gradient.

Lian et al. (2018), "Asynchronous decentralized parallel stochastic gradient descent",
https://arxiv.org/abs/1710.06952.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.asynchronous.pairs import draw_pairs
from p2pjax.engines.adverse_waves import FORMATS
from p2pjax.engines.adversity import attacked, inputs_and_attackers, poisoned_agents
from p2pjax.engines.assembly import assemble
from p2pjax.engines.poisoned_agents import (
    Mask,
    check_data_attack,
    mask_at_start,
    mask_of,
    not_judged,
    poisoned_learner,
)
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel, check_channel
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.pipeline import deliver, make_exchange, transmit
from p2pjax.exchange.shared import Local, message_size, sharing_plan
from p2pjax.graphs import schedule
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import is_directed
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.partial.slices import what_is_sent
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO, IN_PLACE
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.local_updates import LocalUpdates, steps, steps_of
from p2pjax.training.samplers import check_batch_size, examples_between
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    Peers,
    PyTree,
    Variables,
    num_agents,
)


class ADPSGDState(NamedTuple):
    """All agents' models, and those that they compute on; leaves `[N, ...]`."""

    variables: Variables
    snapshot: Variables  # what each had when it began its present gradient
    opt_state: PyTree
    loss: Array  # [N] of the last local training
    is_byzantine: Mask = ()


def ad_psgd(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    compute_seconds: Array | None = None,
    bipartite: bool = False,
    local_updates: LocalUpdates = steps(1),
    rewire_every: int | None = None,
    local_patterns: Local = shared.FULL,
    scheme: Scheme | SchemeFn | None = None,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Asynchronous D-PSGD (Lian et al. 2018, https://arxiv.org/abs/1710.06952).

    When an agent has its update, it and a random neighbour both take the mean of their
    two models; then it adds the update, which it has computed on the model that it had
    when it began, and begins the next. What others have made of its model meanwhile is
    not in the update: that is the staleness. Batch statistics are averaged after the
    local training. A round has as many of these events as agents need to see about as
    many examples as there are; with local epochs as many as there are agents.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who may average with whom, undirected: see `graphs.as_graph`.
      batch_size: B.
      compute_seconds: that local updates of an agent take, `[N]`, or `[N, C]` used in
        turn. None: exponentially distributed with mean 1.
      bipartite: whether agents are of two sides, as in the paper, where this avoids
        deadlocks: those on the side of agent 0 ask, the others only answer, and add
        their updates without averaging. The graph has to have such sides.
      local_updates: that make an update, `steps(k)` or `epochs(e)`.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      scheme: partial models of all agents, of which alone agents send what they share.
      channel: `channel.drop`, where neither of the two averages, and `quantize`.
      attack: `label_flip`, or `backdoor` without boost; None: all are honest.
      agent_loop: see `agent_loop.map_agents`; only agents with an event train.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> pj.ad_psgd(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32).round_is
      'events of one agent each, which ends 1 local step and averages with ...'
    """
    check_batch_size(batch_size)
    check_channel(channel, "AD-PSGD", formats=FORMATS)
    check_data_attack(attack, "AD-PSGD")
    graph = as_topology(graph)
    schedule.check_rewiring(graph, rewire_every)
    if compute_seconds is not None:
        seconds = np.asarray(compute_seconds, float)
        if not (np.isfinite(seconds) & (seconds > 0)).all():
            raise InputError(
                "Need compute_seconds above 0 for AD-PSGD, got "
                f"{seconds.min() if seconds.size else 'none'} as the least."
            )
    learner = poisoned_learner(as_learner(task, optimizer), attack)
    local = what_is_sent(task, local_patterns, scheme)

    def init_fn(key: Key, data: FederatedData) -> ADPSGDState:
        variables = identical_models(key, task, num_agents(data))
        return ADPSGDState(
            variables,
            jax.tree.map(jnp.copy, variables),
            jax.vmap(learner.init)(variables),
            jnp.zeros(num_agents(data), jnp.float32),
            mask_at_start(attack, num_agents(data)),
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        sizes = np.asarray(data.train.size)
        graphs, of_round = schedule.graphs_of_rounds(
            rng, graph, rewire_every, len(sizes), num_rounds
        )
        if is_directed(graphs):
            raise InputError(
                "Need an undirected graph for AD-PSGD, in which both of a pair take "
                "their mean, got a directed one: give edges that go both ways."
            )
        events = draw_pairs(
            rng,
            graphs,
            of_round,
            _num_events(local_updates, sizes, batch_size),
            compute_seconds=compute_seconds,
            loss_probability=channel.loss_probability,
            bipartite=bipartite,
        )
        return attacked(attack, events, len(sizes), num_rounds)

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: ADPSGDState, data: FederatedData
    ) -> tuple[ADPSGDState, Info]:
        inputs, attackers = inputs_and_attackers(inputs)
        state = state._replace(is_byzantine=mask_of(attackers))
        context = StepContext(is_byzantine=poisoned_agents(attack, attackers))
        # Agents of a wave that have nothing to do cost nothing one after the other.
        on_cpu = agent_loop == AUTO and jax.default_backend() == "cpu"
        train = own_steps(learner, batch_size, IN_PLACE if on_cpu else agent_loop)
        plan = sharing_plan(state.variables, local)
        exchange = make_exchange(plan, channel)
        taken = steps_of(local_updates, data.train.size, batch_size)  # [N]
        agent, partner, wave = map(jnp.asarray, inputs[:3])  # [E]
        none = num_agents(data)  # the place of events of other waves

        def one_wave(number: Array, carry: PyTree) -> PyTree:
            state, num_before = carry
            one = jnp.where(wave == number, agent, none)
            other = jnp.where(wave == number, partner, none)
            own = jnp.arange(none, dtype=jnp.int32)
            paired = own.at[one].set(other, mode="drop").at[other].set(one, mode="drop")
            is_active = jnp.zeros(none, bool).at[one].set(True, mode="drop")
            trained, opt_state, loss = train(
                jax.random.fold_in(key, number),
                num_before * taken,
                jnp.where(is_active, taken, 0),
                state.snapshot,
                state.opt_state,
                data.train,
                context,
            )
            half = jnp.full((none, 2), 0.5, jnp.float32)
            peers = Peers(jnp.stack([own, paired], axis=1), half)
            stats = _where(is_active, trained.stats, state.variables.stats)
            variables = state.variables._replace(stats=stats)
            models = shared.shared_leaves(variables)
            if exchange.manner is None:
                means = mixing.mix(models, plan, lambda owner: mixing.by_peers(peers))
            else:
                key_send = jax.random.fold_in(key, number)
                sent, _ = transmit(exchange, key_send, t, models, ())
                means = deliver(
                    exchange,
                    key_send,
                    t,
                    sent,
                    models,
                    models,
                    lambda owner: peers,
                    None,
                ).models
            variables = shared.with_shared_leaves(variables, means)
            params = jax.tree.map(  # those that have not trained add 0
                lambda mean, new, old: mean + (new - old),
                variables.params,
                trained.params,
                state.snapshot.params,
            )
            variables = variables._replace(params=params)
            state = ADPSGDState(
                variables,
                _where(is_active, variables, state.snapshot),
                opt_state,
                jnp.where(is_active, loss, state.loss),
                state.is_byzantine,
            )
            return state, num_before + is_active.astype(jnp.int32)

        first = jnp.asarray(inputs.num_before)
        state, _ = jax.lax.fori_loop(0, wave.max() + 1, one_wave, (state, first))
        last = first + inputs.num_now
        sent = jnp.asarray(inputs.sent)
        info = Info(
            state.loss,
            sent,
            jnp.asarray(inputs.links.arrived).sum(1),
            sent * message_size(plan),
            time=inputs.time,
            links=inputs.links,
            examples=examples_between(
                first * taken, last * taken, data.train.size, batch_size
            ),
            steps=(inputs.num_now * taken).astype(jnp.float32),
        )
        if channel.format is not None:
            message = shared.shared_leaves(state.variables)
            of_one = num_bytes(message_bits(channel.format, plan, message))
            info = info._replace(bytes=sent * of_one)
        return state, info

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        lambda state: Models(
            state.variables, is_byzantine=not_judged(state.is_byzantine)
        ),
        round_is="events of one agent each, which ends "
        f"{local_updates.described} and averages with a random neighbour, "
        + (
            "as many as there are agents"
            if local_updates.num_epochs
            else "until about as many examples are seen as there are"
        ),
        agent_loop=agent_loop,
        attack=attack,
    )


def _num_events(updates: LocalUpdates, sizes: np.ndarray, batch_size: int) -> int:
    """Of a round."""
    if updates.num_epochs:
        return len(sizes)
    of_event = updates.num_steps * np.minimum(sizes, batch_size).mean()
    return max(1, int(np.ceil(sizes.sum() / of_event)))


def _where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """Agents' leaves `[N, ...]`, by a condition `[N]`."""
    return jax.tree.map(
        lambda a, b: jnp.where(condition.reshape((-1,) + (1,) * (a.ndim - 1)), a, b),
        new,
        old,
    )
