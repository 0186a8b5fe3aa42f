"""What every kind of network is turned into, and how its `__call__` is read."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from p2pjax.types import Array, InputError, Key, PyTree, Variables

# Names under which networks are told their mode, and what they are told in training.
MODES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}

InitFn = Callable[[Key], Variables]

# (variables, x, key, train, valid) -> (output, stats)
ApplyFn = Callable[
    [Variables, Array, Key | None, bool, Array | None], tuple[Array, PyTree]
]


class NetworkFunctions(NamedTuple):
    """A network of any kind; see `network.Network`."""

    init: InitFn
    apply: ApplyFn
    norm: frozenset[str]
    takes_valid: bool  # looks after examples that are padding itself


class CallArguments(NamedTuple):
    """What `__call__` can be given by name."""

    mode: Mapping[str, bool]  # names of the mode: their value in training
    taken: Mapping[str, Any]  # other names that were asked for: their default or None
    required: frozenset[str]

    def keywords(self, train: bool, **offered: PyTree) -> dict[str, PyTree]:
        """The mode, and what is offered (None is nothing) if it is taken."""
        mode = {name: value == train for name, value in self.mode.items()}
        return mode | {
            name: value
            for name, value in offered.items()
            if name in self.taken and value is not None
        }


def call_arguments(call: Callable[..., Any], offered: tuple[str, ...]) -> CallArguments:
    """Reads the signature of an unbound `__call__(self, x, ...)`.

    Args:
      call: of a Linen or NNX class.
      offered: names that are given if there is an argument of that name.
    """
    arguments = list(inspect.signature(call).parameters.values())[2:]
    named = [a for a in arguments if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    required = frozenset(a.name for a in named if a.default is a.empty)
    unknown = sorted(required - {*MODES, *offered})
    if unknown:
        raise InputError(
            f"Need a network that is called with its input and a mode ({list(MODES)}), "
            f"got one that also needs {unknown}: give these arguments defaults, or "
            "make them attributes of the network."
        )
    taken = {
        a.name: None if a.default is a.empty else a.default
        for a in named
        if a.name in offered
    }
    mode = {a.name: MODES[a.name] for a in named if a.name in MODES}
    return CallArguments(mode, taken, required)


def key_shape() -> jax.ShapeDtypeStruct:
    """Of a random key; a key itself would start a backend."""
    return jax.eval_shape(lambda: jax.random.key(0))
