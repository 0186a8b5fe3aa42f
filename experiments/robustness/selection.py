"""Peers chosen under attack: do agents that compare losses see malicious ones?

Agents in two clusters, whose images are turned by 0 and 180 degrees, choose whom to
average with; a share of each cluster attacks. Sajina (2025), "Deep Learning
Personalization Methods in Peer-to-peer Heterogeneous Systems", expects that attackers
who plant triggers keep losses low and are not found by them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from experiments.engine import fitting
from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Job, Program, data_rng, jobs_of_runs, of_all_runs
from experiments.robustness.adversaries import BY_AGENTS, NONE, check_attacks
from experiments.robustness.config import Config
from experiments.robustness.data import load_examples
from experiments.robustness.networks import make_task
from p2pjax.algorithms._dac import dac
from p2pjax.algorithms._oracle import oracle
from p2pjax.algorithms._panm import panm
from p2pjax.algorithms._pens import pens
from p2pjax.algorithms._sparse import sparse
from p2pjax.datasets import split as splits
from p2pjax.datasets._federate import federate_examples
from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange import robust
from p2pjax.exchange.attacks import Attack
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.similarity import agreement, update_cosine
from p2pjax.tasks.task import Task
from p2pjax.types import Algorithm, Array, Evaluate, FederatedData, InputError, Models

NUM_CLUSTERS, TEST_SHARE, PROBED = 2, 0.3, 5  # agents whose test examples are the probe
ATTACKS = (NONE, "label_flip", "sign_flip", "backdoor", "boosted_backdoor")


class Subject(NamedTuple):
    """What a method is made of."""

    config: Config
    task: Task
    cluster: np.ndarray  # [N]
    byzantine: tuple[int, ...]
    attack: Attack | None
    probe: Probe

    @property
    def num_peers(self) -> int:
        """Whom an agent averages with in a round."""
        return self.config.degree or 3

    def made(self, make: Callable[..., Algorithm], *args: Any, **own: Any) -> Algorithm:
        """A method with what all of them have in common."""
        return make(
            self.task,
            optax.adam(rate(self.config, 1e-2)),
            *args,
            batch_size=self.config.batch_size,
            attack=self.attack,
            agent_loop=agent_loop(self.config, self.task),
            **own,
        )

    def in_stages(self, make: Callable[..., Algorithm], **own: Any) -> Algorithm:
        """A method that looks at candidates first, in a fifth of the rounds."""
        return self.made(
            make,
            num_peers=self.num_peers,
            num_candidates=2 * self.num_peers,
            second_stage=max(2, self.config.num_rounds // 5),
            **own,
        )


def _panm(subject: Subject, **own: Any) -> Algorithm:
    every = max(1, subject.config.num_rounds // 50)
    return subject.in_stages(panm, matching_every=every, **own)


def _random(subject: Subject, rule: robust.Rule | None = None) -> Algorithm:
    return subject.made(sparse, num_peers=subject.num_peers, aggregate=rule)


def _oracle(subject: Subject) -> Algorithm:
    """Honest agents know each other; attackers hear attackers."""
    group = subject.cluster.copy()
    group[list(subject.byzantine)] += NUM_CLUSTERS
    return subject.made(oracle, group, degree=subject.num_peers)


METHODS: Mapping[str, Callable[[Subject], Algorithm]] = {
    "random": _random,
    "oracle": _oracle,
    "pens": lambda subject: subject.in_stages(pens),
    "dac": lambda subject: subject.made(dac, num_peers=subject.num_peers),
    "panm_loss": _panm,
    "panm_grad": lambda subject: _panm(subject, similarity=update_cosine()),
    "panm_probe": lambda subject: _panm(
        subject, similarity=agreement(), probe=subject.probe
    ),
    "random_cs_plus": lambda subject: _random(subject, robust.cs_plus(1)),
    "random_ubar": lambda subject: _random(
        subject, robust.ubar(1 - subject.config.byzantine_share)
    ),
}


def selection_jobs(config: Config) -> list[Job]:
    """All methods under all attacks."""
    examples = load_examples(config)
    task = make_task(config, examples)
    fitting.check_agents(config, config.size, task, optax.adam(1e-2))
    of_runs = of_all_runs(
        config,
        lambda run: federate_examples(
            examples,
            None,
            num_agents=config.size,
            split=splits.rotated(NUM_CLUSTERS),
            test_fraction=TEST_SHARE,
            valid_fraction=0.0,
            seed=data_rng(config, run),
        ),
    )
    first = of_runs[config.first_run]
    byzantine = attackers_of(config, np.asarray(first.cluster))
    check_attacks(config.study, config.attacks or (), BY_AGENTS)
    jobs = []
    for attack in config.attacks or ATTACKS:
        made = None
        if attack != NONE:
            made = BY_AGENTS[attack](byzantine, examples.num_classes)
        subject = Subject(
            config,
            task,
            np.asarray(first.cluster),
            byzantine,
            made,
            _probe(task, first),
        )
        evaluate = evaluation(config, task, made)
        facts = {} if made is None else {"expected_from_attackers": expected(config)}
        for name in config.methods or METHODS:
            program = Program(METHODS[name](subject), evaluate)
            jobs += jobs_of_runs(
                config,
                name,
                {"attack": attack},
                program,
                of_runs.__getitem__,
                facts=facts,
            )
    return jobs


def attackers_of(config: Config, cluster: np.ndarray) -> tuple[int, ...]:
    """The last agents of each cluster, as many as the share says.

    Args:
      config: of the experiment.
      cluster: `[N]`.
    """
    count = round(config.byzantine_share * config.size / NUM_CLUSTERS)
    num_peers = config.degree or 3
    if not num_peers < count < config.size // NUM_CLUSTERS - num_peers:
        raise InputError(
            f"Need more attackers and more honest agents in each of {NUM_CLUSTERS} "
            f"clusters than the {num_peers} peers of an agent, got {count} attackers "
            f"of {config.size // NUM_CLUSTERS}: change --byzantine_share or "
            "--num_agents."
        )
    found = [np.flatnonzero(cluster == own)[-count:] for own in range(NUM_CLUSTERS)]
    return tuple(np.concatenate(found).tolist())


def expected(config: Config) -> float:
    """Share of attackers among the peers of an honest agent in its own cluster."""
    members = config.size // NUM_CLUSTERS
    return round(config.byzantine_share * members) / (members - 1)


def evaluation(config: Config, task: Task, attack: Attack | None) -> Evaluate:
    """Of honest agents on their own test sets, and of the worst of them.

    Args:
      config: of the experiment.
      task: what agents learn.
      attack: whose agents are not judged.
    """
    loop = agent_loop(config, task)
    evaluate = before_and_after(task, loop)
    if attack is not None:
        evaluate = of_honest_agents(evaluate, task, attack, loop)

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        values = dict(evaluate(models, data))
        return values | {"worst_accuracy": jnp.nanmin(values["accuracy"])}

    return evaluate_fn


def _probe(task: Task, data: FederatedData) -> Probe:
    """Test examples of the first agents of each cluster."""
    assert task.predict is not None
    half = math.ceil(len(data.cluster) / NUM_CLUSTERS)
    agents = [c * half + place for c in range(NUM_CLUSTERS) for place in range(PROBED)]
    x, size = np.asarray(data.test.examples["x"]), int(np.min(data.test.size))
    return Probe(task.predict, {"x": x[agents, :size].reshape(-1, *x.shape[2:])})
