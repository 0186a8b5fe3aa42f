"""What only shows when a network is applied: tried on random numbers, on the host."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.nn.slow_convolutions import warn_of_slow_convolutions
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks._network_functions import MODES
from p2pjax.tasks.network import Network
from p2pjax.types import Array, InputError, Key, PyTree, Variables

# How far an example's outputs may be from those in another batch, as a share of the
# largest output: half precision and the products of GPUs are that inexact.
TOLERANCE = 0.02

NUM_EXAMPLES = 3

# It runs once, so that compiling takes nearly all of the time.
QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}

NOISE = 0.1  # added to parameters of networks that begin with the same output for all


class _Tried(NamedTuple):
    together: Array  # [B, k] in evaluation
    again: Array  # with another key
    alone: Array  # each example in a batch of its own
    trained: Array  # [B, k] in training
    before: PyTree  # statistics
    after: PyTree


def check_network(
    network: Network, x: jax.ShapeDtypeStruct, highest: int | None = None
) -> None:
    """Refuses a network that would learn or be judged wrongly without a word.

    Args:
      network: made by `as_network`.
      x: shape and dtype of a batch of one example.
      highest: token, if inputs are tokens; 1 if None.
    """
    inputs = _random_inputs(x, 1 if highest is None else highest)

    def attempt(variables: Variables, key: Key) -> _Tried:
        key_one, key_two = jax.random.split(key)

        def evaluate(x: Array, key: Key) -> Array:
            return network.apply(variables, x, key, False)[0]

        valid = jnp.ones(NUM_EXAMPLES, bool)
        trained, after = network.apply(variables, inputs, key_one, True, valid)
        return _Tried(
            together=evaluate(inputs, key_one),
            again=evaluate(inputs, key_two),
            alone=jax.vmap(lambda one: evaluate(one[None], key_one)[0])(inputs),
            trained=trained,
            before=variables.stats,
            after=after,
        )

    def summed(params: PyTree, stats: PyTree, key: Key) -> Array:
        valid = jnp.ones(NUM_EXAMPLES, bool)
        output, _ = network.apply(Variables(params, stats), inputs, key, True, valid)
        return output.sum()

    key = jax.random.key(0)
    options = QUICKLY if jax.default_backend() == "cpu" else None
    variables = jax.jit(network.init, compiler_options=options)(key)
    compiled = jax.jit(attempt, compiler_options=options)
    tried = jax.device_get(compiled(variables, key))
    if any(leaf.ndim >= 3 for leaf in jax.tree.leaves(variables.params)):
        warn_of_slow_convolutions(jax.grad(summed), *variables, key, stacklevel=3)
    _check_finite(tried, highest)
    _check_statistics_move(tried)
    if not np.ptp(np.asarray(tried.together, np.float32), axis=0).any():
        tried = jax.device_get(compiled(_with_noise(variables), key))
    _check_examples_are_independent(tried, x)


def _random_inputs(x: jax.ShapeDtypeStruct, highest: int) -> np.ndarray:
    rng, shape = np.random.default_rng(0), (NUM_EXAMPLES, *x.shape[1:])
    if jnp.issubdtype(x.dtype, jnp.integer):
        tokens = rng.integers(0, highest + 1, shape).astype(x.dtype)
        tokens.reshape(NUM_EXAMPLES, -1)[:, :1] = highest
        return tokens
    return rng.normal(size=shape).astype(x.dtype)


def _with_noise(variables: Variables) -> Variables:
    rng = np.random.default_rng(1)

    def moved(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return leaf + (NOISE * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    return variables._replace(params=jax.tree.map(moved, variables.params))


def _check_finite(tried: _Tried, highest: int | None) -> None:
    for outputs in (tried.together, tried.trained):
        if not np.isfinite(np.asarray(outputs, np.float32)).all():
            what = "numbers" if highest is None else f"tokens up to {highest}"
            raise InputError(
                "Need finite outputs at initialisation, got infinite ones or NaN for "
                f"random {what}: initialise the network with smaller parameters, and "
                "let embeddings have room for all tokens."
            )


def _check_statistics_move(tried: _Tried) -> None:
    """A layer may keep some of its statistics, not all."""
    before, after = (
        dict(leaves_with_paths(stats.get("batch_stats", {})))
        for stats in (tried.before, tried.after)
    )
    moves: dict[str, bool] = {}
    for path, old in before.items():
        layer = path.rpartition("/")[0]
        moved = not np.array_equal(old, after[path])
        moves[layer] = moves.get(layer, False) or moved
    still = sorted(layer for layer, moved in moves.items() if not moved)
    if still:
        raise InputError(
            f"Need batch statistics that move in training, got {still} that stay as "
            f"they are: let `__call__` have an argument for the mode ({list(MODES)}) "
            "and pass it on to these layers."
        )


def _check_examples_are_independent(tried: _Tried, x: jax.ShapeDtypeStruct) -> None:
    together, again, alone = (
        np.asarray(outputs, np.float32)
        for outputs in (tried.together, tried.again, tried.alone)
    )
    allowed = TOLERANCE * np.abs(together).max()
    if np.abs(together - again).max() > allowed / 100:
        raise InputError(
            "Need a network that draws no random numbers in evaluation, got outputs "
            "that depend on the key: use the key in training only."
        )
    if np.abs(together - alone).max() > allowed:
        no_channels = len(x.shape) == 3
        channels = "give the images a channel axis, [M, H, W, 1], and "
        raise InputError(
            "Need a network that evaluates each example by itself, got outputs that "
            "depend on the other examples of the batch: "
            f"{channels if no_channels else ''}let no layer normalise by the batch in "
            "evaluation."
        )
