"""Methods whose agents hold several versions of some leaves, one for each cluster.

Which agents belong together is not known: in every round each agent takes the version
with the least loss on its own training data, trains it, and sends it with its number.
Of each version agents average what arrived of it; leaves with one version are averaged
with all that arrived.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

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
from p2pjax.exchange import shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel, check_channel
from p2pjax.exchange.compression import FLOAT_BITS
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.owner_classes import whole_model
from p2pjax.exchange.pipeline import Exchange, deliver, make_exchange, transmit
from p2pjax.exchange.shared import Local, message_size
from p2pjax.graphs import mixing_matrices, schedule
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import Topology
from p2pjax.paths import check_patterns, leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
from p2pjax.training.samplers import examples_between, whole_set
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Links,
    Models,
    Peers,
    PyTree,
    Split,
    Variables,
    num_agents,
)

Leaves = dict[str, Array]  # of a part of the model by their paths, [N, ...]


class ClusteredState(NamedTuple):
    """All agents' versions of their models."""

    variables: Variables  # leaves [N, ...]; those with versions are left out, None
    versions: tuple[Leaves, ...]  # of each cluster
    choice: Array  # [N] the version that the agent took last
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    is_byzantine: Mask = ()


def clustered_rounds(
    task: Task,
    optimizer: Learner | optax.GradientTransformation,
    graph: GraphLike,
    *,
    batch_size: int,
    num_clusters: int,
    version_patterns: Sequence[str],
    same_start: bool = True,
    num_random_rounds: int = 0,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    local_patterns: Local = shared.FULL,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    agent_loop: int = AUTO,
    name: str = "This method",
) -> Algorithm:
    """A round is a choice, local training of each agent and one exchange.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has one state of it, for whichever version.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      num_clusters: versions, k.
      version_patterns: regular expressions of whole paths of the leaves with versions.
      same_start: whether all agents have the same k versions at first.
      num_random_rounds: first rounds, in which versions are drawn, not chosen.
      local_updates: in a round, `epochs(e)` or `steps(k)`.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      channel: `channel.drop`, where what is lost does not count, and `quantize`.
      attack: on the data of agents, who choose by clean data; None: all are honest.
      agent_loop: see `agent_loop.map_agents`.
      name: of the method, for messages.
    """
    if not isinstance(num_clusters, int | np.integer) or num_clusters < 1:
        raise InputError(f"Need one cluster or more for {name}, got {num_clusters}.")
    if num_random_rounds < 0:
        raise InputError(
            f"Need 0 random rounds or more for {name}, got {num_random_rounds}."
        )
    check_channel(channel, name, formats=FORMATS)
    check_data_attack(attack, name)
    graph = as_topology(graph)
    schedule.check_rewiring(graph, rewire_every)
    learner = poisoned_learner(as_learner(task, optimizer), attack)
    local = shared.local_paths(task, local_patterns)
    shapes = shared.shared_leaves(shapes_of(task))
    paths = [path for path, _ in leaves_with_paths(shapes)]
    check_patterns(version_patterns, paths, f"leaves of {name}'s clusters")
    has_versions = {
        path for path in paths if any(re.fullmatch(p, path) for p in version_patterns)
    }
    train = own_steps(learner, batch_size, agent_loop)

    def model_of(state: ClusteredState, leaves: Leaves) -> Variables:
        """The whole models of agents with these leaves."""
        return _with_leaves(state.variables, leaves)

    def init_fn(key: Key, data: FederatedData) -> ClusteredState:
        size = num_agents(data)

        def start(number: int) -> Variables:
            key_version = key if number == 0 else jax.random.fold_in(key, number)
            if same_start:
                return identical_models(key_version, task, size)
            return jax.vmap(task.init)(jax.random.split(key_version, size))

        models = [start(number) for number in range(num_clusters)]
        versions = tuple(_leaves_of(model, has_versions) for model in models)
        first = identical_models(key, task, size)
        return ClusteredState(
            _without_leaves(first, has_versions),
            versions,
            jnp.zeros(size, jnp.int32),
            jax.vmap(learner.init)(first),
            mask_at_start(attack, size),
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        size = num_agents(data)
        graphs, of_round = schedule.graphs_of_rounds(
            rng, graph, rewire_every, size, num_rounds
        )
        graphs = jax.tree.map(lambda leaf: np.asarray(leaf)[of_round], graphs)
        return attacked(attack, graphs, size, num_rounds)

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: ClusteredState, data: FederatedData
    ) -> tuple[ClusteredState, Info]:
        key_train, key_choice = jax.random.split(key)
        now, attackers = inputs_and_attackers(inputs)
        now = Topology(*map(jnp.asarray, now))
        size = num_agents(data)
        losses = [
            _train_losses(task, model_of(state, own), data.train, agent_loop)
            for own in state.versions
        ]
        choice = jnp.argmin(jnp.stack(losses, 1), axis=1).astype(jnp.int32)
        if num_random_rounds:
            drawn = jax.random.randint(key_choice, (size,), 0, num_clusters, jnp.int32)
            choice = jnp.where(jnp.asarray(t) < num_random_rounds, drawn, choice)

        num_steps = steps_of(local_updates, data.train.size, batch_size)  # [N]
        first = t * num_steps
        variables, opt_state, loss = train(
            key_train,
            first,
            num_steps,
            model_of(state, _chosen(state.versions, choice)),
            state.opt_state,
            data.train,
            StepContext(is_byzantine=poisoned_agents(attack, attackers)),
        )
        trained = _leaves_of(variables, has_versions)
        versions = tuple(
            _where(choice == c, trained, own) for c, own in enumerate(state.versions)
        )

        peers = mixing_matrices.uniform_receive(now)
        sent = is_peer(peers)  # [N, 1 + D]
        core = _leaves_of(variables, set(paths) - has_versions)
        plans = [whole_model(size, _one(leaves), local) for leaves in (core, trained)]
        exchanges = [make_exchange(plan, channel) for plan in plans]
        arrived = exchanges[1].arrive(jax.random.fold_in(key, 1), t, sent)
        bits = FLOAT_BITS + sum(  # with a number
            message_bits(channel.format, plan, leaves)
            for plan, leaves in zip(plans, (core, trained), strict=True)
        )
        core = _mixed(exchanges[0], key, t, core, _means(peers, arrived))
        # Of each version counts what was sent with its number, and the agent's own.
        versions = tuple(
            _mixed(
                exchanges[1],
                key,
                t,
                own,
                _means(peers, arrived & (choice[peers.ids] == c)),
            )
            for c, own in enumerate(versions)
        )

        used, heard = sent.astype(jnp.float32), arrived.astype(jnp.float32)
        num_sent = jnp.zeros_like(loss).at[peers.ids].add(used)
        numbers = sum(map(message_size, plans))
        info = Info(
            loss,
            num_sent,
            heard.sum(1),
            num_sent * numbers,
            links=Links(jnp.asarray(peers.ids), heard),
            examples=examples_between(
                first, first + num_steps, data.train.size, batch_size
            ),
            steps=num_steps.astype(jnp.float32),
            bytes=num_sent * num_bytes(bits),
        )
        variables = _without_leaves(_with_leaves(variables, core), has_versions)
        mask = mask_of(attackers)
        return ClusteredState(variables, versions, choice, opt_state, mask), info

    def models_fn(state: ClusteredState) -> Models:
        """With the version that each agent has trained."""
        own = model_of(state, _chosen(state.versions, state.choice))
        mask = not_judged(state.is_byzantine)
        return Models(own, averaged=own, is_byzantine=mask)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"a choice among {num_clusters} of each agent, "
        f"{local_updates.described} and one exchange",
        agent_loop=agent_loop,
        attack=attack,
    )


def _train_losses(
    task: Task, variables: Variables, agents: Split, agent_loop: int
) -> Array:
    """Mean loss of each agent's model on its own training data, `[N]`."""

    def one_agent(_: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
        own, examples, size = inputs
        sums = task.evaluate(own, whole_set(examples, size))
        if "loss" not in sums:
            raise InputError(
                "Need a task whose evaluation has a loss, to choose by it, got "
                f"{', '.join(sorted(sums))}: add one."
            )
        total, weight = sums["loss"]
        return (), jnp.asarray(total / jnp.maximum(weight, 1), jnp.float32)

    inputs = (variables, agents.examples, jnp.asarray(agents.size))
    losses = map_agents(one_agent, agent_loop)((), inputs)[1]
    return jnp.where(jnp.isnan(losses), jnp.inf, losses)  # what diverged is not chosen


def _means(peers: Peers, counts: Array) -> Peers:
    """Plain means of an agent's own and of what counts, `[N, K]`."""
    counts = jnp.asarray(counts).at[:, 0].set(True)
    share = jnp.where(counts, 1.0, 0.0)
    own = jnp.asarray(peers.ids)[:, :1]
    ids = jnp.where(counts, peers.ids, own)
    return Peers(ids, share / share.sum(1, keepdims=True))


def _mixed(
    exchange: Exchange, key: Key, t: Array, leaves: Leaves, peers: Peers
) -> Leaves:
    """Weights of the peers know what was lost."""
    if not leaves:
        return leaves
    sent, _ = transmit(exchange, key, t, leaves, ())
    route = lambda owner: peers
    return deliver(exchange, key, t, sent, leaves, leaves, route, None).models


def _one(leaves: Leaves) -> PyTree:
    """Shapes of ONE agent's leaves."""
    return jax.eval_shape(lambda tree: jax.tree.map(lambda x: x[0], tree), leaves)


def _chosen(versions: Sequence[Leaves], choice: Array) -> Leaves:
    """Of each agent the version that it chose."""
    found = versions[0]
    for number, version in enumerate(versions[1:], 1):
        found = _where(choice == number, version, found)
    return found


def _where(mask: Array, new: Leaves, old: Leaves) -> Leaves:
    return jax.tree.map(
        lambda a, b: jnp.where(mask.reshape((-1,) + (1,) * (a.ndim - 1)), a, b),
        new,
        old,
    )


def _leaves_of(variables: Variables, chosen: set[str]) -> Leaves:
    message = shared.shared_leaves(variables)
    return {path: leaf for path, leaf in leaves_with_paths(message) if path in chosen}


def _without_leaves(variables: Variables, chosen: set[str]) -> Variables:
    """With None in the place of some leaves, so that no array is held twice."""
    return _replaced(variables, dict.fromkeys(chosen))


def _with_leaves(variables: Variables, leaves: Leaves) -> Variables:
    return _replaced(variables, leaves)


def _replaced(variables: Variables, leaves: dict) -> Variables:
    """Leaves by their paths in what is shared; None is a leaf too."""

    def over(tree: PyTree, prefix: str) -> PyTree:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaves.get(
                f"{prefix}/" + jax.tree_util.keystr(path, simple=True, separator="/"),
                leaf,
            ),
            tree,
            is_leaf=lambda leaf: leaf is None,
        )

    params = over(variables.params, "params")
    statistics = variables.stats.get(shared.STATISTICS)
    if statistics is None:
        return Variables(params, variables.stats)
    statistics = over(statistics, shared.STATISTICS)
    return Variables(params, {**variables.stats, shared.STATISTICS: statistics})
