"""How much of the others each agent may know and use: limits on requests, views.

Both are factors of a study: a flag with several values is run with each of them, for
the methods to which it means something.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.connections.options import Options
from experiments.engine import design


class Limits(NamedTuple):
    """One combination; the fields are flags, and 0 is no limit."""

    max_in_load: int = 0
    view_size: int = 0


NOT_LIMITED = {"max_in_load": "none", "view_size": "all"}  # as rows have it
_OF_GRAPHS = ("max_in_load",)  # a graph says whom agents know
_FACTORS: Mapping[str, tuple[str, ...]] = {
    "sparse": _OF_GRAPHS,
    "oracle": _OF_GRAPHS,
    "aucccr": _OF_GRAPHS,
    "d_cliques": (),
    "local": (),
}


def limits_of(config: Options, method: str) -> list[tuple[dict[str, Any], Limits]]:
    """What rows say of each combination, and the combination.

    Args:
      config: of the experiment.
      method: its name.
    """
    factors = {name: getattr(config, name) for name in Limits._fields}
    relevant = _FACTORS.get(method, Limits._fields)
    return [
        ({k: v or NOT_LIMITED[k] for k, v in setting.items()}, Limits(**named))
        for setting, named in design.combinations(factors, relevant)
    ]
