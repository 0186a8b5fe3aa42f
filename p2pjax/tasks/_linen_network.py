"""A flax Linen module as functions of its variables."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors

from p2pjax.nn import gru
from p2pjax.tasks._network_functions import (
    CallArguments,
    InitFn,
    NetworkFunctions,
    call_arguments,
    key_shape,
)
from p2pjax.types import Array, InputError, Key, PyTree, Variables

NORMALISATION = (
    nn.BatchNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.InstanceNorm,
    nn.WeightNorm,
    nn.SpectralNorm,
    gru.BatchNorm,
)

DEFAULT_MOMENTUM = 0.9  # where `__call__` needs one and has no default


def linen_functions(module: nn.Module, x: jax.ShapeDtypeStruct) -> NetworkFunctions:
    """Functions of a module that is called with inputs of shape and dtype `x`.

    A module whose `__call__` has an argument `momentum` gets it from
    `stats["momentum"]`, which `init` makes of the default, so that a method can change
    it.
    """
    arguments = call_arguments(type(module).__call__, ("valid", "momentum"))
    takes_momentum = "momentum" in arguments.taken
    momentum = _initial_momentum(arguments)

    def collections_of(variables: Variables) -> dict[str, PyTree]:
        stats = dict(variables.stats)
        if takes_momentum:
            stats.pop("momentum", None)
        return {"params": variables.params, **stats}

    def in_evaluation() -> dict[str, PyTree]:
        needed = momentum if "momentum" in arguments.required else None
        return arguments.keywords(False, momentum=needed)

    def init_fn(key: Key) -> Variables:
        zeros = jnp.zeros(x.shape, x.dtype)
        collections = dict(module.init(key, zeros, **in_evaluation()))
        params = collections.pop("params", {})
        if takes_momentum:
            collections["momentum"] = jnp.asarray(momentum, jnp.float32)
        return Variables(params, collections)

    shapes, norm = shapes_and_norm(init_fn)
    changing = list(collections_of(shapes))[1:]

    def evaluate(variables: Variables, x: Array) -> PyTree:
        return module.apply(collections_of(variables), x, **in_evaluation())

    def train(
        variables: Variables, x: Array, valid: Array | None, rngs: dict[str, Key]
    ) -> tuple[PyTree, PyTree]:
        now = variables.stats.get("momentum", momentum)
        keywords = arguments.keywords(True, valid=valid, momentum=now)
        output, changed = module.apply(
            collections_of(variables), x, **keywords, rngs=rngs, mutable=changing
        )
        return output, {**variables.stats, **changed}

    try:
        jax.eval_shape(evaluate, shapes, x)
    except (errors.InvalidRngError, errors.ModifyScopeVariableError) as error:
        raise InputError(
            "Need a network that draws no random numbers and changes no statistics in "
            f"evaluation, got one that does ({str(error).partition(' (http')[0]}): let "
            "`__call__` have an argument `train` and pass it on, as in nn.Dropout(0.5, "
            "deterministic=not train)."
        ) from None
    try:
        jax.eval_shape(
            lambda variables, x, key: train(variables, x, None, {"dropout": key}),
            *(shapes, x, key_shape()),
        )
        only_dropout = True
    except errors.InvalidRngError:
        only_dropout = False

    def apply_fn(
        variables: Variables,
        x: Array,
        key: Key | None,
        train_mode: bool,
        valid: Array | None = None,
    ) -> tuple[PyTree, PyTree]:
        if not train_mode:
            return evaluate(variables, x), variables.stats
        rngs = {} if key is None else {"dropout": key}
        if key is not None and not only_dropout:
            # Where flax has no key of a stream's name, it takes that of "params".
            rngs["params"] = jax.random.fold_in(key, 1)
        return train(variables, x, valid, rngs)

    return NetworkFunctions(init_fn, apply_fn, norm, "valid" in arguments.taken)


def shapes_and_norm(init: InitFn) -> tuple[Variables, frozenset[str]]:
    """What `init` makes, and the paths of the normalisation layers it calls."""
    found: set[str] = set()

    def look(
        call: PyTree,
        args: PyTree,
        kwargs: PyTree,
        context: nn.module.InterceptorContext,
    ) -> PyTree:
        if isinstance(context.module, NORMALISATION):
            found.add("/".join(context.module.path))
        return call(*args, **kwargs)

    with nn.intercept_methods(look):
        shapes = jax.eval_shape(init, key_shape())
    return shapes, frozenset(found)


def _initial_momentum(arguments: CallArguments) -> PyTree:
    default = arguments.taken.get("momentum")
    return DEFAULT_MOMENTUM if default is None else default
