"""Partial models whose members change while agents learn.

Bouchra Pilet, Frey, Taiani (2021) leave open how slices are chosen where it is not
known which agents have a task in common, and whether agents would rather leave a model.
Here the cells of every model stay where they are, and who averages them changes: every
so many rounds groups are found in what agents have learned, and agents leave models
that do not pay. Groups are numbers that a round is given, so that no program is made
anew.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.partial.averaging import Averaging
from p2pjax.partial.grouping import (
    alike,
    find_groups,
    nested_groups,
    update_similarity,
)
from p2pjax.partial.schemes import Scheme, SchemeFn, dependency_closure
from p2pjax.tasks.profiles import profiles
from p2pjax.types import LOCAL, Array, InputError, PyTree


class Learned(NamedTuple):
    """What groups can be found in."""

    outputs: PyTree  # leaves [N, ..., classes]: weights of the output layer
    predictions: Callable[[Mapping[str, Any]], Array]  # examples -> [N, Q, k]


class Grouping(NamedTuple):
    """How groups are found in what agents have learned.

    Example:
      >>> by_output_layer().depth
      1
    """

    measure: Callable[[Learned], PyTree]  # leaves [N, ...], on the device
    # (measured when groups were last looked for, measured now) -> [N, depth], LOCAL
    # for agents in no group; on the host
    find: Callable[[PyTree, PyTree], np.ndarray]
    depth: int = 1  # models that it finds members for
    predicts: bool = False  # whether it reads predictions


class Changing(NamedTuple):
    """Partial models, and how their members change.

    Example:
      >>> from p2pjax.partial.levels import slots
      >>> changing(slots(0.6, 0.4), by_output_layer(), every=20).leave_after is None
      True
    """

    scheme: Scheme | SchemeFn
    groupings: tuple[Grouping, ...]
    every: int
    leave_after: int | None = None

    @property
    def num_found(self) -> int:
        """Models, the last ones of the scheme, whose members are found."""
        return sum(grouping.depth for grouping in self.groupings)


class Groups(NamedTuple):
    """Who averages which models in a round."""

    group: Array  # [N, M] agents with equal numbers average model m; LOCAL for none
    is_used: Array  # [M] bool: models that are averaged


def changing(
    scheme: Scheme | SchemeFn,
    *groupings: Grouping,
    every: int,
    leave_after: int | None = None,
) -> Changing:
    """Models whose members are found while agents train, for `partial_averaging`.

    The scheme says which cells a model has, in all agents. The last models get members
    by the groupings, at first none; those before them have all agents. Members of a
    model average what is theirs by a server.

    Args:
      scheme: models of all agents, such as `partial.slots(0.6, 0.4)`.
      *groupings: of the last models, such as `by_predictions(examples)`; of several,
        each has models of its own, so that groups may overlap.
      every: rounds between two looks at what was learned.
      leave_after: looks in a row after which an agent leaves a model, and all that
        depend on it, for good: if its loss on validation data was smaller each time
        with its own numbers than with the mean of its group. None: no agent leaves.

    Example:
      >>> from p2pjax.partial.levels import slots
      >>> found = by_output_layer(depth=2)  # groups, and groups within these
      >>> changing(slots(0.5, 0.2, 0.3, nested=True), found, every=20).num_found
      2
    """
    if not callable(scheme) and not isinstance(scheme, Scheme):
        raise InputError(
            "Need a scheme, or a function that makes one such as partial.slots(0.6, "
            f"0.4), got {type(scheme).__name__}."
        )
    if every < 1 or (leave_after is not None and leave_after < 1):
        raise InputError(
            "Need one round or more between looks, and one look or more before agents "
            f"leave, got every={every} and leave_after={leave_after}."
        )
    if not groupings and leave_after is None:
        raise InputError(
            "Need groupings or leave_after for models that change, got neither: give "
            "the scheme to partial_averaging where they stay."
        )
    return Changing(scheme, groupings, every, leave_after)


def by_predictions(
    examples: Mapping[str, np.ndarray],
    *,
    depth: int = 1,
    find: Callable[[np.ndarray], np.ndarray] = alike,
) -> Grouping:
    """Agents whose models say the same about the examples of every class.

    Agents that name classes differently say other things, whatever their networks look
    like.

    Args:
      examples: common ones, leaves `[Q, ...]`, with their classes `y`.
      depth: models: groups, groups within these, and so on.
      find: mean predictions of every class `[N, k * k]` -> groups `[N]`, such as
        `selection.by_value(...)`, AUCCCR's.

    Example:
      >>> examples = {"x": np.zeros((2, 3), np.float32), "y": np.array([0, 1])}
      >>> by_predictions(examples).predicts
      True
    """
    if "y" not in examples:
        raise InputError(
            "Need the classes of common examples, to compare predictions of each, got "
            f"{sorted(examples)}: add y."
        )
    _check_depth(depth)

    def find_fn(before: PyTree, outputs: np.ndarray) -> np.ndarray:
        del before
        features = profiles(outputs, np.asarray(examples["y"]))
        return nested_groups(find, features, depth)

    return Grouping(
        lambda learned: learned.predictions(examples), find_fn, depth, predicts=True
    )


def by_output_layer(*, depth: int = 1) -> Grouping:
    """Agents whose output layers have moved in the same direction since the last look.

    Args:
      depth: models: groups, groups within these, and so on.

    Example:
      >>> by_output_layer(depth=2).depth
      2
    """
    _check_depth(depth)

    def find(both: tuple[PyTree, PyTree]) -> np.ndarray:
        return find_groups(update_similarity(*both))

    return Grouping(
        lambda learned: learned.outputs,
        lambda before, now: nested_groups(find, (before, now), depth),
        depth,
    )


def group_averaging(num_agents: int, below: np.ndarray) -> Averaging:
    """The mean of every group by a server, of groups that the inputs say.

    Args:
      num_agents: N.
      below: `[M, M]`, which models a model depends on: members of a group in it are in
        one group of each of these.

    Example:
      >>> averaging = group_averaging(3, np.zeros((1, 1), bool))
      >>> groups = Groups(jnp.array([[4], [4], [LOCAL]]), jnp.ones(1, bool))
      >>> averaging.combine(groups, np.zeros(3, int), None)(jnp.arange(3.0)).tolist()
      [0.5, 0.5, 2.0]
    """

    def same(groups: Groups, model: int) -> Array:
        """`[N, N]`: who averages a model together."""
        together = jnp.ones((num_agents, num_agents), bool)
        for other in (model, *np.flatnonzero(below[model]).tolist()):
            group = groups.group[:, other]
            together &= (group[:, None] == group[None]) & (group != LOCAL)[None]
        return together & groups.is_used[model]

    def combine_fn(
        groups: Groups, owner: np.ndarray, arrived: Array | None
    ) -> mixing.Combine:
        del arrived  # nothing is lost
        together = same(groups, int(owner[0])).astype(jnp.float32)
        counts = together.sum(1, keepdims=True)
        mean = together / jnp.maximum(counts, 1)
        return mixing.by_matrix(jnp.where(counts > 1, mean, jnp.eye(num_agents)))

    def links_fn(groups: Groups, owner: np.ndarray) -> Array:
        if owner[0] == LOCAL:
            return jnp.zeros((num_agents, 1), bool)
        return same(groups, int(owner[0])).sum(1, keepdims=True) > 1

    return Averaging(
        num_agents,
        lambda rng, num_rounds: (),  # groups are found, not drawn
        combine_fn,
        links_fn,
        lambda groups, asking: groups,
        per_model=True,
    )


def check_models(scheme: Scheme, num_found: int) -> np.ndarray:
    """Refuses schemes whose members cannot change; returns `below`, `[M, M]`.

    Args:
      scheme: the partial models.
      num_found: of its last models members are found.
    """
    size, num_models = len(scheme.networks), len(scheme.models)
    some = [m for m, model in enumerate(scheme.models) if len(model.members) < size]
    if some or scheme.cross_model or not num_models >= max(1, num_found):
        raise InputError(
            f"Need {max(1, num_found)} models or more that all agents have cells of, "
            f"and none across models, where members change, got {num_models} models, "
            f"{some} of some agents and cross_model={scheme.cross_model}: see "
            "partial.slots."
        )
    return dependency_closure(scheme.depends, num_models)


def _check_depth(depth: int) -> None:
    if depth < 1:
        raise InputError(f"Need a depth of 1 or more, got {depth}.")
