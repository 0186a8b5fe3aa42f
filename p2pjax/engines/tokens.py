"""Models that wander: tokens on a small graph of their own, held by random agents.

Who holds which token, in which exchange, does not depend on parameters, so the host
draws it. A token learns from the data of its holder.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax import sharding
from p2pjax.exchange.pipeline import Exchange
from p2pjax.training import samplers
from p2pjax.training.agent_loop import map_agents
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.local_training import take_steps
from p2pjax.types import Array, FederatedData, Key, PyTree, Variables


class Holders(NamedTuple):
    """Who holds the tokens, leaves `[R, X, k]` of X exchanges in a round."""

    now: Array  # agents that train them
    later: Array  # agents that hold them after the exchange
    visit: Array  # exchanges before in which the agent held any token


def draw_holders(
    rng: np.random.Generator,
    num_agents: int,
    num_tokens: int,
    num_rounds: int,
    num_exchanges: int,
) -> Holders:
    """Distinct agents for the tokens, uniformly and anew in every exchange.

    Args:
      rng: of the run.
      num_agents: N.
      num_tokens: k, at most N.
      num_rounds: R.
      num_exchanges: X, of a round.

    Example:
      >>> holders = draw_holders(np.random.default_rng(0), 5, 3, 2, 4)
      >>> holders.now.shape, len(set(holders.now[1, 2].tolist()))
      ((2, 4, 3), 3)
    """
    total = num_rounds * num_exchanges
    held = np.stack(
        [
            rng.choice(num_agents, num_tokens, replace=False).astype(np.int32)
            for _ in range(total + 1)
        ]
    )
    visits, visit = np.zeros(num_agents, np.int32), np.zeros_like(held[:-1])
    for number, now in enumerate(held[:-1]):
        visit[number] = visits[now]
        visits[now] += 1
    shape = (num_rounds, num_exchanges, num_tokens)
    return Holders(*(leaf.reshape(shape) for leaf in (held[:-1], held[1:], visit)))


def token_training(
    learner: Learner,
    batch_size: int,
    agent_loop: int,
    data: FederatedData,
    is_byzantine: Array | None = None,
) -> Callable[..., tuple[tuple[Variables, PyTree], Array]]:
    """Training of all tokens on the data of their holders.

    Args:
      learner: how a token learns.
      batch_size: B.
      agent_loop: see `agent_loop.map_agents`; tokens take the place of agents.
      data: of all agents; only batches of it are gathered.
      is_byzantine: `[N]` holders that learn from poisoned batches; None for none.

    Returns:
      `train(key, holder, first_step, num_steps, carry)` with the steps that each holder
      has done before and those to do now, `[k]` each, and the tokens' variables and
      optimizer states; it returns these and mean losses `[k]`.
    """
    longest = samplers.max_size(data)
    sampler = samplers.shuffled_epochs(batch_size, longest)
    pool = jax.tree.map(  # [N * M, ...]
        lambda leaf: jnp.asarray(leaf).reshape(-1, *leaf.shape[2:]),
        data.train.examples,
    )
    sizes, seeds = jnp.asarray(data.train.size), data.train.order_seed

    def one_token(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
        key, holder, first_step, num_steps = inputs

        def draw(key: Key, step: Array, size: Array, order: PyTree) -> samplers.Draw:
            drawn = sampler.draw(key, step, size, order)
            return drawn._replace(indices=drawn.indices + holder * longest)

        context = StepContext(
            order_seed=None if seeds is None else jnp.asarray(seeds)[holder],
            is_byzantine=None if is_byzantine is None else is_byzantine[holder],
        )
        return take_steps(
            learner,
            sampler._replace(draw=draw),
            key,
            pool,
            sizes[holder],
            context,
            carry,
            first_step,
            num_steps,
        )

    def train(
        key: Key, holder: Array, first_step: Array, num_steps: Array, carry: PyTree
    ) -> tuple[PyTree, Array]:
        keys = jax.random.split(key, holder.shape[0])
        inputs = (keys, holder, first_step, num_steps)
        if sharding.num_shards() > 1:  # holders may be anywhere, and tokens are few
            return jax.vmap(one_token)(carry, inputs)
        return map_agents(one_token, agent_loop)(carry, inputs)

    return train


def sent_to(senders: Array, now: Array, later: Array, *, fused: bool) -> Array:
    """Who has to send what, `[k, K]`, as flags: slot 0 is the token itself, moving.

    Args:
      senders: tokens that each token is mixed with, `[k, K]`; unused slots and slot 0
        are the token itself.
      now: holders that have trained, `[k]`.
      later: holders after the exchange, `[k]`.
      fused: whether the next holder hears the present ones of all these tokens, who
        may be itself; else tokens are mixed first and then move.

    Example:
      >>> ring = np.array([[0, 1, 2], [1, 0, 2], [2, 0, 1]])
      >>> now, later = np.array([0, 1, 2]), np.array([1, 1, 3])
      >>> sent_to(ring, now, later, fused=True).sum(1).tolist()  # 1 has its own token
      [2, 2, 3]
      >>> sent_to(ring, now, later, fused=False).sum(1).tolist()
      [3, 2, 3]
    """
    senders = jnp.asarray(senders)
    own = jnp.arange(senders.shape[0], dtype=senders.dtype)[:, None]
    is_other = senders != own
    moves = jnp.asarray(now)[:, None] != jnp.asarray(later)[:, None]
    if fused:
        is_sent = is_other & (jnp.asarray(now)[senders] != jnp.asarray(later)[:, None])
    else:
        is_sent = is_other
    return is_sent.at[:, :1].set(moves)


def keeping_own(exchange: Exchange, is_sent: Array) -> Exchange:
    """The exchange, in which nothing is lost that does not leave its agent.

    Args:
      exchange: of the tokens.
      is_sent: `sent_to`.
    """

    def arrive(key: Key, t: Array, sent: Array, *more: PyTree) -> Array:
        return exchange.arrive(key, t, sent, *more) | (sent & ~is_sent)

    return exchange._replace(arrive=arrive)


def num_floats(tree: PyTree) -> int:
    """Numbers of ONE token, of leaves `[k, ...]`."""
    return sum(
        leaf.size // leaf.shape[0]
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    )
