"""What a person is told while runs go on: idle devices, agents that went astray."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from absl import logging

from experiments.engine import rows
from experiments.engine.config import Common
from experiments.engine.jobs import Batch
from p2pjax.datasets.checking import is_local
from p2pjax.graphs import analysis
from p2pjax.types import FederatedData, InputError, Peers

# What is finite, but no result of learning. An undecided prediction has a loss of the
# logarithm of the number of classes; networks that learned have norms up to hundreds.
_LOSS = 10  # times that of an undecided prediction
_NORM = 1e5
_GRAPH = 1e9  # operations of a look at graphs


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


def tell_of_graphs(batch: Batch) -> None:
    """Says how well the graphs mix on which the first run of a batch communicates.

    Nothing is said of graphs that are too large to look at within a second or so.
    """
    inputs = batch.apart(batch.start.inputs)[0]
    for weights in jax.tree.leaves(inputs, is_leaf=_is_weights):
        if not _is_weights(weights) or not is_local(weights.ids):
            continue
        several = _in_turn(weights)
        if several is None:
            continue
        number, size, _ = several.ids.shape
        facts = analysis.report(several)
        exact, left = facts.get("steps_to_consensus"), 1 - facts["contraction"]
        logging.info(
            "%s: %s of %d agents, %.3g neighbours, spectral gap %.3g; %s.",
            batch.label,
            f"{number} graphs" if number > 1 else "a graph",
            size,
            facts["mean_degree"],
            facts["spectral_gap"],
            f"{exact} mixings make all models equal"
            if exact and number > 1
            else f"a mixing leaves {left:.3g} of what models differ",
        )


def _in_turn(weights: Peers) -> Peers | None:
    """Graphs of a run until they come again, `[G, N, K]`; None: too large."""
    size, width = weights.ids.shape[-2:]
    most = int(_GRAPH // size**3)
    if not most:
        return None
    ids, weight = map(np.asarray, weights)  # [R, N, K], or [R, W, N, K]
    if ids.ndim == 4 and ids.shape[1] > 1:  # W in turn, within the first round
        return Peers(ids[0, :most], weight[0, :most])
    ids, weight = (leaf.reshape(-1, size, width)[:most] for leaf in (ids, weight))
    for period in range(1, len(ids)):
        if all(np.array_equal(leaf[period:], leaf[:-period]) for leaf in (ids, weight)):
            return Peers(ids[:period], weight[:period])
    return Peers(ids, weight)


def _is_weights(node: object) -> bool:
    return isinstance(node, Peers)


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


def tell_of_saturation(
    batch: Batch, found: Sequence[tuple], now: int, told: frozenset[int]
) -> frozenset[int]:
    """Warns of runs whose models are finite, and absurd: rates far too high saturate.

    Args:
      batch: runs side by side.
      found: what each of them evaluated, reported and used.
      now: rounds done.
      told: runs of the batch of which this, or that they diverged, is known.

    Returns:
      Those of which it is known now.
    """
    for number, (job, (values, *_)) in enumerate(zip(batch.jobs, found, strict=True)):
        if number in told:
            continue
        for name, limit in _limits(values, batch.start.data).items():
            agents = np.flatnonzero(values[name] > limit).tolist()
            if agents:
                logging.warning(
                    "%s, run %d: %d of %d agents have a %s above %.3g by round %d, "
                    "agent %d among them: models are saturated and learn nothing "
                    "more, lower --learning_rate.",
                    *(job.scheme, job.run, len(agents), len(values[name])),
                    *(name, limit, now, agents[0]),
                )
                told = told | {number}
                break
    return told


def _limits(values: Mapping[str, np.ndarray], data: FederatedData) -> dict[str, float]:
    """Of metrics `[N]` that are known, what no model should exceed."""
    of_agents = {name: value for name, value in values.items() if value.ndim == 1}
    found = {"norm": _NORM} if "norm" in of_agents else {}
    if "loss" in of_agents and of_agents["loss"].max() > _LOSS * math.log(2):
        num_classes = _num_classes(data)  # looks at all labels
        if num_classes is not None:
            found["loss"] = _LOSS * math.log(max(2, num_classes))
    return found


def _num_classes(data: FederatedData) -> int | None:
    """Of the labels, the most of any task; None if there are none in this process."""
    examples, axes = data.train.examples, np.ndim(data.train.size) + 1
    tables = (examples,) if isinstance(examples, Mapping) else examples.parts
    found = [table["labels"] for table in tables if "labels" in table]
    found += [t["y"] for t in tables if "y" in t and np.ndim(t["y"]) == axes]
    if not found or not all(is_local(leaf) and leaf.size for leaf in found):
        return None
    return 1 + max(int(np.max(leaf)) for leaf in found)
