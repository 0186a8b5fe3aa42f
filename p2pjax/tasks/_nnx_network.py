"""A flax NNX model as functions of its variables."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from p2pjax.tasks._network_functions import (
    CallArguments,
    NetworkFunctions,
    call_arguments,
    key_shape,
)
from p2pjax.types import Array, InputError, Key, PyTree, Variables

# Not those that wrap a layer (`nnx.WeightNorm`, `nnx.SpectralNorm`): the parameters of
# the layer are below their path, and they train none of their own.
NORMALISATION = (
    nnx.BatchNorm,
    nnx.LayerNorm,
    nnx.RMSNorm,
    nnx.GroupNorm,
    nnx.InstanceNorm,
)

PARAMS, RANDOM = "params", "random"

Path = tuple[Any, ...]  # in the model; in dicts of variables its parts are strings


class _Graph(NamedTuple):
    """What is static of a model."""

    train: nnx.GraphDef[Any]
    evaluate: nnx.GraphDef[Any]
    collection: Mapping[Path, str]  # of every array
    arguments: CallArguments
    norm: frozenset[str]


def nnx_functions(constructor: Callable[..., Any]) -> NetworkFunctions:
    """Functions of what the constructor makes of `nnx.Rngs`.

    `nnx.Param` is trained, `nnx.BatchStat` is `stats["batch_stats"]`, other variables
    are entries of `stats` named after their class. The state of random numbers is no
    part of the variables: it is made of the key in every call.
    """
    if isinstance(constructor, nnx.Module):
        name = type(constructor).__name__
        raise InputError(
            "Need a constructor of an NNX network, because each agent draws its own, "
            f"got a network: write lambda rngs: {name}(..., rngs=rngs)."
        )
    seen: list[_Graph] = []

    def look(key: Key) -> dict[Path, PyTree]:
        model = _construct(constructor, key)
        seen.append(_graph(model))
        return _arrays(model)

    shapes = jax.eval_shape(look, key_shape())
    graph = seen[0]

    def init_fn(key: Key) -> Variables:
        return _variables(graph, _arrays(_construct(constructor, key)))

    def model_of(variables: Variables, key: Key | None, train: bool) -> PyTree:
        arrays: dict[Path, PyTree] = {}
        collections = {**variables.stats, PARAMS: variables.params}
        flat = {
            name: traverse_util.flatten_dict(collections[name])
            for name in {*graph.collection.values()} - {RANDOM}
        }
        for number, (path, name) in enumerate(graph.collection.items()):
            if name == RANDOM:
                arrays[path] = _random_state(key, number, shapes[path])
            else:
                arrays[path] = flat[name][_named(path)]
        state = nnx.from_flat_state(arrays)
        return nnx.merge(graph.train if train else graph.evaluate, state)

    def apply_fn(
        variables: Variables,
        x: Array,
        key: Key | None,
        train: bool,
        valid: Array | None = None,
    ) -> tuple[PyTree, PyTree]:
        model = model_of(variables, key, train)
        rngs = None
        if train or "rngs" in graph.arguments.required:
            rngs = nnx.Rngs(jax.random.key(0) if key is None else key)
        keywords = graph.arguments.keywords(
            train, valid=valid if train else None, rngs=rngs
        )
        output = model(x, **keywords)
        if not train:
            return output, variables.stats
        changed = _variables(graph, _arrays(model)).stats
        return output, {**variables.stats, **changed}

    takes_valid = "valid" in graph.arguments.taken
    return NetworkFunctions(init_fn, apply_fn, graph.norm, takes_valid)


def _construct(constructor: Callable[..., Any], key: Key) -> PyTree:
    called = constructor.func if isinstance(constructor, partial) else constructor
    if isinstance(called, type):  # NNX classes hide their signature
        called = called.__init__  # type: ignore[misc]
    rngs = nnx.Rngs(key)
    if "rngs" in inspect.signature(called).parameters:
        model = constructor(rngs=rngs)
    else:
        model = constructor(rngs)
    if not (isinstance(model, nnx.Module) and callable(model)):
        raise InputError(
            "Need a Linen module, a function of nnx.Rngs that makes an NNX network, or "
            f"a Network(init, apply), got a function that makes {type(model).__name__}."
        )
    return model


def _graph(model: PyTree) -> _Graph:
    model.eval()
    evaluate = nnx.split(model)[0]
    model.train()
    train, state = nnx.split(model)
    collection = {path: _collection(leaf) for path, leaf in nnx.to_flat_state(state)}
    norm = set()
    for path, module in nnx.iter_modules(model):
        if isinstance(module, NORMALISATION):
            norm.add("/".join(_named(path)))
        for name, value in vars(module).items():
            is_array = isinstance(value, jax.core.Tracer)
            if is_array and (*path, name) not in collection:
                raise InputError(
                    "Need the arrays of an NNX network in variables, got the bare "
                    f"array `{'/'.join(_named((*path, name)))}`: make it an "
                    "nnx.Variable, or an array of numpy if it never changes."
                )
    arguments = call_arguments(type(model).__call__, ("valid", "rngs"))
    return _Graph(train, evaluate, collection, arguments, frozenset(norm))


def _collection(leaf: PyTree) -> str:
    if isinstance(leaf, nnx.Param):
        return PARAMS
    if isinstance(leaf, nnx.RngState):
        return RANDOM
    if isinstance(leaf, nnx.BatchStat):
        return "batch_stats"
    return type(leaf).__name__ if isinstance(leaf, nnx.Variable) else "arrays"


def _arrays(model: PyTree) -> dict[Path, PyTree]:
    """Of all variables but intermediate results, which are no state."""
    return {
        path: leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        for path, leaf in nnx.to_flat_state(nnx.state(model))
        if not isinstance(leaf, nnx.Intermediate)
    }


def _variables(graph: _Graph, arrays: Mapping[Path, PyTree]) -> Variables:
    """Nested dicts, with strings for the places in lists."""
    if arrays.keys() != graph.collection.keys():
        changed = sorted("/".join(_named(p)) for p in arrays.keys() ^ graph.collection)
        raise InputError(
            "Need an NNX network whose variables are all made by its constructor, got "
            f"{changed} made or deleted by a call: make them in __init__."
        )
    flat: dict[str, dict[tuple[str, ...], PyTree]] = {}
    for path, name in graph.collection.items():
        flat.setdefault(name, {})[_named(path)] = arrays[path]
    flat.pop(RANDOM, None)
    stats = {name: traverse_util.unflatten_dict(own) for name, own in flat.items()}
    return Variables(stats.pop(PARAMS, {}), stats)


def _named(path: Path) -> tuple[str, ...]:
    return tuple(map(str, path))


def _random_state(key: Key | None, number: int, like: PyTree) -> Array:
    """A key of its own for every stream, whose count of draws starts again."""
    if not jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.zeros(like.shape, like.dtype)
    own = jax.random.fold_in(jax.random.key(0) if key is None else key, number)
    return jax.random.split(own, like.shape) if like.shape else own
