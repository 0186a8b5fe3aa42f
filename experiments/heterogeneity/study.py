"""What `experiments.heterogeneity` measures: divergences between agents' labels."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import average, leaves_list
from scipy.spatial.distance import squareform

from experiments.analysis import figures
from experiments.engine import reading
from experiments.engine.command import Experiment
from experiments.engine.datasets import is_format, load_dataset, users_of_runs
from experiments.engine.jobs import Measurement, data_rng
from experiments.engine.texts import LOADERS
from experiments.heterogeneity import practical
from experiments.heterogeneity.config import IMAGES, Config
from p2pjax.datasets import label_skew
from p2pjax.datasets.loaders import digits, mnist, speakers, text
from p2pjax.datasets.loaders.text import Corpus
from p2pjax.datasets.stacking import Examples
from p2pjax.evaluation import statistics
from p2pjax.host_memory import check_room
from p2pjax.types import InputError

Histograms = dict[str, np.ndarray]  # counts of labels or words [N, k], by population
Cut = Callable[[np.ndarray, np.random.Generator, int], list[np.ndarray]]


class Population(NamedTuple):
    """A group of agents that is measured."""

    scheme: str
    setting: dict[str, Any]
    cut: Cut | None = None  # of images
    expected: float | None = None  # divergence in closed form

    @property
    def name(self) -> str:
        """What tells it from the others."""
        said = (f"{key.replace('_', ' ')} {own}" for key, own in self.setting.items())
        return ", ".join([self.scheme, *said])


class Source(NamedTuple):
    """A data set: the groups of agents in it, and what counts their labels in a run."""

    populations: list[Population]
    count_labels: Callable[[int], Histograms]


def populations(config: Config) -> list[Population]:
    """All groups of agents that are measured."""
    return [one for source in sources(config) for one in source.populations]


def load(config: Config) -> Callable[[int], Histograms]:
    """Reads all data sets; the function returned counts the labels of a run."""
    return counting(sources(config))


def counting(found: list[Source]) -> Callable[[int], Histograms]:
    """Counts the labels of all groups in a run."""

    def histograms(run: int) -> Histograms:
        return {k: v for source in found for k, v in source.count_labels(run).items()}

    return histograms


def sources(config: Config) -> list[Source]:
    """Reads all data sets."""
    return [_source(config, name) for name in config.dataset]


def _source(config: Config, name: str) -> Source:
    if name in IMAGES or is_format(name):
        found = load_dataset(config, name, digits.load, "", {"mnist": mnist.load})
        if name not in IMAGES and len(np.unique(found.user)) > 1:
            one = Population(f"{name}_by_user", {})
            return Source([one], partial(_of_users, config, one.name, found))
        splits = _splits(config, name, found.num_classes)
        return Source(splits, partial(_of_splits, config, splits, found))
    if name == "speakers":
        documents = speakers.speakers(users_of_runs(config, config.num_agents))
        min_train = 1
    else:
        if config.data_dir is None:
            raise InputError(f"Need --data_dir for --dataset={name}, got none.")
        documents = LOADERS[name](config.data_dir)
        min_train = config.min_train
    corpus = text.encode(documents, config.num_words)
    count = partial(_of_words, config, name, corpus, min_train)
    return Source([Population(name, {})], count)


def _splits(config: Config, name: str, num_classes: int) -> list[Population]:
    """Of examples without users; own ones need not fit the clusters of practical."""
    even = (("iid", label_skew.iid), ("pathological", label_skew.pathological))
    found = [Population(f"{name}_{split}", {}, cut) for split, cut in even]
    divided = (config.num_agents, num_classes)
    if name not in IMAGES and any(size % practical.NUM_CLUSTERS for size in divided):
        return found
    return found + [
        Population(
            f"{name}_practical",
            setting,
            partial(practical.cut, own),
            practical.expected_jsd(own.other_share, config.num_agents, num_classes),
        )
        for setting, own in practical.constructions(config.other_share, config.parts)
    ]


def _of_splits(
    config: Config, splits: list[Population], examples: Examples, run: int
) -> Histograms:
    y = examples.y if examples.is_test is None else examples.y[~examples.is_test]
    rng = data_rng(config, run)
    return {
        one.name: label_skew.histograms(
            y, one.cut(y, rng, config.num_agents), examples.num_classes
        )
        for one in splits
        if one.cut is not None
    }


def _of_users(config: Config, name: str, examples: Examples, run: int) -> Histograms:
    """Some of the users, drawn for the run, with all of their examples."""
    users = np.unique(examples.user)
    if len(users) < config.num_agents:
        raise InputError(
            f"Need {config.num_agents} users, one per agent, but the data has "
            f"{len(users)}: lower --num_agents."
        )
    drawn = data_rng(config, run).permutation(users)[: config.num_agents]
    rows = [np.flatnonzero(examples.user == user) for user in drawn]
    return {name: label_skew.histograms(examples.y, rows, examples.num_classes)}


def _of_words(
    config: Config, name: str, corpus: Corpus, min_train: int, run: int
) -> Histograms:
    users = text.select(
        corpus,
        num_agents=config.num_agents,
        run=run,
        seed=config.seed,
        min_train=min_train,
    )
    data = text.world_of_users(corpus, users, np.random.default_rng(0))
    return {name: text.histograms(data, corpus.vocabulary.num_ids)}


def make_jobs(config: Config) -> list[Measurement]:
    """Every population in every run."""
    check_room(
        8 * config.num_agents**2, f"divergences between {config.num_agents} agents"
    )
    found = sources(config)
    histograms = cache(counting(found))

    def measure(run: int, one: Population) -> Mapping[str, float]:
        found = {"jsd": statistics.mean_jsd(histograms(run)[one.name])}
        return found if one.expected is None else found | {"jsd_exact": one.expected}

    return [
        Measurement(one.scheme, one.setting, run, partial(measure, run, one))
        for run in config.runs
        for source in found
        for one in source.populations
    ]


def divergences(counts: np.ndarray) -> np.ndarray:
    """Of all pairs of agents `[N, N]`, with similar agents beside each other."""
    matrix = np.stack([statistics.jsd(own, counts) for own in counts])
    np.fill_diagonal(matrix, 0)
    order = leaves_list(average(squareform(matrix, checks=False)))
    return matrix[np.ix_(order, order)]


def draw(matrices: dict[str, np.ndarray], folder: Path) -> None:
    """A heat map per population."""
    figure = Figure(figsize=(3 * len(matrices) + 1, 3.4), layout="constrained")
    every = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axes, (name, matrix) in zip(every, matrices.items(), strict=True):
        image = axes.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        axes.set_title(name.replace("_", " "), fontsize="small")
        axes.set_xticks([])
        axes.set_yticks([])
    figure.colorbar(image, ax=every, shrink=0.8, label="Jensen-Shannon divergence")
    figures.save_plain(figure, folder, "divergence")


def report(config: Config, folder: Path) -> None:
    """Heat maps of the first run, and a table for a person."""
    found = sources(config)
    counts = counting(found)(config.first_run)
    draw({name: divergences(own) for name, own in counts.items()}, folder)
    for row in reading.summary_rows(folder, "jsd", ("median", "std")):
        name = Population(row["scheme"], row["setting"]).name
        print(f"{name:<24} {row['median']:.4f} (std {row['std']:.4f})")
    for one in (one for source in found for one in source.populations):
        if one.expected is not None:
            print(f"{one.name:<24} {one.expected:.4f} where all shares are exact")
    print(f"Results are in {folder}")


EXPERIMENT = Experiment(
    "heterogeneity",
    Config,
    make_jobs,
    report,
    summary=("jsd", "jsd_exact"),
    takes_processes=False,
)
