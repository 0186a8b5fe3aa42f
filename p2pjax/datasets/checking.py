"""Data of agents that fit together: checked on the host before a method uses them.

Indices beyond an array are clipped and masks are silent inside of a compiled program,
so what does not fit would train on other examples than it says.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.types import Array, FederatedData, InputError, PyTree, Split

_WORDS = {"train": "training", "valid": "validation", "test": "test"}


def check_data(data: FederatedData) -> None:
    """Refuses splits whose arrays and sizes do not fit together, and NaN in them.

    Each agent needs a training example, and a test example if any agent has one.
    Values that other processes hold are not looked at.

    Args:
      data: of all agents.
    """
    num_agents = _num_agents(data.train)
    for name, split in zip(data._fields, data[:3], strict=False):
        _check_split(split, _WORDS[name], num_agents)
    for name in ("train", "test"):
        size = getattr(data, name).size
        if is_local(size) and (name == "train" or np.any(size)):
            without = np.flatnonzero(np.asarray(size) == 0).tolist()
            if without:
                raise InputError(
                    f"Need a {_WORDS[name]} example of each agent, got none of agents "
                    f"{_some(without)}: leave these agents out, or give them some."
                )
    cluster = data.cluster
    if np.shape(cluster) != (num_agents,) or not _is_whole(cluster):
        raise InputError(
            f"Need the number of a cluster for each of {num_agents} agents, got "
            f"{list(np.shape(cluster))} of {cluster.dtype}: give zeros [N] if there "
            "are no clusters."
        )


def is_local(leaf: Array) -> bool:
    """Whether this process holds all of an array."""
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def _num_agents(train: Split) -> int:
    if np.ndim(train.size) != 1 or not len(train.size):
        raise InputError(
            "Need the number of examples of each agent as Split.size, [N], got "
            f"{list(np.shape(train.size))}: give one whole number per agent."
        )
    return len(train.size)


def _check_split(split: Split, name: str, num_agents: int) -> None:
    size = split.size
    if np.shape(size) != (num_agents,) or not _is_whole(size):
        raise InputError(
            f"Need the number of {name} examples of each of {num_agents} agents, whole "
            f"numbers [N], got {list(np.shape(size))} of {size.dtype}: mend Split.size."
        )
    first = 0
    for leaves in _tables(split.examples):
        shapes = {key: np.shape(leaf)[:2] for key, leaf in leaves.items()}
        if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 2:
            raise InputError(
                f"Need {name} examples of one shape [N, M, ...], got "
                f"{ {key: list(shape) for key, shape in shapes.items()} }: pad all of "
                "them to as many examples."
            )
        rows, most = next(iter(shapes.values()))
        if is_local(size):
            own = np.asarray(size)[first : first + rows]
            wrong = np.flatnonzero((own < 0) | (own > most))
            if len(wrong):
                raise InputError(
                    f"Need a number of {name} examples from 0 to {most}, which the "
                    f"arrays have, got {own[wrong[0]]} of agent {first + wrong[0]}: "
                    "mend Split.size."
                )
            for key, leaf in leaves.items():
                _check_finite(leaf, own, f"{name} examples {key}")
        first += rows
    if first != num_agents:
        raise InputError(
            f"Need {name} examples of {num_agents} agents, as many as have a size, got "
            f"arrays of {first}: stack one row per agent."
        )


def _check_finite(leaf: Array, size: np.ndarray, name: str) -> None:
    """Of real examples: padding may be anything."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating) or not is_local(leaf):
        return
    bad = ~np.isfinite(np.asarray(leaf))
    if bad.any():
        is_real = np.arange(leaf.shape[1])[None] < size[:, None]  # [N, M]
        bad = bad.any(tuple(range(2, leaf.ndim))) & is_real
    if bad.any():
        agents = np.flatnonzero(bad.any(1)).tolist()
        raise InputError(
            f"Need finite numbers in {name}, got NaN or infinity in {bad.sum()} of "
            f"agents {_some(agents)}: fill them or drop their examples."
        )


def _tables(examples: PyTree) -> Iterator[Mapping[str, Array]]:
    """The arrays of all agents, or those of the agents of each task."""
    yield from (examples,) if isinstance(examples, Mapping) else examples.parts


def _is_whole(leaf: Array) -> bool:
    return np.issubdtype(leaf.dtype, np.integer)


def _some(agents: list[int]) -> str:
    more = f" and {len(agents) - 5} more" if len(agents) > 5 else ""
    return ", ".join(map(str, agents[:5])) + more
