"""The simulation: a scan of rounds under one jit, evaluated every few rounds.

`simulate` is all that most callers need. `prepare`, `side_by_side` and `snapshots` are
its parts, for those who stop and resume runs or batch several of them.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.host_memory import check_room
from p2pjax.sharding import constrain_sharding, on_host, place, placed
from p2pjax.simulation._snapshots import Snapshot, stacked, watched
from p2pjax.simulation._used import Used, added, nothing_used
from p2pjax.types import (
    Algorithm,
    Array,
    Evaluate,
    FederatedData,
    Info,
    InputError,
    Key,
    PyTree,
    Split,
    num_agents,
)

_MANY = 10_000  # rounds for which two are drawn first, to see what all would take


class Start(NamedTuple):
    """A run that is ready to start; of S runs side by side leaves are `[S, ...]`."""

    key: Key
    data: FederatedData  # of several runs [S, ...], or the same for all
    inputs: PyTree  # what the host has drawn, leaves [R, ...]


def simulate(
    key: Key,
    method: Algorithm,
    data: FederatedData,
    num_rounds: int,
    *,
    eval_every: int = 1,
    evaluate: Evaluate | None = None,
) -> Iterator[Snapshot]:
    """Runs a method and yields after every evaluation.

    The rounds between two evaluations are one compiled scan with donated state. Calls
    with the same `method` and `evaluate` objects and the same shapes share their
    compiled program. Keys of a round depend on `key` and the round's number only, so
    `eval_every` changes nothing but what is reported.

    Args:
      key: of the run, `jax.random.key(0)`; or keys `[S]` of S runs with the same data,
        side by side in one program. Where the host draws inputs of different shapes
        for them, they run one after the other.
      method: any method of the package, or an `Algorithm` of one's own.
      data: of all agents.
      num_rounds: how many rounds; `method.round_is` says what that is.
      eval_every: rounds between two evaluations.
      evaluate: what to measure; `method.evaluate` if not given.

    Yields:
      A `Snapshot` after every `eval_every` rounds and after the last. It warns once
      where models are no longer finite (`metrics["diverged"]`).

    Example:
      >>> import jax, optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.dpsgd(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> for now in pj.simulate(jax.random.key(0), method, data, num_rounds=2):
      ...     print(now.num_rounds, now.metrics["accuracy"].shape, now.used.messages)
      1 (4,) 96
      2 (4,) 192
    """
    evaluate = method.evaluate if evaluate is None else evaluate
    if key.ndim == 0:
        start = prepare(key, method, data, num_rounds)
        return watched(
            snapshots(
                start, method, num_rounds, eval_every=eval_every, evaluate=evaluate
            )
        )
    if key.ndim > 1 or not key.shape[0]:
        raise InputError(
            f"Need one key, or keys [S] of several runs, got a shape of {key.shape}."
        )
    starts = [prepare(one, method, data, num_rounds) for one in key]
    together = _with_one_data(starts)
    if together is not None:
        return watched(
            snapshots(
                together, method, num_rounds, eval_every=eval_every, evaluate=evaluate
            )
        )
    runs = [
        snapshots(start, method, num_rounds, eval_every=eval_every, evaluate=evaluate)
        for start in starts
    ]
    return watched(map(stacked, zip(*runs, strict=True)))


def prepare(
    key: Key, algorithm: Algorithm, data: FederatedData, num_rounds: int
) -> Start:
    """Draws what the host has to draw for a run.

    Args:
      key: of the run.
      algorithm: the method.
      data: of all agents.
      num_rounds: R.
    """
    if num_rounds < 1:
        raise InputError(f"Need at least one round, got {num_rounds}.")
    _, key_plan, _ = jax.random.split(key, 3)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_plan)))
    if num_rounds > _MANY:
        two = jax.tree.leaves(algorithm.plan(copy.deepcopy(rng), data, 2))
        check_room(
            num_rounds * sum(np.asarray(leaf).nbytes for leaf in two) // 2,
            f"all that the host draws for {num_rounds} rounds",
        )
    inputs = algorithm.plan(rng, data, num_rounds)
    return Start(key, with_order_seeds(data, rng), inputs)


def with_order_seeds(data: FederatedData, rng: np.random.Generator) -> FederatedData:
    """The same data, through which agents go in an order of their own in this run.

    For loops of one's own; `simulate` does it with the key of the run.

    Args:
      data: of all agents.
      rng: draws the seeds.
    """
    seeds = rng.integers(2**32, size=num_agents(data), dtype=np.uint32)
    return data._replace(train=data.train._replace(order_seed=seeds))


def side_by_side(starts: Sequence[Start]) -> Start | None:
    """Several runs as one program; None where their shapes differ."""
    first, *others = (_shapes((start.data, start.inputs)) for start in starts)
    if any(other != first for other in others):
        return None
    key = jnp.stack([start.key for start in starts])
    tables = [(start.data, start.inputs) for start in starts]
    return Start(key, *jax.tree.map(lambda *leaves: np.stack(leaves), *tables))


def _with_one_data(starts: Sequence[Start]) -> Start | None:
    """Runs on the same data as one program; None where their inputs' shapes differ."""
    first, *others = (_shapes(start.inputs) for start in starts)
    if any(other != first for other in others):
        return None
    key = jnp.stack([start.key for start in starts])
    inputs, seeds = (
        jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
        for trees in (
            [start.inputs for start in starts],
            [start.data.train.order_seed for start in starts],
        )
    )
    data = starts[0].data
    train = data.train._replace(order_seed=seeds)  # [S, N]: all else is the same
    return Start(key, data._replace(train=train), inputs)


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
    used: Used | None = None,
) -> Iterator[Snapshot]:
    """`simulate`, for runs that are prepared: one, or several side by side.

    A run that goes on from the `state` it had before `first_round` ends as if it had
    never stopped.

    Args:
      start: what `prepare` or `side_by_side` returned.
      algorithm: the method.
      num_rounds: how many rounds, those before `first_round` included.
      eval_every: rounds between two evaluations.
      evaluate: what to measure.
      first_round: with which to go on.
      state: from which to go on; None starts anew.
      used: what the run had used by then.
    """
    if eval_every < 1:
        raise InputError(f"Need eval_every of 1 or more, got {eval_every}.")
    start = start._replace(data=_placed_data(start.data, start.key))
    if state is None:
        state = initial_state(start.key, algorithm, start.data)
    if used is None:
        used = nothing_used(start.key.shape)
    return _snapshots(
        start, algorithm, num_rounds, eval_every, evaluate, first_round, state, used
    )


def _snapshots(
    start: Start,
    algorithm: Algorithm,
    num_rounds: int,
    eval_every: int,
    evaluate: Evaluate,
    first_round: int,
    state: PyTree,
    used: Used,
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
        metrics, info = on_host((metrics, info))
        used = added(used, info)
        yield Snapshot(last, state, metrics, info, used)


def initial_state(key: Key, algorithm: Algorithm, data: FederatedData) -> PyTree:
    """The state in which `simulate` starts.

    Args:
      key: of the run, or keys `[S]`.
      algorithm: the method.
      data: of the run; of several runs `[S, ...]`, or the same for all.
    """
    data = _placed_data(data, key)
    init = _init_on(jax.default_backend())
    return place(init(_split(key)[0], data, algorithm), key.ndim)


def _placed_data(data: FederatedData, key: Key) -> FederatedData:
    """Where its agents live; of several runs each leaf may have an axis of runs."""
    axes = _data_axes(data, key)
    if axes == 0 or not key.ndim:
        return place(data, key.ndim)
    seeds = place(data.train.order_seed, 1)
    data = place(data._replace(train=data.train._replace(order_seed=None)))
    return data._replace(train=data.train._replace(order_seed=seeds))


def _data_axes(data: FederatedData, key: Key) -> PyTree:
    """Axes of runs, for `vmap`: 0 where every run has data of its own."""
    if not key.ndim or np.ndim(data.train.size) > 1:
        return 0
    seeds = data.train.order_seed
    train = Split(None, None, None if seeds is None else 0)  # type: ignore[arg-type]
    return FederatedData(train, None, None, None)  # type: ignore[arg-type]


def initial_shapes(key: Key, algorithm: Algorithm, data: FederatedData) -> PyTree:
    """Shapes and dtypes of `initial_state`; nothing is computed."""
    return jax.eval_shape(partial(_initial, algorithm=algorithm), key, data)


def compiled(
    start: Start, algorithm: Algorithm, num_rounds: int, evaluate: Evaluate
) -> jax.stages.Compiled:
    """The program of so many rounds and an evaluation; `snapshots` then has it too.

    Args:
      start: of a run.
      algorithm: the method.
      num_rounds: between two evaluations.
      evaluate: what is measured.
    """
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


def _initial(key: Key, data: FederatedData, algorithm: Algorithm) -> PyTree:
    init = algorithm.init
    if key.ndim:
        init = jax.vmap(init, in_axes=(0, _data_axes(data, key)))
    return constrain_sharding(init(key, data), key.ndim)


@cache
def _init_on(backend: str) -> Callable[[Key, FederatedData, Algorithm], PyTree]:
    """Jitted `_initial`.

    It runs once: on CPUs less optimised code compiles up to three times as fast and,
    unlike that of a round, computes the same bytes.
    """
    options = {"xla_backend_optimization_level": 1} if backend == "cpu" else None
    return jax.jit(_initial, static_argnames=("algorithm",), compiler_options=options)


@partial(
    jax.jit,
    static_argnames=("algorithm", "evaluate"),
    donate_argnames=("state",),
)
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
    if key.ndim:
        one_run = jax.vmap(one_run, in_axes=(0, 0, 0, _data_axes(data, key)))
    return one_run(key, inputs, state, data)
