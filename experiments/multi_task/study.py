"""How `experiments.multi_task` runs: encoder, graphs, programs, the vocabulary."""

import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

from experiments.analysis import figures
from experiments.engine import fitting, run_folder
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.config import agent_loop, rate
from experiments.engine.datasets import least_words
from experiments.engine.jobs import Job, Program, jobs_of_runs
from experiments.multi_task import data, images, neighbors, scores
from experiments.multi_task.config import DATASETS, EMBEDDED, Config
from experiments.multi_task.contenders import Contender, contenders
from experiments.multi_task.data import Dataset
from p2pjax.algorithms._multi_task import ENCODER, multi_task
from p2pjax.asynchronous import task_groups
from p2pjax.datasets.loaders.pieces import Pieces, write
from p2pjax.evaluation.models import consensus_distance
from p2pjax.evaluation.test_sets import DIVERGED, on_test_sets_of_groups
from p2pjax.graphs import clusters, generators
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.nn.encoder import Encoder
from p2pjax.tasks._encoder_tasks import masked_token
from p2pjax.training.agent_loop import VMAP
from p2pjax.training.local_updates import epochs
from p2pjax.types import Array, FederatedData, InputError, Models


def make_encoder(config: Config, vocab_size: int) -> Encoder:
    """The encoder that the config describes; BERT-Tiny if it says nothing."""
    if config.stream % config.heads:
        raise InputError(
            f"Need a width that {config.heads} heads can share equally, got "
            f"{config.stream}: change --stream or --heads."
        )
    return Encoder(
        vocab_size=vocab_size,
        hidden_size=config.stream,
        num_heads=(config.heads,) * config.layers,
        mlp_dim=(config.feed_forward,) * config.layers,
        head_dim=config.stream // config.heads,
        num_positions=max(512, config.length),
        dropout=config.dropout,
    )


def check_room(config: Config, vocab_size: int) -> None:
    """Refuses agents that cannot fit, before their data is made.

    Args:
      config: of the experiment.
      vocab_size: pieces of words, at least; images have none.
    """
    if data.has_images(config):
        return images.check_room(config, make_optimizer(config))
    task = masked_token(make_encoder(config, vocab_size), config.length, mask_id=1)
    fitting.check_agents(
        config,
        config.num_agents,
        task,
        make_optimizer(config),
        examples=2 * config.length,  # one at least
        batch=2 * config.length * config.batch_size,
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Adam with Keras' epsilon."""
    return optax.adam(rate(config, 5e-4), eps=1e-7)


def graph_of(config: Config, contender: Contender) -> Graphs:
    """How to draw its graph."""
    size, degree = config.num_agents, config.degree or 3
    cluster = np.repeat(np.arange(len(contender.names)), size)

    def draw(rng: np.random.Generator) -> Topology:
        if contender.graph == "clustered":
            share = contender.foreign_share
            return clusters.clustered(cluster, degree, foreign=share, seed=rng)
        return generators.directed_regular(len(cluster), degree, seed=rng)

    draw(np.random.default_rng(0))  # refuses what is not possible
    return draw


def build_program(
    config: Config,
    contender: Contender,
    datasets: Mapping[str, Dataset],
    pieces: Pieces,
) -> Program:
    """A contender, ready to run."""
    encoder, size = make_encoder(config, pieces.num_ids), config.num_agents
    own = [datasets[name] for name in contender.names]
    tasks = [data.task_of(config, one, encoder, pieces) for one in own]
    sizes = [size] * len(own)
    if contender.method == "mono":
        tasks, sizes = tasks[:1], [sum(sizes)]
    groups = task_groups.groups(tasks, sizes)

    algorithm = multi_task(
        groups,
        make_optimizer(config),
        graph_of(config, contender),
        batch_size=config.batch_size,
        encoder_freeze=contender.method == "mt_ef",
        local_updates=epochs(contender.local_epochs),
        agent_loop=agent_loop(config),
    )
    on_own_tests = on_test_sets_of_groups(
        groups, [one.score for one in own[: len(groups)]], agent_loop(config)
    )

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        values = on_own_tests(models, data)
        # Rows, figures and tables call the score of any task its accuracy.
        rows = {"accuracy": values["score"], "loss": values["loss"]}
        rows[DIVERGED] = values[DIVERGED]
        for when in ("before", "after"):
            if f"score_{when}" in values:
                rows[f"accuracy_{when}"] = values[f"score_{when}"]
        encoders = models.reported.params[ENCODER]
        rows["encoder_spread"] = consensus_distance(encoders)
        for number, one in enumerate(own):
            agents = slice(number * size, (number + 1) * size)
            rows[one.metric] = jnp.nanmean(values["score"][agents])
        return rows

    return Program(algorithm, evaluate)


def jobs_with(
    config: Config, datasets: Mapping[str, Dataset], pieces: Pieces
) -> list[Job]:
    """All runs of all contenders, given what they learn and its vocabulary."""
    check_room(config, pieces.num_ids)
    compared = contenders(config, datasets)
    examples = {
        name: data.make_data(config, dataset, pieces)
        for name, dataset in datasets.items()
    }

    def data_of(contender: Contender, run: int) -> FederatedData:
        own = [examples[name][run] for name in contender.names]
        if contender.method == "mono":
            own = [data.concatenated(own)]
        return task_groups.joined_world(own)

    jobs = []
    for contender, setting in compared:
        jobs += jobs_of_runs(
            config,
            contender.method,
            setting,
            build_program(config, contender, datasets, pieces),
            partial(data_of, contender),
        )
    return jobs


def make_jobs(config: Config) -> list[Job]:
    """All runs of all contenders."""
    if data.has_images(config):
        check_room(config, 0)
    elif set(config.dataset) <= set(EMBEDDED):
        check_room(config, least_words(config, config.num_pieces))
    datasets = data.load(config)
    return jobs_with(config, datasets, data.vocabulary(config, datasets))


def prepare(config: Config) -> Config:
    """Settles the devices, and keeps a vocabulary that has to be learned."""
    if agent_loop(config) != VMAP:  # in place, tasks share one device
        config = dataclasses.replace(config, num_devices=1)
    return keep_vocabulary(config) if data.needs_training(config) else config


def keep_vocabulary(config: Config) -> Config:
    """Writes it to the work folder; the config returned names both.

    Training it again may give another, so reruns have to read it.
    """
    workdir = config.workdir or run_folder.default_name("multi_task")
    path = Path(workdir) / "vocabulary.txt"
    if os.path.lexists(path):  # also as a link to nothing
        raise InputError(
            f"Need a work folder without results, but {path} exists: choose another "
            f"--workdir, or use it by --vocabulary={path}."
        )
    run_folder.check_unused(workdir)
    datasets = data.load(config)
    pieces = data.vocabulary(config, datasets)
    jobs_with(config, datasets, pieces)  # what is refused comes before what is written
    with run_folder.starting(path.parent, path.name):
        write(path, pieces)
    return dataclasses.replace(config, workdir=workdir, vocabulary=str(path))


def report(config: Config, folder: Path) -> None:
    """A figure per task, and tables: against each task alone, by own neighbours."""
    for score in map(data.metric, config.dataset):
        label = "user accuracy" if score.startswith("ua_") else "F1 of entities"
        figures.score_by_round(folder, score, f"{label}, {score[3:]}")
    figures.score_by_round(folder, "encoder_spread", "distance of encoders from mean")
    print(scores.table(scores.read(folder)))
    print(neighbors.table(folder))
    print(f"Results are in {folder}")


EXPERIMENT = Experiment(
    "multi_task",
    Config,
    make_jobs,
    report,
    summary=(*map(data.metric, DATASETS), *SUMMARY, "encoder_spread"),
    prepare=prepare,
    takes_processes=False,
)
