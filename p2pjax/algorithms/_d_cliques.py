"""D-Cliques: every step follows the mean gradient of the agent's clique.

Bellet, Kermarrec, Lavoie (2022), "D-Cliques: Compensating for data heterogeneity with
topology in decentralized federated learning", https://arxiv.org/abs/2104.07365. A
clique has about the labels of all agents (`selection.d_cliques`), so its mean gradient
is about that of all. After each step models are averaged with all neighbours, in and
between cliques.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.stepwise import GossipInputs, GossipState, gossip
from p2pjax.exchange import owner_classes, shared
from p2pjax.exchange.pipeline import Members, make_exchange, send
from p2pjax.exchange.shared import Local
from p2pjax.graphs import mixing_matrices
from p2pjax.selection.d_cliques import clique_graph
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.samplers import Sampler, take_batch
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Links,
    PyTree,
    Split,
    Variables,
)


def d_cliques(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    clique: Array | Sequence[int],
    *,
    batch_size: int,
    local_patterns: Local = shared.FULL,
    score_before: bool = False,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Mean gradients of cliques (Bellet et al. 2022, https://arxiv.org/abs/2104.07365).

    A round is a network epoch. Gradients are exchanged in every step, so there is one
    local step between exchanges, and no message may be lost.

    Args:
      task: what each agent learns.
      optimizer: of optax, fed with mean gradients; each agent has its own state of it.
      clique: of each agent, `[N]`, for example `selection.label_cliques(data)`.
      batch_size: B.
      local_patterns: leaves whose gradients and values are not sent, see
        `exchange.shared`.
      score_before: also score models before the last exchange of a round.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.pathological())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> cliques = pj.selection.label_cliques(data, max_size=4, seed=0)
      >>> method = pj.d_cliques(task, optax.sgd(0.1), cliques, batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    clique = np.unique(np.asarray(clique), return_inverse=True)[1]
    if clique.ndim != 1 or not len(clique):
        raise InputError(
            f"Need a clique of every agent, [agents], got shape {clique.shape}."
        )
    learner = as_learner(task, optimizer)
    local = shared.local_paths(task, local_patterns)
    base = gossip(
        task,
        learner,
        neighbor_averaging(mixing_matrices.metropolis_hastings),
        clique_graph(clique),
        batch_size=batch_size,
        local_patterns=local_patterns,
        score_before=score_before,
        agent_loop=agent_loop,
        train_fn=mean_gradient_steps(clique, local),
        name="D-Cliques",
    )
    mates, is_mate = _mates(clique)

    def round_fn(
        key: Key,
        t: Array,
        inputs: GossipInputs,
        state: GossipState,
        data: FederatedData,
    ) -> tuple[GossipState, Info]:
        params = state.variables.params
        gradient_size = shared.message_size(_plan(params, clique, local))
        state, info = base.round(key, t, inputs, state, data)
        steps = jnp.asarray(inputs.num_exchanges, jnp.float32)
        arrived = jnp.asarray(is_mate, jnp.float32) * steps
        gradients = arrived.sum(1)  # each agent sends as many as it gets
        assert info.links is not None, "steps have peers"
        links = Links(
            jnp.concatenate([info.links.sender, jnp.asarray(mates)], 1),
            jnp.concatenate([info.links.arrived, arrived], 1),
        )
        return state, info._replace(
            sent=info.sent + gradients,
            received=info.received + gradients,
            payload=info.payload + gradients * gradient_size,
            links=links,
            merged=info.links,  # of models; the others are gradients
        )

    return base._replace(round=round_fn)


def mean_gradient_steps(
    clique: np.ndarray, local: Sequence[str]
) -> Callable[..., Callable]:
    """Steps of all agents along the mean gradient of their cliques.

    Args:
      clique: of each agent, `[N]`.
      local: regular expressions of leaves whose gradients stay.

    Returns:
      A function like `local_training.local_training`, for one step at a time.
    """

    def train_fn(
        learner: Learner, sampler: Sampler, num_steps: int, agent_loop: int
    ) -> Callable[..., tuple[Variables, PyTree, Array]]:
        del num_steps
        if learner.gradient is None or learner.update is None:
            raise InputError(
                "D-Cliques averages gradients, so it needs an optimizer of optax, got "
                "a learner without gradients."
            )
        gradient_fn, update_fn = learner.gradient, learner.update

        def train(
            key: Key,
            step: Array,
            variables: Variables,
            opt_state: PyTree,
            agents: Split,
        ) -> tuple[Variables, PyTree, Array]:
            def gradient_of(_: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
                key, variables, (examples, size, order_seed) = inputs
                key_sample, key_loss = jax.random.split(key)
                draw = sampler(key_sample, step, size, order_seed)
                batch = take_batch(examples, draw)
                context = StepContext(num_examples=size)
                return (), gradient_fn(key_loss, variables, batch, context)

            def descend(carry: PyTree, gradient: PyTree) -> tuple[PyTree, tuple[()]]:
                params, opt_state = carry
                updates, opt_state = update_fn(
                    Variables(params, {}), gradient, opt_state, StepContext()
                )
                return (optax.apply_updates(params, updates), opt_state), ()

            keys = jax.random.split(key, agents.size.shape[0])
            _, (loss, stats, gradient) = map_agents(gradient_of, agent_loop)(
                (), (keys, variables, agents)
            )
            exchange = make_exchange(_plan(gradient, clique, local))
            sent = send(exchange, key, step, gradient)
            mean = exchange.combine(sent, gradient, lambda owner: Members(), None)
            (params, opt_state), _ = map_agents(descend, agent_loop)(
                (variables.params, opt_state), mean
            )
            return Variables(params, stats), opt_state, loss.astype(jnp.float32)

        return train

    return train_fn


def _plan(
    params: PyTree, clique: np.ndarray, local: Sequence[str]
) -> owner_classes.MixPlan:
    """Owner classes of gradients: cliques share them, but for leaves that stay."""
    one_agent = {"params": jax.tree.map(lambda leaf: leaf[0], params)}
    plan = owner_classes.whole_model(
        len(clique), jax.eval_shape(lambda: one_agent), local
    )
    return owner_classes.MixPlan(
        tuple(c._replace(owner=clique) if c.is_shared else c for c in plan.classes)
    )


def _mates(clique: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The others of each agent's clique, `[N, size - 1]`, and which slots are used."""
    width = max(1, int(np.bincount(clique).max()) - 1)
    mates = np.tile(np.arange(len(clique), dtype=np.int32)[:, None], (1, width))
    is_mate = np.zeros(mates.shape, bool)
    for agent, own in enumerate(clique):
        found = np.setdiff1d(np.flatnonzero(clique == own), [agent])
        mates[agent, : len(found)] = found
        is_mate[agent, : len(found)] = True
    return mates, is_mate
