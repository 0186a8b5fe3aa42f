"""Members of partial models that change: groups found, models left.

Every so many rounds, after local training and before averaging, agents are compared and
each tries the mean of every model on its validation data, all else being its own. This
costs no messages: the server of the models compares the agents.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.partial.changing_members import Changing, Groups, Learned
from p2pjax.partial.sharing import SharingPlan
from p2pjax.partial.views import viewed
from p2pjax.paths import leaves_with_paths
from p2pjax.selection.peer_evaluation import Probe, predictions
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import map_agents
from p2pjax.training.samplers import whole_set
from p2pjax.types import LOCAL, Array, FederatedData, InputError, PyTree, Variables


class GroupState(NamedTuple):
    """Members of all models, and what is remembered for the next look."""

    group: Array  # [N, M]
    num_losses: Array  # [N, M] looks in a row at which the model did not pay
    has_left: Array  # [N, M] bool
    measured: PyTree  # at the last look, of every grouping

    @property
    def now(self) -> Groups:
        """For the averaging of a round."""
        return Groups(self.group, jnp.ones(self.group.shape[1], bool))

    @property
    def observed(self) -> dict[str, Array]:
        """Group of every agent in every model, `[N]` each; LOCAL for none."""
        models = range(self.group.shape[1])
        return {f"group_{model}": self.group[:, model] for model in models}


# (parameters `[N, ...]`, groups) -> parameters after an averaging by these groups
AverageFn = Callable[[PyTree, Groups], PyTree]


class GroupChanges(NamedTuple):
    """How members change in a run."""

    begin: Callable[[Variables], GroupState]
    # (round, trained models, data, how they average, state) -> state
    look: Callable[[Array, Variables, FederatedData, AverageFn, GroupState], GroupState]
    check: Callable[[FederatedData], None]


def group_changes(
    task: Task, changing: Changing, sharing: SharingPlan, below: np.ndarray, loop: int
) -> GroupChanges:
    """Looks of a run.

    Args:
      task: what each agent learns.
      changing: how members change.
      sharing: the partial models.
      below: `[M, M]`, which models a model depends on.
      loop: see `agent_loop.map_agents`.
    """
    num_models, groupings = len(below), changing.groupings
    first_found = num_models - changing.num_found
    if task.predict is None and any(grouping.predicts for grouping in groupings):
        raise InputError(
            "Need a task that predicts classes to compare predictions, got one that "
            "does not: use by_output_layer."
        )

    def measured(variables: Variables) -> list[PyTree]:
        def predicted(examples: PyTree) -> Array:
            assert task.predict is not None
            given = jax.tree.map(jnp.asarray, dict(examples))
            return predictions(Probe(task.predict, given), variables, loop)

        learned = Learned(_output_layer(variables, sharing), predicted)
        return [grouping.measure(learned) for grouping in groupings]

    def found(before: list[PyTree], now: list[PyTree]) -> np.ndarray:
        """On the host: `[N, models that are found]`; LOCAL for those who diverged."""
        size = len(sharing.cells[0])
        sound = np.ones(size, bool)
        for leaf in jax.tree.leaves((before, now)):
            sound &= np.isfinite(np.asarray(leaf)).reshape(size, -1).all(1)
        group = np.full((size, changing.num_found), LOCAL, np.int32)
        if sound.any():
            both = jax.tree.map(lambda leaf: np.asarray(leaf)[sound], (before, now))
            columns = [
                grouping.find(*measured)
                for grouping, *measured in zip(groupings, *both, strict=True)
            ]
            group[sound] = np.concatenate(columns, axis=1)
        return group

    def begin_fn(variables: Variables) -> GroupState:
        size = len(sharing.cells[0])
        of_all = jnp.arange(num_models) < first_found
        group = jnp.where(of_all, 0, LOCAL).astype(jnp.int32)
        return GroupState(
            jnp.tile(group, (size, 1)),
            jnp.zeros((size, num_models), jnp.int32),
            jnp.zeros((size, num_models), bool),
            jax.tree.map(jnp.copy, measured(variables)),
        )

    def look_fn(
        t: Array,
        variables: Variables,
        data: FederatedData,
        average: AverageFn,
        state: GroupState,
    ) -> GroupState:
        def look(state: GroupState) -> GroupState:
            if groupings:
                if jax.process_count() > 1:
                    raise InputError(
                        "Need one process to find groups while agents train, got "
                        f"{jax.process_count()}: use the devices of one host."
                    )
                now = measured(variables)
                shape = (state.group.shape[0], changing.num_found)
                columns = jax.pure_callback(
                    found,
                    jax.ShapeDtypeStruct(shape, jnp.int32),
                    state.measured,
                    now,
                    vmap_method="sequential",
                )
                group = jnp.asarray(state.group).at[:, first_found:].set(columns)
                group = jnp.where(state.has_left, LOCAL, group)
                state = state._replace(group=group, measured=now)
            if changing.leave_after is None:
                return state
            return _left(state, gains(variables, data, average, state))

        is_time = (t + 1) % changing.every == 0
        return jax.lax.cond(is_time, look, lambda state: state, state)

    def gains(
        variables: Variables, data: FederatedData, average: AverageFn, state: GroupState
    ) -> Array:
        """How much the mean of each model lowers an agent's loss, `[N, M]`."""

        def losses(params: PyTree) -> Array:
            def one_agent(_: PyTree, agent: PyTree) -> tuple[PyTree, Array]:
                variables, examples, size = agent
                total, weight = task.evaluate(variables, whole_set(examples, size))[
                    "loss"
                ]
                return (), total / jnp.maximum(weight, 1)

            models = variables._replace(params=params)
            agents = (models, data.valid.examples, data.valid.size)
            return map_agents(one_agent, loop)((), agents)[1]

        def with_model(model: Array) -> Array:
            only = Groups(state.group, jnp.arange(num_models) == model)
            return losses(average(variables.params, only))

        # The last one is without any, rounded as the others are.
        found = jax.lax.map(with_model, jnp.arange(num_models + 1))  # [M + 1, N]
        return (found[-1:] - found[:-1]).T

    def _left(state: GroupState, gain: Array) -> GroupState:
        assert changing.leave_after is not None
        num_losses = jnp.where(gain < 0, state.num_losses + 1, 0)
        leaves = num_losses >= changing.leave_after
        # Who leaves a model leaves those that depend on it.
        above = below.T | np.eye(num_models, dtype=bool)  # [model, depends on it]
        leaves = (leaves[:, :, None] & above[None]).any(1)
        has_left = state.has_left | leaves
        group = jnp.where(has_left, LOCAL, state.group)
        return state._replace(group=group, num_losses=num_losses, has_left=has_left)

    def check_fn(data: FederatedData) -> None:
        has_none = next(iter(data.valid.examples.values())).shape[1] == 0
        if changing.leave_after is not None and has_none:
            raise InputError(
                "Need validation data for agents that leave models, got none: hold "
                "some out (valid_fraction=0.1), or pass leave_after=None."
            )

    return GroupChanges(begin_fn, look_fn, check_fn)


def _output_layer(variables: Variables, sharing: SharingPlan) -> dict[str, Array]:
    """Weights `[N, ..., classes]` along whose last axis the output cells lie."""
    last = len(sharing.cells) - 1
    params = viewed(variables.params, sharing.views, is_stacked=True)
    return {
        path: leaf
        for path, leaf in leaves_with_paths(params)
        if len(sharing.wiring[path]) > 1 and sharing.wiring[path][-1] == last
    }
