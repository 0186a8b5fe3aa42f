"""Whether training went on long enough to speak: before all other verdicts."""

from collections.abc import Sequence

import numpy as np

from experiments.claims.evidence import UNTIL_BEST, Group
from experiments.claims.ledger import MARGIN, Budget, Operand
from experiments.claims.rule import MIN_RUNS

COUNTS = ("messages", "bytes", "bytes_down")  # exact, however short the training is
SHARE = 1 / 5  # of the source's training, below which curves must have levelled off


def too_short(
    groups: Sequence[Group],
    operand: Operand,
    budget: Budget,
    num_runs: int,
    effect: float,
) -> str:
    """Why a part cannot be judged yet; "" if it can.

    Args:
      groups: the curves behind the part.
      operand: what is measured, and when.
      budget: what the source spent.
      num_runs: runs that both sides have.
      effect: size of what is seen, or the margin of what should be equal.
    """
    if num_runs < MIN_RUNS:
        return f"{num_runs} of at least {MIN_RUNS} runs"
    if operand.metric in COUNTS and operand.at != "best":
        return ""
    lines = [line for group in groups for line in group.values()]
    ran = min(line["round"][-1] for line in lines)
    printed = budget.rounds
    if isinstance(operand.at, int):  # the source speaks of this moment
        ran = printed = operand.at
    if printed is not None and ran >= printed and budget.data >= 1:
        return ""
    metric = "accuracy" if operand.metric in UNTIL_BEST else operand.metric
    moves = [movement(group, metric, ran) for group in groups]
    if any(move is None for move in moves):
        return f"{_share(ran, printed)}, and one evaluation does not show what moves"
    moved = max(abs(move) for move in moves if move is not None)
    seen = f"curves still move by {moved:.3f} in the last quarter"
    if printed is None:
        is_level = moved <= max(MARGIN, abs(effect))
        return "" if is_level else f"{seen}, and no number of rounds is printed"
    if moved > abs(effect):
        return f"{seen}, more than the {abs(effect):.3f} seen; {_share(ran, printed)}"
    if ran / printed * min(1, budget.data) < SHARE and moved > MARGIN:
        return f"{_share(ran, printed)} and {seen}"
    return ""


def movement(group: Group, metric: str, end: int) -> float | None:
    """Change in the last quarter of training, by a line through the mean curve.

    None with fewer than two evaluations from three quarters on.
    """
    if any(metric not in line for line in group.values()):
        return None
    curves = [
        {
            r: value
            for r, value in zip(line["round"], line[metric], strict=True)
            if r <= end and value is not None
        }
        for line in group.values()
    ]
    common = sorted(set(curves[0]).intersection(*curves))
    first = max((r for r in common if r <= 0.75 * end), default=None)
    rounds = [] if first is None else [r for r in common if r >= first]
    if len(rounds) < 2:
        return None
    means = [np.mean([curve[r] for curve in curves]) for r in rounds]
    return float(np.polyfit(rounds, means, 1)[0] * (rounds[-1] - rounds[0]))


def _share(ran: int, printed: int | None) -> str:
    if printed is None:
        return f"{ran} rounds, of which the source prints no number"
    return f"{ran} of {printed} rounds"
