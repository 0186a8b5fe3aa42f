"""DivShare: models in fragments, each to other random agents, while training goes on.

Biswas et al. (2025), "Boosting asynchronous decentralized learning with model
fragmentation", https://arxiv.org/abs/2410.12918, here in rounds: what is sent in one
arrives in the next.
"""

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
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel, check_channel
from p2pjax.exchange.compression import FLOAT_BITS, Format
from p2pjax.exchange.encoding import encode_models, num_bytes
from p2pjax.exchange.fragments import cut, fragment_columns, put_together
from p2pjax.exchange.losses import arrivals
from p2pjax.exchange.owner_classes import whole_model
from p2pjax.exchange.pipeline import ENCODE
from p2pjax.exchange.shared import (
    STATISTICS,
    Local,
    shared_leaf_indices,
    sharing_plan,
)
from p2pjax.graphs import schedule
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import Graphs, edges, unstack
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
from p2pjax.training.samplers import examples_between
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
    Variables,
    num_agents,
)


class DivShareState(NamedTuple):
    """All agents' models, and what is on its way."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    last: PyTree  # leaves [N, ...]: trained in the last round, as sent
    older: PyTree  # leaves [N, ...]: in the round before; () if nothing is late
    is_byzantine: Mask = ()


class Arriving(NamedTuple):
    """Receivers of each fragment of each sender, `[R, F, N, J]`; N for none."""

    in_time: Array  # of what was sent in the round before
    late: Array  # of what was sent two rounds before


def divshare(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    num_fragments: int = 10,
    num_receivers: int = 1,
    late_probability: float = 0.0,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    local_patterns: Local = shared.FULL,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Fragments of models to random agents (Biswas et al. 2025), in rounds.

    https://arxiv.org/abs/2410.12918. In a round each agent trains, sends every fragment
    of its model to random agents, and makes each number of its model the mean of its
    own and of what has arrived of it since its last round; then it trains on. A random
    permutation of each leaf, the same for all, says what belongs to a fragment.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who may receive from whom, `[N, D]`: see `graphs.as_graph`; None for all.
      batch_size: B.
      num_fragments: F; the paper has 10.
      num_receivers: of each fragment, J: an agent sends J models in J * F messages.
      late_probability: that a message arrives a round late. Of what a sender sent twice
        of a fragment the newer counts.
      local_updates: in a round, `epochs(e)` or `steps(k)`.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      channel: `channel.drop`, where a fragment that is lost does not count, and
        `quantize`, with the scales of whole leaves in each fragment.
      attack: `label_flip`, or `backdoor` without boost; None: all are honest.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> pj.divshare(task, optax.sgd(0.1), batch_size=32, num_fragments=4).round_is
      '1 local epoch of each agent, 4 fragments to 1 random agent each, ...'
    """
    check_channel(channel, "DivShare", formats=FORMATS)
    check_data_attack(attack, "DivShare")
    if graph is not None:
        graph = as_topology(graph)
        schedule.check_rewiring(graph, rewire_every)
    if not 0 <= late_probability < 1:
        raise InputError(
            "Need a probability from 0 to below 1 that messages of DivShare are late, "
            f"got {late_probability}."
        )
    if not isinstance(num_receivers, int | np.integer) or num_receivers < 1:
        raise InputError(
            f"Need one receiver or more of a fragment, got {num_receivers}."
        )
    learner = poisoned_learner(as_learner(task, optimizer), attack)
    local = shared.local_paths(task, local_patterns)
    one_agent = shared.shared_leaves(shapes_of(task))
    sent_leaves = sorted(shared_leaf_indices(whole_model(1, one_agent, local)))
    shapes = [jax.tree.leaves(one_agent)[index] for index in sent_leaves]
    of_fragments = fragment_columns(shapes, num_fragments)
    model_size = sum(int(np.prod(shape.shape)) for shape in shapes)
    if num_fragments > model_size:
        raise InputError(
            "Need at most as many fragments as numbers in a message of DivShare, got "
            f"{num_fragments} of {model_size}: use fewer."
        )
    paths = [path for path, _ in leaves_with_paths(one_agent)]
    is_statistic = [paths[i].split("/")[0] == STATISTICS for i in sent_leaves]
    train = own_steps(learner, batch_size, agent_loop)

    def init_fn(key: Key, data: FederatedData) -> DivShareState:
        variables = identical_models(key, task, num_agents(data))
        message = shared.shared_leaves(variables)
        return DivShareState(
            variables,
            jax.vmap(learner.init)(variables),
            jax.tree.map(jnp.copy, message),
            jax.tree.map(jnp.copy, message) if late_probability else (),
            mask_at_start(attack, num_agents(data)),
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        size = num_agents(data)
        permitted = _permitted(rng, graph, rewire_every, size, num_rounds)
        _check_receivers(permitted, num_receivers)
        sends = np.stack(
            [_draw(rng, one, num_fragments, num_receivers) for one in permitted]
        )  # [R, F, N, J]
        is_late = rng.random(sends.shape) < late_probability
        return attacked(attack, arriving(sends, is_late), size, num_rounds)

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: DivShareState, data: FederatedData
    ) -> tuple[DivShareState, Info]:
        inputs, attackers = inputs_and_attackers(inputs)
        size = num_agents(data)
        num_steps = steps_of(local_updates, data.train.size, batch_size)  # [N]
        first = t * num_steps
        variables, opt_state, loss = train(
            key,
            first,
            num_steps,
            state.variables,
            state.opt_state,
            data.train,
            StepContext(is_byzantine=poisoned_agents(attack, attackers)),
        )
        trained = shared.shared_leaves(variables)
        key_now, key_late = jax.random.split(jax.random.fold_in(key, 1))
        heard = [_heard(channel, key_now, inputs.in_time)]  # [F, N, N] bool
        sources = [state.last]
        if late_probability:  # of two messages the newer one counts
            heard.append(_heard(channel, key_late, inputs.late) & ~heard[0])
            sources.append(state.older)
        if channel.format is not None:
            keys = jax.random.split(jax.random.fold_in(key, ENCODE), size)
            sources = [_decoded(channel.format, keys, source) for source in sources]
        leaves, structure = jax.tree.flatten(trained)
        merged = _merged(
            _some(trained, sent_leaves),
            [_some(source, sent_leaves) for source in sources],
            heard,
            of_fragments,
        )
        for index, leaf in zip(sent_leaves, merged, strict=True):
            leaves[index] = leaf
        models = jax.tree.unflatten(structure, leaves)
        num_sent = jnp.full(size, num_fragments * num_receivers, jnp.float32)
        info = Info(
            loss,
            num_sent,
            jnp.stack([h.sum((0, 2)) for h in heard]).sum(0).astype(jnp.float32),
            jnp.full(size, num_receivers * model_size, jnp.float32),
            examples=examples_between(
                first, first + num_steps, data.train.size, batch_size
            ),
            steps=num_steps.astype(jnp.float32),
        )
        if channel.format is not None:
            bits = [
                _bits(channel.format, columns, is_statistic) for columns in of_fragments
            ]
            total = num_receivers * sum(map(num_bytes, bits))
            info = info._replace(bytes=jnp.full(size, total, jnp.float32))
        older = state.last if late_probability else ()
        variables = shared.with_shared_leaves(variables, models)
        mask = mask_of(attackers)
        return DivShareState(variables, opt_state, trained, older, mask), info

    def models_fn(state: DivShareState) -> Models:
        trained = state.last
        plan = sharing_plan(state.variables, local)
        trained = shared.where_shared(
            plan, trained, shared.shared_leaves(state.variables)
        )
        return Models(
            state.variables,
            trained=shared.with_shared_leaves(state.variables, trained),
            averaged=state.variables,
            is_byzantine=not_judged(state.is_byzantine),
        )

    receivers = f"{num_receivers} random agent" + ("s" if num_receivers > 1 else "")
    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"{local_updates.described} of each agent, {num_fragments} fragments "
        f"to {receivers} each, means with what was sent before",
        agent_loop=agent_loop,
        attack=attack,
    )


def arriving(sends: np.ndarray, is_late: np.ndarray) -> Arriving:
    """What arrives in every round of what is sent in every round.

    Args:
      sends: receivers, `[R, F, N, J]`.
      is_late: of the same shape.
    """
    none = np.int32(sends.shape[2])
    in_time, late = np.full_like(sends, none), np.full_like(sends, none)
    in_time[1:] = np.where(is_late, none, sends)[:-1]
    late[2:] = np.where(is_late, sends, none)[:-2]
    return Arriving(in_time, late)


def _permitted(
    rng: np.random.Generator,
    graph: Graphs | None,
    rewire_every: int | None,
    size: int,
    num_rounds: int,
) -> np.ndarray:
    """`[R, N, N]` bool: whether the sender (row) may send to the receiver."""
    if graph is None:
        return np.broadcast_to(~np.eye(size, dtype=bool), (num_rounds, size, size))
    graphs, of_round = schedule.graphs_of_rounds(
        rng, graph, rewire_every, size, num_rounds
    )
    found = np.zeros((len(graphs.mask), size, size), bool)
    for number, one in enumerate(unstack(graphs)):
        found[(number, *edges(one))] = True
    return found[of_round]


def _check_receivers(permitted: np.ndarray, num_receivers: int) -> None:
    fewest = permitted.sum(2).min(initial=num_receivers)
    if fewest < num_receivers:
        raise InputError(
            f"Need {num_receivers} agents or more that each agent may send to for "
            f"DivShare, got one with {fewest}: use a smaller num_receivers or a denser "
            "graph."
        )


def _draw(
    rng: np.random.Generator, permitted: np.ndarray, num_fragments: int, number: int
) -> np.ndarray:
    """Distinct receivers of each fragment of each sender, `[F, N, J]`."""
    draws = rng.random((num_fragments, *permitted.shape))
    draws = np.where(permitted, draws, 2.0)
    return np.argsort(draws, axis=2)[:, :, :number].astype(np.int32)


def _heard(channel: Channel, key: Key, receiver: Array) -> Array:
    """`[F, N, N]` bool: whether the receiver (row) hears the sender's fragment."""
    receiver = jnp.asarray(receiver)
    num_fragments, size, _ = receiver.shape
    sent = arrivals(channel, key, receiver < size)
    fragment = jnp.arange(num_fragments)[:, None, None]
    sender = jnp.arange(size)[None, :, None]
    heard = jnp.zeros((num_fragments, size, size), bool)
    receiver = jnp.where(sent, receiver, size)  # those beyond are left out
    return heard.at[fragment, receiver, sender].set(True, mode="drop")


def _decoded(format: Format, keys: Key, models: PyTree) -> PyTree:
    """What receivers decode of all agents' models, leaves `[N, ...]`."""
    plan = whole_model(1, jax.tree.map(lambda leaf: leaf[0], models))
    return jax.vmap(lambda key, one: encode_models(format, plan, key, one)[0])(
        keys, models
    )


def _bits(format: Format, columns: list[np.ndarray], is_statistic: list[bool]) -> int:
    """Of a fragment; statistics are sent as they are."""
    return sum(
        FLOAT_BITS * len(at) if exact else format.bits(len(at))
        for at, exact in zip(columns, is_statistic, strict=True)
        if len(at)
    )


def _some(tree: PyTree, indices: list[int]) -> list[Array]:
    leaves = jax.tree.leaves(tree)
    return [leaves[index] for index in indices]


def _merged(
    own: list[Array],
    sources: list[list[Array]],
    heard: list[Array],
    of_fragments: list[list[np.ndarray]],
) -> list[Array]:
    """Means, fragment by fragment, of what agents have and what they heard."""
    size = own[0].shape[0]
    fragments = []
    for number, columns in enumerate(of_fragments):
        matrices = [jnp.where(h[number], 1.0, 0.0) for h in heard]
        count = 1 + jnp.stack([m.sum(1) for m in matrices]).sum(0)  # [N]
        new = [part / count.astype(part.dtype)[:, None] for part in cut(own, columns)]
        for matrix, source in zip(matrices, sources, strict=True):
            parts = cut(source, columns)
            plan = whole_model(size, [part[0] for part in parts])
            share = matrix / count[:, None]
            mixed = mixing.mix(
                parts, plan, lambda owner, share=share: mixing.by_matrix(share)
            )
            new = [a + b for a, b in zip(new, mixed, strict=True)]
        fragments.append(new)
    return put_together(own, fragments, of_fragments)
