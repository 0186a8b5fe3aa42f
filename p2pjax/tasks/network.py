"""Any network as two functions: Linen modules, NNX constructors, plain functions."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.nn.fast_gradients import with_fast_gradients
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks._linen_network import linen_functions
from p2pjax.tasks._network_functions import ApplyFn, NetworkFunctions, key_shape
from p2pjax.types import Array, InputError, Key, PyTree, Variables


class Network(NamedTuple):
    """A network of ONE agent.

    Whoever writes plain functions may leave out what they do not need: `init` may
    return parameters alone, and `apply` may be `apply(params, x)`, which returns the
    output alone, or `apply(variables, x, key, train)`.

    Attributes:
      init: key -> `Variables`.
      apply: (variables, x, key, train, valid) -> (output, stats). `train` is a bool,
        `valid` `[B]` marks the examples that are not padding and may be None, as the
        key in evaluation; `stats` is what `variables.stats` becomes in training.
      norm: paths of normalisation layers, such as `Block_0/BatchNorm_0`.

    Example:
    >>> import jax, jax.numpy as jnp
    >>> from p2pjax.tasks import Network, classification
    >>> linear = Network(lambda key: {"w": jnp.zeros((4, 2))}, lambda p, x: x @ p["w"])
    >>> classification(linear, (4,)).init(jax.random.key(0)).params["w"].shape
    (4, 2)
    """

    init: Callable[..., Any]
    apply: Callable[..., Any]
    norm: frozenset[str] = frozenset()


def as_network(network: Any, x: jax.ShapeDtypeStruct) -> Network:
    """Makes a `Network` whose functions have all of their arguments.

    Statistics stay as they are in a batch without a valid example. Convolutions and
    maximum pooling train with gradients that are fast on CPUs
    (`p2pjax.nn.with_fast_gradients`). No backend is started: shapes are all that is
    looked at.

    Args:
      network: a Linen module, a function or class that makes an NNX network of
        `nnx.Rngs`, or a `Network`.
      x: shape and dtype of a batch of one example.
    """
    functions = _functions(network, x)
    shapes = jax.eval_shape(functions.init, key_shape())
    _check_norm(functions.norm, shapes)
    applied = functions.apply
    if any(leaf.ndim >= 3 for leaf in jax.tree.leaves(shapes.params)):
        applied = _convolving(applied)

    def apply_fn(
        variables: Variables,
        x: Array,
        key: Key | None,
        train: bool,
        valid: Array | None = None,
    ) -> tuple[Array, PyTree]:
        output, stats = applied(variables, x, key, train, valid)
        if not train or valid is None or functions.takes_valid:
            return output, stats

        def unless_empty(old: Array, new: Array) -> Array:
            return old if new is old else jnp.where(valid.any(), new, old)

        return output, jax.tree.map(unless_empty, variables.stats, stats)

    made = Network(functions.init, apply_fn, functions.norm)
    _check_statistics(made, shapes, x)
    return made


def _convolving(apply: ApplyFn) -> ApplyFn:
    """Trains with the package's own gradients of convolutions."""

    def apply_fn(
        variables: Variables,
        x: Array,
        key: Key | None,
        train: bool,
        valid: Array | None,
    ) -> tuple[PyTree, PyTree]:
        if not train:
            return apply(variables, x, key, train, valid)

        def in_training(*arrays: PyTree) -> tuple[PyTree, PyTree]:
            variables, x, key, valid = arrays
            return apply(variables, x, key, True, valid)

        return with_fast_gradients(in_training)(variables, x, key, valid)

    return apply_fn


def num_outputs(network: Network, x: jax.ShapeDtypeStruct) -> int:
    """Number of outputs, k of `[B, k]`; anything else is refused.

    Args:
      network: made by `as_network`.
      x: shape and dtype of a batch of one example.
    """
    shapes = jax.eval_shape(network.init, key_shape())
    several = jax.ShapeDtypeStruct((3, *x.shape[1:]), x.dtype)
    output = jax.eval_shape(
        lambda variables, x: network.apply(variables, x, None, False)[0],
        *(shapes, several),
    )
    shape = getattr(output, "shape", None)
    if shape is None:
        raise InputError(
            "Need a network with one array of outputs, `[B, k]`, got "
            f"{jax.tree.structure(output)}: return the logits alone."
        )
    if len(shape) != 2 or shape[0] != 3:
        raise InputError(
            "Need outputs `[B, k]`, one row for each example, got "
            f"{list(shape)} for 3 examples of shape {list(x.shape[1:])}: "
            f"{_advice(x.shape[1:])}."
        )
    return shape[1]


def _advice(shape: tuple[int, ...]) -> str:
    if len(shape) == 2:
        return (
            "give the images a channel axis, [M, H, W, 1], and keep the first axis of "
            "the batch"
        )
    return "keep the first axis of the batch and end in a layer with k outputs"


def _functions(network: Any, x: jax.ShapeDtypeStruct) -> NetworkFunctions:
    if isinstance(network, Network):
        return _plain_functions(network)
    if isinstance(network, nn.Module):
        return linen_functions(network, x)
    is_linen_class = isinstance(network, type) and issubclass(network, nn.Module)
    if callable(network) and not is_linen_class:
        from p2pjax.tasks._nnx_network import nnx_functions

        return nnx_functions(network)
    got = f"the class {network.__name__}" if is_linen_class else repr(network)
    raise InputError(
        "Need a Linen module, a function of nnx.Rngs that makes an NNX network, or a "
        f"Network(init, apply), got {got}: make one of these."
    )


def _plain_functions(network: Network) -> NetworkFunctions:
    parameters = inspect.signature(network.apply).parameters
    takes_valid = "valid" in parameters
    num_arguments = len(parameters) - takes_valid
    if num_arguments not in (2, 4) or any(
        p.name != "valid" and p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters.values()
    ):
        raise InputError(
            "Need a Network with apply(params, x) or apply(variables, x, key, train), "
            f"got apply({', '.join(map(str, parameters.values()))}): give it these "
            "arguments."
        )

    def init_fn(key: Key) -> Variables:
        made = network.init(key)
        variables = made if isinstance(made, Variables) else Variables(made, {})
        if num_arguments == 2 and variables.stats:
            raise InputError(
                "Need apply(variables, x, key, train) for a Network with statistics, "
                "got apply(params, x): statistics would never change."
            )
        return variables

    def apply_fn(
        variables: Variables,
        x: Array,
        key: Key | None,
        train: bool,
        valid: Array | None = None,
    ) -> tuple[PyTree, PyTree]:
        more = {"valid": valid} if takes_valid else {}
        if num_arguments == 2:
            return network.apply(variables.params, x, **more), variables.stats
        given = jax.random.key(0) if key is None else key
        made = network.apply(variables, x, given, train, **more)
        if not (isinstance(made, tuple) and len(made) == 2):
            raise InputError(
                "Need apply(variables, x, key, train) that returns (output, stats), "
                f"got {type(made).__name__}: return variables.stats if nothing changes."
            )
        return made[0], made[1] if train else variables.stats

    return NetworkFunctions(init_fn, apply_fn, network.norm, takes_valid)


def _check_norm(norm: frozenset[str], shapes: Variables) -> None:
    trees = (shapes.params, shapes.stats.get("batch_stats", {}))
    paths = [path for tree in trees for path, _ in leaves_with_paths(tree)]
    for layer in sorted(norm):
        if not any(path == layer or path.startswith(f"{layer}/") for path in paths):
            raise InputError(
                f"Need paths of normalisation layers in norm, got {layer!r}, which is "
                f"none of {paths}: name layers of the network."
            )


def _check_statistics(network: Network, shapes: Variables, x: PyTree) -> None:
    """Refuses state that grows, which `jax.lax.scan` could not carry."""
    _, after = jax.eval_shape(
        lambda variables, x, key: network.apply(variables, x, key, True),
        *(shapes, x, key_shape()),
    )
    for name in {*shapes.stats, *after}:
        old, new = (
            [(path, leaf.shape, leaf.dtype) for path, leaf in leaves_with_paths(tree)]
            for tree in (shapes.stats.get(name), after.get(name))
        )
        if old != new:
            raise InputError(
                "Need statistics that keep their structure, shapes and dtypes in "
                f"training, got {name!r} that changes: return extra values as outputs, "
                "or sow them into intermediates."
            )
