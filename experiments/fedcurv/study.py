"""What `experiments.fedcurv` compares: methods and the strengths of their penalties."""

import math
from pathlib import Path

import flax.linen as nn
import numpy as np
import optax

from experiments.analysis import figures
from experiments.engine import fitting, reading
from experiments.engine.command import Experiment
from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Job, Program, jobs_of_runs, kept
from experiments.fedcurv import majority
from experiments.fedcurv.config import LOSSES, WITHOUT_PENALTY, Config
from experiments.fedcurv.data import load_own, make_data
from experiments.fedcurv.methods import make_algorithm
from p2pjax.datasets.loaders import points
from p2pjax.datasets.stacking import Examples
from p2pjax.evaluation.models import parameter_norm
from p2pjax.evaluation.test_sets import Evaluate, before_and_after
from p2pjax.nn.mlp import MLP
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.training.learner import gradient_descent
from p2pjax.types import Array, FederatedData, Models, num_agents


def make_task(config: Config, examples: Examples | None = None) -> Task:
    """The network of every agent: one hidden layer.

    Args:
      config: of the experiment.
      examples: of the study of that name.
    """
    is_points = config.study == "points"
    shape, num_classes = _shapes(config, examples)
    hidden = config.hidden or (16 if is_points else 64)
    loss = config.objective or ("squared_error" if is_points else "cross_entropy")
    module = MLP((hidden, num_classes), nn.relu)
    return classification(module, shape, LOSSES[loss], per_class=True)


def _shapes(config: Config, examples: Examples | None) -> tuple[tuple[int, ...], int]:
    """Of an example, and the number of classes."""
    if examples is not None:
        return examples.x.shape[1:], examples.num_classes
    if config.study == "points":
        return (2,), len(points.CENTERS)
    return (config.num_dims,), 2


def with_strengths(config: Config) -> list[tuple[str, float]]:
    """Methods, each with its strengths; methods without penalty have strength 0."""
    return [
        (method, strength)
        for method in config.methods
        for strength in ((0.0,) if method in WITHOUT_PENALTY else config.strengths)
    ]


def evaluation(config: Config, task: Task) -> Evaluate:
    """Scores of every agent on its own test set, and the size of the models."""
    on_tests = before_and_after(task, agent_loop(config, task))

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        norm = parameter_norm(models.reported.params)
        return dict(on_tests(models, data)) | {"norm": norm}

    return evaluate


def make_jobs(config: Config) -> list[Job]:
    """All runs of all methods."""
    own = load_own(config) if config.study == "examples" else None
    task = make_task(config, own)
    # The two coordinates of points, or what is left of texts, of each agent.
    inputs = 4 * math.prod(_shapes(config, own)[0])
    fitting.check_agents(
        config,
        points.NUM_MACHINES if own is None else len(np.unique(own.user)),
        task,
        examples=inputs * (config.train_size + config.test_size) * (own is None),
        batch=inputs * config.batch_size,
    )
    geometries = config.geometry if config.study == "points" else ("",)
    data = {name: kept(config, make_data(config, name, own)) for name in geometries}
    learner = gradient_descent(task, optax.sgd(rate(config, 0.1)))
    size = num_agents(data[geometries[0]](config.runs[0]))
    evaluate = evaluation(config, task)
    programs = [
        (
            method,
            strength,
            majority.program(config, *_shapes(config, own))
            if method == "majority"
            else Program(
                make_algorithm(config, method, strength, task, learner, size), evaluate
            ),
        )
        for method, strength in with_strengths(config)
    ]
    return [
        job
        for name in geometries
        for method, strength, program in programs
        for job in jobs_of_runs(
            config,
            method,
            {"strength": strength} | ({"geometry": name} if geometries[1:] else {}),
            program,
            data[name],
        )
    ]


def print_agents(folder: Path) -> None:
    """Final accuracy of every agent, and balanced accuracy: medians over runs."""
    finals: dict[str, dict[int, list[float]]] = {}
    for row in reading.rows(folder):  # later rows replace earlier ones
        name = f"{row['scheme']} {row['setting']['strength']:g}"
        name = " ".join([name, *map(str, list(row["setting"].values())[1:])])
        balanced = row.get("balanced_accuracy", math.nan)
        finals.setdefault(name, {})[row["run"]] = [*row["agent_accuracy"], balanced]
    for name, runs in finals.items():
        *medians, balanced = np.median(np.asarray(list(runs.values()), float), axis=0)
        agents = " ".join(f"{value:.4f}" for value in medians)
        print(f"{name:<20} by agent: {agents}  balanced {balanced:.4f}")


def report(config: Config, folder: Path) -> None:
    """Curves of accuracy and loss, tables for a person."""
    del config
    figures.curves_by_round(folder, ("accuracy", "loss"))
    figures.print_summary(folder)
    print_agents(folder)


EXPERIMENT = Experiment(
    "fedcurv",
    Config,
    make_jobs,
    report,
)
