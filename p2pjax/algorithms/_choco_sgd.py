"""CHOCO-SGD: agents send compressed changes of public copies of their models.

Koloskova, Stich, Jaggi (2019), "Decentralized stochastic optimization and gossip
algorithms with compressed communication", https://arxiv.org/abs/1902.00340, and for
deep networks Koloskova et al. (2020), https://arxiv.org/abs/1907.09356.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import (
    Combine,
    GossipProtocol,
    LocalStep,
    MixingWeights,
    Outgoing,
    prepare_weights,
)
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange import encoding
from p2pjax.exchange.compression import Format
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.owner_classes import MixPlan, whole_model
from p2pjax.exchange.pipeline import ENCODE
from p2pjax.exchange.shared import FULL, local_paths, shared_leaves
from p2pjax.exchange.stages import PERFECT, Channel
from p2pjax.graphs import analysis, mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.graphs.topology import Topology
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, Array, InputError, Key, Peers, PyTree

SYMMETRIC_TO = 1e-6  # float32 weights


class ChocoGraph(NamedTuple):
    """A mixing matrix and how far agents go towards what they mix."""

    peers: Peers
    step: Array  # []


def choco_sgd(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    compression: Channel | Format,
    consensus_step: float | None = None,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Decentralized SGD with compressed messages (Koloskova et al. 2019).

    https://arxiv.org/abs/1902.00340. Each agent sends `Q(h - x_hat)`, the compressed
    difference of its stepped model h from the public copy x_hat that its neighbours
    keep of it, and goes on with `h + consensus_step * (mix(x_hat) - x_hat)`. The mean
    of all models moves as without compression. Messages may not be lost or late, and
    the graph does not change, because neighbours keep copies. Batch-norm statistics
    are sent as they are.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`, undirected: see `graphs.as_graph`.
      batch_size: B.
      compression: of messages, such as `channel.top_k(0.01)`, `channel.sign()` or
        `channel.qsgd(15, biased=True)`.
      consensus_step: above 0 and up to 1. Tune it: the authors use 0.04 for the
        largest 1 % and about 0.5 for signs. None for a value that is safe for all
        models, which is very small.
      mixing_weights: the mixing matrix of a graph, symmetric and doubly stochastic.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.choco_sgd(
      ...     task,
      ...     optax.sgd(0.1),
      ...     pj.graphs.ring(4),
      ...     batch_size=32,
      ...     compression=pj.channel.sign(),
      ...     consensus_step=0.5,
      ... )
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    format = _format_of(compression)
    _check_options(options)
    local = local_paths(task, options.get("local_patterns", FULL))
    step: float | Callable[[Peers], float]
    step = _chosen_step(task, format, local, consensus_step)
    return gossip(
        task,
        optimizer,
        choco_protocol(format, step, mixing_weights, local),
        graph,
        batch_size=batch_size,
        name="CHOCO-SGD",
        **options,
    )


def choco_protocol(
    compression: Channel | Format,
    consensus_step: float | Callable[[Peers], float],
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    local: tuple[str, ...] = (),
) -> GossipProtocol:
    """`x_hat += Q(h - x_hat)`, then `x' = h + step (W x_hat - x_hat)`.

    What it remembers are the public copies x_hat, 0 at the start, of the parameters
    that are sent. All receivers of an agent have the same copy of it.

    Args:
      compression: the format Q.
      consensus_step: above 0 and up to 1, or a function of the mixing matrix.
      mixing_weights: the mixing matrix W of a graph, symmetric and doubly stochastic.
      local: regular expressions of leaves that are not sent.

    Example:
      >>> from p2pjax.exchange.channel import top_k
      >>> choco_protocol(top_k(0.01), 0.04).takes_losses  # copies would be wrong
      False
    """
    format = _format_of(compression)
    if not callable(consensus_step):
        _check_step(consensus_step)

    def prepare_fn(graphs: Topology | Peers) -> ChocoGraph:
        peers = prepare_weights(mixing_weights)(graphs)
        each = [Peers(*one) for one in zip(peers.ids, peers.weight, strict=True)]
        for one in each:
            _check_symmetric(one)
        steps = [
            consensus_step(one) if callable(consensus_step) else consensus_step
            for one in each
        ]
        return ChocoGraph(peers, np.asarray(steps, jnp.result_type(float)))

    def init_fn(message: PyTree) -> list[Array | None]:
        return _copies(jax.tree.map(jnp.zeros_like, message), local)

    def send_fn(
        key: Key, graph: ChocoGraph, step: LocalStep, copies: list[Array | None]
    ) -> Outgoing:
        params, structure = jax.tree.flatten(step.after["params"])
        pairs = list(zip(params, copies, strict=True))
        left = [jnp.zeros_like(h) if old is None else h - old for h, old in pairs]
        difference = {"params": jax.tree.unflatten(structure, left)}
        plan = _plan(difference, local)
        keys = jax.random.split(jax.random.fold_in(key, ENCODE), params[0].shape[0])
        sent = jax.vmap(
            lambda key, one: encoding.encode_update(format, plan, key, one)[0]
        )(keys, difference)
        public = [
            h if old is None else old + change
            for (h, old), change in zip(pairs, jax.tree.leaves(sent), strict=True)
        ]
        message = {**step.after, "params": jax.tree.unflatten(structure, public)}
        return Outgoing(message, step.after, is_peer(graph.peers))

    def receive_fn(
        graph: ChocoGraph,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        copies: list[Array | None],
        combine: Combine,
    ) -> tuple[PyTree, PyTree]:
        del arrived, copies
        public = _copies(outgoing.message, local)
        models = combine(graph.peers)
        mixed = jax.tree.leaves(models["params"])
        params, structure = jax.tree.flatten(step.after["params"])
        moved = [
            h if old is None else h + graph.step.astype(h.dtype) * (new - old)
            for h, new, old in zip(params, mixed, public, strict=True)
        ]
        return {**models, "params": jax.tree.unflatten(structure, moved)}, public

    return GossipProtocol(
        prepare_fn,
        lambda graph: jnp.asarray(graph.peers.ids),
        init_fn,
        send_fn,
        receive_fn,
        needs_before=False,
        takes_losses=False,
        bits=partial(encoding.message_bits, format),
        rule_refusal="Need exact or quantised messages for a robust rule, got choco: "
        "distances of partly sent models mean nothing.",
        attack_refusal="Need D-PSGD for an attack, got CHOCO-SGD: receivers keep "
        "copies of their neighbours' public models, which hostile messages replace.",
    )


def safe_step(peers: Peers, contraction: float) -> float:
    """A consensus step with which agents agree, for any models (Koloskova et al. 2019).

    https://arxiv.org/abs/1902.00340. It is far smaller than the best one.

    Args:
      peers: a symmetric mixing matrix `[N, K]`.
      contraction: delta of the format, above 0 to 1.

    Example:
      >>> from p2pjax.graphs import metropolis_hastings, ring
      >>> round(safe_step(metropolis_hastings(ring(4)), 0.5), 4)
      0.0124
    """
    eigenvalues = np.linalg.eigvalsh(analysis.dense_matrix(peers))  # ascending
    gap = 1 - np.abs(eigenvalues[:-1]).max(initial=0)
    if gap < SYMMETRIC_TO:
        raise InputError(
            "Need a graph with which all agents come to agree for a safe consensus "
            "step of CHOCO-SGD, got a mixing matrix without spectral gap: give "
            "consensus_step, or use a connected graph."
        )
    beta = (1 - eigenvalues[0]) ** 2
    bound = 16 * gap + gap**2 + 4 * beta + 2 * gap * beta - 8 * gap * contraction
    return float(gap**2 * contraction / bound)


def _format_of(compression: Channel | Format) -> Format:
    if isinstance(compression, Format):
        return compression
    is_channel = isinstance(compression, Channel)
    if not is_channel or compression.format is None or len(compression.stages) != 1:
        raise InputError(
            "Need one format for the compression of CHOCO-SGD, such as "
            f"channel.top_k(0.01) or channel.sign(), got {compression!r:.80}."
        )
    return compression.format


def _check_options(options: GossipOptions) -> None:
    if options.get("scheme") is not None:
        raise InputError(
            "Need whole leaves for CHOCO-SGD, whose public copies are of leaves, got a "
            "scheme: say by local_patterns which of them stay, or use D-PSGD."
        )
    channel = options.get("channel", PERFECT)
    found = ""
    if channel.loss_probability:
        found = "lost messages"
    elif channel.mean_delay or channel.is_stale:
        found = "late messages"
    if found:
        raise InputError(
            "Need D-PSGD, adapt then combine, without lost or delayed messages for "
            f"CHOCO, got {found}: receivers keep copies of their neighbours' public "
            "models, which a lost message makes wrong."
        )
    if channel.format is not None:
        raise InputError(
            "Need the format of CHOCO-SGD as its compression, got one in the channel: "
            "move it there."
        )
    if options.get("rewire_every") is not None:
        raise InputError(
            "Need one graph that stays for CHOCO-SGD, got rewire_every: receivers keep "
            "copies of their neighbours' public models, and new neighbours have none."
        )


def _check_step(consensus_step: float) -> None:
    if not 0 < consensus_step <= 1:
        raise InputError(
            f"Need a consensus_step above 0 and up to 1, got {consensus_step}."
        )


def _chosen_step(
    task: Task, format: Format, local: tuple[str, ...], consensus_step: float | None
) -> float | Callable[[Peers], float]:
    """The step given, or how a safe one follows from the mixing matrix."""
    message = shared_leaves(shapes_of(task))
    plan = whole_model(1, message, local)
    contraction = encoding.worst_contraction(format, plan, message)
    mend = "use another format, or qsgd with biased=True"
    if consensus_step is not None:
        _check_step(consensus_step)
        if contraction is not None and contraction <= 0:
            warnings.warn(
                f"What {format.name} leaves out may be more than there was, so that "
                f"CHOCO-SGD may diverge whatever its consensus_step: {mend}.",
                stacklevel=3,
            )
        return consensus_step
    if contraction is None or contraction <= 0:
        raise InputError(
            f"Need a consensus_step for CHOCO-SGD with {format.name}, for which no "
            f"safe one is known, got None: give one, or {mend}."
        )
    return partial(_warned_step, contraction)


def _warned_step(contraction: float, peers: Peers) -> float:
    step = safe_step(peers, contraction)
    warnings.warn(
        f"CHOCO-SGD uses the consensus_step {step:.2g}, which is safe for all models "
        "and so small that agents hardly agree: tune it, from 0.05 to 0.8.",
        stacklevel=2,
    )
    return step


def _check_symmetric(peers: Peers) -> None:
    matrix = analysis.dense_matrix(peers)
    if not np.allclose(matrix, matrix.T, rtol=0, atol=SYMMETRIC_TO):
        raise InputError(
            "Need a symmetric mixing matrix for CHOCO-SGD, got one that is not: use "
            "Metropolis-Hastings weights of an undirected graph."
        )


def _plan(message: PyTree, local: tuple[str, ...]) -> MixPlan:
    """Owner classes of a stacked message."""
    size = jax.tree.leaves(message)[0].shape[0]
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), message)
    return whole_model(size, one, local)


def _copies(message: PyTree, local: tuple[str, ...]) -> list[Array | None]:
    """The parameters of a message that are sent, and None for those that are not."""
    params = {"params": message["params"]}
    shared = {part.leaf for part in encoding.parts_of(_plan(params, local), params)}
    leaves = jax.tree.leaves(params)
    return [leaf if i in shared else None for i, leaf in enumerate(leaves)]
