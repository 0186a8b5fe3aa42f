"""Mimic: attackers repeat what an honest agent says, so that it counts too much.

Karimireddy, He, Jaggi (2022), "Byzantine-robust learning on heterogeneous datasets via
bucketing", https://arxiv.org/abs/2006.09365; random choices per receiver are the sample
duplicating of Wu, Chen, Ling (2023), https://arxiv.org/abs/2206.04568.
"""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_choice
from p2pjax.exchange.attacks.honest import groups, mean, neighbors, over_honest
from p2pjax.types import Array, InputError, Key, PyTree

CHOICES = ("fixed", "random", "direction")


def mimic(
    byzantine: Who,
    choose: str = "fixed",
    *,
    agent: int | None = None,
    num_warm_up_rounds: int = 20,
) -> Attack:
    """Byzantine agents send what an honest agent sends.

    Args:
      byzantine: numbers of agents, or `attached(f)`.
      choose: whom: "fixed"; "random" for one of a receiver's honest neighbours, drawn
        for each receiver and round; "direction" for the agent that is farthest from
        the honest mean along the direction in which honest agents differ most.
      agent: the one that is fixed; None: the first honest one.
      num_warm_up_rounds: in which that direction is learned, by one step of Oja's rule
        each; it is used from the first round on.

    Example:
      >>> mimic(byzantine=(0, 3), agent=2).name
      'mimic'
    """
    check_choice("mimic", "a choice", choose, CHOICES)
    if agent is not None and choose != "fixed":
        raise InputError(
            f"Need no agent for mimic where it is chosen by {choose}, got {agent}: "
            'leave it out, or use choose="fixed".'
        )
    if num_warm_up_rounds < 1:
        raise InputError(
            f"Need one warm-up round or more for mimic, got {num_warm_up_rounds}."
        )

    def hostile_fn(scene: Scene) -> Hostile:
        if choose == "random":
            return Hostile(scene.rows[_random_neighbor(scene)])
        if choose == "direction":
            return Hostile(scene.rows[_largest(scene, jnp.abs(_products(scene)))])
        return Hostile(scene.rows[_largest(scene, _is_agent(scene, agent))])

    attack = Attack("mimic", hostile=hostile_fn)
    if choose == "direction":
        attack = attack._replace(
            measure=_measure,
            begin=_random_direction,
            remember=lambda scene: _next_direction(scene, num_warm_up_rounds),
        )
    attack = placed(attack, byzantine)
    if agent is not None and (agent < 0 or agent in attack.byzantine):
        raise InputError(
            f"Need an honest agent to mimic, got {agent}: give the number of an agent "
            "that does not attack."
        )
    return attack


def _is_agent(scene: Scene, agent: int | None) -> Array:
    """`[N]`: 1 for this agent, 0 for others."""
    num_agents = scene.rows.shape[0]
    if agent is not None and agent >= num_agents:
        raise InputError(
            f"Need an agent from 0 to {num_agents - 1} to mimic, got {agent}."
        )
    return (jnp.arange(num_agents) == (-1 if agent is None else agent)).astype(float)


def _random_neighbor(scene: Scene) -> Array:
    """`[N]`: an honest neighbour of each receiver; itself where it has none."""
    ids = jnp.asarray(scene.peers.ids)
    luck = jax.random.uniform(scene.key, ids.shape)
    slot = jnp.where(neighbors(scene), luck, -1).argmax(1, keepdims=True)
    return jnp.take_along_axis(ids, slot, 1)[:, 0]


def _largest(scene: Scene, score: Array) -> Array:
    """The honest agent with the largest score, the first of equals.

    `[1]`, or `[N]` if there are several groups of owners: of each agent's own.
    """
    score = jnp.where(scene.is_byzantine, -1, score)
    group = groups(scene)
    if group is None:
        return score.argmax(keepdims=True)
    # [G, N]: members of each group; few groups, and one number per agent
    is_member = group == np.arange(group.max() + 1)[:, None]
    return jnp.where(is_member, score[None], -2).argmax(1)[group]


def _random_direction(key: Key, message: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(message)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def _measure(scene: Scene) -> dict[str, Array]:
    """Products of the direction with centred rows `[N]`, and its squared length."""
    assert scene.memory is not None
    centered = scene.rows - mean(scene)
    return {
        "products": jnp.einsum("nc,c->n", centered, scene.memory, precision="highest"),
        "square": jnp.square(scene.memory).sum(),
    }


def _products(scene: Scene) -> Array:
    """`<v, x_k - mean>` of the unit direction, `[N]`; 0 for Byzantine agents."""
    length = jnp.sqrt(scene.measured["square"])
    products = jnp.where(scene.is_byzantine, 0, scene.measured["products"])
    return products / jnp.where(length > 0, length, 1)


def _next_direction(scene: Scene, num_warm_up_rounds: int) -> Array:
    """One step of Oja's rule; brought to length 1 when it is read."""
    assert scene.memory is not None
    products = _products(scene)
    centered = scene.rows - mean(scene)
    learned = _total(over_honest(scene, products[:, None] * centered), scene)
    length = jnp.sqrt(scene.measured["square"])
    unit = scene.memory / jnp.where(length > 0, length, 1)
    t = jnp.asarray(scene.t, scene.rows.dtype)
    moved = t / (t + 1) * unit + learned / (t + 1)
    # Of the first step only the direction counts; models that hardly differ yet would
    # make it too short for its square.
    square = products @ products
    is_known = square > 0  # equal models say nothing
    first = learned / jnp.where(is_known, square, 1)  # of length 1 or more
    moved = jnp.where(t == 0, first, moved)
    learns = (scene.t < num_warm_up_rounds) & is_known
    return jnp.where(learns, moved, scene.memory)


def _total(sums: Array, scene: Scene) -> Array:
    """`[c]`: the sums of all groups of owners together."""
    group = groups(scene)
    if group is None:
        return sums[0]
    first = np.unique(group, return_index=True)[1]
    return sums[first].sum(0)
