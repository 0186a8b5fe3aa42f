"""How the agents of one partial model average: exactly, by gossip or in pairs.

A realisation draws its graphs on the host (`plan`) and mixes one owner class at a time
on the device (`combine`); `links` says who exchanged messages, and
`restrict_to_requests` leaves out the exchanges that no agent asked for (dynamic
averaging, Kamp et al. 2018, https://arxiv.org/abs/1807.03210).
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.exchange.channel import lost_to_self
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.graphs import analysis, mixing_matrices, schedule, topology
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import Topology
from p2pjax.types import LOCAL, Array, InputError, ModelTraffic, Peers, PyTree


class Averaging(NamedTuple):
    """A realisation of averaging within owner groups."""

    num_agents: int
    plan: Callable[[np.random.Generator, int], PyTree]  # rounds -> inputs [R, ...]
    # (inputs, owner [N], what arrives of the links [N, D] or None for all of it)
    combine: Callable[[PyTree, np.ndarray, Array | None], mixing.Combine]
    links: Callable[[PyTree, np.ndarray], Array]  # (inputs, owner) -> bool [N, D]
    # (inputs, who asks for an exchange [N]) -> inputs with these exchanges only
    restrict_to_requests: Callable[[PyTree, Array], PyTree]
    # whether every model has an exchange of its own, as with a server for each; else
    # one message carries all models that its two ends share
    per_model: bool = False
    # whom agents hear, of the same arguments as `combine`; None for a server
    peers: Callable[[PyTree, np.ndarray, Array | None], Peers] | None = None
    is_paired: bool = False  # whether each agent has one peer at a time
    weight: Array | None = None  # [N] what each agent counts; None: all alike
    # (inputs, what arrives [N, D]) -> the same for both ends of an exchange, where it
    # is lost as a whole
    together: Callable[[PyTree, Array], Array] | None = None
    # (inputs, parameters, owner classes, what arrives or None) -> inputs without
    # exchanges that turn out not to be needed
    settle: Callable[[PyTree, PyTree, MixPlan, Array | None], PyTree] | None = None
    # (key, inputs, parameters, owner classes, what arrives or None) -> what members
    # have after a phase of noise that comes first
    disturb: Callable[..., PyTree] | None = None
    # (inputs, what arrives or None) -> how many exchanges follow each other, and number
    # of one -> its inputs; None: an averaging is one exchange
    waves: (
        Callable[[PyTree, Array | None], tuple[Array, Callable[[Array], PyTree]]] | None
    ) = None


# Owner vector `[N]` of a class -> inputs of the exchanges of it that take place.
InputsOf = Callable[[np.ndarray], PyTree]


def server(num_agents: int, weight: Array | None = None) -> Averaging:
    """The exact mean of every group, as one server per model would compute it.

    A group averages as soon as one of its members asks for it.

    Args:
      num_agents: N.
      weight: `[N]`, what each agent counts in the mean; the same for all if None.

    Example:
      >>> owner = np.array([0, 0, LOCAL])  # two members of model 0, and a local one
      >>> server(3).links((), owner)[:, 0].tolist()  # who has a server to send to
      [True, True, False]
    """
    weight = checked_weight(weight, num_agents)

    def plan_fn(rng: np.random.Generator, num_rounds: int) -> tuple[()]:
        del rng, num_rounds
        return ()  # nothing to draw, and no agent has to ask

    def combine_fn(
        asking: Array | tuple[()], owner: np.ndarray, arrived: Array | None = None
    ) -> mixing.Combine:
        mean = mixing.by_group_mean(owner, weight)
        if arrived is not None:  # those whose message is lost keep what they have
            is_in = arrived[:, 0]
            counts = jnp.ones(num_agents) if weight is None else jnp.asarray(weight)
            present = mixing.by_group_mean(owner, jnp.where(is_in, counts, 0))
            mean = mixing.where_agents(is_in, present)
        if isinstance(asking, tuple):
            return mean
        return mixing.where_agents(mixing.group_has(asking, owner), mean)

    def links_fn(asking: Array | tuple[()], owner: np.ndarray) -> Array:
        linked: Array = jnp.asarray(owner != LOCAL)
        if not isinstance(asking, tuple):
            linked = mixing.group_has(asking, owner)
        return linked[:, None]  # one link, to the server

    return Averaging(
        num_agents,
        plan_fn,
        combine_fn,
        links_fn,
        lambda inputs, asking: asking,
        per_model=True,
        weight=weight,
    )


def metropolis_gossip(
    num_agents: int,
    graph: GraphLike,
    *,
    rewire_every: int | None = None,
    weight: Array | None = None,
) -> Averaging:
    """One step of Metropolis gossip per averaging.

    Args:
      num_agents: nodes of the graph.
      graph: undirected, see `graphs.as_graph`.
      rewire_every: rounds after which a new graph is drawn; None keeps the first.
      weight: `[N]`, what each agent counts in the mean.

    Example:
      >>> from p2pjax.graphs import ring
      >>> averaging = metropolis_gossip(4, ring(4))
      >>> averaging.plan(np.random.default_rng(0), 5).neighbor.shape  # of 5 rounds
      (5, 4, 2)
    """
    graphs = as_topology(graph)
    schedule.check_rewiring(graphs, rewire_every)
    weight = checked_weight(weight, num_agents)

    def plan_fn(rng: np.random.Generator, num_rounds: int) -> Topology:
        drawn, of_round = schedule.graphs_of_rounds(
            rng, graphs, rewire_every, num_agents, num_rounds
        )
        for one in topology.unstack(drawn):
            _check_undirected(one)
        return Topology(drawn.neighbor[of_round], drawn.mask[of_round])

    def peers_fn(
        inputs: Topology, owner: np.ndarray, arrived: Array | None = None
    ) -> Peers:
        peers = mixing_matrices.metropolis(inputs, owner, weight)
        return _without_lost(peers, arrived)

    def combine_fn(
        inputs: Topology, owner: np.ndarray, arrived: Array | None = None
    ) -> mixing.Combine:
        return mixing.fastest_combine(peers_fn(inputs, owner, arrived), owner)

    return Averaging(
        num_agents,
        plan_fn,
        combine_fn,
        mixing_matrices.same_owner,
        _asked_links,
        peers=peers_fn,
        weight=weight,
    )


def _asked_links(graph: Topology, asking: Array) -> Topology:
    """A link is used if one of its ends asks for it."""
    asked = asking[:, None] | asking[graph.neighbor]
    return graph._replace(mask=graph.mask & asked)


def random_pairs(num_agents: int, weight: Array | None = None) -> Averaging:
    """A new random matching every round; both ends of a pair take the mean.

    Args:
      num_agents: N; of an odd number one agent stays alone in each round.
      weight: `[N]`, what each agent counts in the mean; the same for all if None.

    Example:
      >>> partner = random_pairs(4).plan(np.random.default_rng(0), 5)  # of 5 rounds
      >>> bool((partner[0][partner[0]] == np.arange(4)).all())  # partners are mutual
      True
    """
    weight = checked_weight(weight, num_agents)

    def plan_fn(rng: np.random.Generator, num_rounds: int) -> np.ndarray:
        return topology.random_matchings(num_agents, num_rounds, seed=rng)

    def peers_fn(
        inputs: Array, owner: np.ndarray, arrived: Array | None = None
    ) -> Peers:
        peers = mixing_matrices.pairwise_weights(inputs, owner, weight)
        return _without_lost(peers, arrived)

    def combine_fn(
        inputs: Array, owner: np.ndarray, arrived: Array | None = None
    ) -> mixing.Combine:
        return mixing.by_peers(peers_fn(inputs, owner, arrived))

    def links_fn(inputs: Array, owner: np.ndarray) -> Array:
        return mixing_matrices.same_owner(mixing_matrices.matching_graph(inputs), owner)

    def only_fn(partner: Array, asking: Array) -> Array:
        own = jnp.arange(num_agents, dtype=partner.dtype)
        return jnp.where(asking | asking[partner], partner, own)

    return Averaging(
        num_agents,
        plan_fn,
        combine_fn,
        links_fn,
        only_fn,
        peers=peers_fn,
        is_paired=True,
        weight=weight,
        together=lost_together,
    )


def _without_lost(peers: Peers, arrived: Array | None) -> Peers:
    """What lost messages would have counted is counted for the agent's own model."""
    if arrived is None:
        return peers
    own = jnp.ones((arrived.shape[0], 1), bool)
    return lost_to_self(peers, jnp.concatenate([own, arrived], axis=1))


def lost_together(partner: Array, arrived: Array) -> Array:
    """What arrives `[N, 1]` where an exchange of two agents is lost as a whole.

    Else one of them would move and the other not, and their mean would change.

    Args:
      partner: `[N]` of each agent, mutual; itself if it is alone.
      arrived: `[N, 1]`, drawn for each agent by itself.

    Example:
      >>> partner = jnp.array([1, 0, 2])
      >>> lost_together(partner, jnp.array([[False], [True], [True]]))[:, 0].tolist()
      [False, False, True]
    """
    own = jnp.arange(partner.shape[0], dtype=partner.dtype)
    return arrived[jnp.minimum(own, partner)]


def any_link(averaging: Averaging, inputs_of: InputsOf, plan: MixPlan) -> Array:
    """`[N, D]`: links over which at least one partial model is averaged.

    Args:
      averaging: how members average.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      plan: owner classes.
    """
    linked = [averaging.links(inputs_of(c.owner), c.owner) for c in plan.classes]
    total = linked[0]
    for more in linked[1:]:
        total = total | more
    return total


def messages_and_payload(
    averaging: Averaging, inputs_of: InputsOf, plan: MixPlan
) -> tuple[Array, Array]:
    """Messages and parameters each agent sends in one averaging, `[N]` each.

    Between two agents one message carries all models that they share; a server has one
    message for each model.

    Args:
      averaging: how members average.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      plan: owner classes.
    """
    num_agents = len(plan.classes[0].owner)
    payload = jnp.zeros(num_agents, jnp.float32)
    used: dict[int, Array] = {}  # of every model, or of all of them together
    for owner_class in plan.classes:
        owner = owner_class.owner
        linked = averaging.links(inputs_of(owner), owner)  # [N, D]
        payload = payload + linked.sum(1).astype(jnp.float32) * owner_class.size
        for model in np.unique(owner) if averaging.per_model else (0,):
            own = linked
            if averaging.per_model:
                own = linked & jnp.asarray(owner == model)[:, None]
            used[int(model)] = own | used[int(model)] if int(model) in used else own
    messages = jnp.zeros(num_agents, jnp.float32)
    for own in used.values():
        messages = messages + own.sum(1).astype(jnp.float32)
    return messages, payload


def model_traffic(
    averaging: Averaging, inputs_of: InputsOf, plan: MixPlan
) -> ModelTraffic:
    """What each agent sends of each model, where each has exchanges of its own.

    Args:
      averaging: how members average.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      plan: owner classes.

    Returns:
      Messages and parameters, `[N, M]` each, models in increasing order.
    """
    found: dict[int, tuple[Array, Array]] = {}
    for owner_class in plan.classes:
        owner = owner_class.owner
        linked = averaging.links(inputs_of(owner), owner)  # [N, D]
        for model in np.unique(owner[owner != LOCAL]).tolist():
            own = linked & jnp.asarray(owner == model)[:, None]
            payload = own.sum(1).astype(jnp.float32) * owner_class.size
            links, before = found.get(model, (own, jnp.zeros_like(payload)))
            found[model] = (links | own, before + payload)
    if not found:  # all is local
        none = jnp.zeros((len(plan.classes[0].owner), 0), jnp.float32)
        return ModelTraffic(none, none)
    each = [found[model] for model in sorted(found)]
    messages = [links.sum(1).astype(jnp.float32) for links, _ in each]
    return ModelTraffic(
        jnp.stack(messages, 1), jnp.stack([payload for _, payload in each], 1)
    )


def warn_if_split(graphs: Topology, plan: MixPlan) -> int:
    """Warns where groups cannot reach their mean; returns the number of excess parts.

    Gossip reaches the mean of what is connected. A group whose members are not
    connected through each other in any of the graphs `[R, N, D]` agrees only part by
    part; `models.disagreement` then stays above zero.
    """
    ever = topology.union(graphs)
    return warn_of_parts(lambda model: ever, plan)


def warn_of_parts(graph_of: Callable[[int], Topology], plan: MixPlan) -> int:
    """As `warn_if_split`, where every model has a graph of its own.

    Args:
      graph_of: number of a model -> its graph `[N, D]`.
      plan: owner classes.
    """
    split = []
    for owner_class in plan.classes:
        for group in np.unique(owner_class.owner[owner_class.owner != LOCAL]):
            graph = graph_of(int(group))
            parts = analysis.num_components(graph, owner_class.owner, int(group))
            if parts > 1:
                split.append(parts)
    if split:
        warnings.warn(
            f"{len(split)} groups of agents fall into {sum(split)} parts of the graph; "
            "each part averages for itself.",
            stacklevel=3,
        )
    return sum(split) - len(split)


def _check_undirected(graph: Topology) -> None:
    receivers = np.nonzero(graph.mask)[0]
    senders = np.asarray(graph.neighbor)[graph.mask]
    edges = np.stack([receivers, senders])
    if {*map(tuple, edges.T)} != {*map(tuple, edges[::-1].T)}:
        raise InputError(
            "Need an undirected graph for Metropolis gossip, got one with one-way "
            "edges: use a symmetric graph."
        )


def checked_weight(weight: Array | None, num_agents: int) -> Array | None:
    """Refuses weights that are not positive, or not of these agents.

    Args:
      weight: `[N]`, or None.
      num_agents: N.
    """
    if weight is not None and (
        np.shape(weight) != (num_agents,)
        or not (np.isfinite(weight) & (np.asarray(weight) > 0)).all()
    ):
        raise InputError(
            f"Need a positive weight for each of {num_agents} agents, got {weight}."
        )
    return weight
