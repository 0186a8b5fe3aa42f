"""Methods of the studies in which agents learn: one exchange after each mini-batch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.engine.config import agent_loop
from experiments.engine.jobs import Job, Program, jobs_of_runs, of_all_runs
from experiments.robustness import scores
from experiments.robustness.adversaries import (
    ATTACKED,
    BESIDE,
    BY_AGENTS,
    NONE,
    ON_A_DUMBBELL,
    RULES,
    UNDER_ATTACK,
    Threat,
    check_attacks,
    longest_step,
    threat,
)
from experiments.robustness.averaging import check_sizes
from experiments.robustness.config import Config
from experiments.robustness.data import (
    Deal,
    data_of_run,
    dirichlet,
    in_cliques,
    load_examples,
    with_attackers,
    writers_of_run,
)
from experiments.robustness.formats import FORMATS
from experiments.robustness.networks import make_optimizer, make_task
from p2pjax.algorithms._choco_sgd import choco_sgd
from p2pjax.algorithms._dpsgd import dpsgd
from p2pjax.algorithms._local_only import local_only
from p2pjax.datasets.stacking import Examples
from p2pjax.engines import stepwise
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.stepwise import GossipInputs
from p2pjax.exchange import attacks
from p2pjax.exchange.robust import Rule
from p2pjax.graphs import generators
from p2pjax.graphs.clusters import dumbbell, two_worlds
from p2pjax.graphs.mixing_matrices import metropolis_hastings
from p2pjax.host_memory import check_room
from p2pjax.tasks.task import Task
from p2pjax.training.local_training import local_training
from p2pjax.training.local_updates import steps
from p2pjax.training.samplers import Sampler
from p2pjax.types import Algorithm, Evaluate, FederatedData


def two_worlds_jobs(config: Config) -> list[Job]:
    """Rules under attacks of more and more attackers; gossip and agents alone."""
    check_sizes(config)
    check_attacks(config.study, config.attacks or (), (*BESIDE, *BY_AGENTS))
    examples = load_examples(config)
    task, deal = make_task(config, examples), dirichlet(config)
    graph = two_worlds(config.size, config.links)
    honest_data = _data_of_runs(config, examples, deal)
    local = Program(alone(config, task), judged(config, task))
    reference = {"attack": NONE, "f": 0}
    jobs = jobs_of_runs(config, "local_only", reference, local, honest_data)
    free = threat(graph, NONE, 0, examples.num_classes)
    plain = Program(gossip(config, task, free, None), judged(config, task))
    jobs += jobs_of_runs(config, "dpsgd", reference, plain, honest_data)
    for name in config.rules or UNDER_ATTACK:
        for attack in config.attacks or ATTACKED:
            for f in config.attackers:
                found = threat(graph, attack, f, examples.num_classes)
                rule = RULES[name](f, longest_step(found))
                if rule is None and not _is_given(found):
                    continue
                method = gossip(config, task, found, rule)
                judge = judged(config, task, found)

                def data(run: int, size: int = found.num_agents) -> FederatedData:
                    return with_attackers(honest_data(run), size)

                jobs += jobs_of_runs(
                    config,
                    name,
                    {"attack": attack, "f": f},
                    Program(method, judge),
                    data,
                    facts=facts_of(found),
                )
    return jobs


def dumbbell_jobs(config: Config) -> list[Job]:
    """Rules where no agent attacks, and cliques have the same or different classes."""
    examples = load_examples(config)
    task = make_task(config, examples)
    judge = scores.with_means(judged(config, task), task, config.size)
    local = Program(alone(config, task), judge)
    programs: dict[tuple[str, int], Program] = {}
    jobs = []
    for split in config.splits:
        deal = in_cliques(config, examples.num_classes, split)
        data = _data_of_runs(config, examples, deal)
        setting = {"split": split, "extra_edges": config.extra_edges[0]}
        jobs += jobs_of_runs(config, "local_only", setting, local, data)
        for extra in config.extra_edges:
            graph = dumbbell(config.size, extra, seed=config.seed)
            found = Threat(graph, None, config.size)
            for name in config.rules or ON_A_DUMBBELL:
                if (name, extra) not in programs:
                    rule = RULES[name](1, 1.0)
                    method = gossip(config, task, found, rule)
                    programs[name, extra] = Program(method, judge)
                setting = {"split": split, "extra_edges": extra}
                program = programs[name, extra]
                jobs += jobs_of_runs(config, name, setting, program, data)
    return jobs


def compression_jobs(config: Config) -> list[Job]:
    """Formats of messages on sparse graphs, and agents alone."""
    examples = load_examples(config)
    task, deal = make_task(config, examples), dirichlet(config)
    if config.writers:
        of_writers = lambda run: writers_of_run(config, examples, run)
        data = of_all_runs(config, of_writers).__getitem__
    else:
        data = _data_of_runs(config, examples, deal)
    judge = judged(config, task, validates=True)
    jobs = []
    for graph in config.chosen_graphs:
        setting = {"graph": graph}
        local = Program(alone(config, task), judge)
        jobs += jobs_of_runs(config, "local_only", setting, local, data)
        for name in config.formats:
            is_choco = FORMATS[name].is_choco
            for step in config.consensus_steps if is_choco else (None,):
                method = _compressed(config, task, graph, name, step)
                more = {} if step is None else {"consensus_step": step}
                jobs += jobs_of_runs(
                    config, name, setting | more, Program(method, judge), data
                )
    return jobs


def _data_of_runs(
    config: Config, examples: Examples, deal: Deal
) -> Callable[[int], FederatedData]:
    """Of one shape, so that runs share their programs."""
    found = of_all_runs(config, lambda run: data_of_run(config, examples, deal, run))
    return found.__getitem__


def _compressed(
    config: Config, task: Task, graph: str, name: str, step: float | None
) -> Algorithm:
    size = config.size
    options: dict[str, Any] = _averaged(config, task)
    drawn: Any = generators.ring(size)
    if graph == "random_regular":
        degree = config.degree or 4
        drawn = lambda rng: generators.random_regular(size, degree, seed=rng)
    optimizer = make_optimizer(config)
    channel = FORMATS[name].channel
    if step is None:
        method = dpsgd(
            task,
            optimizer,
            drawn,
            mixing_weights=metropolis_hastings,
            channel=channel,
            **options,
        )
    else:
        method = choco_sgd(
            task, optimizer, drawn, compression=channel, consensus_step=step, **options
        )
    return _by_mini_batches(method)


def gossip(
    config: Config,
    task: Task,
    found: Threat,
    rule: Rule | None,
    sampler: Sampler | None = None,
) -> Algorithm:
    """D-PSGD under attack.

    Args:
      config: of the experiment.
      task: what agents learn.
      found: the graph and who attacks.
      rule: of the receivers; None for the mean.
      sampler: of mini-batches; None for passes over all examples, whose order takes
        longer to draw than a step of the smallest networks.
    """
    num_attached = 0 if found.attack is None else found.attack.num_attached
    train_fn = None
    if sampler is not None:
        train_fn = lambda learner, usual, *more: local_training(learner, sampler, *more)
    options: dict[str, Any] = _averaged(config, task)
    if rule is not None and rule.needs_losses:  # at the exchange, which cannot wait
        options["score_before"] = False
    method = stepwise.gossip(
        task,
        make_optimizer(config),
        neighbor_averaging(metropolis_hastings, num_attached=num_attached),
        found.graph,
        attack=found.attack,
        aggregate=rule,
        train_fn=train_fn,
        name="D-PSGD",
        **options,
    )
    return _by_mini_batches(method)


def alone(config: Config, task: Task) -> Algorithm:
    """Agents that send nothing.

    Args:
      config: of the experiment.
      task: what agents learn.
    """
    optimizer, options = make_optimizer(config), _options(config, task)
    return local_only(task, optimizer, local_updates=steps(1), **options)


def _options(config: Config, task: Task) -> dict[str, Any]:
    return {"batch_size": config.batch_size, "agent_loop": agent_loop(config, task)}


def _averaged(config: Config, task: Task) -> dict[str, Any]:
    """Options of methods whose agents average."""
    return _options(config, task) | {"score_before": config.score_before}


def judged(
    config: Config,
    task: Task,
    found: Threat | None = None,
    *,
    num_honest: int | None = None,
    validates: bool = False,
) -> Evaluate:
    """How models are judged.

    Args:
      config: of the experiment.
      task: what agents learn.
      found: whose attackers are not judged; None for none.
      num_honest: agents, which come first; all of the config if None.
      validates: see `scores.of_agents`.
    """
    attack = None if found is None else found.attack
    size, loop = num_honest or config.size, agent_loop(config, task)
    return scores.of_agents(task, size, loop, attack, validates=validates)


def _by_mini_batches(method: Algorithm) -> Algorithm:
    """The method with rounds of one mini-batch and one exchange; its graph stays."""

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> GossipInputs:
        one = jax.tree.map(np.asarray, method.plan(rng, data, 1))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(one))
        check_room(size * num_rounds, f"the graph of each of {num_rounds} rounds")
        same = jax.tree.map(lambda leaf: np.repeat(leaf, num_rounds, 0), one)
        return same._replace(
            first_exchange=np.arange(num_rounds, dtype=np.int32),
            num_exchanges=np.ones(num_rounds, np.int32),
        )

    return method._replace(
        plan=plan_fn, round_is="one mini-batch of each agent and one exchange"
    )


def _is_given(found: Threat) -> bool:
    """Whether an attack does without a line search, which plain gossip has none for."""
    attack = found.attack
    return attack is None or attack.hostile is None or attack.scale is not None


def facts_of(found: Threat) -> dict[str, float]:
    """What is known of attackers and of the honest agents' graph.

    Args:
      found: the graph and who attacks.
    """
    if found.attack is None:
        return {}
    known = attacks.report(found.graph, found.attack)
    wanted = ("max_byzantine_neighbors", "mu_2", "lambda_max")
    return {name: float(known[name]) for name in wanted}
