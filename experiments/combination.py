"""Complete local training, then convex or other sums of models (Ioste and Finger).

    F=experiments/flags/combination.quick.flags
    python -m experiments.combination --flagfile=$F

Study `hospital`: two hosts with laboratory tests, in the paper's splits. Study
`digits`: images in shards of few classes, one pass per round. A round is one
communication. Every run also draws how the factors exp(c r) depend on the number of
hosts.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from absl import flags
from matplotlib.figure import Figure

from experiments import common, figures, jobs, run_folder, runner
from experiments.runner import Program
from p2pjax.datasets import label_skew, partition
from p2pjax.datasets.loaders import digits, hospital, mnist, npz
from p2pjax.datasets.stacking import Examples, over_splits
from p2pjax.engines.combining import GlobalStopping, combined_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation.models import non_finite, parameter_norm
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange.factors import (
    Factors,
    additive,
    exponential,
    mean,
    relative_sizes,
    size_weighted,
)
from p2pjax.nn.cnn import CNN
from p2pjax.nn.mlp import MLP
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.training.early_stopping import (
    LocalStopping,
    LocalTraining,
    for_epochs,
    until_converged,
)
from p2pjax.training.learner import Learner, gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    InputError,
    Models,
    Split,
    num_agents,
)

flags.adopt_module_key_flags(common)  # so that --help lists them

PARAMETERS = 1873  # of the paper's network of one hidden layer and one output
FACTOR_HOSTS = (2, 5, 10, 20, 40, 80)
FACTOR_RATES = (1e-3, 1e-2, 1e-1, 0.5, 1.0)

_STUDY = flags.DEFINE_enum(
    "study", "hospital", ["hospital", "digits"], "What is learned."
)
_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    ["synthetic", "hospital", "digits", "mnist", "npz"],
    "Of the study hospital: made-up patients (synthetic, the default) or the table in "
    "--data_dir (hospital). Of the study digits: scikit-learn's small digits (the "
    "default) or MNIST in --data_dir. Or your own arrays x, y, user in the npz file "
    "--data_dir, of two classes for the study hospital.",
)
_SPLITS = flags.DEFINE_list(
    "splits",
    ["balanced", "unbalanced", "skewed"],
    f"Of the study hospital: {', '.join(hospital.SPLITS)}.",
)
_HOSTS = flags.DEFINE_list(
    "hosts", ["2", "5", "10", "20", "40", "80"], "Hosts of the study digits."
)
_SCHEMES = flags.DEFINE_list(
    "schemes",
    ["mean", "additive", "exponential", "centralized"],
    "Schemes among mean, size_weighted, additive (1 + r), exponential (exp(c r)), "
    "fedavg_1 and fedavg_5 (FedAvg with so many passes), local (never combined) and "
    "centralized (one host with all data).",
)
_FACTOR_RATE = flags.DEFINE_float(
    "factor_rate",
    None,
    "Factor c of the scheme exponential; 0.001 on the hospital and 1 on digits if not "
    "given.",
)
_MAX_EPOCHS = flags.DEFINE_integer(
    "max_epochs", 500, "Most passes of a host in a round, study hospital.", 1
)
_PATIENCE = flags.DEFINE_integer(
    "patience", 20, "Passes without a gain after which a host stops.", 1
)
_STOP_AFTER = flags.DEFINE_integer(
    "stop_after",
    None,
    "Rounds without a gain after which the coordinator stops; never if not given.",
    lower_bound=1,
)
_TARGET = flags.DEFINE_float(
    "target", None, "Accuracy for which the bytes sent until then are printed."
)
_NETWORK = flags.DEFINE_enum(
    "network", "mlp", ["mlp", "cnn"], "Of the study digits; cnn needs 28 x 28 images."
)
_TEST_SIZE = flags.DEFINE_integer(
    "test_size", 10_000, "Test images at most, dealt to the hosts.", 1
)


def load_examples() -> Examples:
    """The data set that the flags name."""
    own: dict[str, Callable[[str], Any]]
    embedded: Callable[[], Examples]
    if _STUDY.value == "hospital":
        embedded = partial(hospital.synthetic, 4000, common.SEED.value)
        note, own = "made-up patients are used", {"hospital": hospital.load}
    else:
        embedded = digits.load
        note, own = "scikit-learn's small digits are used", {"mnist": mnist.load}
    fitting = {"hospital": ("synthetic",), "digits": ("digits",)}[_STUDY.value]
    known = (*fitting, *own, "npz")
    if _DATASET.value is not None and _DATASET.value not in known:
        raise InputError(
            f"Need --dataset={' or '.join(known)} for --study={_STUDY.value}, got "
            f"--dataset={_DATASET.value}."
        )
    return common.load_dataset(_DATASET.value, embedded, note, own | {"npz": npz.load})


def hospital_world(examples: Examples, split: str, run: int) -> FederatedData:
    """Patients dealt anew in every run."""
    rng = np.random.default_rng([common.SEED.value, run])
    return hospital.world(examples, rng, hospital.SPLITS[split])


def digits_world(examples: Examples, num_hosts: int, run: int) -> FederatedData:
    """Two shards of images sorted by label for every host.

    Hosts test the combined model, which they all have, on equal parts of the test: the
    mean over hosts is its accuracy on the whole. Where the coordinator is to stop, they
    hold a fifth of their images out.
    """
    rng = np.random.default_rng([common.SEED.value, run])
    is_test = examples.is_test
    if is_test is None:
        is_test = np.arange(len(examples.y)) >= len(examples.y) * 4 // 5
    rows = np.flatnonzero(~is_test)
    test = np.flatnonzero(is_test)[: _TEST_SIZE.value]
    shards = label_skew.pathological(examples.y[rows], rng, num_hosts)
    train = [rng.permutation(rows[own]) for own in shards]
    parts = np.split(test[: len(test) // num_hosts * num_hosts], num_hosts)
    world = partition.federated_data(examples, train, parts)
    return world if _STOP_AFTER.value is None else partition.hold_out(world, 0.2)


def pooled(world: FederatedData) -> FederatedData:
    """One host that has each agent's data."""

    def together(split: Split) -> Split:
        sizes, longest = np.asarray(split.size), split.examples["y"].shape[1]
        is_real = np.arange(longest) < sizes[:, None]  # [N, M]
        joined = {k: np.asarray(v)[is_real][None] for k, v in split.examples.items()}
        return Split(joined, np.asarray([sizes.sum()], np.int32))

    return over_splits(together, [world], np.zeros(1, np.int32))


def make_task(examples: Examples) -> Task:
    """The network of every host."""
    shape = examples.x.shape[1:]
    num_inputs = int(np.prod(shape))
    if _STUDY.value == "hospital":
        if examples.num_classes != 2:
            raise InputError(
                f"Need two classes for --study=hospital, got {examples.num_classes}."
            )
        hidden = max(1, (PARAMETERS - 1) // (num_inputs + 2))
        module: nn.Module = MLP((hidden, 1), nn.relu)
        return classification(module, shape, losses.binary_cross_entropy)
    if _NETWORK.value == "cnn":
        # 1,020,866 parameters on MNIST; the paper's 1,020,554 are of no known layout.
        module = CNN((32, 64), (936,), examples.num_classes)
    else:
        module = MLP((300, 100, examples.num_classes), nn.relu)
    return classification(module, shape, losses.softmax_cross_entropy)


def factors_of(scheme: str) -> Factors | None:
    """How much a host counts; None for schemes that do not combine."""
    default = 1e-3 if _STUDY.value == "hospital" else 1.0
    rate = default if _FACTOR_RATE.value is None else _FACTOR_RATE.value
    return {
        "mean": mean,
        "size_weighted": size_weighted,
        "additive": additive(),
        "exponential": exponential(rate),
    }.get(scheme)


def build_program(scheme: str, task: Task) -> Program:
    """A scheme, ready to run on any number of hosts."""
    learner = gradient_descent(task, optax.adam(common.learning_rate(1e-3)))
    on_tests = on_test_sets(task, common.agent_loop(task))

    def evaluate(models: Models, world: FederatedData) -> dict[str, Array]:
        return dict(on_tests(models, world)) | {
            "norm": parameter_norm(models.reported.params),
            "non_finite": non_finite(models.reported.params),
        }

    return Program(_algorithm(scheme, task, learner), evaluate)


def _algorithm(scheme: str, task: Task, learner: Learner) -> Algorithm:
    agent_loop = common.agent_loop(task)
    options: dict[str, Any] = {
        "batch_size": common.BATCH_SIZE.value,
        "agent_loop": agent_loop,
    }
    if scheme in ("fedavg_1", "fedavg_5"):
        updates = epochs(int(scheme[-1]))
        return server_rounds(task, learner, local_updates=updates, **options)
    factors = factors_of(scheme)
    if factors is None and scheme not in ("local", "centralized"):
        raise InputError(
            "Need schemes among mean, size_weighted, additive, exponential, fedavg_1, "
            f"fedavg_5, local and centralized, got '{scheme}'."
        )
    local: LocalTraining
    if _STUDY.value == "hospital":
        rule = LocalStopping(patience=_PATIENCE.value, max_epochs=_MAX_EPOCHS.value)
        local = until_converged(task, learner, rule, **options)
    else:
        local = for_epochs(learner, 1, **options)
    stop = None
    if _STOP_AFTER.value is not None and factors is not None:
        stop = GlobalStopping(_STOP_AFTER.value)
    return combined_rounds(task, local, factors, stop=stop, agent_loop=agent_loop)


def make_jobs() -> list[runner.Job]:
    """All runs of all schemes in all settings."""
    examples = load_examples()
    task = make_task(examples)
    settings: list[tuple[dict[str, Any], Callable[[int], FederatedData]]]
    if _STUDY.value == "hospital":
        unknown = [name for name in _SPLITS.value if name not in hospital.SPLITS]
        if unknown:
            raise InputError(
                f"Need splits among {', '.join(hospital.SPLITS)}, got '{unknown[0]}'."
            )
        settings = [
            ({"split": name}, jobs.kept(partial(hospital_world, examples, name)))
            for name in _SPLITS.value
        ]
    else:
        settings = [
            ({"hosts": hosts}, jobs.kept(partial(digits_world, examples, hosts)))
            for hosts in common.integers("hosts", _HOSTS.value)
        ]
    if "centralized" in _SCHEMES.value and jax.process_count() > 1:
        raise InputError(
            f"Need one process for the scheme centralized, got {jax.process_count()}: "
            "leave it out of --schemes, or leave out --num_processes."
        )
    programs = {scheme: build_program(scheme, task) for scheme in _SCHEMES.value}
    return [
        _job(scheme, program, setting, worlds, run)
        for setting, worlds in settings
        for scheme, program in programs.items()
        for run in range(common.NUM_RUNS.value)
    ]


def _job(
    scheme: str,
    program: Program,
    setting: dict[str, Any],
    worlds: Callable[[int], FederatedData],
    run: int,
) -> runner.Job:
    factors, first = factors_of(scheme), worlds(0)
    facts = {"hosts": float(num_agents(first))}
    if factors is not None:
        facts["sum_of_factors"] = float(factors(relative_sizes(first)).sum())

    def make_world() -> FederatedData:
        world = worlds(run)
        return pooled(world) if scheme == "centralized" else world

    return runner.Job(
        scheme=scheme,
        setting=setting,
        run=run,
        algorithm=program.algorithm,
        evaluate=program.evaluate,
        make_world=make_world,
        facts=facts,
    )


def draw_factors(folder: Path) -> None:
    """The paper's figure 4: exp(c / H) for equal hosts goes to 1, whatever c is."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for rate in FACTOR_RATES:
        hosts = np.asarray(FACTOR_HOSTS)
        axes.plot(hosts, np.exp(rate / hosts), marker="o", label=f"c = {rate:g}")
    axes.set_xlabel("hosts")
    axes.set_ylabel("factor of every host")
    axes.legend(frameon=False)
    for ending in ("png", "svg"):
        figure.savefig(folder / f"factors.{ending}", dpi=150)


def print_costs(folder: Path, target: float) -> None:
    """Bytes that a host sent until its run's accuracy first reached the target."""
    first: dict[tuple[str, str], dict[int, float]] = {}
    for row in run_folder.read(folder):
        where = row["scheme"], " ".join(map(str, row["setting"].values()))
        runs = first.setdefault(where, {})
        if row["accuracy"] is not None and row["accuracy"] >= target:
            runs.setdefault(row["run"], row["bytes"])
    print(f"{'scheme':<16} {'setting':<14} bytes until accuracy {target:g}   runs")
    for (scheme, setting), runs in first.items():
        cost = f"{np.median(list(runs.values())):.0f}" if runs else "never"
        print(f"{scheme:<16} {setting:<14} {cost:<24} {len(runs):>6}")


def main() -> None:
    """Runs the study that the flags name."""
    summary = ("accuracy", "loss", "norm", "non_finite", "messages", "bytes")
    folder = runner.run_jobs("combination", make_jobs(), summary)
    panel = "split" if _STUDY.value == "hospital" else "hosts"
    figures.curves_by_round(folder, ("accuracy", "norm"), panel)
    draw_factors(folder)
    figures.print_summary(folder)
    if _TARGET.value is not None:
        print_costs(folder, _TARGET.value)


if __name__ == "__main__":
    common.run(main)
