"""RelaySGD: models travel along a tree, and each counts the same for all agents.

Vogels et al. (2021), "RelaySum for decentralized deep learning on heterogeneous data",
https://arxiv.org/abs/2110.04175. An agent adds its own model to what it has from all
neighbours but the receiver and passes it on, so that an agent d hops away is heard
d - 1 steps late, and no model is counted twice.
"""

from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import Combine, GossipProtocol, LocalStep, Outgoing
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange.shared import FULL, Sharing, message_plan, where_shared
from p2pjax.graphs.conversion import GraphLike
from p2pjax.graphs.topology import Topology
from p2pjax.graphs.trees import Relays, bfs_tree, relay_tables
from p2pjax.partial.slices import what_is_sent
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, Array, InputError, Key, Peers, PyTree

OTHER_MESSAGES = (
    "Need D-PSGD for {}, got RelaySGD: its messages are sums of many agents' models, "
    "one for each receiver."
)


class Mail(NamedTuple):
    """What came from each neighbour in the last exchange."""

    sums: PyTree  # leaves [N, D, ...]: sums of models
    counts: Array  # [N, D]: of how many


def relay_sgd(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    root: int = 0,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """RelaySGD (Vogels et al. 2021, https://arxiv.org/abs/2110.04175).

    It uses the breadth-first spanning tree of the graph (`graphs.bfs_tree`), which may
    be a tree itself, and remembers a model per neighbour of the best connected agent:
    prefer trees of degree 3 or less. What is lost is left out of the mean.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who is linked to whom, `[N, D]`, undirected: see `graphs.as_graph`.
      batch_size: B.
      root: of the tree.
      **options: see `GossipOptions`; the tree stays, so `rewire_every` is refused.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.relay_sgd(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    if options.get("rewire_every") is not None:
        raise InputError(
            "Need one graph that stays for RelaySGD, got rewire_every: what is under "
            "way on one tree would be lost on another."
        )
    tree = bfs_tree(graph, root)
    local = what_is_sent(
        task, options.get("local_patterns", FULL), options.get("scheme")
    )
    return gossip(
        task,
        optimizer,
        relay_protocol(tree, local),
        tree,
        batch_size=batch_size,
        name="RelaySGD",
        **options,
    )


def relay_protocol(tree: Topology, local: Sharing = ()) -> GossipProtocol:
    """`x'` is the mean of the own model and all that came, each counted once.

    Before anything can have come, models at the start are counted, which are equal.
    Batch-norm statistics travel as parameters do.

    Args:
      tree: `[N, D]`, the graph that `gossip` is given.
      local: regular expressions of leaves that are not sent, or slices that are.

    Example:
      >>> from p2pjax.graphs import bfs_tree, ring
      >>> relay_protocol(bfs_tree(ring(4))).takes_losses
      True
    """
    relays = relay_tables(tree)
    size, width = relays.mask.shape

    def prepare_fn(graphs: Topology | Peers) -> Relays:
        is_same = isinstance(graphs, Topology) and all(
            np.array_equal(given, own[None])
            for given, own in zip(graphs, relays, strict=False)
        )
        if not is_same:
            raise InputError("Need the tree of RelaySGD as its graph, got another one.")
        return Relays(*(jnp.asarray(table)[None] for table in relays))

    def sent_only(message: PyTree, new: PyTree, old: PyTree) -> PyTree:
        """What stays with its agent is not replaced."""
        one = jax.eval_shape(lambda m: jax.tree.map(lambda x: x[0], m), message)
        return where_shared(message_plan(size, one, local), new, old)

    def init_fn(message: PyTree) -> Mail:
        if jax.tree.leaves(message)[0].shape[0] != size:
            raise InputError(
                f"Need a tree of as many agents as the data have, got one of {size}."
            )
        counts = jnp.asarray(relays.agents_behind, jnp.float32)
        return Mail(
            jax.tree.map(lambda x: _by_slot(counts, x) * x[:, None], message), counts
        )

    def send_fn(key: Key, relays: Relays, step: LocalStep, mail: Mail) -> Outgoing:
        del key, mail
        return Outgoing(step.after, step.after, relays.mask)

    def receive_fn(
        relays: Relays,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        mail: Mail,
        combine: Combine,
    ) -> tuple[PyTree, Mail]:
        del outgoing
        arrived = relays.mask if arrived is None else arrived
        # What neighbour j has for its slot s is row j * D + s of all that is sent.
        ids = relays.neighbor * width + relays.slot_at_neighbor
        weight = arrived.astype(jnp.float32)
        posted = jax.tree.map(
            lambda x, sums: (
                (
                    (x + sums.sum(1))[:, None] - sums  # all but the receiver's own
                ).reshape(size * width, *x.shape[1:])
            ),
            step.after,
            mail.sums,
        )
        peers = Peers(ids.reshape(-1, 1), weight.reshape(-1, 1))
        delivered = jax.tree.map(
            lambda leaf: leaf.reshape(size, width, *leaf.shape[1:]),
            combine(peers, message=posted),
        )
        counts = 1 + mail.counts.sum(1, keepdims=True) - mail.counts
        counts = weight * counts.reshape(-1)[ids]
        total = 1 + counts.sum(1)
        means = jax.tree.map(
            lambda x, sums: (x + sums.sum(1)) / _by_slot(total, x),
            step.after,
            delivered,
        )
        models = sent_only(step.after, means, step.after)
        return models, Mail(sent_only(step.after, delivered, mail.sums), counts)

    return GossipProtocol(
        prepare_fn,
        lambda relays: jnp.asarray(relays.neighbor),
        init_fn,
        send_fn,
        receive_fn,
        needs_before=False,
        rule_refusal=OTHER_MESSAGES.format("a robust rule"),
        message_attack_refusal=OTHER_MESSAGES.format("an attack on messages"),
    )


def _by_slot(values: Array, leaf: Array) -> Array:
    """Values `[N]` or `[N, D]` in the shape of a leaf `[N, ...]` with or without D."""
    return values.astype(leaf.dtype).reshape(*values.shape, *(1,) * (leaf.ndim - 1))
