"""The simulation: a scan of rounds under one jit, evaluated every few rounds.

`simulate` is all that most callers need. `prepare`, `side_by_side` and `snapshots` are
its parts, for those who stop and resume runs or batch several of them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from p2pjax.evaluation.test_sets import Evaluate
from p2pjax.sharding import constrain_sharding, on_host, place, placed
from p2pjax.types import Algorithm, Array, FederatedData, Info, InputError, Key, PyTree


class Start(NamedTuple):
    """A run that is ready to start; of S runs side by side every leaf is `[S, ...]`."""

    key: Key
    data: FederatedData
    inputs: PyTree  # what the host has drawn, leaves [R, ...]


class Snapshot(NamedTuple):
    """Where a simulation stands after an evaluation.

    Of S runs side by side, all leaves begin with S.
    """

    num_rounds: int  # done so far
    state: PyTree  # valid until the next snapshot is asked for: it is donated
    metrics: dict[str, np.ndarray]
    info: Info  # of every round since the last snapshot, leaves [rounds, N]


def simulate(
    key: Key,
    algorithm: Algorithm,
    data: FederatedData,
    num_rounds: int,
    *,
    eval_every: int,
    evaluate: Evaluate,
) -> Iterator[Snapshot]:
    """Runs an algorithm and yields after every evaluation.

    The rounds between two evaluations are one compiled scan with donated state. Calls
    with the same `algorithm` and `evaluate` objects and the same shapes share their
    compiled program. Keys of a round depend on `key` and the round's number only, so
    `eval_every` changes nothing but what is reported.
    """
    start = prepare(key, algorithm, data, num_rounds)
    return snapshots(
        start, algorithm, num_rounds, eval_every=eval_every, evaluate=evaluate
    )


def prepare(
    key: Key, algorithm: Algorithm, data: FederatedData, num_rounds: int
) -> Start:
    """Draws what the host has to draw for a run."""
    if num_rounds < 1:
        raise InputError(f"Need at least one round, got {num_rounds}.")
    _, key_plan, _ = jax.random.split(key, 3)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_plan)))
    return Start(key, data, algorithm.plan(rng, data, num_rounds))


def side_by_side(starts: Sequence[Start]) -> Start | None:
    """Several runs as one program; None where their shapes differ."""
    first, *others = (_shapes((start.data, start.inputs)) for start in starts)
    if any(other != first for other in others):
        return None
    key = jax.numpy.stack([start.key for start in starts])
    tables = [(start.data, start.inputs) for start in starts]
    return Start(key, *jax.tree.map(lambda *leaves: np.stack(leaves), *tables))


def _shapes(tree: PyTree) -> list:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def snapshots(
    start: Start,
    algorithm: Algorithm,
    num_rounds: int,
    *,
    eval_every: int,
    evaluate: Evaluate,
    first_round: int = 0,
    state: PyTree | None = None,
) -> Iterator[Snapshot]:
    """`simulate`, for runs that are prepared: one, or several side by side.

    A run that goes on from the `state` it had before `first_round` ends as if it had
    never stopped.
    """
    if eval_every < 1:
        raise InputError(f"Need eval_every of 1 or more, got {eval_every}.")
    start = start._replace(data=place(start.data, start.key.ndim))
    if state is None:
        state = initial_state(start.key, algorithm, start.data)
    return _snapshots(
        start, algorithm, num_rounds, eval_every, evaluate, first_round, state
    )


def _snapshots(
    start: Start,
    algorithm: Algorithm,
    num_rounds: int,
    eval_every: int,
    evaluate: Evaluate,
    first_round: int,
    state: PyTree,
) -> Iterator[Snapshot]:
    key_rounds = _split(start.key)[1]
    for first in range(first_round, num_rounds, eval_every):
        last = min(first + eval_every, num_rounds)
        state, info, metrics = _advance(
            key_rounds,
            *_chunk(start, first, last),
            state,
            start.data,
            algorithm,
            evaluate,
        )
        yield Snapshot(last, state, *on_host((metrics, info)))


def initial_state(key: Key, algorithm: Algorithm, data: FederatedData) -> PyTree:
    """The state in which `simulate` starts."""
    data = place(data, key.ndim)
    return place(_init(_split(key)[0], data, algorithm), key.ndim)


def initial_shapes(key: Key, algorithm: Algorithm, data: FederatedData) -> PyTree:
    """Shapes and dtypes of `initial_state`; nothing is computed."""
    return jax.eval_shape(partial(_init, algorithm=algorithm), key, data)


def compiled(
    start: Start, algorithm: Algorithm, num_rounds: int, evaluate: Evaluate
) -> jax.stages.Compiled:
    """The program of so many rounds and an evaluation; `snapshots` then has it too."""
    axis = start.key.ndim
    state = initial_shapes(start.key, algorithm, start.data)
    return _advance.lower(
        _split(start.key)[1],
        *_chunk(start, 0, num_rounds),
        placed(state, axis),
        placed(start.data, axis),
        algorithm,
        evaluate,
    ).compile()


@jax.jit
def _split(key: Key) -> tuple[Key, Key]:
    """Keys of the initial state and of the rounds."""
    keys = jax.vmap(partial(jax.random.split, num=3))(key.reshape(-1))
    return keys[:, 0].reshape(key.shape), keys[:, 2].reshape(key.shape)


def _chunk(start: Start, first: int, last: int) -> tuple[np.ndarray, PyTree]:
    """Numbers and inputs of the rounds from `first` to before `last`."""
    at = (slice(None),) * start.key.ndim + (slice(first, last),)
    numbers = np.arange(first, last, dtype=np.int32)
    return numbers, jax.tree.map(lambda leaf: leaf[at], start.inputs)


@partial(jax.jit, static_argnames=("algorithm",))
def _init(key: Key, data: FederatedData, algorithm: Algorithm) -> PyTree:
    init = jax.vmap(algorithm.init) if key.ndim else algorithm.init
    return constrain_sharding(init(key, data), key.ndim)


@partial(jax.jit, static_argnames=("algorithm", "evaluate"), donate_argnames=("state",))
def _advance(
    key: Key,
    rounds: Array,
    inputs: PyTree,
    state: PyTree,
    data: FederatedData,
    algorithm: Algorithm,
    evaluate: Evaluate,
) -> tuple[PyTree, Info, dict[str, Array]]:
    def one_run(
        key: Key, inputs: PyTree, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info, dict[str, Array]]:
        def one_round(state: PyTree, scanned: PyTree) -> tuple[PyTree, Info]:
            t, inputs = scanned
            return algorithm.round(jax.random.fold_in(key, t), t, inputs, state, data)

        state, info = jax.lax.scan(one_round, state, (rounds, inputs))
        return state, info, evaluate(algorithm.models(state), data)

    # Numbers of rounds stay outside the batch: a batched `cond` runs both branches.
    return (jax.vmap(one_run) if key.ndim else one_run)(key, inputs, state, data)
