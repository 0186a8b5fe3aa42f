"""Partial averaging under attack: does it protect agents to keep a part to themselves?

Agents average a share of the hidden cells of their networks with their neighbours
(Bouchra Pilet, Frey, Taiani 2021, https://hal.science/hal-02373338) while some of them
attack. What is never sent cannot be attacked; rules and distances are those of the
shared part alone. Each agent is judged on examples like its own, and the same agents in
all cases: those that attack in some of them never count.
"""

import math
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.engine import reading
from experiments.engine.config import agent_loop
from experiments.engine.jobs import Job, Program, data_rng, jobs_of_runs, of_all_runs
from experiments.robustness.adversaries import (
    BY_AGENTS,
    NONE,
    OF_WU,
    RULES,
    check_attacks,
)
from experiments.robustness.config import Config
from experiments.robustness.data import load_examples
from experiments.robustness.networks import make_optimizer, make_task
from p2pjax.algorithms._partial_averaging import partial_averaging
from p2pjax.datasets import split as splits
from p2pjax.datasets._federate import federate_examples
from p2pjax.datasets.stacking import Examples
from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange import attacks
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.robust import Rule
from p2pjax.graphs import generators
from p2pjax.graphs.topology import Topology
from p2pjax.partial.averaging import metropolis_gossip
from p2pjax.partial.levels import level as level_of
from p2pjax.tasks.task import Task
from p2pjax.types import Algorithm, Array, Evaluate, FederatedData, InputError, Models

TEST_SHARE = 0.3
ALIE_FACTOR = 1.5  # as in the experiments of Baruch et al. (2019)
DEFAULT_RULES = ("mean", "trimmed_mean", "clipped_gossip", "cs_plus")
DEFAULT_ATTACKS = (NONE, "sign_flip", "alie", "label_flip", "backdoor")


class Place(NamedTuple):
    """A graph and who attacks on it."""

    graph: Topology
    byzantine: tuple[int, ...]
    tolerated: int  # the largest number of attackers that an honest agent hears


def partial_jobs(config: Config) -> list[Job]:
    """All rules under all attacks at all levels; agents that share nothing once."""
    names = config.attacks or DEFAULT_ATTACKS
    check_attacks(config.study, names, {**OF_WU, **BY_AGENTS})
    _check(config)
    examples = load_examples(config)
    task = make_task(config, examples)
    place = placed(config)
    data = of_all_runs(config, lambda run: data_of_run(config, examples, run))
    num_classes = examples.num_classes
    made = {name: attack_of(place, name, num_classes) for name in (NONE, *names)}
    # How often triggers work by themselves, where none was planted.
    trigger = next((own for own in made.values() if own and own.triggered), None)
    cases = [("local_only", NONE, 0)] if 0 in config.levels else []
    cases += [
        (rule, name, percent)
        for rule in config.rules or DEFAULT_RULES
        for name in names
        for percent in config.levels
        if percent
    ]
    jobs = []
    for scheme, name, percent in cases:
        rule = RULES[scheme](place.tolerated, 1.0) if percent else None
        attack = made[name]
        method = _averaging(config, task, place, percent, rule, attack)
        judge = judged(config, task, place, attack or trigger)
        jobs += jobs_of_runs(
            config,
            scheme,
            {"attack": name, "level": percent},
            Program(method, judge),
            data.__getitem__,
            facts={"max_byzantine_neighbors": float(place.tolerated)},
        )
    return jobs


def _check(config: Config) -> None:
    """Refuses networks and levels that have no parts."""
    if config.kind != "mlp":
        raise InputError(
            "Need --network=mlp in the study partial, which shares a part of the "
            f"hidden cells, got {config.kind}."
        )
    if max(config.levels) > 100:
        raise InputError(f"Need levels from 0 to 100, got {max(config.levels)}.")
    cells = {percent: round(config.hidden * percent / 100) for percent in config.levels}
    empty = [percent for percent, count in cells.items() if percent and not count]
    if empty:
        raise InputError(
            f"Need a hidden cell or more at each level above 0, got none of "
            f"{config.hidden} at level {empty[0]}: raise --hidden."
        )


def placed(config: Config) -> Place:
    """Draws a graph, and attackers so that no agent hears more of them than it must.

    Args:
      config: of the experiment, with the seed.
    """
    size, degree = config.size, config.degree or 4
    count = round(config.byzantine_share * size)
    if not 0 < count < size:
        raise InputError(
            f"Need an attacker and an honest agent among {size}, got {count} "
            "attackers: change --byzantine_share or --num_agents."
        )
    rng = np.random.default_rng(config.seed)
    graph = generators.random_regular(size, degree, seed=rng)
    for most in range(1, (degree - 1) // 2 + 1):
        try:
            byzantine = attacks.spread(graph, count, most, seed=rng)
        except InputError:
            continue
        heard = attacks.byzantine_neighbors(graph, byzantine)
        return Place(graph, byzantine, max(1, int(heard.max())))
    raise InputError(
        f"Need fewer than half of each honest agent's {degree} neighbours to attack, "
        f"found no place for {count} attackers among {size} agents: raise --degree or "
        "lower --byzantine_share."
    )


def attack_of(place: Place, name: str, num_classes: int) -> Attack | None:
    """An attack by the agents of a place.

    Args:
      place: who attacks.
      name: of the attack, or `NONE`.
      num_classes: of the labels.
    """
    if name == NONE:
        return None
    if name in OF_WU:
        return OF_WU[name](place.byzantine, ALIE_FACTOR)
    return BY_AGENTS[name](place.byzantine, num_classes)


def data_of_run(config: Config, examples: Examples, run: int) -> FederatedData:
    """Dirichlet shares of each class; a part of each agent's own is tested.

    Args:
      config: of the experiment.
      examples: of all agents.
      run: its number.
    """
    rng = data_rng(config, run)
    if config.train_size is not None:
        needed = math.ceil(config.size * config.train_size / (1 - TEST_SHARE))
        if needed > len(examples.y):
            raise InputError(
                f"Need {needed} examples for {config.size} agents with "
                f"{config.train_size} to train, got {len(examples.y)}: lower "
                "--train_size or --num_agents."
            )
        rows = rng.permutation(len(examples.y))[:needed]
        examples = examples._replace(x=examples.x[rows], y=examples.y[rows])
    return federate_examples(
        examples,
        None,
        num_agents=config.size,
        split=splits.dirichlet(config.alpha),
        test_fraction=TEST_SHARE,
        valid_fraction=0.0,
        seed=rng,
    )


def _averaging(
    config: Config,
    task: Task,
    place: Place,
    percent: int,
    rule: Rule | None,
    attack: Attack | None,
) -> Algorithm:
    return partial_averaging(
        task,
        make_optimizer(config),
        level_of(percent / 100),
        batch_size=config.batch_size,
        averaging=metropolis_gossip(config.size, place.graph),
        attack=attack,
        aggregate=rule,
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
    )


def judged(config: Config, task: Task, place: Place, attack: Attack | None) -> Evaluate:
    """Scores of agents that never attack on their own tests, and of the worst of them.

    Args:
      config: of the experiment.
      task: what agents learn.
      place: who is not judged.
      attack: whose triggers are tried, if it has any; None for none.
    """
    loop = agent_loop(config, task)
    evaluate = before_and_after(task, loop)
    evaluate = of_honest_agents(evaluate, task, attack or Attack(NONE), loop)
    is_byzantine = np.isin(np.arange(config.size), place.byzantine)

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        known = models._replace(is_byzantine=jnp.asarray(is_byzantine))
        values = dict(evaluate(known, data))
        return values | {"worst_accuracy": jnp.nanmin(values["accuracy"])}

    return evaluate_fn


def print_table(folder: Path) -> None:
    """Accuracies in percent, rules and attacks by levels; beside them success.

    Args:
      folder: of the run.
    """
    found: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for metric in ("accuracy", "attack_success"):
        table = found.setdefault(metric, {})
        for row in reading.summary_rows(folder, metric, ("mean",)):
            name, percent = row["setting"]["attack"], row["setting"]["level"]
            table.setdefault((row["scheme"], name), {})[percent] = row["mean"]
    levels = list(dict.fromkeys(p for own in found["accuracy"].values() for p in own))
    print(
        "accuracy of honest agents in percent, in brackets how often triggers work, by "
        "percent of shared cells"
    )
    print(f"{'':<36}" + "".join(f"{p:<14}" for p in sorted(levels)).rstrip())
    for (scheme, name), own in found["accuracy"].items():
        cells = []
        for percent in sorted(levels):
            cell = f"{100 * own[percent]:.1f}" if percent in own else ""
            success = found["attack_success"].get((scheme, name), {}).get(percent)
            if success is not None:
                cell += f" ({100 * success:.1f})"
            cells.append(f"{cell:<14}")
        print(f"{scheme:<20} {name:<15}" + "".join(cells).rstrip())
    print(f"Results are in {folder}")
