"""Jobs of the studies in which agents learn."""

import math
from collections.abc import Callable

import numpy as np

from experiments.compare import problem as compared
from experiments.compare.methods import Problem
from experiments.engine import fitting
from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Job, Program, jobs_of_runs, kept, of_all_runs
from experiments.protocols import rates, scores
from experiments.protocols.cases import Case, cases_of
from experiments.protocols.config import Config, as_compared
from experiments.protocols.data import data_of_run, examples_of
from p2pjax.datasets.stacking import Examples
from p2pjax.tasks._classification import classification
from p2pjax.types import FederatedData, InputError

MOMENTUM = 0.9


def jobs_of(config: Config) -> list[Job]:
    """All runs of all cases; those that differ in data and rates share a program."""
    examples = examples_of(config)
    network = compared.network_of(as_compared(config), examples.num_classes)
    task = classification(network, examples.x.shape[1:], per_class=True)
    batch = math.prod(examples.x.shape[1:]) * examples.x.dtype.itemsize
    fitting.check_agents(
        config,
        config.num_agents,
        task,
        rates.descent(0.1, 1, 1.0, MOMENTUM),
        batch=config.batch_size * batch,
    )
    data = {alpha: _data(config, examples, alpha) for alpha in config.chosen_alphas}
    first = data[config.chosen_alphas[0]](config.first_run)
    train_size = float(np.mean(first.train.size))
    cases = cases_of(config, train_size)
    values = rates_of(config, cases)
    loop = agent_loop(config, task)
    evaluate = scores.of_agents(task, loop, pools=config.study != "clusters")
    programs: dict[str, Program] = {}
    jobs = []
    for case, value in zip(cases, values, strict=True):
        if case.program not in programs:
            num_steps = config.num_rounds * train_size / config.batch_size
            num_steps *= config.num_agents / (case.num_training or config.num_agents)
            made = Problem(
                task=task,
                optimizer=rates.descent(
                    0.1,
                    round(config.drop_at * num_steps),
                    config.drop,
                    MOMENTUM if case.method.has_momentum else 0.0,
                ),
                graph=case.graph,
                data=first,
                num_rounds=config.num_rounds,
                num_peers=config.degree or 3,
                penalty_weight=0.0,
                batch_size=config.batch_size,
                local_updates=case.updates,
                loss_probability=case.loss,
                score_before=config.scores_before,
                agent_loop=loop,
            )
            programs[case.program] = Program(case.method.make(made), evaluate)
        for tried in config.grid if config.tune else (value,):
            setting = case.setting | ({"rate": tried} if config.tune else {})
            jobs += jobs_of_runs(
                config,
                case.scheme,
                setting,
                programs[case.program],
                data[case.alpha],
                facts={"learning_rate": tried},
                hyperparameters={rates.FIRST: tried},
            )
    return jobs


def _data(
    config: Config, examples: Examples, alpha: float
) -> Callable[[int], FederatedData]:
    """Of a run, by its number."""

    def make(run: int) -> FederatedData:
        return data_of_run(config, examples, alpha, run)

    if config.chosen_split == "by_user":  # whose sizes differ between runs
        return of_all_runs(config, make).__getitem__
    return kept(config, make)


def rates_of(config: Config, cases: list[Case]) -> list[float]:
    """The first learning rate of each case.

    Args:
      config: of the experiment.
      cases: in the order in which they run, scheme by scheme.
    """
    given = config.rates or (rate(config, 0.1),)
    if config.rates and config.learning_rate is not None:
        raise InputError("Need --rates or --learning_rate, got both: leave out one.")
    schemes = list(dict.fromkeys(case.scheme for case in cases))
    if len(given) == 1:
        return [given[0]] * len(cases)
    if len(given) == len(cases):
        return list(given)
    if len(given) == len(schemes):
        by_scheme = dict(zip(schemes, given, strict=True))
        return [by_scheme[case.scheme] for case in cases]
    raise InputError(
        f"Need one rate, {len(schemes)} (one for each scheme) or {len(cases)} (one for "
        f"each scheme and setting) in --rates, got {len(given)}: --tune prints them."
    )
