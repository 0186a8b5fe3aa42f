"""Rows of metrics.jsonl and links.jsonl, and the counts that lead up to them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.engine.run_folder import Row
from p2pjax import sharding
from p2pjax.evaluation import models, statistics
from p2pjax.evaluation.attacked import is_judged
from p2pjax.evaluation.classes import BY_CLASS, balance
from p2pjax.evaluation.test_sets import DIVERGED
from p2pjax.simulation._used import Used
from p2pjax.types import Array, FederatedData, Info, Links, ModelTraffic

MOST_LINKED = 500  # agents of a run whose links are kept: there may be N * N of them


class Tally(NamedTuple):
    """What a run has counted since its start; part of its checkpoints."""

    num_rounds: int
    sent: np.ndarray  # [N] messages
    payload: float  # parameters sent, 4 bytes each, mean over agents
    delivered: float  # parameters that a server sent, mean over agents
    links: np.ndarray | None = None  # [N, N] messages the row got from the column
    merged: np.ndarray | None = None  # [N, N] of these, where some are only looked at
    counted: float | None = None  # messages that a source counts, mean over agents
    models: np.ndarray | None = None  # [2, M] messages, parameters by model


def nothing(num_agents: int) -> Tally:
    """At the start of a run."""
    return Tally(0, np.zeros(num_agents), 0.0, 0.0)


def counted(tally: Tally, num_rounds: int, info: Info) -> Tally:
    """After more rounds, leaves of `info` `[rounds, N]`; `num_rounds` in all."""

    def added(before: np.ndarray | None, links: Links | None) -> np.ndarray | None:
        if links is None or len(tally.sent) > MOST_LINKED:
            return before
        return _pairs(links) + (0 if before is None else before)

    return Tally(
        num_rounds,
        tally.sent + info.sent.sum(0, dtype=np.float64),
        tally.payload + _payload(info),
        tally.delivered + _mean_total(info.delivered),
        added(tally.links, info.links),
        added(tally.merged, info.merged),
        _counted(tally, info),
        _by_model(tally.models, info.models),
    )


def _counted(tally: Tally, info: Info) -> float | None:
    """None where all are counted, or it is not known what was before."""
    if info.counted is None or (tally.num_rounds and tally.counted is None):
        return None
    return (tally.counted or 0.0) + _mean_total(info.counted)


def _by_model(
    before: np.ndarray | None, traffic: ModelTraffic | None
) -> np.ndarray | None:
    """Messages and parameters of each partial model `[2, M]`, means over agents."""
    if traffic is None:
        return before
    each = traffic.messages, traffic.payload  # [rounds, N, M]
    found = np.stack([np.sum(one, 0, np.float64).mean(0) for one in each])
    return found if before is None else before + found


def _payload(info: Info) -> float:
    """What was sent, in parameters of 4 bytes, also where messages are compressed."""
    if info.bytes is None:
        return _mean_total(info.payload)
    return _mean_total(info.bytes) / models.BYTES_PER_PARAMETER


def _mean_total(values: Array | None) -> float:
    """Over all rounds, of `[rounds, N]`, mean over agents; 0 where no agent counts."""
    return 0.0 if values is None else float(np.sum(values, 0, np.float64).mean())


def _pairs(links: Links) -> np.ndarray:
    """Messages from every agent to every other, `[N, N]`."""
    num_agents = links.sender.shape[1]
    pair = np.arange(num_agents)[:, None] * num_agents + links.sender  # [rounds, N, K]
    weights = np.asarray(links.arrived).ravel()
    pairs = np.bincount(pair.ravel(), weights, minlength=num_agents**2)
    return pairs.reshape(num_agents, num_agents)


def to_json(tally: Tally) -> dict[str, Any]:
    """For a checkpoint; floats keep all their bits."""
    links, merged = (
        None if pairs is None else _triples(pairs)
        for pairs in (tally.links, tally.merged)
    )
    counts = {"sent": tally.sent.tolist(), "links": links, "merged": merged}
    found = tally._asdict() | counts
    if tally.models is not None:
        found["models"] = tally.models.tolist()
    return {
        name: value
        for name, value in found.items()
        if value is not None or name not in ("counted", "models")
    }


def from_json(found: dict[str, Any]) -> Tally:
    """What `to_json` was given."""
    sent = np.asarray(found["sent"], np.float64)

    def pairs(triples: list[list[int]] | None) -> np.ndarray | None:
        if triples is None:
            return None
        every = np.zeros((len(sent), len(sent)))
        for receiver, sender, count in triples:
            every[receiver, sender] = count
        return every

    return Tally(
        found["num_rounds"],
        sent,
        found["payload"],
        found["delivered"],
        pairs(found["links"]),
        pairs(found["merged"]),
        found.get("counted"),
        None if "models" not in found else np.asarray(found["models"], np.float64),
    )


def _triples(links: np.ndarray) -> list[list[int]]:
    receiver, sender = np.nonzero(links)
    count = links[receiver, sender].astype(int)
    return np.stack([receiver, sender, count], axis=1).tolist()


def data_facts(data: FederatedData) -> dict[str, float]:
    """What is known of a run's data: how right the most frequent label would be.

    `majority` is the mean over agents of the share of test examples that have the label
    which is most frequent among the agent's training examples.
    """
    parts = (data.train, data.test)
    if any("y" not in part.examples or part.examples["y"].ndim != 2 for part in parts):
        return {}
    labels = [part.examples["y"] for part in parts]
    if jax.process_count() > 1:  # each has its own agents' labels
        labels = sharding.on_host(labels)
    found = []
    for agent in range(len(data.train.size)):
        train, test = (
            np.asarray(y[agent])[: int(part.size[agent])]
            for y, part in zip(labels, parts, strict=True)
        )
        if not (len(train) and len(test) and train.dtype.kind in "iu"):
            return {}
        values, counts = np.unique(train, return_counts=True)
        found.append(np.mean(test == values[counts.argmax()]))
    return {"majority": float(np.mean(found))}


def metrics_row(
    name: Row,
    tally: Tally,
    used: Used,
    values: Mapping[str, np.ndarray],
    info: Info,
    cluster: np.ndarray,
    facts: Mapping[str, float],
) -> Row:
    """One evaluation of one run.

    Values per agent become their mean, over honest agents where some attack; accuracy
    and messages are also kept per agent. Of `diverged` it is told how many agents did.
    Accuracies of classes `[N, k]` become means over the agents who have the class; how
    right agents are with their classes in the mean, and with the worst, is told too.
    `rejected` is of messages that a robust rule did not count since they were not
    finite, per agent and round since the last evaluation.

    Args:
      name: scheme, setting and run.
      tally: of the run so far.
      used: by the run so far.
      values: of the evaluation, an `accuracy` among them.
      info: of the rounds since the last evaluation.
      cluster: `[N]`, the agents' true groups.
      facts: what else is known about the run.
    """
    size = tally.sent.shape  # (N,)
    judged = is_judged(values)
    judged = np.ones(size, bool) if judged is None else judged
    if BY_CLASS in values:
        of_classes = balance(values[BY_CLASS])
        values = {**values, **{n: np.asarray(v) for n, v in of_classes.items()}}

    def summed_up(name: str, value: np.ndarray) -> Any:
        if value.shape == size:
            return value[judged].mean()
        return _over_agents(value) if name == BY_CLASS else value

    means = {n: summed_up(n, v) for n, v in values.items() if n != DIVERGED}
    row = name | {
        "round": tally.num_rounds,
        **means,
        "train_loss": np.asarray(info.train_loss[-1])[judged].mean(),
        "messages": tally.sent.mean(),
        "bytes": tally.payload * models.BYTES_PER_PARAMETER,
        "steps": int(used.steps) / size[0],
        "examples": int(used.examples) / size[0],
    }
    if tally.counted is not None:
        row["messages_thesis"] = tally.counted
    if DIVERGED in values:
        row["num_diverged"] = len(diverged_agents(values))
    if not judged.all():
        row["num_byzantine"] = int((~judged).sum())
    if tally.sent.any():
        row["gini"] = statistics.gini(tally.sent)
    if info.links is not None and len(np.unique(cluster)) > 1:
        row["in_cluster"] = _share_in_cluster(info.links, cluster)
        if info.merged is not None:
            row["merged_in_cluster"] = _share_in_cluster(info.merged, cluster)
    if info.links is not None and not judged.all():
        links = info.links if info.merged is None else info.merged
        row["from_attackers"] = _share(links, ~judged[links.sender], judged)
    if info.rejected is not None:
        row["rejected"] = np.mean(info.rejected, dtype=np.float64)
    if info.time is not None:
        row["time"] = info.time[-1]
    if info.delivered is not None:
        row["bytes_down"] = tally.delivered * models.BYTES_PER_PARAMETER
    if tally.models is not None:
        for model, (messages, parameters) in enumerate(tally.models.T.tolist()):
            row[f"messages_of_model_{model}"] = messages
            row[f"bytes_of_model_{model}"] = parameters * models.BYTES_PER_PARAMETER
    if info.epochs is not None:
        row["epochs"] = info.epochs[-1].mean()
    if info.weight is not None:
        row["weight_sum"] = info.weight[-1].sum()
    return row | {
        **facts,
        "agent_accuracy": values["accuracy"],
        "agent_messages": tally.sent,
    }


def diverged_agents(values: Mapping[str, np.ndarray]) -> list[int]:
    """Agents whose models or predictions are not finite, of an evaluation.

    Args:
      values: of the evaluation; without `diverged` among them no agent has.
    """
    return np.flatnonzero(np.nan_to_num(values.get(DIVERGED, ()))).tolist()


def _over_agents(values: np.ndarray) -> list[float | None]:
    """Means over agents of `[N, k]`, without those that have no value."""
    known = np.isfinite(values)
    total, weight = np.where(known, values, 0).sum(0), known.sum(0)
    return [float(t / w) if w else None for t, w in zip(total, weight, strict=True)]


def _share_in_cluster(links: Links, cluster: np.ndarray) -> float | None:
    """Of the messages that came, those from the receiver's group; None if none came."""
    return _share(links, cluster[links.sender] == cluster[:, None])


def _share(
    links: Links, is_counted: np.ndarray, receivers: np.ndarray | slice = slice(None)
) -> float | None:
    """Of the messages that came to some receivers, those that are counted."""
    count = np.asarray(links.arrived, np.float64)[:, receivers]
    counted = count[is_counted[:, receivers]]
    return float(counted.sum() / count.sum()) if count.any() else None


def links_row(name: Row, tally: Tally, cluster: np.ndarray) -> Row | None:
    """Who received how many messages from whom in a run; None if no agent knows.

    Where methods look at models that they do not average with, it also says how many
    they averaged with.
    """
    if tally.links is None:
        return None
    row = name | {"cluster": cluster, "links": _triples(tally.links)}
    return row if tally.merged is None else row | {"merged": _triples(tally.merged)}
