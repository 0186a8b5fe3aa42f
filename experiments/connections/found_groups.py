"""Examples that all agents predict, and the groups that AUCCCR finds by them."""

import jax
import numpy as np

from experiments.connections.subject import Subject
from experiments.engine.config import agent_loop
from p2pjax import sharding
from p2pjax.algorithms._local_only import local_only
from p2pjax.selection import aucccr, peer_evaluation
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.simulation._simulate import simulate
from p2pjax.training.local_updates import epochs
from p2pjax.types import FederatedData

ALONE_EPOCHS = 15  # before agents are compared


def make_probe(subject: Subject, data: FederatedData) -> Probe:
    """Test examples of the first agents, as the thesis has it."""
    assert subject.task.predict is not None, "all of them predict classes"
    return Probe(subject.task.predict, {"x": _probed(subject, data)["x"]})


def _probed(subject: Subject, data: FederatedData) -> dict[str, np.ndarray]:
    left, parts = subject.config.probe_size, []
    for agent, size in enumerate(np.asarray(data.test.size)):
        rows = min(int(size), left)
        parts.append(
            {name: leaf[agent, :rows] for name, leaf in data.test.examples.items()}
        )
        left -= rows
        if not left:
            break
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def found_groups(
    subject: Subject, rng: np.random.Generator, data: FederatedData
) -> np.ndarray:
    """Groups of AUCCCR, `[N]`, from what models that were trained alone predict."""
    config = subject.config
    loop = agent_loop(config, subject.task)
    alone = local_only(
        subject.task,
        subject.optimizer,
        batch_size=config.batch_size,
        local_updates=epochs(ALONE_EPOCHS),
        agent_loop=loop,
    )
    key = jax.random.key(int(rng.integers(2**31)))
    (last,) = simulate(key, alone, data, 1, evaluate=lambda models, data: {})
    outputs = peer_evaluation.predictions(
        make_probe(subject, data), last.state.variables, loop
    )
    limit = config.group_limit
    if limit is None:
        tenths = 4 if len(np.unique(subject.cluster)) == 2 else 2
        limit = max(1, len(subject.cluster) * tenths // 10)
    features = aucccr.profiles(sharding.on_host(outputs), _probed(subject, data)["y"])
    return aucccr.value_groups(rng, features, aucccr.root_of_size(limit))
