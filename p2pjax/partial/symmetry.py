"""What tracing found, tried on random numbers: units that move, units that are absent.

A network computes the same after all places of a group of units were reordered, and
where its parameters are 0 a unit has no say.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.partial.network_cells import NUM_EXAMPLES, NetworkCells, moved
from p2pjax.partial.tracing.groups import Group, Place, collections
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks._network_check import QUICKLY
from p2pjax.tasks._network_functions import key_shape
from p2pjax.tasks.network import Network, as_network
from p2pjax.tasks.task import Task
from p2pjax.types import ABSENT, Array, Cells, InputError, PyTree, Variables

# How far outputs may be apart, as a share of the largest: of sums in another order.
TOLERANCE = 1e-3
ROUNDING = 1e-6  # where nothing at all should change

Leaves = Mapping[str, np.ndarray]  # by path, such as `params/Dense_0/kernel`


def check_permutations(found: NetworkCells, task: Task) -> None:
    """Refuses cells whose reordering would change what the network computes.

    Args:
      found: by `cells_of`.
      task: whose network it is.
    """
    if task.network is None or task.example is None:
        return
    leaves, outputs = _tried(task.network, task.example)
    rng = np.random.default_rng(1)
    for group in found.groups:
        if group.size < 2 or group.fixed_by:
            continue
        change = _distance(
            leaves, moved(leaves, group, rng.permutation(group.size)), outputs
        )
        if not change < TOLERANCE:
            raise InputError(
                f"Need units that may be reordered along {_leaves_of(group)}, got "
                f"outputs that change by {change:.2g} of the largest when they are: "
                "give the wiring of this network."
            )


def check_absent(found: NetworkCells, task: Task, cells: Cells) -> None:
    """Refuses agents that lack units without which the network would be another one.

    Args:
      found: by `cells_of`.
      task: whose network it is.
      cells: model of every cell, aligned.
    """
    last = len(cells) - 1
    lacking = [part for part, models in enumerate(cells) if (models == ABSENT).any()]
    if last in lacking or 0 in lacking:
        raise InputError(
            "Need all inputs and outputs in each agent of a network of your own, got "
            f"agents without some of part {last if last in lacking else 0}: only "
            "networks of p2pjax.nn can lack outputs."
        )
    for part in lacking:
        agents = np.flatnonzero((cells[part] == ABSENT).all(1)).tolist()
        if agents:
            raise InputError(
                "Need at least one cell of every part in every agent, got none of part "
                f"{part} in agents {agents}: only the layers of an MLP can be left out."
            )
        groups = [group for group in found.groups if group.part == part]
        for group in groups:
            if group.mixed_by:
                raise InputError(
                    f"Need all {group.size} units of part {part} in each agent, whose "
                    f"mean or sum {next(iter(group.mixed_by.values()))} takes, got "
                    "agents that lack some: leave out units of other parts than that "
                    f"of {_leaves_of(group)}."
                )
            if not _is_silent(group, task):
                raise InputError(
                    f"Need units of part {part} that have no say where their "
                    f"parameters in {_leaves_of(group)} are 0, got outputs that depend "
                    "on them: leave out units of other parts."
                )


def _is_silent(group: Group, task: Task) -> bool:
    """Whether a unit that all weights multiply by 0 has no say.

    Then what its other parameters are makes no difference.
    """
    assert task.network is not None and task.example is not None
    leaves, outputs = _tried(task.network, task.example)
    unread = absent = leaves
    for place in group.places:
        absent = _zeroed(absent, place)
        if place.leaf in group.read_by:
            unread = _zeroed(unread, place)
    return _distance(unread, absent, outputs) < ROUNDING


def _zeroed(leaves: Leaves, place: Place) -> Leaves:
    """Without the first unit."""
    leaf = leaves[place.leaf].copy()
    leaf.swapaxes(0, place.axis)[place.columns[0]] = 0
    return {**leaves, place.leaf: leaf}


def _tried(
    network: Network, example: jax.ShapeDtypeStruct
) -> tuple[Leaves, Callable[[Leaves], Array]]:
    """Random variables, and outputs in evaluation as a function of them."""
    made = as_network(network, example)
    shapes = collections(jax.eval_shape(made.init, key_shape()))
    rng = np.random.default_rng(0)
    paths, structure = leaves_with_paths(shapes), jax.tree.structure(shapes)
    leaves = {path: _random(rng, path, leaf) for path, leaf in paths}
    size = (NUM_EXAMPLES, *example.shape[1:])
    inputs = _random(rng, "", jax.ShapeDtypeStruct(size, example.dtype))
    if np.issubdtype(example.dtype, np.integer):
        inputs = rng.integers(0, 2, size).astype(example.dtype)

    def outputs(leaves: Leaves) -> Array:
        tree: PyTree = jax.tree.unflatten(
            structure, [leaves[path] for path, _ in paths]
        )
        params = tree.pop("params")
        return made.apply(Variables(params, tree), inputs, None, False)[0]

    options = QUICKLY if jax.default_backend() == "cpu" else None
    return leaves, jax.jit(outputs, compiler_options=options)


def _random(
    rng: np.random.Generator, path: str, leaf: jax.ShapeDtypeStruct
) -> np.ndarray:
    """Of statistics these are variances too, and must be positive."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return np.zeros(leaf.shape, leaf.dtype)
    fan_in = max(1, int(np.prod(leaf.shape[:-1])))
    values = rng.normal(size=leaf.shape) / (fan_in**0.5 if leaf.ndim > 1 else 2)
    is_parameter = path.startswith("params/") or not path
    return (values if is_parameter else abs(values) + 0.5).astype(leaf.dtype)


def _distance(
    before: Leaves, after: Leaves, outputs: Callable[[Leaves], Array]
) -> float:
    with jax.ensure_compile_time_eval():  # also where agents of many seeds are made
        one, other = (
            np.asarray(outputs(leaves), np.float64) for leaves in (before, after)
        )
    return float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-30))


def _leaves_of(group: Group) -> str:
    names = dict.fromkeys(place.leaf for place in group.places)
    return ", ".join(names)
