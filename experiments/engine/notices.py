"""What a person is told while runs go on: idle devices, agents that diverged."""

from collections.abc import Sequence

import jax
from absl import logging

from experiments.engine import rows
from experiments.engine.config import Common
from experiments.engine.jobs import Batch
from p2pjax.types import InputError


def tell_of_idle_devices(config: Common, batch: Batch) -> None:
    """Warns where the agents do not fill all devices."""
    used = jax.sharding.get_mesh().size
    there = config.num_devices or used
    if used < there:
        logging.log_first_n(
            logging.WARNING,
            "%d agents use %d of %d devices: choose a number of agents that the number "
            "of devices divides.",
            1,
            batch.start.data.cluster.shape[-1],
            used,
            there,
        )


def tell_of_divergence(
    config: Common, batch: Batch, found: Sequence[tuple], now: int, told: frozenset[int]
) -> frozenset[int]:
    """Warns of runs whose agents diverged since the last evaluation, or stops there.

    Args:
      config: says whether to stop.
      batch: runs side by side.
      found: what each of them evaluated, reported and used.
      now: rounds done.
      told: runs of the batch that are known to have diverged.

    Returns:
      Those of which it is known now.
    """
    for number, (job, (values, *_)) in enumerate(zip(batch.jobs, found, strict=True)):
        agents = rows.diverged_agents(values)
        if not agents or number in told:
            continue
        said = (
            f"{job.name['scheme']}, run {job.name['run']}: {len(agents)} of "
            f"{len(values['accuracy'])} agents diverged by round {now}, agent "
            f"{agents[0]} among them: lower --learning_rate."
        )
        if config.stop_when_diverged:
            raise InputError(said)
        logging.warning("%s", said)
        told = told | {number}
    return told
