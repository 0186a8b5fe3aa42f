"""What methods in which one agent at a time is awake take of attacks and rules.

There are no rounds whose messages could be known, so attackers have to do with what
they have themselves; a receiver merges one message at a time.
"""

from p2pjax.engines.adversity import check_published
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.attacks.checks import check_asynchronous
from p2pjax.exchange.channel import Channel, check_channel
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.robust.checking import check_pair_rule
from p2pjax.types import InputError

FORMATS = ("half", "uniform8")  # of messages


def check_waves(
    channel: Channel,
    attack: Attack | None,
    rule: Rule | None,
    name: str,
    num_tasks: int = 1,
) -> None:
    """Refuses what asynchronous methods cannot take.

    Args:
      channel: of the method.
      attack: on it.
      rule: of its receivers.
      name: of the method, for messages.
      num_tasks: that its agents have.
    """
    check_channel(channel, name, delays=True, formats=FORMATS)
    if attack is not None:
        check_asynchronous(attack, name)
        check_published(attack, name)
    if attack is not None and attack.poison is not None and num_tasks > 1:
        raise InputError(
            f"Need an attack on messages for {name}, got {attack.name}, which knows "
            "the examples of one task: use sign_flip or gaussian."
        )
    if rule is not None:
        check_pair_rule(rule, name)
