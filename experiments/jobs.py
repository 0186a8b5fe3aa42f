"""What an experiment consists of: jobs, and those that run side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from experiments import common
from experiments.run_folder import Row
from p2pjax import sharding
from p2pjax.datasets.stacking import over_splits
from p2pjax.evaluation.test_sets import Evaluate
from p2pjax.simulation._simulate import Start, prepare, side_by_side
from p2pjax.types import Algorithm, FederatedData, PyTree, Split


class Program(NamedTuple):
    """A method, ready to run, and how its models are judged."""

    algorithm: Algorithm
    evaluate: Evaluate


class Job(NamedTuple):
    """One run of one scheme."""

    scheme: str
    setting: dict[str, Any]
    run: int
    algorithm: Algorithm
    evaluate: Evaluate  # names an `accuracy` among its values
    make_world: Callable[[], FederatedData]
    facts: Mapping[str, float] = MappingProxyType({})  # reported with every evaluation

    @property
    def key(self) -> jax.Array:
        """Runs differ in their key, schemes do not."""
        return run_key(self.run)

    @property
    def program(self) -> Program:
        """Jobs with the same one are compiled once, if their data has equal shapes."""
        return Program(self.algorithm, self.evaluate)

    @property
    def name(self) -> Row:
        """What tells it from other jobs."""
        return {"scheme": self.scheme, "setting": self.setting, "run": self.run}


def run_key(run: int) -> jax.Array:
    """Of everything random in a run, but for its data."""
    return jax.random.fold_in(jax.random.key(common.SEED.value), run)


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


def batches(jobs: Sequence[Job], first: int, at_once: int) -> Iterator[Batch]:
    """All jobs from number `first` on, prepared when their turn comes.

    Up to `at_once` neighbouring jobs of one program go side by side. Where their data
    or what the host draws for them have different shapes, they go one by one.
    """
    for group in _groups(jobs, at_once):
        if group.stop <= first:
            continue
        starts = [_prepared(jobs[number]) for number in group]
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
        ):
            yield range(start, number)
            start = number


def _prepared(job: Job) -> Start:
    world = own_examples(job.make_world())
    with devices_of(world):
        return prepare(job.key, job.algorithm, world, common.NUM_ROUNDS.value)


def kept(
    make_world: Callable[[int], FederatedData], names: Sequence[str] | None = None
) -> Callable[[int], FederatedData]:
    """Makes the world of a run once.

    Of several processes each keeps its own agents' examples only; all runs' are then
    made at once, so that what they are made of need not be kept either.

    Args:
      make_world: of a run.
      names: see `own_examples`.
    """
    if jax.process_count() == 1:
        return cache(make_world)
    worlds = [
        own_examples(make_world(run), names) for run in range(common.NUM_RUNS.value)
    ]
    return worlds.__getitem__


def own_examples(
    world: FederatedData, names: Sequence[str] | None = None
) -> FederatedData:
    """The world as one of several processes needs it, with its own agents' examples.

    They are where the agents will be trained; everybody knows all sizes and groups.

    Args:
      world: of all agents.
      names: what of the examples is to be its own agents' only; all if not given.
    """
    if jax.process_count() == 1:
        return world

    def own(split: Split) -> Split:
        chosen = {name: split.examples[name] for name in names or split.examples}
        return split._replace(examples={**split.examples, **sharding.place(chosen)})

    with devices_of(world):
        return over_splits(own, [world], world.cluster)


def devices_of(world: FederatedData) -> AbstractContextManager:
    """Spreads the agents of a world, or of several side by side, over the devices."""
    num_agents = world.cluster.shape[-1]
    return jax.set_mesh(sharding.agents_mesh(num_agents, common.NUM_DEVICES.value))
