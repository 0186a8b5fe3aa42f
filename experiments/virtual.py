"""VIRTUAL against learning together, alone and by FedAvg (Corinzia, Buhmann 2019).

    python -m experiments.virtual --flagfile=experiments/flags/virtual.quick.flags

Every agent is a client of a server. A round is one refinement of every client, that is
`--epochs` passes over its data; the other methods take as many passes in a round.
Studies are the paper's data sets: `mnist` (V-1), `femnist` (V-2), `p_mnist` (V-3),
`vsn` (V-4) and `har` (V-5).
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import optax
from absl import flags

from experiments import common, figures, runner
from experiments.jobs import own_examples
from experiments.runner import Job, Program
from experiments.virtual_studies import STUDIES
from p2pjax.algorithms._central import central
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._virtual import ONCE, PAPER, RELEASE, virtual
from p2pjax.datasets import partition, stacking
from p2pjax.datasets.loaders import npz
from p2pjax.datasets.stacking import Examples
from p2pjax.engines.repetition import repeat_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.nn import gaussian
from p2pjax.nn.variational import Columns, VariationalMLP
from p2pjax.partial import schemes
from p2pjax.tasks import bayesian
from p2pjax.tasks.task import Task, check_labels
from p2pjax.training import free_energy
from p2pjax.training.learner import gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm, FederatedData, InputError, Layout, PyTree, Split

flags.adopt_module_key_flags(common)  # so that --help lists them

PRIOR_MODES = {
    "once": ONCE,
    "paper": PAPER,
    "release": RELEASE,
}
OBJECTIVES = {
    "expected": bayesian.expected,
    "mean_probability": bayesian.of_mean_probability,
}


_STUDY = flags.DEFINE_enum("study", "vsn", list(STUDIES), "On which data.")
_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    ["embedded", "public", "npz"],
    "What stands in for the study's data set without a download (the default), the "
    "data set itself in --data_dir, or your own arrays x, y, user in the npz file "
    "--data_dir.",
)
_NUM_AGENTS = flags.DEFINE_integer(
    "num_agents", 10, "Clients of the server.", lower_bound=1
)
_SIZE = flags.DEFINE_integer(
    "size",
    300,
    "Examples of a client, training and test, of studies that deal them out and of "
    "embedded data; the fewest that a client may have elsewhere.",
    lower_bound=2,
)
_TEST_SHARE = flags.DEFINE_float(
    "test_share", 0.25, "Share of a client's examples for its test."
)
_METHODS = flags.DEFINE_list(
    "methods",
    ["global", "local", "fedavg", "virtual", "virtual_sync"],
    "Among global, local, fedavg, virtual (clients in turn) and virtual_sync (all "
    "clients at once).",
)
_EPOCHS = flags.DEFINE_integer(
    "epochs", 20, "Passes of a client over its data in a refinement.", lower_bound=1
)
_NETWORK = flags.DEFINE_string(
    "network",
    None,
    "Layout of every client's network, as in 784=100=100=10; if not given, two hidden "
    "layers of 100 between what the data needs.",
)
_NUM_SAMPLES = flags.DEFINE_integer(
    "num_samples", 20, "Networks drawn per batch.", lower_bound=1
)
_NUM_TEST_SAMPLES = flags.DEFINE_integer(
    "num_test_samples", 20, "Networks drawn to predict.", lower_bound=1
)
_DROPOUT = flags.DEFINE_float("dropout", 0.3, "Rate of dropout before dense layers.")
_FLIPOUT = flags.DEFINE_bool(
    "flipout", True, "Perturb the examples of a batch with signs of their own."
)
_SAME_DEPTH = flags.DEFINE_bool(
    "same_depth", False, "Clients read the server's layer at the same height."
)
_OBJECTIVE = flags.DEFINE_enum(
    "objective",
    "expected",
    list(OBJECTIVES),
    "Mean loss of the draws, or loss of their mean probability.",
)
_PRIOR_MODE = flags.DEFINE_enum(
    "prior_mode",
    "once",
    list(PRIOR_MODES),
    "How the prior of the shared weights is counted: once, in every factor as the "
    "paper prints it, or as in the authors' code.",
)
_DAMPING = flags.DEFINE_float(
    "damping",
    None,
    "Part of a new factor that replaces the old; 1 in turn and 1 / N at once if not "
    "given.",
)
_FEDAVG_RATE = flags.DEFINE_float("fedavg_rate", 0.1, "Learning rate of FedAvg.")
_FEDAVG_SHARE = flags.DEFINE_float(
    "fedavg_share", 0.2, "Of the clients, those in a round of FedAvg."
)


def load_examples() -> Examples:
    """The data that the flags name."""
    study = STUDIES[_STUDY.value]

    def embedded() -> Examples:
        return study.embedded(_NUM_AGENTS.value, _SIZE.value, common.SEED.value)

    return common.load_dataset(
        _DATASET.value,
        embedded,
        "a stand-in that needs no download is used",
        {"public": study.load, "npz": npz.load},
    )


def make_world(examples: Examples, run: int) -> FederatedData:
    """Other clients where there are more, and other tests, in every run."""
    study, num_agents = STUDIES[_STUDY.value], _NUM_AGENTS.value
    rng = np.random.default_rng([common.SEED.value, run])
    if study.is_dealt:
        examples = partition.assign_random_users(
            examples, rng, num_users=num_agents, size=_SIZE.value
        )
    world = partition.sample_users(
        examples,
        rng,
        num_agents=num_agents,
        test_share=_TEST_SHARE.value,
        min_size=_SIZE.value,
    )
    if study.is_permuted:
        num_inputs = int(np.prod(examples.x.shape[1:]))
        orders = [rng.permutation(num_inputs) for _ in range(num_agents)]
        world = partition.permute_features(world, np.stack(orders))
    return world


def network_layout(examples: Examples) -> Layout:
    """The network of every client, or of the only model."""
    num_inputs = int(np.prod(examples.x.shape[1:]))
    if _NETWORK.value is None:
        return (num_inputs, 100, 100, examples.num_classes)
    network = schemes.network_layout(_NETWORK.value)
    if network[0] != num_inputs:
        raise InputError(
            f"Need a network of {num_inputs} inputs for these examples, got "
            f"{_NETWORK.value}."
        )
    check_labels(examples.y, network[-1])
    return network


def make_worlds(examples: Examples) -> list[FederatedData]:
    """The data of all runs, with the same shapes."""
    worlds = [make_world(examples, run) for run in range(common.NUM_RUNS.value)]
    train = _same_width([world.train for world in worlds])
    test = _same_width([world.test for world in worlds])
    return [
        own_examples(world._replace(train=train[run], test=test[run]))
        for run, world in enumerate(worlds)
    ]


def _same_width(splits: list[Split]) -> list[Split]:
    longest = max(split.examples["y"].shape[1] for split in splits)
    return [stacking.pad_split(split, longest) for split in splits]


def classification(module: Columns | VariationalMLP, shape: tuple[int, ...]) -> Task:
    """The task of Bayesian networks."""
    return bayesian.variational_classification(
        module,
        shape,
        num_samples=_NUM_SAMPLES.value,
        num_test_samples=_NUM_TEST_SAMPLES.value,
        flipout=_FLIPOUT.value,
        dropout=_DROPOUT.value,
        objective=OBJECTIVES[_OBJECTIVE.value],
    )


def _bayesian(
    build: Callable[..., Algorithm], layers: Layout, shape: tuple[int, ...]
) -> Program:
    """One network, learned by as many passes as a client's refinement."""
    module = VariationalMLP(layers)
    coordinates = gaussian.SOFTPLUS
    task = bayesian.in_coordinates(classification(module, shape), coordinates)

    def divergence(free: PyTree):
        posterior = coordinates.gaussian(free)
        prior = gaussian.centered(1.0, posterior.mean)
        return gaussian.kl_divergence(posterior, prior)

    learner = free_energy.free_energy_descent(task, _adam(), divergence)
    algorithm = build(task, learner, batch_size=common.BATCH_SIZE.value)
    return _program(repeat_rounds(algorithm, _EPOCHS.value), task)


def _global(layers: Layout, shape: tuple[int, ...]) -> Program:
    return _bayesian(central, layers, shape)


def _local(layers: Layout, shape: tuple[int, ...]) -> Program:
    build = partial(local_only, agent_loop=common.agent_loop())
    return _bayesian(build, layers, shape)


def _fedavg(layers: Layout, shape: tuple[int, ...]) -> Program:
    """An ordinary network, trained by SGD; clients take as many passes on average."""
    num_clients = max(1, round(_FEDAVG_SHARE.value * _NUM_AGENTS.value))
    if not (0 < _FEDAVG_SHARE.value <= 1 and 0 < _FEDAVG_RATE.value < float("inf")):
        raise InputError(
            "Need a share of clients in (0, 1] and a positive rate for FedAvg, got "
            f"{_FEDAVG_SHARE.value} and {_FEDAVG_RATE.value}."
        )
    module = VariationalMLP(layers)
    task = bayesian.variational_classification(
        module, shape, num_samples=1, dropout=_DROPOUT.value
    )
    task = bayesian.in_coordinates(task, gaussian.POINT)
    algorithm = server_rounds(
        task,
        gradient_descent(task, optax.sgd(_FEDAVG_RATE.value)),
        batch_size=common.BATCH_SIZE.value,
        num_clients=num_clients,
        agent_loop=common.agent_loop(),
    )
    rounds = max(1, round(_EPOCHS.value * _NUM_AGENTS.value / num_clients))
    return _program(repeat_rounds(algorithm, rounds), task)


def _virtual(synchronous: bool, layers: Layout, shape: tuple[int, ...]) -> Program:
    if len(layers) < 2:
        raise InputError(
            f"Need a network with a hidden layer for clients to read, got "
            f"{_NETWORK.value}."
        )
    module = Columns(layers, _SAME_DEPTH.value)
    task = classification(module, shape)
    algorithm = virtual(
        task,
        _adam(),
        batch_size=common.BATCH_SIZE.value,
        local_updates=epochs(_EPOCHS.value),
        synchronous=synchronous,
        damping=_DAMPING.value,
        prior_mode=PRIOR_MODES[_PRIOR_MODE.value],
        agent_loop=common.agent_loop(),
    )
    if not synchronous:
        algorithm = repeat_rounds(algorithm, _NUM_AGENTS.value)
    return _program(algorithm, task)


METHODS: dict[str, Callable[[Layout, tuple[int, ...]], Program]] = {
    "global": _global,
    "local": _local,
    "fedavg": _fedavg,
    "virtual": partial(_virtual, False),
    "virtual_sync": partial(_virtual, True),
}


def _program(algorithm: Algorithm, task: Task) -> Program:
    return Program(algorithm, on_test_sets(task, common.agent_loop(task)))


def _adam() -> optax.GradientTransformation:
    return optax.adam(common.learning_rate(1e-3))


def make_jobs() -> list[Job]:
    """All runs of all methods."""
    unknown = [name for name in _METHODS.value if name not in METHODS]
    if unknown:
        raise InputError(
            f"Need methods among {', '.join(METHODS)}, got '{unknown[0]}'."
        )
    examples = load_examples()
    shape = examples.x.shape[1:]
    layers = network_layout(examples)[1:]
    worlds = make_worlds(examples)
    jobs = []
    for name in dict.fromkeys(_METHODS.value):
        program = METHODS[name](layers, shape)
        for run, world in enumerate(worlds):
            jobs.append(
                Job(
                    scheme=name,
                    setting={"study": _STUDY.value},
                    run=run,
                    algorithm=program.algorithm,
                    evaluate=program.evaluate,
                    make_world=partial(_given, world),
                )
            )
    return jobs


def _given(world: FederatedData) -> FederatedData:
    return world


def print_table(folder: Path) -> None:
    """Mean accuracy and deviation over runs beside those of the paper's Table 2."""
    printed = STUDIES[_STUDY.value].printed
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    print(f"{'method':<14} {'accuracy, mean (std)':<22} paper")
    for row in rows:
        if row["metric"] == "accuracy":
            paper = printed.get(row["scheme"])
            shown = "" if paper is None else f"{paper[0]:.4f} ({paper[1]:.4f})"
            own = f"{row['mean']:.4f} ({row['std']:.4f})"
            print(f"{row['scheme']:<14} {own:<22} {shown}")


def main() -> None:
    """Runs the study that the flags name."""
    summary = ("accuracy", "loss", "messages", "bytes")
    folder = runner.run_jobs("virtual", make_jobs(), summary)
    figures.accuracy_by_round(folder, "refinements of every client")
    figures.print_summary(folder)
    print_table(folder)


if __name__ == "__main__":
    common.run(main)
