"""Partial averaging of messages that are compressed, noisy or hostile.

Everything is done for each owner class by itself: who hears whom, distances, attacks.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.adversity import check_published, check_set_rule, check_together
from p2pjax.engines.partial_servers import members_in, served
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import Channel, check_channel
from p2pjax.exchange.channel_checks import MODELS, SPARSE
from p2pjax.exchange.compression import Format
from p2pjax.exchange.encoding import class_bits
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import Exchange, Memory, Route, deliver, transmit
from p2pjax.exchange.published import published
from p2pjax.exchange.rejections import kept_of
from p2pjax.exchange.robust import Rule, check_rule
from p2pjax.exchange.robust.checking import check_pair_rule
from p2pjax.graphs.mixing_matrices import same_owner
from p2pjax.graphs.topology import Topology, unstack
from p2pjax.partial.averaging import Averaging, InputsOf, any_link
from p2pjax.partial.drift import updated
from p2pjax.types import LOCAL, Array, InputError, Key, PyTree

NAME = "Partial averaging"


def check_partial(
    averaging: Averaging, channel: Channel, attack: Attack | None, rule: Rule | None
) -> None:
    """Refuses what partial averaging cannot take.

    Args:
      averaging: how members average.
      channel: of the method.
      attack: on it.
      rule: of its receivers.
    """
    is_server, is_pair = averaging.peers is None, averaging.is_paired
    is_gossip = not (is_server or is_pair)
    formats = MODELS + SPARSE if is_gossip else MODELS
    check_channel(channel, NAME, formats=formats, noise=is_gossip)
    _check_many(averaging, channel, attack, rule)
    if is_server:
        check_published(attack, f"{NAME} by a server")
        check_set_rule(rule, NAME)
        return
    if attack is not None and attack.num_attached:
        raise InputError(
            f"Need attackers that are agents for {NAME}, got {attack.num_attached} "
            "attached to each agent: give numbers of agents."
        )
    if attack is not None and attack.prepare is not None and is_pair:
        raise InputError(
            f"Need one graph for {attack.name}, got pairs of agents: use "
            "metropolis_gossip."
        )
    if rule is not None and rule.needs_losses:
        raise InputError(
            f"Need a rule that looks at models alone for {NAME}, got {rule.name}: what "
            "is sent of them has no loss."
        )
    if rule is not None and is_pair:
        check_pair_rule(rule, "random pairs", ", or metropolis_gossip")
    check_together(channel, attack, rule)


def _check_many(
    averaging: Averaging, channel: Channel, attack: Attack | None, rule: Rule | None
) -> None:
    """Refuses what a gossip of several exchanges cannot take."""
    has_hostile = attack is not None and attack.hostile is not None
    is_exact = channel.format is None and rule is None and not has_hostile
    if is_exact:
        return
    if averaging.disturb is not None:
        raise InputError(
            "Need exact messages of honest agents and no robust rule for private "
            "gossip, got others: its noise cancels only if all that is sent is added "
            "up as it is; use per_model."
        )
    if averaging.settle is not None:
        raise InputError(
            "Need exact messages of honest agents and no robust rule for a tolerance, "
            "got others: members may never agree; give cycles alone."
        )


def check_groups(rule: Rule | None, graphs: Topology, plan: MixPlan) -> None:
    """Refuses a rule where a member of some model hears too few others.

    Args:
      rule: of the receivers.
      graphs: of all rounds, `[R, N, D]`.
      plan: owner classes.
    """
    if rule is None:
        return
    for one in unstack(graphs):
        for owner_class in plan.classes:
            if owner_class.is_shared:
                members = 1 + np.asarray(same_owner(one, owner_class.owner)).sum(1)
                is_local = owner_class.owner == LOCAL
                check_rule(rule, np.where(is_local, len(members), members))


def prepared_attack(
    attack: Attack | None, graphs: PyTree, plan: MixPlan, is_byzantine: np.ndarray
) -> np.ndarray | None:
    """`Attack.prepare` of each owner class, `[C, N]`; None where there is none.

    Args:
      attack: on the method.
      graphs: of all rounds, `[R, N, D]`.
      plan: owner classes.
      is_byzantine: `[N]`.
    """
    if attack is None or attack.prepare is None:
        return None
    return np.stack(
        [attack.prepare(graphs, is_byzantine, c.owner) for c in plan.classes]
    )


def arrivals(
    exchange: Exchange,
    averaging: Averaging,
    key: Key,
    t: Array,
    inputs: PyTree,
    inputs_of: InputsOf,
    plan: MixPlan,
) -> Array | None:
    """What arrives of the links of an averaging, `[N, D]`; None: all of it.

    Args:
      exchange: of the method.
      averaging: how members average.
      key: of the round.
      t: its number.
      inputs: of the round.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      plan: owner classes.
    """
    if not exchange.channel.loss_probability:
        return None
    linked = any_link(averaging, inputs_of, plan)
    arrived = exchange.arrive(jax.random.fold_in(key, 1), t, linked)
    return (
        arrived if averaging.together is None else averaging.together(inputs, arrived)
    )


def adverse_average(
    exchange: Exchange,
    averaging: Averaging,
    key: Key,
    t: Array,
    inputs_of: InputsOf,
    arrived: Array | None,
    params: PyTree,
    before: PyTree,
    memory: Memory | tuple[()],
) -> tuple[PyTree, Memory | tuple[()]]:
    """Parameters after an averaging, and what the exchange keeps.

    Args:
      exchange: of the method, not a plain one.
      averaging: how members average.
      key: of the round.
      t: its number.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      arrived: `[N, D]` of the links; None: all of it.
      params: leaves `[N, ...]`.
      before: the same before local training; () where no attack needs it.
      memory: of the exchange.
    """
    assert exchange.manner is not None
    sent, memory = transmit(exchange, key, t, params, memory, before)
    plan, peers_of = exchange.manner.plan, averaging.peers
    if peers_of is not None:
        # Attackers do not know what is lost.
        route: Route = lambda owner: peers_of(inputs_of(owner), owner, None)
        if arrived is not None:  # slot 0 is the agent itself
            arrived = jnp.pad(arrived, ((0, 0), (1, 0)), constant_values=True)
        found = deliver(exchange, key, t, sent, params, params, route, arrived)
        new, memory = found.models, kept_of(memory, found)
    else:
        rows, remembered = published(exchange, key, sent)
        if exchange.manner.rule is None:
            mean = exchange.combine(
                rows,
                params,
                lambda owner: averaging.combine(inputs_of(owner), owner, arrived),
                arrived,
            )
            is_in = partial(members_in, averaging, inputs_of, arrived)
            new = updated(params, mean, plan, is_in)
        else:
            new, memory = served(
                exchange, averaging, key, t, inputs_of, arrived, rows, params, memory
            )
        if isinstance(memory, Memory) and jax.tree.leaves(remembered):
            memory = memory._replace(attack=remembered)
    return new, memory


def bytes_of(
    averaging: Averaging,
    inputs_of: InputsOf,
    plan: MixPlan,
    params: PyTree,
    format: Format,
) -> Array:
    """That each agent sends in one averaging, `[N]`.

    Args:
      averaging: how members average.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      plan: owner classes.
      params: leaves `[N, ...]`; only their shapes are read.
      format: of messages.
    """
    bits: dict[int, Array] = {}  # [N, D] of every model, or of all of them together
    for owner_class, of_class in zip(
        plan.classes, class_bits(format, plan, params), strict=True
    ):
        owner = owner_class.owner
        linked = averaging.links(inputs_of(owner), owner)
        for model in np.unique(owner) if averaging.per_model else (0,):
            own = linked
            if averaging.per_model:
                own = linked & jnp.asarray(owner == model)[:, None]
            before = bits.get(int(model), jnp.zeros(own.shape))
            bits[int(model)] = before + own.astype(before.dtype) * of_class
    total = jnp.zeros(len(plan.classes[0].owner))
    for of_links in bits.values():
        is_sent = of_links > 0
        one = jnp.where(is_sent, of_links + format.message_bits, 0)
        total = total + jnp.ceil(one / 8).sum(1)
    return total
