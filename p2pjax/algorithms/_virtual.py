"""VIRTUAL: the agents' networks share a part, of which a server has a posterior.

Corinzia, Buhmann (2019), "Variational federated multi-task learning",
https://arxiv.org/abs/1906.06268. The posterior of the shared weights is a product with
one factor per client. A client that is refined divides its factor out of the product
(the rest is its cavity), learns the posterior of shared and private weights from its
own data, and sends the new product.

A factor is positive by construction: what a client learns is a mean, and a deviation
relative to that of its cavity, below 1. So every cavity stays a density, and damping,
which mixes old and new factors, keeps it one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.assembly import assemble
from p2pjax.evaluation import posteriors
from p2pjax.exchange import mixing, owner_classes
from p2pjax.exchange.pipeline import Exchange, make_exchange, send
from p2pjax.nn import gaussian
from p2pjax.nn.cavity import LARGEST_START, factor_of, narrower
from p2pjax.nn.gaussian import Coordinates, Gaussian, Natural
from p2pjax.tasks import bayesian
from p2pjax.tasks.task import Task
from p2pjax.training import free_energy, samplers
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.learner import StepContext
from p2pjax.training.local_training import take_steps
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
from p2pjax.training.samplers import examples_between, max_size
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


class PriorMode(NamedTuple):
    """Where the prior of the shared weights is counted."""

    in_product: bool  # once, beside the factors
    in_target: bool  # in what a client's posterior is held to
    in_factors: bool  # the factors start as parts of it


ONCE = PriorMode(True, True, False)  # factors approximate likelihoods (Bui et al. 2018)


PAPER = PriorMode(False, True, False)  # equation 3: every factor contains it, K times


RELEASE = PriorMode(False, False, True)  # the authors' code: gone after the first pass


class VirtualState(NamedTuple):
    """The factors of the shared weights, their product, and the private weights."""

    factors: Natural  # leaves [N, ...]
    clients: Gaussian  # leaves [N, ...]; never leave their agent
    server: Gaussian  # leaves [1, ...]: random before the first round, then the product
    # [N, ...] posteriors of the shared weights as clients had them right after their
    # last refinement; () if they are not scored
    refined: Gaussian | tuple[()] = ()


def virtual(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    batch_size: int,
    local_updates: LocalUpdates = epochs(1),
    synchronous: bool = False,
    damping: float | None = None,
    prior_mode: PriorMode = ONCE,
    prior_stddev: float = 1.0,
    divergence_weight: float = 1.0,
    largest_start: float = LARGEST_START,
    shuffled: bool = False,
    score_before: bool = False,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Variational federated multi-task learning (Corinzia, Buhmann 2019).

    https://arxiv.org/abs/1906.06268. A round refines one client, the next one in turn,
    or all of them at once. It needs a task of `tasks.bayesian` on a network with a
    shared and a private column.

    Each refined client receives one message and sends one, of two numbers per shared
    weight. With `agent_loop` VMAP the clients that wait take as long as the one that
    is refined. The training loss, which is the free energy per example, of those that
    wait is the mean of the others. Beside the scores an evaluation tells what
    `evaluation.posteriors` knows of the posteriors: whether data have informed them.

    Args:
      task: with `Variables.params` a Gaussian whose trees have two parts, `server`
        (shared) and `client` (private), as those of `variational.Columns`.
      optimizer: of a refinement; it starts afresh in each.
      batch_size: B.
      local_updates: of a client in a refinement, `epochs(e)` or `steps(k)`.
      synchronous: all clients are refined at once, from the same product.
      damping: how much of a new factor replaces the old, in (0, 1]. If not given, 1
        for one client at a time, and 1 / N for all at once.
      prior_mode: `ONCE`, `PAPER` or `RELEASE`.
      prior_stddev: of shared and private weights, around 0.
      divergence_weight: of both divergences in what a client minimises; 1 is Bayes'
        rule, less trusts the data as if there were more of them.
      largest_start: see `cavity.narrower`.
      shuffled: clients come in another order in each pass, not in that of the agents.
      score_before: also score clients as they were right after their last refinement,
        before the others changed the product.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> from p2pjax.nn.variational import Columns
      >>> task = pj.variational_classification(Columns((8, 10)), (64,), num_samples=2)
      >>> method = pj.virtual(task, optax.adam(0.01), batch_size=32, synchronous=True)
      >>> method.round_is
      "1 local epoch of all clients at once, then the server's product"
    """
    if damping is not None and not 0 < damping <= 1:
        raise InputError(f"Need a damping above 0 and at most 1, got {damping}.")
    if not 0 < prior_stddev < float("inf"):
        raise InputError(f"Need a positive prior_stddev, got {prior_stddev}.")
    if not 0 < divergence_weight < float("inf"):
        raise InputError(f"Need a positive divergence_weight, got {divergence_weight}.")
    if not 0 < largest_start < 1:
        raise InputError(f"Need a largest_start between 0 and 1, got {largest_start}.")

    def init_fn(key: Key, data: FederatedData) -> VirtualState:
        size = num_agents(data)
        if prior_mode.in_factors and size < 2:
            raise InputError(
                "Need two agents or more to split the prior among the others' factors, "
                f"got {size}: choose another prior mode."
            )
        variables = jax.vmap(task.init)(jax.random.split(key, size))
        server, clients = _parts(variables.params)
        prior = gaussian.natural(gaussian.centered(prior_stddev, server.mean))
        share = 1 / (size - 1) if prior_mode.in_factors else 0.0
        server = jax.tree.map(lambda leaf: leaf[:1], server)
        refined = jax.tree.map(jnp.copy, _rows(server, size)) if score_before else ()
        return VirtualState(gaussian.power(prior, share), clients, server, refined)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> np.ndarray:
        """Who is refined, `[R, N]`."""
        size = num_agents(data)
        if synchronous:
            return np.ones((num_rounds, size), bool)
        turns = np.arange(num_rounds) % size
        if shuffled:
            passes = [rng.permutation(size) for _ in range(-(-num_rounds // size))]
            turns = np.concatenate([[0], *passes])[1 : num_rounds + 1]
        return turns[:, None] == np.arange(size)

    def cavities(state: VirtualState, size: int) -> tuple[Natural, Natural]:
        """Of each client, `[N, ...]`, and what its posterior is held to."""
        prior = gaussian.centered(prior_stddev, state.server.mean)  # [1, ...]
        cavity = _sum_of_factors(state.factors, 1 - jnp.eye(size))
        if prior_mode.in_product:
            cavity = _times(cavity, prior)
        in_target = prior_mode.in_target and not prior_mode.in_product
        return cavity, _times(cavity, prior) if in_target else cavity

    def round_fn(
        key: Key, t: Array, is_refined: Array, state: VirtualState, data: FederatedData
    ) -> tuple[VirtualState, Info]:
        size = num_agents(data)
        step = damping or (1 / size if synchronous else 1.0)
        prior = gaussian.centered(prior_stddev, state.server.mean)  # [1, ...]
        cavity, target = cavities(state, size)
        sampler = samplers.shuffled_epochs(batch_size, max_size(data))

        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            old_factor, old_client, _ = carry
            key, own, is_refined, server, cavity, target = inputs
            examples, num_examples, order_seed = own
            coordinates = _two_parts(cavity, largest_start)
            target = gaussian.moments(target)
            learner = free_energy.free_energy_descent(
                bayesian.in_coordinates(task, coordinates),
                optimizer,
                lambda free: (
                    divergence_weight
                    * _divergence(coordinates.gaussian(free), target, prior_stddev)
                ),
            )
            free = coordinates.free(_joined(server, old_client))
            variables = Variables(free, {})
            num_steps = steps_of(local_updates, num_examples, batch_size)
            (variables, _), loss = take_steps(
                learner,
                sampler,
                key,
                examples,
                num_examples,
                StepContext(order_seed=order_seed),
                (variables, learner.init(variables)),
                jnp.int32(0),
                jnp.where(is_refined, num_steps, 0),
            )
            free_server, _ = variables.params
            factor = factor_of(free_server, cavity)
            factor = gaussian.damped(old_factor, factor, step)
            refined, client = _parts(coordinates.gaussian(variables.params))
            new = (factor, client, refined if score_before else ())
            return _where(is_refined, new, carry), loss

        keys = jax.random.split(key, size)
        rows = _rows(state.server, size)
        (factors, clients, refined), loss = map_agents(one_agent, agent_loop)(
            (state.factors, state.clients, state.refined),
            (keys, data.train, is_refined, rows, cavity, target),
        )
        exchange = _exchange(factors)
        if exchange.changes_messages:  # the server has factors as they reach it
            sent = send(exchange, key, t, factors)
            factors = jax.vmap(_where)(is_refined, sent, factors)
        everything = _sum_of_factors(factors, jnp.ones((size, size)))
        everything = jax.tree.map(lambda leaf: leaf[:1], everything)
        if prior_mode.in_product:
            everything = _times(everything, prior)
        counts = is_refined.astype(jnp.float32)
        mean_loss = (loss * counts).sum() / counts.sum()
        num_steps = steps_of(local_updates, data.train.size, batch_size)
        examples = examples_between(
            jnp.zeros_like(num_steps), num_steps, data.train.size, batch_size
        )
        num_shared = sum(leaf[0].size for leaf in jax.tree.leaves(prior.mean))
        info = Info(
            jnp.where(is_refined, loss, mean_loss),
            counts,
            counts,
            counts * (2 * num_shared),
            delivered=counts * (2 * num_shared),
            examples=jnp.where(is_refined, examples, 0),
            steps=jnp.where(is_refined, num_steps, 0).astype(jnp.float32),
            served=counts,
        )
        server = gaussian.moments(everything)
        return VirtualState(factors, clients, server, refined), info

    def models_fn(state: VirtualState) -> Models:
        size = jax.tree.leaves(state.clients)[0].shape[0]
        server = _rows(state.server, size)
        now = Variables(_joined(server, state.clients), {})
        observed = posteriors.of_columns(now.params, prior_stddev)
        _, target = cavities(state, size)
        observed |= posteriors.of_factors(state.factors, server, target)
        if not isinstance(state.refined, Gaussian):
            return Models(now, observed=observed)
        then = Variables(_joined(state.refined, state.clients), {})
        return Models(now, trained=then, averaged=now, observed=observed)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"{local_updates.described} of "
        + ("all clients at once" if synchronous else "one client, the next in turn")
        + ", then the server's product",
        agent_loop=agent_loop,
    )


def _sum_of_factors(factors: Natural, matrix: Array) -> Natural:
    """Products of the factors that a row of the matrix `[N, N]` names, `[N, ...]`.

    Summed anew, and not by dividing one factor out of all: nothing cancels.
    """
    return _exchange(factors).combine(
        factors, factors, lambda owner: mixing.by_matrix(matrix), None
    )


def _exchange(factors: Natural) -> Exchange:
    size = jax.tree.leaves(factors)[0].shape[0]
    one_agent = jax.eval_shape(lambda f: jax.tree.map(lambda x: x[0], f), factors)
    return make_exchange(owner_classes.whole_model(size, one_agent))


def _times(factors: Natural, prior: Gaussian) -> Natural:
    """Factors `[N, ...]` times one density `[1, ...]`."""
    return jax.tree.map(
        lambda leaf, one: leaf + jnp.broadcast_to(one, leaf.shape),
        factors,
        gaussian.natural(prior),
    )


def _parts(q: Gaussian) -> tuple[Gaussian, Gaussian]:
    """Shared and private weights."""
    return (
        Gaussian(q.mean["server"], q.stddev["server"]),
        Gaussian(q.mean["client"], q.stddev["client"]),
    )


def _joined(server: Gaussian, client: Gaussian) -> Gaussian:
    return Gaussian(
        {"server": server.mean, "client": client.mean},
        {"server": server.stddev, "client": client.stddev},
    )


def _rows(server: Gaussian, size: int) -> Gaussian:
    """The server's posterior in each agent's row, `[N, ...]`."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape[1:])), server
    )


def _two_parts(cavity: Natural, largest_start: float = LARGEST_START) -> Coordinates:
    """Shared weights narrower than their cavity, private weights free."""
    narrow = narrower(cavity, largest_start)

    def free_fn(q: Gaussian) -> PyTree:
        server, client = _parts(q)
        return narrow.free(server), gaussian.SOFTPLUS.free(client)

    def gaussian_fn(free: PyTree) -> Gaussian:
        server, client = free
        return _joined(narrow.gaussian(server), gaussian.SOFTPLUS.gaussian(client))

    return Coordinates(free_fn, gaussian_fn)


def _divergence(q: Gaussian, target: Gaussian, prior_stddev: float) -> Array:
    """Of the shared weights from their target and the private ones from the prior."""
    server, client = _parts(q)
    prior = gaussian.centered(prior_stddev, client.mean)
    return gaussian.kl_divergence(server, target) + gaussian.kl_divergence(
        client, prior
    )


def _where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
