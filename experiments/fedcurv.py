"""FedAvg against FedCurv and personal models (Leleu and Cerisara 2020).

    python -m experiments.fedcurv --flagfile=experiments/flags/fedcurv.quick.flags

Study `points`: three machines, each with two of four groups of points in the plane, and
one test with all four. Study `texts`: one task of SentEval per agent, texts as fixed
vectors. A round is one communication.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import optax
from absl import flags

from experiments import common, figures, run_folder, runner
from experiments.jobs import kept
from experiments.runner import Program
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._fedcurv_neighbors import fedcurv_neighbors
from p2pjax.algorithms._fedper import fedper
from p2pjax.algorithms._fedprox import fedprox
from p2pjax.algorithms._local_only import local_only
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import embedding, points, senteval
from p2pjax.datasets.loaders.senteval import Texts
from p2pjax.datasets.stacking import Examples
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation.models import parameter_norm
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.graphs import generators
from p2pjax.nn.mlp import MLP
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.training import curvature
from p2pjax.training.learner import Learner, gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm, Array, FederatedData, InputError, Models

flags.adopt_module_key_flags(common)  # so that --help lists them

LOSSES = {
    "squared_error": losses.squared_error,
    "cross_entropy": losses.softmax_cross_entropy,
}
CURVATURES = {"fisher": curvature.fisher, "hessian": curvature.hessian}
HEAD = ("params/layer_2/.*",)

_STUDY = flags.DEFINE_enum("study", "points", ["points", "texts"], "What is learned.")
_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    ["points", "topics", "senteval"],
    "Generated points (study points), generated texts about topics (the default of the "
    "study texts), or the texts of SentEval in --data_dir.",
)
_TASKS = flags.DEFINE_list(
    "tasks", list(senteval.TASKS), f"Of SentEval: {', '.join(senteval.TASKS)}."
)
_METHODS = flags.DEFINE_list(
    "methods",
    ["fedavg", "fedcurv"],
    "Methods among local_only, fedavg, fedcurv, fedcurv_ring (neighbours on a ring, no "
    "server), fedprox, ditto and fedper (the last layer stays local).",
)
_STRENGTHS = flags.DEFINE_list(
    "strengths", ["0.01", "0.1", "1"], "Of the penalties of fedcurv, fedprox, ditto."
)
_CURVATURE = flags.DEFINE_enum(
    "curvature", "fisher", list(CURVATURES), "Diagonal that FedCurv uses."
)
_OBJECTIVE = flags.DEFINE_enum(
    "objective",
    None,
    list(LOSSES),
    "Loss: squared_error for points and cross_entropy for texts if not given.",
)
_HIDDEN = flags.DEFINE_integer(
    "hidden", None, "Hidden cells; 16 for points and 64 for texts if not given.", 1
)
_NUM_EPOCHS = flags.DEFINE_integer("num_epochs", 5, "Passes over own data a round.", 1)
_TRAIN_SIZE = flags.DEFINE_integer("train_size", 300, "Points of every machine.", 1)
_TEST_SIZE = flags.DEFINE_integer("test_size", 400, "Points of the test.", 1)
_NUM_DIMS = flags.DEFINE_integer("num_dims", 300, "Length of a text's vector.", 1)
_AXES = flags.DEFINE_enum(
    "axes",
    "principal",
    ["principal", "random"],
    "On which the counts of words are projected to make vectors of texts.",
)
_BEFORE_AVERAGING = flags.DEFINE_bool(
    "before_averaging",
    False,
    "Evaluate the machines' own models, as the slides do; of fedavg and fedcurv only.",
)


def load_texts() -> list[Texts]:
    """The tasks that the flags name."""
    return common.load_dataset(
        _DATASET.value,
        partial(senteval.topics, seed=common.SEED.value),
        "generated texts about topics are used",
        {"senteval": lambda path: senteval.load(path, tuple(_TASKS.value))},
    )


def text_worlds(texts: list[Texts]) -> Callable[[int], FederatedData]:
    """One task per agent; a tenth of its texts, other ones in every run, is the test.

    Rarities of words, and principal axes, are those of the training texts of all tasks
    together, so agents have shared that much before they begin.
    """
    counts = embedding.count_ngrams([text for task in texts for text in task.texts])
    y = np.concatenate([task.y for task in texts])
    agent = np.repeat(np.arange(len(texts)), [len(task.y) for task in texts])

    def make_world(run: int) -> FederatedData:
        rng = np.random.default_rng([common.SEED.value, run])
        train, test = [], []
        for number in range(len(texts)):
            own = rng.permutation(np.flatnonzero(agent == number))
            cut = max(1, len(own) // 10)
            test.append(own[:cut])
            train.append(own[cut:])
        is_train = np.isin(np.arange(len(y)), np.concatenate(train))
        x = embedding.embed(
            counts,
            is_train,
            _NUM_DIMS.value,
            common.SEED.value,
            principal=_AXES.value == "principal",
        )
        examples = Examples(x, y, agent.astype(np.int32), 2)
        cluster = np.arange(len(texts), dtype=np.int32)
        return partition.federated_data(examples, train, test, cluster)

    return make_world


def point_world(run: int) -> FederatedData:
    """Points drawn anew in every run."""
    rng = np.random.default_rng([common.SEED.value, run])
    return points.world(rng, _TRAIN_SIZE.value, _TEST_SIZE.value)


def make_task(num_inputs: int, num_classes: int) -> Task:
    """The network of every agent: one hidden layer."""
    is_points = _STUDY.value == "points"
    hidden = _HIDDEN.value or (16 if is_points else 64)
    loss = _OBJECTIVE.value or ("squared_error" if is_points else "cross_entropy")
    module = MLP((hidden, num_classes), nn.relu)
    return classification(module, (num_inputs,), LOSSES[loss])


def make_algorithm(
    method: str, strength: float, task: Task, learner: Learner, num_agents: int
) -> Algorithm:
    """A method by its name."""
    options: dict[str, Any] = {
        "batch_size": common.BATCH_SIZE.value,
        "local_updates": epochs(_NUM_EPOCHS.value),
        "agent_loop": common.agent_loop(task),
    }
    served = options | {"num_clients": None}
    own: dict[str, Any] = {
        "curvature": CURVATURES[_CURVATURE.value](task),
        "report_trained": _BEFORE_AVERAGING.value,
    }
    penalised = {"penalty_weight": strength, **served}
    if method == "fedavg" and _BEFORE_AVERAGING.value:
        return fedcurv(task, learner, penalty_weight=0.0, **served, **own)
    if method == "fedavg":
        return server_rounds(task, learner, **served)
    if method == "fedcurv":
        return fedcurv(task, learner, **penalised, **own)
    if method == "fedcurv_ring":
        ring = generators.ring(num_agents)
        return fedcurv_neighbors(
            task, learner, ring, penalty_weight=strength, **options, **own
        )
    if method == "fedprox":
        return fedprox(task, learner, **penalised)
    if method == "ditto":
        return ditto(task, learner, **penalised)
    if method == "fedper":
        return fedper(task, learner, personal=HEAD, **served)
    if method == "local_only":
        return local_only(task, learner, **options)
    raise InputError(
        "Need methods among local_only, fedavg, fedcurv, fedcurv_ring, fedprox, ditto "
        f"and fedper, got '{method}'."
    )


def make_cases() -> list[tuple[str, float]]:
    """Methods, each with its strengths; methods without penalty have strength 0."""
    try:
        strengths = [float(text) for text in _STRENGTHS.value]
    except ValueError as error:
        raise InputError(
            "Need numbers joined by commas for --strengths, got "
            f"'{','.join(_STRENGTHS.value)}'."
        ) from error
    plain = ("local_only", "fedavg", "fedper")
    return [
        (method, strength)
        for method in _METHODS.value
        for strength in ([0.0] if method in plain else strengths)
    ]


def make_jobs() -> list[runner.Job]:
    """All runs of all methods."""
    if _STUDY.value == "points":
        if _DATASET.value not in (None, "points"):
            raise InputError(
                f"Need --study=texts for --dataset={_DATASET.value}, got points."
            )
        worlds = kept(point_world)
        num_inputs, num_classes = 2, len(points.CENTERS)
    else:
        if _DATASET.value == "points":
            raise InputError("Need --study=points for --dataset=points, got texts.")
        worlds = kept(text_worlds(load_texts()))
        num_inputs, num_classes = _NUM_DIMS.value, 2
    task = make_task(num_inputs, num_classes)
    learner = gradient_descent(task, optax.sgd(common.learning_rate(0.1)))
    num_agents = worlds(0).train.size.shape[0]
    on_tests = on_test_sets(task, common.agent_loop(task))

    def evaluate(models: Models, world: FederatedData) -> dict[str, Array]:
        norm = parameter_norm(models.reported.params)
        return dict(on_tests(models, world)) | {"norm": norm}

    programs = [
        (
            *case,
            Program(make_algorithm(*case, task, learner, num_agents), evaluate),
        )
        for case in make_cases()
    ]
    return [
        runner.Job(
            scheme=method,
            setting={"strength": strength},
            run=run,
            algorithm=program.algorithm,
            evaluate=program.evaluate,
            make_world=partial(worlds, run),
        )
        for method, strength, program in programs
        for run in range(common.NUM_RUNS.value)
    ]


def print_agents(folder: Path) -> None:
    """Final accuracy of every agent: median over runs."""
    finals: dict[str, dict[int, list[float]]] = {}
    for row in run_folder.read(folder):  # later rows replace earlier ones
        name = f"{row['scheme']} {row['setting']['strength']:g}"
        finals.setdefault(name, {})[row["run"]] = row["agent_accuracy"]
    for name, runs in finals.items():
        medians = np.median(list(runs.values()), axis=0)
        print(f"{name:<20} by agent:", *(f"{value:.4f}" for value in medians))


def main() -> None:
    """Runs the study that the flags name."""
    summary = ("accuracy", "loss", "messages", "bytes")
    folder = runner.run_jobs("fedcurv", make_jobs(), summary)
    figures.curves_by_round(folder, ("accuracy", "loss"))
    figures.print_summary(folder)
    print_agents(folder)


if __name__ == "__main__":
    common.run(main)
