"""Parts of claims in words, for lines and tables."""

from typing import Any

from experiments.claims.ledger import Operand, Part

SIGNS = {"greater": ">", "less": "<", "equal": "~", "number": "="}
PICKS = {"best": "best of", "worst": "worst of", "which": "best level of"}
Items = list[tuple[str, Any]]  # of a setting


def describe(part: Part) -> str:
    """What a part says, such as level_80 > level_0 (batch_size 500)."""
    sides = [part.left] if part.right is None else [part.left, part.right]
    leaves = [leaf for side in sides for leaf in _leaves(side) if leaf.value is None]
    shared = [
        item
        for item in part.left.setting.items()
        if all(item in leaf.setting.items() for leaf in leaves)
    ]
    texts = [_side(side, shared) for side in sides]
    if part.relation == "number":
        text = f"{texts[0]} = {part.value:g}"
    elif part.over:
        text = f"{texts[0]} {part.relation} over {part.over}"
    else:
        text = f" {SIGNS[part.relation]} ".join(texts)
    where = [f"{key} {value}" for key, value in shared]
    moments = {leaf.at for leaf in leaves}
    if part.over != "round" and moments in ({part.left.at}, {"best"}):
        where += _moment(part.left.at)
    if part.left.metric != "accuracy":
        where.append(part.left.metric)
    if part.reading and part.reading not in where:
        where.append(part.reading)
    return text + (f" ({', '.join(where)})" if where else "")


def _leaves(operand: Operand) -> list[Operand]:
    others = [other for other in (operand.minus, operand.ratio_to) if other]
    return [operand, *(leaf for other in others for leaf in _leaves(other))]


def _moment(at: int | str) -> list[str]:
    if at == "last":
        return []
    return ["top"] if at == "best" else [f"round {at}"]


def _side(operand: Operand, shared: Items) -> str:
    if operand.value is not None:
        return f"{operand.value:g}"
    text = operand.schemes[0]
    if operand.pick != "only":
        text = f"{PICKS[operand.pick]} {text} to {operand.schemes[-1]}"
    if operand.agent is not None:
        text += f" of agent {operand.agent}"
    if operand.until is not None:
        text += f" until {operand.until:g}"
    here = [item for item in operand.setting.items() if item not in shared]
    other = operand.minus or operand.ratio_to
    if other is None:
        return _at(text, here)
    if other.at != operand.at:
        alone = (one._replace(minus=None, ratio_to=None) for one in (operand, other))
        text, reference = (f"{_side(one, shared)} in round {one.at}" for one in alone)
    else:
        text, reference = _at(text, here), _side(other, shared)
    return f"({text} {'-' if operand.minus else '/'} {reference})"


def _at(text: str, items: Items) -> str:
    return text + "".join(f" at {key} {value}" for key, value in items)
