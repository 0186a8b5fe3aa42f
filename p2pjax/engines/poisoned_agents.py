"""Attacks on the data of agents, in methods whose messages are not those of a round.

Their Byzantine agents follow the protocol and learn from poisoned batches. Who they are
is an input of the round, and kept in the state for those who judge models.
"""

import jax.numpy as jnp

from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.pipeline import Attackers
from p2pjax.training.learner import Learner
from p2pjax.training.poisoning import poisoned
from p2pjax.types import Array, InputError

Mask = Array | tuple[()]  # [N] bool: who attacks; () where no agent can


def check_data_attack(attack: Attack | None, name: str) -> None:
    """Refuses attacks that replace messages.

    Args:
      attack: on the method; None for none.
      name: of the method, for messages.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> check_data_attack(attacks.backdoor((0,)), "DFCA")  # no error
    """
    if attack is not None and (attack.hostile is not None or attack.poison is None):
        raise InputError(
            f"Need an attack on the data of agents for {name}, whose messages are not "
            f"all known at one time, got {attack.name}: use label_flip, or backdoor "
            "without boost."
        )


def poisoned_learner(learner: Learner, attack: Attack | None) -> Learner:
    """The learner, whose Byzantine agents learn from poisoned batches.

    Args:
      learner: of all agents.
      attack: None for none.
    """
    if attack is None or attack.poison is None:
        return learner
    return poisoned(learner, attack.poison)


def mask_at_start(attack: Attack | None, num_agents: int) -> Mask:
    """Before the first round.

    Args:
      attack: None for none.
      num_agents: N.

    Example:
      >>> mask_at_start(None, 3)
      ()
    """
    return () if attack is None else jnp.zeros(num_agents, bool)


def mask_of(attackers: Attackers | None) -> Mask:
    """Of a round.

    Args:
      attackers: of the round; None for none.
    """
    return () if attackers is None else jnp.asarray(attackers.is_byzantine)


def not_judged(mask: Mask) -> Array | None:
    """For `Models.is_byzantine`.

    Args:
      mask: of the state.

    Example:
      >>> not_judged(()) is None
      True
    """
    return None if isinstance(mask, tuple) else mask
