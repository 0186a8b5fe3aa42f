"""Agents with different tasks that share an encoder (Sajina 2025, second study).

    python -m experiments.multi_task --flagfile=experiments/flags/multi_task.quick.flags

Every data set is a task of as many agents: predict a masked token of one user's texts,
or label words with named entities. A round is a network epoch. `cts` runs every task
alone; `mt` and `mt_ef` run tasks together, two at a time (`--study=pairs`) or all of
them (`--study=all`), on random and on clustered sparse graphs; `mono` takes data sets
that have the same head for one task.
"""

import itertools
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from experiments import (
    common,
    figures,
    processes,
    run_folder,
    runner,
    task_data,
    task_scores,
)
from experiments.runner import Program
from experiments.task_data import EMBEDDED, Dataset, Limits
from p2pjax.algorithms._multi_task import multi_task
from p2pjax.asynchronous import task_groups
from p2pjax.datasets.loaders.pieces import Pieces, read, write
from p2pjax.evaluation.test_sets import on_test_sets_of_groups
from p2pjax.graphs import clusters, generators
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.nn.encoder import Encoder
from p2pjax.training import agent_loop
from p2pjax.types import Array, FederatedData, InputError, Models

flags.adopt_module_key_flags(common)  # so that --help lists them

METHODS = ("cts", "mono", "mt", "mt_ef")
GRAPHS = ("random", "clustered")

_STUDY = flags.DEFINE_enum(
    "study", "pairs", ["pairs", "all"], "Which tasks run together: two, or all."
)
_DATASET = flags.DEFINE_list(
    "dataset",
    list(EMBEDDED[:2]),
    f"Data sets, joined by commas, a task each: generated ({', '.join(EMBEDDED)}), "
    f"or from --data_dir {', '.join([*task_data.TEXTS, *task_data.TAGGED])}.",
)
_VOCABULARY = flags.DEFINE_string(
    "vocabulary",
    None,
    "File with a word piece per line, such as BERT's vocab.txt; if not given, one is "
    "trained on the training texts and kept in --workdir.",
)
_NUM_PIECES = flags.DEFINE_integer(
    "num_pieces", 30_522, "Word pieces of a vocabulary that is trained.", lower_bound=6
)
_MIN_TRAIN = flags.DEFINE_integer(
    "min_train", 1, "Fewest training samples of a user.", 1
)
_MAX_TRAIN = flags.DEFINE_integer(
    "max_train", None, "Most training samples of a user; no limit if not given."
)
_MAX_EXAMPLES = flags.DEFINE_integer(
    "max_examples",
    None,
    "Most examples of an agent to train, to validate and to test; the others are left "
    "out. No limit if not given.",
    lower_bound=1,
)
_METHODS = flags.DEFINE_list(
    "methods", list(METHODS), f"Methods among {', '.join(METHODS)}."
)
_GRAPHS = flags.DEFINE_list(
    "graphs", list(GRAPHS), f"Graphs among {', '.join(GRAPHS)}."
)
_NUM_AGENTS = flags.DEFINE_integer(
    "num_agents", 20, "Agents of every task.", lower_bound=4
)
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens of a sequence.", lower_bound=4)
_LAYERS = flags.DEFINE_integer("layers", 2, "Layers of the encoder.", lower_bound=1)
_STREAM = flags.DEFINE_integer("stream", 128, "Width of the encoder.", lower_bound=1)
_HEADS = flags.DEFINE_integer(
    "heads", 2, "Heads of attention in a layer.", lower_bound=1
)
_FEED_FORWARD = flags.DEFINE_integer("feed_forward", 512, "Units of a layer.", 1)
_DROPOUT = flags.DEFINE_float(
    "dropout", 0.1, "Rate of dropout.", lower_bound=0, upper_bound=0.9
)


class Case(NamedTuple):
    """A method on a graph, and the data sets whose agents run together."""

    method: str
    graph: str
    names: tuple[str, ...]

    @property
    def setting(self) -> dict[str, Any]:
        """What is written into rows."""
        return {"tasks": "+".join(self.names), "graph": self.graph}


def make_cases(datasets: dict[str, Dataset]) -> list[Case]:
    """What the study compares; a task alone has a random graph."""
    for name, known, chosen in (
        ("methods", METHODS, _METHODS.value),
        ("graphs", GRAPHS, _GRAPHS.value),
    ):
        if not chosen or not set(chosen) <= set(known):
            raise InputError(
                f"Need --{name} among {', '.join(known)}, got '{','.join(chosen)}'."
            )
    cases = []
    if "cts" in _METHODS.value:
        cases = [Case("cts", "random", (name,)) for name in datasets]
    together = [tuple(datasets)]
    if _STUDY.value == "pairs":
        together = list(itertools.combinations(datasets, 2))
    for graph, names in itertools.product(_GRAPHS.value, together):
        possible = {"mt", "mt_ef"} if len(names) > 1 else set()
        if possible and all(datasets[name].is_masked for name in names):
            possible.add("mono")  # all have the same head
        cases += [Case(m, graph, names) for m in _METHODS.value if m in possible]
    return cases


def make_encoder(pieces: Pieces) -> Encoder:
    """The encoder that the flags describe; BERT-Tiny if they say nothing."""
    if _STREAM.value % _HEADS.value:
        raise InputError(
            f"Need a width that {_HEADS.value} heads can share equally, got "
            f"{_STREAM.value}: change --stream or --heads."
        )
    return Encoder(
        vocab_size=pieces.num_ids,
        hidden_size=_STREAM.value,
        num_heads=(_HEADS.value,) * _LAYERS.value,
        mlp_dim=(_FEED_FORWARD.value,) * _LAYERS.value,
        head_dim=_STREAM.value // _HEADS.value,
        num_positions=max(512, _LENGTH.value),
        dropout=_DROPOUT.value,
    )


def graph_of(case: Case) -> Graphs:
    """How to draw the graph of a case."""
    size, degree = _NUM_AGENTS.value, common.DEGREE.value or 3
    cluster = np.repeat(np.arange(len(case.names)), size)

    def draw(rng: np.random.Generator) -> Topology:
        if case.graph == "clustered":
            return clusters.clustered(cluster, degree, seed=rng)
        return generators.directed_regular(len(cluster), degree, seed=rng)

    draw(np.random.default_rng(0))  # refuses what is not possible
    return draw


def build_program(case: Case, datasets: dict[str, Dataset], pieces: Pieces) -> Program:
    """A case, ready to run."""
    encoder, size = make_encoder(pieces), _NUM_AGENTS.value
    own = [datasets[name] for name in case.names]
    tasks = [task_data.task_of(one, encoder, _LENGTH.value, pieces) for one in own]
    sizes = [size] * len(own)
    if case.method == "mono":
        tasks, sizes = tasks[:1], [sum(sizes)]
    groups = task_groups.groups(tasks, sizes)

    algorithm = multi_task(
        groups,
        optax.adam(common.learning_rate(5e-4), eps=1e-7),  # Keras' epsilon
        graph_of(case),
        batch_size=common.BATCH_SIZE.value,
        encoder_freeze=case.method == "mt_ef",
        agent_loop=common.agent_loop(),
    )
    on_own_tests = on_test_sets_of_groups(
        groups, [one.score for one in own[: len(groups)]], common.agent_loop()
    )

    def evaluate(models: Models, world: FederatedData) -> dict[str, Array]:
        values = on_own_tests(models, world)
        # Rows, figures and tables call the score of any task its accuracy.
        rows = {"accuracy": values["score"], "loss": values["loss"]}
        for number, one in enumerate(own):
            agents = slice(number * size, (number + 1) * size)
            rows[one.metric] = jnp.nanmean(values["score"][agents])
        return rows

    return Program(algorithm, evaluate)


def keep_vocabulary(pieces: Pieces) -> None:
    """Writes it to the work folder and names it in the flags.

    Training it again may give another, so reruns have to read it.
    """
    path = Path(common.WORKDIR.value or ".") / "vocabulary.txt"
    if path.exists():
        raise InputError(
            f"Need a work folder without results, but {path} exists: choose another "
            f"--workdir, or use it by --vocabulary={path}."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, pieces)
    flags.FLAGS["vocabulary"].value = str(path)


def make_jobs() -> list[runner.Job]:
    """All runs of all cases."""
    names, size, seed = _DATASET.value, _NUM_AGENTS.value, common.SEED.value
    num_users = size * common.NUM_RUNS.value
    datasets = task_data.load(names, num_users, seed, common.DATA_DIR.value)
    cases = make_cases(datasets)
    if _VOCABULARY.value is None:
        pieces = task_data.vocabulary(datasets, _NUM_PIECES.value)
    else:
        pieces = read(_VOCABULARY.value)
    limits = Limits(_MIN_TRAIN.value, _MAX_TRAIN.value, _MAX_EXAMPLES.value)

    worlds = {
        name: task_data.worlds(
            dataset,
            pieces,
            limits,
            num_agents=size,
            length=_LENGTH.value,
            seed=seed,
            num_runs=common.NUM_RUNS.value,
        )
        for name, dataset in datasets.items()
    }
    programs = [build_program(case, datasets, pieces) for case in cases]
    if _VOCABULARY.value is None and not set(names) <= set(EMBEDDED):
        keep_vocabulary(pieces)

    def world_of(case: Case, run: int) -> FederatedData:
        own = [worlds[name][run] for name in case.names]
        if case.method == "mono":
            own = [task_data.concatenated(own)]
        return task_groups.joined_world(own)

    jobs = []
    for case, program in zip(cases, programs, strict=True):
        for run in range(common.NUM_RUNS.value):
            jobs.append(
                runner.Job(
                    scheme=case.method,
                    setting=case.setting,
                    run=run,
                    algorithm=program.algorithm,
                    evaluate=program.evaluate,
                    make_world=partial(world_of, case, run),
                )
            )
    return jobs


def main() -> None:
    """Runs the study that the flags name."""
    processes.check_alone("multi_task")
    if common.agent_loop() != agent_loop.VMAP:  # in place, tasks share one device
        flags.FLAGS["num_devices"].value = 1
    if common.WORKDIR.value is None:
        flags.FLAGS["workdir"].value = run_folder.default_name("multi_task")
    jobs = make_jobs()
    scores = [task_data.metric(name) for name in _DATASET.value]
    folder = runner.run_jobs(
        "multi_task", jobs, (*scores, "accuracy", "loss", "messages", "bytes")
    )
    for score in scores:
        label = "user accuracy" if score.startswith("ua_") else "F1 of entities"
        figures.score_by_round(folder, score, f"{label}, {score[3:]}")
    print(task_scores.table(run_folder.read(folder)))
    print(f"Results are in {folder}")


if __name__ == "__main__":
    common.run(main)
