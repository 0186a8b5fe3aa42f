"""What an experiment consists of: jobs, and those that run side by side."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.engine import processes
from experiments.engine.config import Common
from experiments.engine.run_folder import Row
from p2pjax import sharding
from p2pjax.datasets.stacking import over_splits, pad_to_same_size
from p2pjax.evaluation.test_sets import Evaluate
from p2pjax.host_memory import check_room, free_bytes
from p2pjax.simulation._simulate import Start, prepare, side_by_side
from p2pjax.types import Algorithm, FederatedData, PyTree, Split

_KEPT = 0.1  # of the free memory, which data of runs that wait may take


class Program(NamedTuple):
    """A method, ready to run, and how its models are judged."""

    algorithm: Algorithm
    evaluate: Evaluate


class Job(NamedTuple):
    """One run of one scheme."""

    scheme: str
    setting: dict[str, Any]
    run: int
    key: jax.Array  # runs differ in their key, schemes do not
    program: Program  # jobs with the same one compile once, if their data is as large
    make_data: Callable[[], FederatedData]
    facts: Mapping[str, float] = MappingProxyType({})  # reported with every evaluation
    # of optax.inject_hyperparams, written into the first state: no other program
    hyperparameters: Mapping[str, float] = MappingProxyType({})

    @property
    def name(self) -> Row:
        """What tells it from other jobs."""
        return {"scheme": self.scheme, "setting": self.setting, "run": self.run}


class Measurement(NamedTuple):
    """One run of one scheme in which nothing is trained."""

    scheme: str
    setting: dict[str, Any]
    run: int
    measure: Callable[[], Mapping[str, float]]

    @property
    def name(self) -> Row:
        """What tells it from other jobs."""
        return {"scheme": self.scheme, "setting": self.setting, "run": self.run}


def run_key(config: Common, run: int) -> jax.Array:
    """Of everything random in a run, but for its data."""
    return _key(config.seed, run)


@cache
def _key(seed: int, run: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), run)


def data_rng(config: Common, run: int) -> np.random.Generator:
    """Of a run's data."""
    return np.random.default_rng([config.seed, run])


def jobs_of_runs(
    config: Common,
    scheme: str,
    setting: dict[str, Any],
    program: Program | Callable[[int], Program],
    make_data: Callable[[int], FederatedData],
    *,
    runs: Sequence[int] | None = None,
    facts: Mapping[str, float] = MappingProxyType({}),
    hyperparameters: Mapping[str, float] = MappingProxyType({}),
) -> list[Job]:
    """A job per run of a scheme.

    Args:
      config: of the experiment.
      scheme: its name.
      setting: what else rows say about it.
      program: of all runs, or of a run.
      make_data: of a run.
      runs: their numbers; all that the config has if not given.
      facts: reported with every evaluation.
      hyperparameters: written into the state of an optimizer that was made by
        `optax.inject_hyperparams`, so that values share a compiled program.
    """
    return [
        Job(
            scheme,
            setting,
            run,
            run_key(config, run),
            program if isinstance(program, Program) else program(run),
            partial(make_data, run),
            facts,
            hyperparameters,
        )
        for run in (config.runs if runs is None else runs)
    ]


class Batch(NamedTuple):
    """Jobs of one program, side by side; most often there is only one."""

    first: int  # number of its first job
    jobs: Sequence[Job]
    start: Start

    @property
    def label(self) -> str:
        """For a person."""
        first, *others = self.jobs
        more = f" and {len(others)} more" if others else ""
        return f"{first.scheme}, run {first.run}{more}"

    @property
    def kind(self) -> tuple[Program, list]:
        """Equal for batches that share a compiled program."""
        arrays = self.start.key, self.start.data, self.start.inputs
        shapes = [leaf.shape for leaf in jax.tree.leaves(arrays)]
        return self.jobs[0].program, shapes

    def apart(self, tree: PyTree) -> list[PyTree]:
        """What belongs to each of its jobs, of a snapshot or of its start."""
        if not self.start.key.ndim:
            return [tree]
        return [
            jax.tree.map(lambda leaf: leaf[place], tree)  # noqa: B023
            for place in range(len(self.jobs))
        ]

    @property
    def after(self) -> int:
        """Number of the next job."""
        return self.first + len(self.jobs)


def batches(config: Common, jobs: Sequence[Job], first: int = 0) -> Iterator[Batch]:
    """All jobs from number `first` on, prepared when their turn comes.

    Up to `runs_at_once` neighbouring jobs of one program go side by side. Where their
    data or what the host draws for them have different shapes, they go one by one.
    """
    for group in _groups(jobs, config.runs_at_once or 1):
        if group.stop <= first:
            continue
        starts = [_prepared(config, jobs[number]) for number in group]
        together = side_by_side(starts) if len(group) > 1 else None
        if together is not None:
            yield Batch(group.start, jobs[group.start : group.stop], together)
            continue
        for number, start in zip(group, starts, strict=True):
            if number >= first:
                yield Batch(number, [jobs[number]], start)


def _groups(jobs: Sequence[Job], at_once: int) -> Iterator[range]:
    start = 0
    for number in range(1, len(jobs) + 1):
        if (
            number == len(jobs)
            or number - start == at_once
            or jobs[number].program != jobs[start].program
            or jobs[number].hyperparameters != jobs[start].hyperparameters
        ):
            yield range(start, number)
            start = number


def _prepared(config: Common, job: Job) -> Start:
    data = own_examples(config, job.make_data())
    with devices_of(config, data):
        return prepare(job.key, job.program.algorithm, data, config.num_rounds)


def kept(
    config: Common,
    make_data: Callable[[int], FederatedData],
    names: Sequence[str] | None = None,
) -> Callable[[int], FederatedData]:
    """Makes the data of a run once, as long as there is plenty of memory for it.

    Of several processes each keeps its own agents' examples only; all runs' are then
    made at once, so that what they are made of need not be kept either.

    Args:
      config: of the experiment.
      make_data: of a run.
      names: see `own_examples`.
    """
    found: dict[int, FederatedData] = {}

    def of_run(run: int) -> FederatedData:
        if run in found:
            return found[run]
        data, free = make_data(run), free_bytes()
        held = sum(map(num_bytes, found.values()))
        if free is None or held + num_bytes(data) < _KEPT * (held + free):
            found[run] = data
        return data

    if jax.process_count() == 1:
        return of_run
    of_runs = {run: own_examples(config, make_data(run), names) for run in config.runs}
    return of_runs.__getitem__


def of_all_runs(
    config: Common, make_data: Callable[[int], FederatedData]
) -> dict[int, FederatedData]:
    """The data of all runs by their numbers, padded to the same shapes.

    Args:
      config: of the experiment.
      make_data: of a run.
    """
    first, *others = config.runs
    found = [make_data(first)]
    check_room(
        len(others) * num_bytes(found[0]), f"the data of {len(others)} more runs"
    )
    found += map(make_data, others)
    return dict(zip(config.runs, pad_to_same_size(found), strict=True))


def num_bytes(data: FederatedData) -> int:
    """Of all examples."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data))


def own_examples(
    config: Common, data: FederatedData, names: Sequence[str] | None = None
) -> FederatedData:
    """The data as one of several processes needs it, with its own agents' examples.

    They are where the agents will be trained; each agent knows all sizes and groups.

    Args:
      config: of the experiment.
      data: of all agents.
      names: what of the examples is to be its own agents' only; all if not given.
    """
    if jax.process_count() == 1:
        return data
    digest = _digest_on_host(data)
    if digest is not None:
        processes.check_same_value("data", digest)

    def own(split: Split) -> Split:
        chosen = {name: split.examples[name] for name in names or split.examples}
        return split._replace(examples={**split.examples, **sharding.place(chosen)})

    with devices_of(config, data):
        return over_splits(own, [data], data.cluster)


def _digest_on_host(data: FederatedData) -> bytes | None:
    """Of all agents' data; None where other processes hold a part of it already."""
    leaves = jax.tree.leaves(data)
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        return None
    found = hashlib.sha256()
    for leaf in map(np.asarray, leaves):
        found.update(f"{leaf.dtype}{leaf.shape}".encode())
        found.update(np.ascontiguousarray(leaf).data)
    return found.digest()


def devices_of(config: Common, data: FederatedData) -> AbstractContextManager:
    """Spreads the agents of a run, or of several side by side, over the devices."""
    num_agents = data.cluster.shape[-1]
    return jax.set_mesh(sharding.agents_mesh(num_agents, config.num_devices))
