"""Who attacks: agents of the simulation, or attackers beside each of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from p2pjax.exchange.attacks.base import Attack
from p2pjax.types import InputError


class Attached(NamedTuple):
    """Attackers beside each agent, who are no agents of the simulation."""

    num_attackers: int


Who = Sequence[int] | Attached  # numbers of agents, or attackers beside each agent


def attached(num_attackers: int) -> Attached:
    """Each agent gets so many Byzantine neighbours that are no agents themselves.

    All agents of the simulation are honest then. As in Gaucher et al. (2025),
    "Unified breakdown analysis for Byzantine robust gossip",
    https://arxiv.org/abs/2410.10418.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> attacks.alie(byzantine=attached(3)).num_attached
      3
    """
    if not _is_whole(num_attackers) or num_attackers < 1:
        raise InputError(
            "Need a whole number of 1 or more attackers beside each agent, got "
            f"{num_attackers!r}."
        )
    return Attached(int(num_attackers))


def placed(attack: Attack, byzantine: Who) -> Attack:
    """The attack with its attackers; refuses those that it cannot have.

    Args:
      attack: without attackers.
      byzantine: numbers of agents, or `attached(f)`.
    """
    if isinstance(byzantine, Attached):
        if attack.poison is not None or attack.per_sender:
            raise InputError(
                f"Need attackers that are agents for {attack.name}, who send what "
                f"becomes of their own models, got attached("
                f"{byzantine.num_attackers}): give numbers of agents."
            )
        return attack._replace(num_attached=byzantine.num_attackers)
    numbers = np.atleast_1d(np.asarray(byzantine))
    is_list = numbers.ndim == 1 and (numbers.dtype.kind in "iu" or not numbers.size)
    if not is_list or len(np.unique(numbers)) < len(numbers) or (numbers < 0).any():
        raise InputError(
            "Need the numbers of the agents that attack, each once, or attached(f), "
            f"got {byzantine!r}."
        )
    return attack._replace(byzantine=tuple(sorted(numbers.astype(int).tolist())))


def byzantine_mask(attack: Attack, num_agents: int) -> np.ndarray:
    """Which agents attack, `[N]` bool; refuses agents that do not exist.

    Args:
      attack: with its attackers.
      num_agents: N.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> byzantine_mask(attacks.foe(byzantine=(1,)), 3).tolist()
      [False, True, False]
    """
    unknown = [agent for agent in attack.byzantine if agent >= num_agents]
    if unknown or len(attack.byzantine) >= num_agents:
        raise InputError(
            f"Need Byzantine agents from 0 to {num_agents - 1} and an honest one "
            f"beside them, got {list(attack.byzantine)}: give other numbers."
        )
    return np.isin(np.arange(num_agents), attack.byzantine)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
