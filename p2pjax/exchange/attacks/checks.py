"""What attacks refuse: settings, and methods that they cannot be used with."""

from collections.abc import Sequence

import numpy as np

from p2pjax.exchange.attacks.base import Attack
from p2pjax.types import InputError


def check_asynchronous(attack: Attack, method: str) -> None:
    """Refuses attacks that need all messages of a round where there are no rounds.

    Args:
      attack: of the method.
      method: its name, for the message.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> check_asynchronous(attacks.sign_flip(byzantine=(0,)), "P2P-BN")  # no error
    """
    if attack.needs_others:
        raise InputError(
            f"Need all agents' messages of a round for {attack.name}, got {method}: "
            "use sign_flip, gaussian, label_flip or backdoor."
        )


def check_scale(name: str, scale: float | None, *, searched: bool = False) -> None:
    """Refuses factors that are no finite positive numbers.

    Args:
      name: of the attack.
      scale: the factor.
      searched: whether it may be None, for the line search.
    """
    if scale is None and searched:
        return
    is_number = isinstance(scale, int | float | np.number) and scale is not True
    if not is_number or not 0 < float(scale or 0) < np.inf:
        mend = "give a positive number" + ", or None to search it" * searched
        raise InputError(
            f"Need a finite scale above 0 for {name}, got {scale!r}: {mend}."
        )


def check_choice(name: str, what: str, given: str, known: Sequence[str]) -> None:
    """Refuses names that an attack does not know."""
    if given not in known:
        raise InputError(
            f"Need {what} of {name} among {', '.join(known)}, got {given!r}."
        )
