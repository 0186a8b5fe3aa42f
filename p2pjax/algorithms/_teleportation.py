"""Teleportation: a few models wander between random agents and are mixed.

Takezawa, Stich (2025), "Scalable decentralized learning with teleportation",
https://arxiv.org/abs/2501.15259.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.adverse_waves import FORMATS
from p2pjax.engines.adversity import attacked, inputs_and_attackers, poisoned_agents
from p2pjax.engines.assembly import assemble
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.communication import GossipState, communicate
from p2pjax.engines.poisoned_agents import (
    Mask,
    check_data_attack,
    mask_at_start,
    mask_of,
    not_judged,
    poisoned_learner,
)
from p2pjax.engines.protocol import LocalStep, MixingWeights
from p2pjax.engines.tokens import (
    Holders,
    draw_holders,
    keeping_own,
    num_floats,
    sent_to,
    token_training,
)
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel, check_channel
from p2pjax.exchange.compression import FLOAT_BITS
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.pipeline import make_exchange
from p2pjax.exchange.shared import message_size, sharing_plan
from p2pjax.graphs import analysis, mixing_matrices, schedule
from p2pjax.graphs.conversion import GraphLike, as_graph
from p2pjax.graphs.schedule import RewireEvery, Rewiring
from p2pjax.graphs.topology import Topology, num_agents_of
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.local_training import identical_models
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
    num_agents,
)


class TeleportationState(NamedTuple):
    """The tokens, and what the agents know of their own training."""

    tokens: GossipState  # leaves [k, ...]; optimizer states travel along
    loss: Array  # [N] of the agent's last training
    is_byzantine: Mask = ()


class TeleportationInputs(NamedTuple):
    """What the host knows of every round; leaves `[R, ...]`."""

    holders: Holders  # [R, X, k]
    graph: Peers  # [R, k, K], or [R, W, k, K] that are used in turn


def teleportation(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    fused: bool = True,
    local_updates: LocalUpdates = steps(1),
    rewire_every: RewireEvery = None,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Tokens on a small graph (Takezawa, Stich 2025, https://arxiv.org/abs/2501.15259).

    As many models as the graph has nodes, k, are each trained by a random agent, no
    agent twice; they are mixed along the graph, and other agents go on with them. So
    the mixing of k models, not of N, bounds how far they drift apart, and only k agents
    work at a time. With local steps a round is as many exchanges as k agents need to
    see as many examples as there are. Each agent is scored with the tokens' mean.

    Args:
      task: what is learned.
      optimizer: of optax; its state travels with its token and is not mixed.
      graph: of the tokens, of k at most N nodes: see `graphs.as_graph`.
      batch_size: B.
      mixing_weights: the doubly stochastic mixing matrix of a graph.
      fused: whether the next holder of a token hears the present holders of all that
        it is mixed with; else tokens are mixed and then move, in more messages.
      local_updates: of a holder between two exchanges, `steps(k)` or `epochs(e)`.
      rewire_every: rounds after which the next graph comes, or
        `graphs.COMMUNICATION`; None keeps the first.
      channel: `channel.drop` and `quantize`, of what tokens are mixed with; tokens
        themselves arrive as they are.
      attack: `label_flip`, or `backdoor` without boost, of agents that hold a token;
        None: all are honest.
      agent_loop: see `agent_loop.map_agents`; tokens take the place of agents.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> tokens = pj.graphs.ring(4)
      >>> pj.teleportation(task, optax.sgd(0.1), tokens, batch_size=32).round_is
      '1 local step of the holders of 4 tokens, an exchange, ...'
    """
    check_batch_size(batch_size)
    check_channel(channel, "Teleportation", formats=FORMATS)
    check_data_attack(attack, "Teleportation")
    graphs = as_graph(graph)
    schedule.check_rewiring(graphs, rewire_every, per_communication=True)
    one = graphs
    if not isinstance(one, Topology | Peers):
        one = one(np.random.default_rng(0))
    num_tokens = num_agents_of(one)
    learner = poisoned_learner(as_learner(task, optimizer), attack)
    protocol = neighbor_averaging(mixing_weights)
    per_exchange = isinstance(rewire_every, Rewiring)

    def num_exchanges(data: FederatedData) -> int:
        if local_updates.num_epochs:
            return 1
        at_once = num_tokens * batch_size * local_updates.num_steps
        return max(1, -(-int(np.sum(data.train.size)) // at_once))

    def init_fn(key: Key, data: FederatedData) -> TeleportationState:
        if num_tokens > num_agents(data):
            raise InputError(
                "Need at most as many tokens as agents for Teleportation, got a graph "
                f"of {num_tokens} tokens for {num_agents(data)} agents: give a smaller "
                "graph."
            )
        variables = identical_models(key, task, num_tokens)
        state = GossipState(variables, jax.vmap(learner.init)(variables), ())
        return TeleportationState(
            state,
            jnp.zeros(num_agents(data), jnp.float32),
            mask_at_start(attack, num_agents(data)),
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        number = num_exchanges(data)
        drawn, in_turn = schedule.graphs_of_run(
            rng, graphs, rewire_every, num_tokens, np.full(num_rounds, number)
        )
        peers = protocol.prepare_graph(drawn)
        if not analysis.is_doubly_stochastic(peers):
            raise InputError(
                "Need weights whose rows and columns sum to 1 for Teleportation, got "
                "others: use graphs.metropolis_hastings on an undirected graph."
            )
        holders = draw_holders(rng, num_agents(data), num_tokens, num_rounds, number)
        used = in_turn if per_exchange else in_turn[:, 0]
        inputs = TeleportationInputs(
            holders, jax.tree.map(lambda leaf: np.asarray(leaf)[used], peers)
        )
        return attacked(attack, inputs, num_agents(data), num_rounds)

    def round_fn(
        key: Key,
        t: Array,
        inputs: PyTree,
        state: TeleportationState,
        data: FederatedData,
    ) -> tuple[TeleportationState, Info]:
        inputs, attackers = inputs_and_attackers(inputs)
        is_poisoned = poisoned_agents(attack, attackers)
        train = token_training(learner, batch_size, agent_loop, data, is_poisoned)
        sizes = jnp.asarray(data.train.size)
        taken = steps_of(local_updates, sizes, batch_size)  # [N] when it holds a token
        plan = sharing_plan(state.tokens.variables, ())
        exchange = make_exchange(plan, channel)
        one_message = message_size(plan)
        message = shared.shared_leaves(state.tokens.variables)
        of_mixed = num_bytes(message_bits(channel.format, plan, message))
        one_token = num_floats((state.tokens.variables, state.tokens.opt_state))
        number_in_round = jnp.asarray(inputs.holders.now).shape[0]

        def one_exchange(carry: PyTree, scanned: PyTree) -> tuple[PyTree, None]:
            state, totals = carry
            number, (now, later, visit) = scanned
            key_train, key_send = jax.random.split(jax.random.fold_in(key, number))
            peers = inputs.graph
            if per_exchange:
                peers = jax.tree.map(
                    lambda leaf: jnp.asarray(leaf)[number % leaf.shape[0]], peers
                )
            first = visit * taken[now]
            tokens = state.tokens
            before = shared.shared_leaves(tokens.variables)
            (variables, opt_state), loss = train(
                key_train,
                now,
                first,
                taken[now],
                (tokens.variables, tokens.opt_state),
            )
            step = LocalStep(before, shared.shared_leaves(variables))
            tokens = tokens._replace(variables=variables, opt_state=opt_state)
            senders = protocol.senders(peers)
            is_sent = sent_to(senders, now, later, fused=fused)
            tokens, _, arrived = communicate(
                keeping_own(exchange, is_sent),
                protocol,
                key_send,
                t,
                None,
                peers,
                step,
                tokens,
            )
            used = is_sent.astype(jnp.float32)  # [k, K]
            kept = jnp.asarray(is_sent & arrived).at[:, 0].set(is_sent[:, 0])
            kept = kept.astype(jnp.float32)
            size = jnp.full(used.shape, one_message, jnp.float32)
            size = size.at[:, 0].set(one_token)
            none = jnp.zeros(sizes.shape, jnp.float32)
            heard = later if fused else now
            end = examples_between(first, first + taken[now], sizes[now], batch_size)
            now_totals: tuple[Array, ...] = (
                none.at[now[senders]].add(used),
                none.at[heard].add(kept[:, 1:].sum(1)).at[later].add(kept[:, 0]),
                none.at[now[senders]].add(used * size),
                none.at[now].add(end),
                none.at[now].add(taken[now].astype(jnp.float32)),
            )
            if channel.format is not None:
                own_bytes = FLOAT_BITS // 8 * one_token
                cost = jnp.full(used.shape, of_mixed, jnp.float32)
                cost = cost.at[:, 0].set(own_bytes)
                now_totals += (none.at[now[senders]].add(used * cost),)
            loss = state.loss.at[now].set(loss)
            state = TeleportationState(tokens, loss, mask_of(attackers))
            return (state, jax.tree.map(jnp.add, totals, now_totals)), None

        none = jnp.zeros(sizes.shape, jnp.float32)
        numbers = jnp.arange(number_in_round, dtype=jnp.int32)
        holders = jax.tree.map(jnp.asarray, inputs.holders)
        (state, totals), _ = jax.lax.scan(
            one_exchange,
            (
                state._replace(is_byzantine=mask_of(attackers)),
                (none,) * (5 if channel.format is None else 6),
            ),
            (numbers, tuple(holders)),
        )
        sent, received, payload, examples, num_steps, *num_bytes_sent = totals
        info = Info(
            state.loss, sent, received, payload, examples=examples, steps=num_steps
        )
        if num_bytes_sent:
            info = info._replace(bytes=num_bytes_sent[0])
        return state, info

    def models_fn(state: TeleportationState) -> Models:
        """The tokens' mean, for each agent."""
        variables, size = state.tokens.variables, state.loss.shape[0]
        share = jnp.full(num_tokens, 1 / num_tokens)
        mean = mixing.mix(
            shared.shared_leaves(variables),
            sharing_plan(variables, ()),
            lambda owner: mixing.by_factors(share),
        )
        return Models(
            jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf[:1], (size, *leaf.shape[1:])),
                shared.with_shared_leaves(variables, mean),
            ),
            is_byzantine=not_judged(state.is_byzantine),
        )

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=(
            f"{local_updates.described} of the holders of {num_tokens} tokens, an "
            "exchange, and other holders"
            + (
                ""
                if local_updates.num_epochs
                else ", until as many examples are seen as there are"
            )
        ),
        agent_loop=agent_loop,
        attack=attack,
    )
