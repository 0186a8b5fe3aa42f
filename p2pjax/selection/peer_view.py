"""What methods with chosen peers have in common: view, graph and traffic.

A view is made of functions of the trained models; only those that a selection calls
become part of the program.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing, shared
from p2pjax.exchange.shared import (
    Sharing,
    message_size,
    sent_parts,
    sharing_plan,
    where_shared,
)
from p2pjax.graphs import schedule, topology
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.selection import pair_values, peer_evaluation, tables
from p2pjax.selection.base import PairFn, PeerView, Selection
from p2pjax.selection.pair_values import PairValues
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import map_agents
from p2pjax.training.samplers import whole_set
from p2pjax.types import (
    Array,
    Batch,
    FederatedData,
    InputError,
    Key,
    Peers,
    PyTree,
    Split,
    Variables,
)

# (whom each agent may choose, trained models, parameters before training, data, the
# models as they reach others if these are not the same) -> what agents see
ViewFn = Callable[..., PeerView]


def make_peer_view(
    task: Task,
    *,
    equal_weights: bool,
    probe: Probe | None,
    local: Sharing,
    agent_loop: int,
    is_fixed: bool = False,
) -> ViewFn:
    """Makes views of what agents get of each other's models after training.

    Args:
      task: what each agent learns.
      equal_weights: whether models count the same in means, not by their data.
      probe: common examples, for selections that compare predictions.
      local: regular expressions of leaves that are not sent, or slices that are.
      agent_loop: see `agent_loop.map_agents`.
      is_fixed: whether agents may choose the same few in all rounds, so that nothing
        need be remembered of others.
    """

    def loss_fn(variables: Variables, batch: Batch) -> Array:
        total, weight = task.evaluate(variables, batch)["loss"]
        return total / jnp.maximum(weight, 1)

    def view_fn(
        permitted: Topology,
        variables: Variables,
        before: PyTree,
        data: FederatedData,
        messages: PyTree | None = None,
    ) -> PeerView:
        plan = sharing_plan(variables, local)
        own = shared.shared_leaves(variables)
        theirs = own if messages is None else where_shared(plan, messages, own)
        sizes = jnp.asarray(data.train.size)

        def over_pairs(pair_fn: PairFn, table: Topology, split: Split) -> Array:
            def on_pair(message: PyTree, agent: PyTree) -> Array:
                own, examples, size = agent
                message = where_shared(plan, message, shared.shared_leaves(own))
                theirs = shared.with_shared_leaves(own, message)
                return pair_fn(own, theirs, whole_set(examples, size))

            return peer_evaluation.over_pairs(
                on_pair,
                theirs,
                (variables, split.examples, split.size),
                table,
                agent_loop,
            )

        def sent(tree: PyTree) -> list[Array]:
            plan = sharing_plan(Variables(variables.params, {}), local)
            return sent_parts(plan, tree)

        def gradient(params: PyTree, split: Split) -> PyTree:
            def one_agent(_: PyTree, agent: PyTree) -> tuple[PyTree, PyTree]:
                params, stats, examples, size = agent
                batch = whole_set(examples, size)
                return (), jax.grad(
                    lambda params: loss_fn(Variables(params, stats), batch)
                )(params)

            agents = (params, variables.stats, split.examples, split.size)
            return map_agents(one_agent, agent_loop)((), agents)[1]

        def predictions() -> Array:
            if probe is None:
                raise InputError(
                    "Need a probe to compare predictions, got None: give the method "
                    "common examples and how to predict their classes."
                )
            models = shared.with_shared_leaves(variables, theirs)
            return peer_evaluation.predictions(probe, models, agent_loop)

        return PeerView(
            permitted=permitted,
            sizes=jnp.ones_like(sizes) if equal_weights else sizes,
            params=theirs["params"],
            before=before,
            train=data.train,
            valid=data.valid,
            loss=loss_fn,
            over_pairs=over_pairs,
            mix=lambda params, peers: mix_params(params, peers, local),
            sent=sent,
            gradient=gradient,
            predictions=predictions,
            model_size=message_size(plan),
            forgets=is_fixed and permitted.mask.shape[1] < len(sizes) - 1,
        )

    return view_fn


def arrivals(view: PeerView, arrive: Callable[[Array], Array]) -> PairValues:
    """Whether what an agent asks of another arrives, for `PeerView.arrived`.

    Args:
      view: of the agents.
      arrive: which of the messages that are sent arrive, bools of any shape.
    """
    pairs = pair_values.blank(view.permitted, bool, 1, forgets=view.forgets)
    return pair_values.with_values(pairs, arrive(pair_values.values(pairs)))


def mix_params(params: PyTree, peers: Peers, local: Sharing) -> PyTree:
    """Combines parameters by peers, but for those that are `local`."""
    plan = sharing_plan(Variables(params, {}), local)
    message = {"params": params}
    return mixing.mix(
        message, plan, lambda owner: mixing.fastest_combine(peers, owner)
    )["params"]


def self_only_peers(
    key: Key, selection: Selection, memory: PyTree, view: PeerView
) -> Peers:
    """Before any agent has chosen: as many slots as it will have, all of itself.

    Args:
      key: of any value; nothing is drawn.
      selection: whose choices have so many slots.
      memory: what it remembers.
      view: of the agents.
    """
    peers, *_ = jax.eval_shape(
        lambda: selection.select(key, jnp.int32(0), memory, view)
    )
    ids = tables.self_only(view.num_agents).neighbor
    weight = jnp.zeros(peers.weight.shape, peers.weight.dtype)
    return Peers(jnp.broadcast_to(ids, peers.ids.shape), weight.at[:, 0].set(1))


def initial_graph(graph: Graphs | None, num_agents: int) -> Topology:
    """Whom agents may choose before the first round; later graphs are as wide."""
    if graph is None:
        return tables.all_others(num_agents)
    drawn = graph(np.random.default_rng(0)) if callable(graph) else graph
    first = topology.unstack(drawn)[0] if drawn.mask.ndim == 3 else drawn
    return jax.tree.map(jnp.asarray, first)


def graph_of_rounds(
    rng: np.random.Generator,
    graph: Graphs | None,
    rewire_every: int | None,
    num_agents: int,
    num_rounds: int,
) -> Topology | None:
    """Whom agents may choose in every round, `[R, N, D]`; None is all others.

    Args:
      rng: draws the graphs, if `graph` is a function.
      graph: whom agents may choose; None is all others.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      num_agents: N.
      num_rounds: R.
    """
    if graph is None:
        return None
    graphs, of_round = schedule.graphs_of_rounds(
        rng, graph, rewire_every, num_agents, num_rounds
    )
    expected = initial_graph(graph, num_agents).mask.shape[1]
    schedule.check_width(graphs.mask.shape[2], expected)
    return Topology(graphs.neighbor[of_round], graphs.mask[of_round])
