"""A little is enough: a shift that hides in the honest agents' own variation.

Baruch, Baruch, Goldberg (2019), "A little is enough: Circumventing defenses for
distributed learning", https://arxiv.org/abs/1902.06156.
"""

from statistics import NormalDist

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_scale
from p2pjax.exchange.attacks.honest import mean_and_deviation
from p2pjax.types import InputError


def alie(
    byzantine: Who,
    scale: float | None = None,
    *,
    sign: int = 1,
    local: bool = False,
) -> Attack:
    """Byzantine agents send `mean + scale * standard deviation` of honest messages.

    The line search starts from the receiver's own model instead of the mean.

    Args:
      byzantine: numbers of agents, or `attached(f)`.
      scale: z of the paper, see `alie_scale`; None: by line search, per receiver.
      sign: 1, or -1 for the other side of the mean, as He et al. (2022) have it.
      local: whether attackers know only what a receiver hears, not all agents.

    Example:
      >>> alie(byzantine=(0, 3), scale=alie_scale(25, 11)).scale  # of 25, 11 attack
      1.0675705238781414
    """
    check_scale("alie", scale, searched=True)
    if sign not in (1, -1):
        raise InputError(f"Need a sign of 1 or -1 for alie, got {sign!r}.")

    def hostile_fn(scene: Scene) -> Hostile:
        mean, deviation = mean_and_deviation(scene, local)
        return Hostile(scene.rows if scale is None else mean, sign * deviation)

    return placed(Attack("alie", hostile=hostile_fn, scale=scale), byzantine)


def alie_scale(num_agents: int, num_byzantine: int) -> float:
    """The paper's z: the largest shift that enough honest agents are beyond.

    With s = floor(n / 2) + 1 - m agents that attackers need on their side, it is the
    quantile (n - m - s) / (n - m) of the normal distribution. Refused where it is not
    positive, which it is not while attackers are few.

    Args:
      num_agents: n, that a receiver hears, with itself.
      num_byzantine: m, how many of them attack.

    Example:
      >>> round(alie_scale(20, 5), 3)
      0.253
    """
    if not 0 <= 2 * num_byzantine <= num_agents:
        raise InputError(
            f"Need no more than half of {num_agents} agents to be Byzantine for the z "
            f"of ALIE, got {num_byzantine}: give scale, or use the line search."
        )
    num_honest = num_agents - num_byzantine
    num_needed = num_agents // 2 + 1 - num_byzantine
    share = (num_honest - num_needed) / num_honest if num_honest else 0.0
    z = NormalDist().inv_cdf(share) if share > 0 else float("-inf")
    if z <= 0:
        raise InputError(
            f"Need a positive z for ALIE, got {z:.3g}: give scale, or use the line "
            "search."
        )
    return z
