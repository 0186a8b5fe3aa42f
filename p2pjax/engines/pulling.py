"""Methods in which everybody trains for an epoch and fetches models of chosen peers.

`pull` owns what they have in common; a `Selection` is what distinguishes PENS, DAC,
PANM and L2C. All agents fetch what the others have after training in the same round.
What is evaluated is the trained model before it is averaged (Sajina 2025), so a round
is: average with the peers chosen last time, train, choose.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing, shared
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.shared import sharing_plan, where_shared
from p2pjax.graphs import schedule
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.selection import tables
from p2pjax.selection.base import Fetched, Selection
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.peer_view import (
    graph_of_rounds,
    initial_graph,
    make_peer_view,
    mix_params,
    self_only_peers,
)
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner
from p2pjax.training.local_training import identical_models, local_epochs
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Links,
    Peers,
    PyTree,
    Variables,
    num_agents,
)


class PullState(NamedTuple):
    """All agents' trained models, and whom they will average with."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    peers: Peers  # [N, K]
    memory: PyTree  # of the selection
    before: PyTree  # leaves [N, ...]: parameters before training; () if not needed


def pull(
    task: Task,
    learner: Learner,
    selection: Selection,
    graph: Graphs | None = None,
    *,
    batch_size: int,
    rewire_every: int | None = None,
    equal_weights: bool = False,
    probe: Probe | None = None,
    local: Sequence[str] = shared.FULL,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round is one local epoch of everybody and one choice of peers.

    Args:
      task: what every agent learns.
      learner: how.
      selection: how peers are chosen.
      graph: whom an agent may choose: one graph, a sequence `[G, N, D]` that is used in
        turn, or a function that draws graphs of one width; None permits everybody.
      batch_size: B.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      equal_weights: whether models count the same in means, not by their data.
      probe: common examples, for selections that compare predictions.
      local: leaves that are not sent, see `exchange`.
      agent_loop: see `agent_loop.map_agents`.
    """
    if graph is not None:
        schedule.check_rewiring(graph, rewire_every)
    train = local_epochs(learner, batch_size, agent_loop)
    look = make_peer_view(
        task,
        equal_weights=equal_weights,
        probe=probe,
        local=local,
        agent_loop=agent_loop,
    )

    def init_fn(key: Key, data: FederatedData) -> PullState:
        key_model, key_memory, key_shapes = jax.random.split(key, 3)
        size = num_agents(data)
        variables = identical_models(key_model, task, size)
        view = look(initial_graph(graph, size), variables, variables.params, data)
        memory = selection.init(key_memory, view)
        return PullState(
            variables,
            jax.vmap(learner.init)(variables),
            self_only_peers(key_shapes, selection, memory, view),
            memory,
            variables.params if selection.merges_updates else (),
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> Topology | None:
        size = num_agents(data)
        return graph_of_rounds(rng, graph, rewire_every, size, num_rounds)

    def round_fn(
        key: Key,
        t: Array,
        permitted: Topology | None,
        state: PullState,
        data: FederatedData,
    ) -> tuple[PullState, Info]:
        key_train, key_select = jax.random.split(key)
        size = num_agents(data)
        if permitted is None:
            permitted = tables.all_others(size)
        averaged = _averaged(state, local, selection.merges_updates)
        variables, opt_state, loss = train(
            key_train,
            t,
            jnp.ones(size, jnp.int32),
            averaged,
            state.opt_state,
            data.train,
        )
        view = look(permitted, variables, averaged.params, data)
        peers, pulled, memory = selection.select(key_select, t, state.memory, view)
        before = averaged.params if selection.merges_updates else ()
        state = PullState(variables, opt_state, peers, memory, before)
        return state, fetch_info(loss, peers, pulled, view.model_size)

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)


def _averaged(
    state: PullState, local: Sequence[str], merges_updates: bool
) -> Variables:
    """The models with which everybody goes on."""
    plan = sharing_plan(state.variables, local)
    message = shared.shared_leaves(state.variables)
    mixed = mixing.mix(
        message, plan, lambda owner: mixing.fastest_combine(state.peers, owner)
    )
    if merges_updates:
        # own + sum of weight * (after - before); statistics are averaged as they are
        mixed["params"] = jax.tree.map(
            lambda own, after, before: own + (after - before),
            state.before,
            mixed["params"],
            mix_params(state.before, state.peers, local),
        )
        mixed = where_shared(plan, mixed, message)
    return shared.with_shared_leaves(state.variables, mixed)


def fetch_info(
    loss: Array, peers: Peers, pulled: Fetched, model_size: int, times: int = 1
) -> Info:
    """What is reported of a round in which everything was fetched so many times."""
    used = pulled.mask.astype(jnp.float32) * times
    numbers = pulled.payload * times * model_size
    none = jnp.zeros(used.shape[0], jnp.float32)
    is_merged = is_peer(peers) & (peers.weight > 0)
    return Info(
        train_loss=loss,
        sent=none.at[pulled.ids].add(used),
        received=used.sum(1),
        payload=none.at[pulled.ids].add(numbers),
        links=Links(pulled.ids, used),
        merged=Links(peers.ids, is_merged.astype(jnp.float32)),
    )
