"""Refusals and warnings of robust rules, in a sentence each."""

import math
import numbers
import warnings

import numpy as np

from p2pjax.exchange.robust.base import Rule
from p2pjax.types import Array, InputError

PAIR_RULES = ("self_centered_clipping", "balance")  # make sense of one message


def check_pair_rule(rule: Rule, what: str, or_else: str = "") -> None:
    """Refuses rules that cannot do with one message at a time.

    Args:
      rule: of all receivers.
      what: has one message at a time, for the message.
      or_else: what else would help, for the message.

    Example:
      >>> from p2pjax.exchange import robust
      >>> check_pair_rule(robust.median(1), "P2P-BN")
      Traceback (most recent call last):
      p2pjax.types.InputError: Need a rule for one message for P2P-BN, got median: \
use self_centered_clipping or balance.
    """
    if rule.name not in PAIR_RULES:
        raise InputError(
            f"Need a rule for one message for {what}, got {rule.name}: use "
            f"{' or '.join(PAIR_RULES)}{or_else}."
        )


def check_rule(rule: Rule, num_members: Array, weight: Array | None = None) -> None:
    """Refuses a rule where some receiver has too few members for it.

    Args:
      rule: of all receivers.
      num_members: of each receiver, itself included, `[N]`.
      weight: mixing weights `[N, K]`, own in slot 0, padding 0, for rules that tolerate
        a weight; None for equal ones.

    Example:
      >>> from p2pjax.exchange import robust
      >>> check_rule(robust.median(1), np.array([3, 5, 4]))
      >>> check_rule(robust.median(2), np.array([5, 4, 6]))
      Traceback (most recent call last):
      ...
      p2pjax.types.InputError: Need more than 2 x 2 messages (with one's own) for \
median, got 4 at agent 1: lower b or use a denser graph.
    """
    num_members = np.asarray(num_members)
    agent = int(np.argmin(num_members))
    if num_members[agent] < rule.min_members:
        b = rule.max_byzantine
        times = (rule.min_members - 1) // max(2 * b, 1)
        limit = f"2 x {b}" if times == 1 else f"2 x {b} x {times}"
        raise InputError(
            f"Need more than {limit} messages (with one's own) for {rule.name}, got "
            f"{num_members[agent]} at agent {agent}: lower b or use a denser graph."
        )
    if rule.doubt is not None:
        sentence = rule.doubt(
            num_members, None if weight is None else np.asarray(weight)
        )
        if sentence is not None:
            warnings.warn(sentence, stacklevel=2)


def check_count(value: int, what: str, least: int = 0) -> int:
    """A whole number that is not too small.

    Args:
      value: to be checked.
      what: it is, for the message.
      least: that is allowed.

    Example:
      >>> check_count(np.int64(2), "max_byzantine")
      2
    """
    if (
        not isinstance(value, numbers.Integral)
        or isinstance(value, bool)
        or value < least
    ):
        raise InputError(
            f"Need {what} of {least} or more, a whole number, got {value}."
        )
    return int(value)


def check_positive(value: float, what: str) -> float:
    """A finite number above 0.

    Args:
      value: to be checked.
      what: it is, for the message.

    Example:
      >>> check_positive(0.5, "radius")
      0.5
    """
    if not isinstance(value, numbers.Real) or not 0 < value < math.inf:
        raise InputError(f"Need a positive {what}, got {value}.")
    return float(value)


def check_share(value: float, what: str) -> float:
    """A number above 0, up to 1.

    Args:
      value: to be checked.
      what: it is, for the message.

    Example:
      >>> check_share(1.0, "alpha")
      1.0
    """
    if not isinstance(value, numbers.Real) or not 0 < value <= 1:
        raise InputError(f"Need {what} above 0 and up to 1, got {value}.")
    return float(value)
