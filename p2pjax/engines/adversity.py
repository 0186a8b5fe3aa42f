"""What methods can take of channels, attacks and robust rules; the rest is refused."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.engines.protocol import GossipProtocol
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.attacks.attackers import byzantine_mask
from p2pjax.exchange.attacks.honest_graph import warn_if_honest_disconnected
from p2pjax.exchange.channel import Channel, check_channel
from p2pjax.exchange.compression import Format
from p2pjax.exchange.pipeline import Attackers, Memory
from p2pjax.exchange.published import is_same_for_all
from p2pjax.exchange.robust import Rule, check_rule
from p2pjax.graphs.topology import Topology, from_peers
from p2pjax.types import Array, InputError, Peers, PyTree


def check_gossip(
    protocol: GossipProtocol,
    channel: Channel,
    attack: Attack | None,
    rule: Rule | None,
    name: str,
    score_before: bool,
) -> None:
    """Refuses what a protocol cannot take.

    Args:
      protocol: of the method.
      channel: of the method.
      attack: on it.
      rule: of its receivers.
      name: of the method, for messages.
      score_before: whether exchanges are kept pending.
    """
    check_channel(
        channel,
        name,
        loses=protocol.takes_losses,
        edges=True,
        stale=protocol.takes_stale,
        noise=protocol.takes_noise,
        formats=protocol.formats,
    )
    if protocol.needs_gradient and score_before:
        raise InputError(
            f"{name} reads the gradient of each step, which is gone when a pending "
            "exchange takes place: use score_before=False."
        )
    if score_before and any(stage.burst > 1 for stage in channel.drops):
        raise InputError(
            "Need exchanges that take place at once for losses in bursts, got "
            "score_before=True, which keeps them pending: use score_before=False."
        )
    if score_before and protocol.num_exchanges > 1:
        raise InputError(
            "Need one exchange after local training for scores before it, got "
            f"num_exchanges={protocol.num_exchanges}: use score_before=False."
        )
    if score_before and rule is not None and rule.needs_losses:
        raise InputError(
            f"Need exchanges that take place at once for {rule.name}, which tries "
            "models on data of their receivers, got score_before=True, which keeps "
            "them pending: use score_before=False."
        )
    if attack is not None and protocol.attack_refusal:
        raise InputError(protocol.attack_refusal)
    if attack is not None and attack.needs_before and protocol.update_attack_refusal:
        raise InputError(protocol.update_attack_refusal)
    is_hostile = attack is not None and attack.hostile is not None
    if is_hostile and protocol.message_attack_refusal:
        raise InputError(protocol.message_attack_refusal)
    if attack is not None and attack.num_attached != protocol.num_attached:
        raise InputError(
            f"Need dpsgd for attackers beside each agent, got {name} without a place "
            "for them: use dpsgd, or numbers of agents for `byzantine`."
        )
    if rule is not None and protocol.rule_refusal:
        raise InputError(protocol.rule_refusal)
    check_together(channel, attack, rule)


def check_together(channel: Channel, attack: Attack | None, rule: Rule | None) -> None:
    """Refuses channels, attacks and rules that do not go together.

    Args:
      channel: of the method.
      attack: on it.
      rule: of its receivers.
    """
    format = channel.format
    if format is not None and format.select is not None and rule is not None:
        raise InputError(
            f"Need exact or quantised messages for a robust rule, got {format.name}: "
            "distances of partly sent models mean nothing."
        )
    is_hostile = attack is not None and attack.hostile is not None
    if attack is not None and is_hostile:
        _check_format(attack, format)
    if attack is not None and is_hostile and channel.is_stale:
        _check_stale(attack, format)
    if attack is None or attack.hostile is None or attack.scale is not None:
        return
    if rule is None:
        raise InputError(
            f"Need a scale of {attack.name} where models are mixed without a robust "
            "rule, got None: the damage grows with it without bound; give scale."
        )
    if rule.needs_losses or (rule.combine is not None and rule.premix is not None):
        raise InputError(
            f"Need a scale of {attack.name} for {rule.name}, got None: what the rule "
            "would do cannot be searched cheaply; give scale."
        )


def _check_stale(attack: Attack, format: Format | None) -> None:
    """Refuses attacks that read more than the messages of the exchange before."""
    mend = "use another attack, or a channel without stale."
    if attack.needs_before:
        raise InputError(
            f"Need messages of the same exchange for {attack.name} of what was "
            f"learned, got stale ones, whose models before learning are gone: {mend}"
        )
    if attack.scale is None:
        raise InputError(
            f"Need a scale of {attack.name} for stale messages, got None: attackers do "
            "not know the models that receivers will have when they arrive; give scale."
        )
    if format is not None and format.select is not None:
        raise InputError(
            f"Need whole models for an attack by stale messages, got {format.name}, "
            "whose models are gone when its parts arrive: use a channel without stale."
        )


def _check_format(attack: Attack, format: Format | None) -> None:
    """Refuses attacks whose messages cannot be put into a format."""
    if format is None or format.decode is not None:
        return
    if attack.num_attached:
        raise InputError(
            f"Need attackers that are agents for messages in {format.name}, got "
            f"{attack.num_attached} attached to each agent: give numbers of agents, or "
            "use quantize(16), quantize(8) or no format."
        )
    if not is_same_for_all(attack):
        raise InputError(
            "Need an attack with a scale that sends the same to all receivers for "
            f"messages in {format.name}, which looks at all of a message, got "
            f"{attack.name} of each receiver: use one with local=False, or "
            "quantize(16), quantize(8) or no format."
        )


def plan_attack(
    attack: Attack | None,
    rule: Rule | None,
    graphs: Topology | Peers,
    num_agents: int,
    num_rounds: int,
) -> Attackers | None:
    """Who attacks in every round, `[R, ...]`; checks the graphs for attack and rule.

    Args:
      attack: None for none.
      rule: of the receivers.
      graphs: of the run, `[G, N, D]`, or weighted `[G, N, K]`.
      num_agents: N.
      num_rounds: R.
    """
    links = from_peers(graphs) if isinstance(graphs, Peers) else graphs
    num_attached = 0 if attack is None else attack.num_attached
    if rule is not None:
        members = 1 + num_attached + np.asarray(links.mask).sum(-1)
        check_rule(rule, members.reshape(-1, num_agents).min(0))
    if attack is None:
        return None
    is_byzantine = byzantine_mask(attack, num_agents)
    if rule is not None:
        warn_if_honest_disconnected(links, attack)
    prepared: PyTree = None
    if attack.prepare is not None:
        one = attack.prepare(links, is_byzantine, None)
        prepared = np.tile(one, (num_rounds, 1, 1))  # [R, 1, N]
    return Attackers(np.tile(is_byzantine, (num_rounds, 1)), prepared)


class Attacked(NamedTuple):
    """Inputs of a round whose method is attacked."""

    inputs: PyTree  # of the method
    attackers: Attackers


def check_published(attack: Attack | None, name: str) -> None:
    """Refuses attacks on methods whose receivers all get the same from a sender.

    Args:
      attack: on the method; None for none.
      name: of the method, for messages.
    """
    if attack is None:
        return
    if attack.num_attached:
        raise InputError(
            f"Need attackers that are agents for {name}, got {attack.num_attached} "
            "attached to each agent: give numbers of agents."
        )
    if attack.hostile is not None and attack.scale is None:
        raise InputError(
            f"Need a scale of {attack.name} for {name}, got None: what it searches for "
            "each receiver is one message for all of them here; give scale."
        )
    if not is_same_for_all(attack):
        raise InputError(
            f"Need an attack that sends the same to all receivers for {name}, got "
            f"{attack.name} of each receiver: use one with local=False, or D-PSGD."
        )


def check_set_rule(rule: Rule | None, name: str) -> None:
    """Refuses rules in which a server would be one of those who send messages.

    Args:
      rule: of the server; None for none.
      name: of the method, for messages.
    """
    if rule is not None and not rule.is_set:
        raise InputError(
            f"Need a rule for a set of messages for the server of {name}, got "
            f"{rule.name}, in which the receiver's own model counts: use median, "
            "trimmed_mean, krum, multi_krum, geometric_median, centered_clipping or "
            "nna."
        )


def attacked(
    attack: Attack | None,
    inputs: PyTree,
    num_agents: int,
    num_rounds: int,
    prepared: np.ndarray | None = None,
) -> PyTree:
    """Inputs of all rounds, with the attackers if there are any.

    Args:
      attack: None for none.
      inputs: of the method, leaves `[R, ...]`.
      num_agents: N.
      num_rounds: R.
      prepared: `Attack.prepare` of each owner class, `[C, N]`.
    """
    if attack is None:
        return inputs
    is_byzantine = np.tile(byzantine_mask(attack, num_agents), (num_rounds, 1))
    if prepared is not None:
        prepared = np.tile(prepared, (num_rounds, 1, 1))
    return Attacked(inputs, Attackers(is_byzantine, prepared))


def inputs_and_attackers(inputs: PyTree) -> tuple[PyTree, Attackers | None]:
    """What `attacked` has put together, of one round.

    Args:
      inputs: of the round.
    """
    return inputs if isinstance(inputs, Attacked) else (inputs, None)


def with_attackers(
    memory: Memory | tuple[()], attackers: Attackers | None
) -> Memory | tuple[()]:
    """What an exchange keeps, with the attackers of another round.

    Args:
      memory: of the exchange.
      attackers: None for none.
    """
    if attackers is None:
        return memory
    assert isinstance(memory, Memory)
    return memory._replace(attackers=attackers)


def poisoned_agents(attack: Attack | None, attackers: Attackers | None) -> Array | None:
    """`[N]`: agents that learn from poisoned data; None where there is none.

    Args:
      attack: None for none.
      attackers: of the round.
    """
    if attack is None or attack.poison is None or attackers is None:
        return None
    return attackers.is_byzantine


def no_attackers(attack: Attack | None, num_agents: int) -> Attackers | None:
    """What `plan_attack` makes of one round, before the first; None without attack.

    Args:
      attack: None for none.
      num_agents: N.
    """
    if attack is None:
        return None
    prepared = None if attack.prepare is None else jnp.zeros((1, num_agents))
    return Attackers(jnp.zeros(num_agents, bool), prepared)


def byzantine_agents(attack: Attack | None, memory: Memory | tuple[()]) -> Array | None:
    """Who attacks, `[N]`, of a state; None where no agent can.

    Args:
      attack: None for none.
      memory: of the exchange.
    """
    if attack is None or not isinstance(memory, Memory):
        return None
    assert isinstance(memory.attackers, Attackers)
    return memory.attackers.is_byzantine
