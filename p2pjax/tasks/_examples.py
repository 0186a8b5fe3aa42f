"""What examples of agents look like, for the networks that are to take them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.datasets.checking import is_local
from p2pjax.tasks.network import Network, as_network
from p2pjax.tasks.task import as_float, check_labels
from p2pjax.types import Array, FederatedData, InputError


class Inputs(NamedTuple):
    """One example's `x`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None  # None if only the shape is known
    highest: int | None  # of whole numbers


class Fitted(NamedTuple):
    """A network and how inputs are made ready for it."""

    network: Network
    x: jax.ShapeDtypeStruct  # what it takes, a batch of one example
    prepare: Callable[[Array], Array]


def inputs_of(data: FederatedData | Sequence[int]) -> Inputs:
    """Shape and dtype of the examples, or the shape alone."""
    if isinstance(data, FederatedData):
        x = data.train.examples["x"]  # [N, M, ...]
        whole = np.issubdtype(x.dtype, np.integer) and is_local(x) and x.size
        return Inputs(x.shape[2:], x.dtype, int(x.max()) if whole else None)
    shape = tuple(data)
    if not all(isinstance(size, int | np.integer) and size > 0 for size in shape):
        raise InputError(
            "Need the data of the agents or the shape of one example, got "
            f"{shape}: give a FederatedData or a tuple such as (28, 28, 1)."
        )
    return Inputs(tuple(map(int, shape)), None, None)


def real_values(
    data: FederatedData, name: str, axes: str, what: str = "labels"
) -> np.ndarray:
    """Whole numbers of all splits without padding, of those this process holds.

    Args:
      data: of all agents.
      name: of the array in the examples.
      axes: that it has, such as "N, M".
      what: they are, for messages.
    """
    found = [np.zeros(0, np.int32)]
    for split in (data.train, data.valid, data.test):
        if name not in split.examples:
            raise InputError(
                f"Need {what} as the examples' `{name}`, got examples of "
                f"{', '.join(split.examples)}: name the {what} {name}."
            )
        values, size = split.examples[name], split.size
        if not (is_local(values) and is_local(size)):
            continue
        is_whole = np.issubdtype(values.dtype, np.integer)
        if not is_whole or values.ndim != len(axes.split(",")):
            raise InputError(
                f"Need {what} `[{axes}]` of whole numbers, got shape "
                f"{list(values.shape)} of {values.dtype}: number them from 0."
            )
        is_real = np.arange(values.shape[1])[None] < np.asarray(size)[:, None]
        found.append(np.asarray(values)[is_real].reshape(-1))
    return np.concatenate(found)


def label_check(
    num_outputs: int, name: str = "y", axes: str = "N, M"
) -> Callable[[FederatedData], None]:
    """A `Task.check_labels` for networks with so many outputs.

    Args:
      num_outputs: of the network.
      name: of the labels in the examples.
      axes: that they have.
    """
    return lambda data: check_labels(real_values(data, name, axes), num_outputs)


def check_below(
    data: FederatedData, name: str, axes: str, most: int, what: str
) -> None:
    """Refuses numbers that would be looked up beyond the end of a table.

    Args:
      data: of all agents.
      name: of the array in the examples.
      axes: that it has.
      most: rows of the table.
      what: they are.
    """
    values = real_values(data, name, axes, what)
    if values.size and not 0 <= values.min() <= values.max() < most:
        raise InputError(
            f"Need {what} from 0 to {most - 1}, got {values.min()} to {values.max()} "
            f"in the examples' `{name}`: give the network a larger table, or number "
            "them as it does."
        )


def fit_to_inputs(network: Any, inputs: Inputs) -> Fitted:
    """Gives floats to a network, or whole numbers if it takes only those.

    A network that looks its inputs up, as `nn.Embed` does, refuses floats.
    """
    kind = inputs.dtype
    known = kind is not None and jnp.issubdtype(kind, jnp.floating)
    floats = jax.dtypes.canonicalize_dtype(kind if known else np.float32)
    as_given = jax.ShapeDtypeStruct((1, *inputs.shape), floats)
    as_whole = jax.ShapeDtypeStruct((1, *inputs.shape), np.dtype(np.int32))
    try:
        return Fitted(as_network(network, as_given), as_given, as_float)
    except InputError:
        raise
    except Exception as error:
        if not known:
            try:
                return Fitted(as_network(network, as_whole), as_whole, as_tokens)
            except Exception:  # the first one says what was wrong
                pass
        error.add_note(
            "The network was given a batch of one example, "
            f"{list(as_given.shape)} of {floats}. Images need a channel axis, "
            "[M, H, W, 1]."
        )
        raise


def as_tokens(x: Array) -> Array:
    """Whole numbers that stay whole."""
    return x.astype(jnp.int32)
