"""Schemes in files: partial models, their members and dependencies in plain TOML.

network = "64=24=12=10"     # of all agents; or networks, a list with one for each
agents = 8                  # how many, where one network is for all
cross_model = false         # average weights between models of which none is lower

[models.language]
cells = "64-12-6-10"
members = "all"

[models.dialect]            # one model for each group, as in Scheme
cells = "0-6-3-0"
groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
depends = ["language"]
rate = 0.5                  # factor of the updates of its parameters
drift_threshold = 0.1       # of dynamic averaging, in the place of the method's

[models.speaker]
cells = "0-3-2-0"
groups = [[0, 1], [2, 3], [4, 5], [6, 7]]
depends = ["dialect"]       # each on the dialect that has all of its members
"""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from p2pjax.partial import placement
from p2pjax.partial.schemes import (
    PartialModel,
    Scheme,
    model_layout,
    network_layout,
)
from p2pjax.types import InputError, Layout

MOST_BYTES = 2**20
_SCHEME_KEYS = ("network", "networks", "agents", "cross_model", "neutral_input")
_NUMBERS = ("rate", "drift_threshold")
_MODEL_KEYS = ("cells", "members", "groups", "depends", "offsets", *_NUMBERS)


class _Named(NamedTuple):
    """A model of a file; of groups there is one for each."""

    name: str  # as in the file
    model: PartialModel
    depends: tuple[str, ...]


def read_scheme(
    path: str | Path, *, network: Layout | None = None, num_agents: int | None = None
) -> Scheme:
    """The scheme that a TOML file describes; what does not fit together is refused.

    A file has `network` and `agents`, or `networks`, and a table `[models.NAME]` for
    each model with its `cells` and its `members` (numbers of agents, or "all") or
    `groups`, a list of lists with a model each. A model may have `depends`, names of
    models; `rate`, a factor of its updates; `drift_threshold`, of dynamic averaging;
    and `offsets`, a list of first columns for each member. There is an example in
    `p2pjax.partial.scheme_files`.

    Args:
      path: of the file.
      network: of all agents, where the file does not say; else it must be the same.
      num_agents: likewise.

    Example:
      >>> import tempfile, pathlib
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "pair.toml"
      >>> _ = path.write_text('''
      ... network = "4=3=2"
      ... agents = 3
      ... [models.all]
      ... cells = "4-1-2"
      ... members = "all"
      ... [models.pair]
      ... cells = "0-1-0"
      ... members = [0, 2]
      ... depends = ["all"]
      ... ''')
      >>> scheme = read_scheme(path)
      >>> scheme.models[1].members, scheme.depends
      ((0, 2), ((1, 0),))
    """
    path = Path(path)
    table = _table(path)
    try:
        return _scheme(table, network, num_agents)
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from error


def _table(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"Need a file with a scheme, but {path} cannot be read: {error.strerror}."
        ) from error
    if len(content) > MOST_BYTES:
        raise InputError(f"Need at most {MOST_BYTES} bytes of a scheme, got more.")
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"Need a scheme in TOML, but {path} is none: {error}."
        ) from error


def _scheme(
    table: Mapping[str, Any], network: Layout | None, num_agents: int | None
) -> Scheme:
    _check_keys(table, (*_SCHEME_KEYS, "models"), "a scheme")
    networks = _networks(table, network, num_agents)
    models = table.get("models", {})
    if not isinstance(models, dict) or not models:
        raise InputError("Need a table [models.NAME] or more, got none.")
    named = [
        found
        for name, fields in models.items()
        for found in _models(name, fields, len(networks))
    ]
    pairs = _dependencies(named)
    listed = "; ".join(f"{i} is {one.name}" for i, one in enumerate(named))
    scheme = Scheme(
        networks,
        tuple(one.model for one in named),
        pairs,
        cross_model=_is_set(table, "cross_model"),
        neutral_input=_is_set(table, "neutral_input"),
    )
    try:
        placement.align(placement.attach(scheme))
    except InputError as error:
        raise InputError(f"{error} (Models: {listed}.)") from error
    return scheme


def _networks(
    table: Mapping[str, Any], network: Layout | None, num_agents: int | None
) -> tuple[Layout, ...]:
    if "networks" in table:
        if "network" in table or "agents" in table:
            raise InputError(
                "Need networks, a list with one for each agent, or network and agents, "
                "got both."
            )
        texts = _list(table["networks"], "networks", str)
        networks = tuple(map(network_layout, texts))
    else:
        own, count = table.get("network"), table.get("agents", num_agents)
        layout = network if own is None else network_layout(str(own))
        if layout is None or count is None:
            raise InputError(
                "Need network and agents, or networks, in the file, got neither."
            )
        if type(count) is not int or not 1 <= count <= 10**6:
            raise InputError(f"Need a number of agents of 1 or more, got {count!r}.")
        networks = (layout,) * count
    if num_agents is not None and len(networks) != num_agents:
        raise InputError(
            f"Need a scheme of {num_agents} agents, got one of {len(networks)}: change "
            "the file or the number of agents."
        )
    if network is not None and any(
        (one[0], one[-1]) != (network[0], network[-1]) for one in networks
    ):
        raise InputError(
            f"Need networks with {network[0]} inputs and {network[-1]} outputs, as the "
            "data have, got others."
        )
    return networks


def _models(name: str, fields: Any, num_agents: int) -> list[_Named]:
    if not isinstance(fields, dict):
        raise InputError(f"Need a table [models.{name}], got {fields!r}.")
    _check_keys(fields, _MODEL_KEYS, f"model {name}")
    if "cells" not in fields:
        raise InputError(f"Need the cells of model {name}, as in 64-12-10, got none.")
    cells = model_layout(str(fields["cells"]))
    if ("members" in fields) == ("groups" in fields):
        raise InputError(f"Need members or groups of model {name}, one of the two.")
    if "groups" in fields:
        groups = _list(fields["groups"], f"groups of model {name}", list)
    else:
        members = fields["members"]
        groups = [list(range(num_agents)) if members == "all" else members]
    offsets = fields.get("offsets")
    if offsets is not None and "groups" in fields:
        raise InputError(f"Need members, not groups, of model {name} for offsets.")
    depends = _list(fields.get("depends", []), f"depends of model {name}", str)
    numbers = {
        key: _number(fields[key], key, name) for key in _NUMBERS if key in fields
    }
    found = []
    for group in groups:
        who = _list(group, f"members of model {name}", int)
        if not who:
            raise InputError(f"Need an agent that implements model {name}, got none.")
        outside = [agent for agent in who if not 0 <= agent < num_agents]
        if outside:
            raise InputError(
                f"Need members of model {name} among agents 0 to {num_agents - 1}, got "
                f"{outside}."
            )
        columns = None
        if offsets is not None:
            rows = _list(offsets, f"offsets of model {name}", list)
            columns = tuple(tuple(_list(row, "offsets", int)) for row in rows)
        model = PartialModel(cells, tuple(who), columns, **numbers)
        found.append(_Named(name, model, tuple(depends)))
    return found


def _dependencies(named: Sequence[_Named]) -> tuple[tuple[int, int], ...]:
    pairs = []
    for index, one in enumerate(named):
        for other in one.depends:
            same = [i for i, two in enumerate(named) if two.name == other]
            if not same:
                known = ", ".join(dict.fromkeys(two.name for two in named))
                raise InputError(
                    f"Model {one.name} depends on {other}, which is no model of the "
                    f"file: it has {known}."
                )
            around = [
                i for i in same if set(one.model.members) <= {*named[i].model.members}
            ]
            if len(around) != 1:
                raise InputError(
                    f"Model {one.name} of agents {list(one.model.members)} depends on "
                    f"{other}, which {len(around) or 'no'} "
                    f"{'groups' if around else 'group'} of all these agents have: a "
                    "member must implement what its model depends on."
                )
            pairs.append((index, around[0]))
    return tuple(pairs)


def _check_keys(table: Mapping[str, Any], known: Collection[str], what: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise InputError(
            f"Need {', '.join(known)} in {what}, got '{unknown[0]}' too: remove it."
        )


def _is_set(table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"Need true or false for {key}, got {value!r}.")
    return value


def _number(value: Any, what: str, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"Need a number as the {what} of model {name}, got {value!r}.")
    return float(value)


def _list(value: Any, what: str, kind: type) -> list[Any]:
    if not isinstance(value, list) or any(type(one) is not kind for one in value):
        plural = {str: "texts", int: "whole numbers", list: "lists"}[kind]
        raise InputError(f"Need a list of {plural} as {what}, got {value!r}.")
    return value
