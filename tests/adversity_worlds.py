"""Stacked models of several owner classes, and one exchange of them in the package."""

from functools import partial
from typing import NamedTuple

import adversity_reference as plain
import jax
import jax.numpy as jnp
import numpy as np
from robust_cases import CASES, Has

from p2pjax.exchange import attacks, channel, pipeline
from p2pjax.exchange.attacks.base import Hostile, at_scale
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass
from p2pjax.exchange.pipeline import Attackers, Memory, deliver, make_exchange, transmit
from p2pjax.types import LOCAL, Peers

SHAPES = {
    "batch_stats": {"mean": (3,), "var": (2, 2)},
    "params": {"a": (4, 3), "b": (5,), "c": (), "d": (2, 2, 2), "local": (2,)},
}
NUM_STATISTICS = 2  # leaves, the first ones
T = 25  # of 100 rounds, as the cases of rules have it
NUM_ATTACHED = 2

# By name: the attack of the package with any attackers, and the plain one.
ATTACKS = {
    "alie": (attacks.alie((0,), 1.5), partial(plain.alie, scale=1.5)),
    "alie_local": (
        attacks.alie((0,), 1.5, local=True),
        partial(plain.alie, scale=1.5, local=True),
    ),
    # of other numbers what is sent might be between two numbers of a format
    "dissensus": (attacks.dissensus((0,), 1.37), partial(plain.dissensus, scale=1.37)),
    "foe": (attacks.foe((0,), 0.5), partial(plain.foe, scale=0.5)),
    "sign_flip": (
        attacks.sign_flip((0,), scale=2.0),
        partial(plain.sign_flip, scale=2.0),
    ),
}
PER_RECEIVER = ("alie", "alie_local", "dissensus", "foe")
FORMATS = {"exact": None, "half": channel.quantize(16), "uniform8": channel.quantize(8)}


def blocks_of(*found):
    return tuple(Block(leaf, tuple(start), tuple(stop)) for leaf, start, stop in found)


def plan_of(size):
    """All agents share most, two groups share a part of a leaf, something stays."""
    groups = np.repeat([0, 1], [size // 2, size - size // 2])
    groups[[1, -1]] = LOCAL  # these have no part in it
    return MixPlan(
        (
            OwnerClass(
                np.zeros(size, int),
                blocks_of(
                    (0, (0,), (3,)),
                    (1, (0, 0), (2, 2)),
                    (2, (0, 0), (2, 3)),
                    (3, (0,), (5,)),
                    (4, (), ()),
                    (5, (0, 0, 0), (2, 2, 2)),
                ),
            ),
            OwnerClass(groups, blocks_of((2, (2, 0), (4, 2)), (2, (2, 2), (4, 3)))),
            OwnerClass(np.full(size, LOCAL), blocks_of((6, (0,), (2,)))),
        )
    )


class Setting(NamedTuple):
    """Models, who hears whom, who attacks and what arrives."""

    models: dict  # leaves [N, ...], float64
    before: dict
    slots: np.ndarray  # [N, K]
    weight: np.ndarray  # [N, K]
    arrived: np.ndarray  # [N, K]
    loss: np.ndarray  # [N, K]
    is_byzantine: np.ndarray  # [N]

    @property
    def size(self):
        return len(self.slots)


def random_models(rng, size):
    return jax.tree.map(
        lambda shape: rng.normal(size=(size, *shape)),
        SHAPES,
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )


def setting(seed, size, degree, num_byzantine=2):
    """Some agents hear fewer than others, some weights are equal, some are not."""
    rng = np.random.default_rng(seed)
    slots = np.tile(np.arange(size)[:, None], (1, 1 + degree))
    weight = np.zeros(slots.shape)
    for i in range(size):
        heard = rng.choice(np.delete(np.arange(size), i), degree, replace=False)
        heard = np.sort(heard[: degree - i % 3])
        slots[i, 1 : 1 + len(heard)] = heard
        drawn = (
            rng.uniform(0.2, 1, 1 + len(heard)) if i % 4 else np.ones(1 + len(heard))
        )
        weight[i, : 1 + len(heard)] = drawn / drawn.sum()
    arrived = rng.random(slots.shape) < 0.85
    byzantine = rng.choice(size, num_byzantine, replace=False)
    return Setting(
        random_models(rng, size),
        random_models(rng, size),
        slots.astype(np.int32),
        weight,
        arrived,
        rng.uniform(size=slots.shape),
        np.isin(np.arange(size), byzantine),
    )


def with_attached(given):
    """Two attackers beside each agent, in the last slots; all agents are honest."""
    own = np.tile(np.arange(given.size, dtype=np.int32)[:, None], (1, NUM_ATTACHED))
    most = given.weight[:, 1:].max(1, keepdims=True)
    weight = np.concatenate([given.weight, np.tile(most, (1, NUM_ATTACHED))], 1)
    yes = np.ones(own.shape, bool)
    return given._replace(
        slots=np.concatenate([given.slots, own], 1),
        weight=weight / weight.sum(1, keepdims=True),
        arrived=np.concatenate([given.arrived, yes], 1),
        loss=np.concatenate([given.loss, np.ones(own.shape)], 1),
        is_byzantine=np.zeros(given.size, bool),
    )


def peers_of(given, owner, num_attached=0):
    """Who averages a class with whom; slots of others point at the agent itself."""
    own = np.arange(given.size, dtype=np.int32)[:, None]
    num_slots = given.slots.shape[1]
    is_attached = np.arange(num_slots) >= num_slots - num_attached
    same = (owner[given.slots] == owner[:, None]) | is_attached
    lost = np.where(same, 0, given.weight)
    weight = given.weight - lost
    weight[:, 0] += lost.sum(1)
    return np.where(same, given.slots, own), weight


def class_worlds(given, num_attached=0):
    """What there is of each class that is shared, and where it is in the leaves."""
    plan, leaves = plan_of(given.size), jax.tree.leaves(given.models)
    before = jax.tree.leaves(given.before)
    for owner_class in plan.classes[:2]:
        slots, weight = peers_of(given, owner_class.owner, num_attached)
        places = [
            (block.leaf, (slice(None), *map(slice, block.start, block.stop)))
            for block in owner_class.blocks
        ]
        parts, end = [], 0
        for leaf in dict.fromkeys(leaf for leaf, _ in places):
            if leaf >= NUM_STATISTICS:
                size = sum(leaves[n][at][0].size for n, at in places if n == leaf)
                parts.append(slice(end, end + size))
                end += size
        world = plain.World(
            columns(leaves, places, False),
            columns(before, places, False),
            columns(leaves, places, True),
            parts,
            slots,
            weight,
            owner_class.owner,
            given.is_byzantine,
            given.arrived,
            num_attached,
        )
        yield world, places


def expected(given, *, encode="exact", attack=None, rule=None, num_attached=0):
    """Leaves `[N, ...]` after an exchange, by the plain loop."""
    found = [leaf.copy() for leaf in jax.tree.leaves(given.models)]
    hostile = None if attack is None else ATTACKS[attack][1]
    for number, (world, places) in enumerate(class_worlds(given, num_attached)):
        new = plain.exchanged(
            world,
            plain.ENCODE[encode],
            hostile,
            None if rule is None else rule_of(rule, given, number),
        )
        for is_statistic, rows in ((False, new[0]), (True, new[1])):
            write(found, places, is_statistic, rows)
    return found


def rejected(given):
    """Of how many messages each receiver gets numbers that are not finite, `[N]`."""
    plan, leaves = plan_of(given.size), jax.tree.leaves(given.models)
    found = np.zeros(given.size)
    for i, slot in np.ndindex(given.slots.shape):
        j = given.slots[i, slot]
        if j == i or not given.arrived[i, slot] or given.weight[i, slot] == 0:
            continue
        for owner, blocks in plan.classes[:2]:
            numbers = [
                leaves[block.leaf][j][tuple(map(slice, block.start, block.stop))]
                for block in blocks
            ]
            is_shared = owner[i] == owner[j] != LOCAL
            if is_shared and not all(np.isfinite(one).all() for one in numbers):
                found[i] += 1
                break  # one message, however many of its classes
    return found


def columns(leaves, places, statistics):
    chosen = [
        leaves[leaf][at].reshape(len(leaves[leaf]), -1)
        for leaf, at in places
        if (leaf < NUM_STATISTICS) == statistics
    ]
    return np.concatenate(chosen, 1) if chosen else np.zeros((len(leaves[0]), 0))


def write(leaves, places, statistics, rows):
    end = 0
    for leaf, at in places:
        if (leaf < NUM_STATISTICS) == statistics:
            shape = leaves[leaf][at].shape
            size = int(np.prod(shape[1:]))
            leaves[leaf][at] = rows[:, end : end + size].reshape(shape)
            end += size


def rule_of(name, given, number):
    """A rule for the plain loop; buckets are filled in the order of the package."""
    case = CASES[name]
    key = jax.random.fold_in(jax.random.fold_in(the_key(), pipeline.RULE), number)
    keys = jax.random.split(key, given.size)
    num_slots = given.slots.shape[1]

    def apply(i, members, weight, slots):
        def order(copies):
            draws = jax.random.uniform(keys[i], (copies, num_slots), jnp.float32)
            there = [
                (float(draws[copy, slot]), copy, index)
                for copy in range(copies)
                for index, slot in enumerate(slots)
            ]
            return [(index, copy) for _, copy, index in sorted(there)]

        if len(members) < case.rule.min_members:
            return members[0]
        return case.expected(Has(members, weight, given.loss[i, slots], order))

    return apply


def the_key():
    return jax.random.key(3)


def one_of(names, choice):
    """One attack of several, of one kind; which it is may be traced."""
    chosen = [ATTACKS[name][0] for name in names]

    def hostile(scene):
        def rows(attack):
            return jnp.broadcast_to(
                at_scale(attack.hostile(scene), attack.scale), scene.rows.shape
            )

        return Hostile(
            jax.lax.switch(choice, [partial(rows, attack) for attack in chosen])
        )

    return chosen[0]._replace(hostile=hostile, scale=1.0)


def sent_numbers(given, number, *, rule):
    """Leaves after an exchange in which attackers send one number for all."""
    attack = ATTACKS["alie"][0]._replace(
        hostile=lambda scene: Hostile(jnp.full_like(scene.rows[:1], number))
    )
    return exchanged(given, rule=rule, attack=attack)


def route_of(given, num_attached=0):
    """As `peers_of`, of what may be traced."""

    def route(owner):
        own = jnp.arange(given.slots.shape[0], dtype=jnp.int32)[:, None]
        num_slots = given.slots.shape[1]
        is_attached = np.arange(num_slots) >= num_slots - num_attached
        same = (jnp.asarray(owner)[given.slots] == owner[:, None]) | is_attached[None]
        lost = jnp.where(same, 0, given.weight)
        weight = (given.weight - lost).at[:, 0].add(lost.sum(1))
        return Peers(jnp.where(same, given.slots, own), weight)

    return route


def exchanged(given, choice=0, **options):
    """Leaves after an exchange of the package; see `delivered`."""
    return jax.tree.leaves(delivered(given, choice, **options).models)


def delivered(
    given,
    choice=0,
    *,
    format="exact",
    names=(),
    rule=None,
    num_attached=0,
    attack=None,
):
    """What an exchange of the package gives; all of `given` may be traced."""
    attack = one_of(names, choice) if names else attack
    if attack is not None and num_attached:
        attack = attack._replace(byzantine=(), num_attached=num_attached)
    rule = None if rule is None else CASES[rule].rule
    plan = plan_of(given.slots.shape[0])
    exchange = make_exchange(plan, FORMATS[format] or channel.PERFECT, attack, rule)
    memory = () if attack is None else Memory(attackers=Attackers(given.is_byzantine))
    key, t = the_key(), jnp.int32(T)
    sent, _ = transmit(exchange, key, t, given.models, memory, given.before)

    loss = given.loss if rule is not None and rule.needs_losses else None
    return deliver(
        exchange,
        key,
        t,
        sent,
        given.models,
        given.models,
        route_of(given, num_attached),
        given.arrived,
        loss,
    )
