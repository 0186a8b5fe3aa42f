"""How different the agents' labels are: divergences and a heat map (Sajina 2025, S1).

    python -m experiments.heterogeneity --data_dir=DIR --dataset=shakespeare

The mean Jensen-Shannon divergence over all pairs of agents, for three splits of
handwritten digits and for users' words.
"""

from pathlib import Path

import numpy as np
from absl import flags
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import average, leaves_list
from scipy.spatial.distance import squareform

from experiments import common, processes, run_folder
from p2pjax.datasets import label_skew
from p2pjax.datasets.loaders import (
    chat,
    digits,
    mnist,
    reddit,
    shakespeare,
    speakers,
    stackoverflow,
    text,
)
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.evaluation import statistics
from p2pjax.types import InputError

flags.adopt_module_key_flags(common)  # so that --help lists them

LOADERS = {
    "shakespeare": shakespeare.load,
    "chat": chat.load,
    "reddit": reddit.load,
    "stackoverflow": stackoverflow.load,
}
_DATASET = flags.DEFINE_list(
    "dataset",
    ["digits", "speakers"],
    "Populations, joined by commas: digits, mnist (each in three splits), speakers, "
    f"{', '.join(LOADERS)}; all but digits and speakers are read from --data_dir.",
)
_NUM_AGENTS = flags.DEFINE_integer("num_agents", 100, "Agents of a run.", lower_bound=2)
_NUM_WORDS = flags.DEFINE_integer(
    "num_words", 10_000, "Words of the vocabulary, the most frequent ones.", 1
)
_MIN_TRAIN = flags.DEFINE_integer("min_train", 50, "Fewest samples of a user.", 1)

SPLITS = {
    "iid": label_skew.iid,
    "pathological": label_skew.pathological,
    "practical": lambda *args: label_skew.dominant_classes(*args, other=0.04),
}


def histograms(run: int) -> dict[str, np.ndarray]:
    """Counts of labels or words `[N, k]` of every population."""
    found: dict[str, np.ndarray] = {}
    for name in _DATASET.value:
        if name in ("digits", "mnist"):
            found |= _of_splits(name, run)
        elif name == "speakers":
            num_speakers = _NUM_AGENTS.value * common.NUM_RUNS.value
            found[name] = _of_words(speakers.speakers(num_speakers), run, min_train=1)
        elif name in LOADERS:
            documents = LOADERS[name](_data_dir(name))
            found[name] = _of_words(documents, run, _MIN_TRAIN.value)
        else:
            raise InputError(
                f"Need data sets among digits, mnist, speakers, {', '.join(LOADERS)}, "
                f"got '{name}'."
            )
    return found


def _of_splits(name: str, run: int) -> dict[str, np.ndarray]:
    examples: Examples = digits.load()
    if name == "mnist":
        examples = mnist.load(_data_dir(name))
    y = examples.y if examples.is_test is None else examples.y[~examples.is_test]
    rng = np.random.default_rng([common.SEED.value, run])
    return {
        f"{name}_{split}": label_skew.histograms(
            y, cut(y, rng, _NUM_AGENTS.value), examples.num_classes
        )
        for split, cut in SPLITS.items()
    }


def _of_words(documents: Documents, run: int, min_train: int) -> np.ndarray:
    corpus = text.encode(documents, _NUM_WORDS.value)
    users = text.select(
        corpus,
        num_agents=_NUM_AGENTS.value,
        run=run,
        seed=common.SEED.value,
        min_train=min_train,
    )
    world = text.world_of_users(corpus, users, np.random.default_rng(0))
    return text.histograms(world, corpus.vocabulary.num_ids)


def _data_dir(name: str) -> str:
    if common.DATA_DIR.value is None:
        raise InputError(f"Need --data_dir for --dataset={name}, got none.")
    return common.DATA_DIR.value


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
    for ending in ("png", "svg"):
        figure.savefig(folder / f"divergence.{ending}", dpi=150)


def main() -> None:
    """Measures all populations in all runs and fills a run folder."""
    processes.check_alone("heterogeneity")
    first = histograms(0)  # refuses what cannot be read before anything is written
    flags_text = common.own_flags()
    folder = run_folder.create(common.WORKDIR.value, "heterogeneity", flags_text)
    for run in range(common.NUM_RUNS.value):
        for name, counts in (first if run == 0 else histograms(run)).items():
            row = {"scheme": name, "setting": {}, "run": run, "round": 0}
            value = statistics.mean_jsd(counts)
            run_folder.append(folder, "metrics.jsonl", row | {"jsd": value})
    rows = run_folder.summarize(folder, "heterogeneity", ("jsd",))
    draw({name: divergences(counts) for name, counts in first.items()}, folder)
    for row in rows:
        print(f"{row['scheme']:<24} {row['median']:.4f} (std {row['std']:.4f})")
    print(f"Results are in {folder}")


if __name__ == "__main__":
    common.run(main)
