"""The data set that a config names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from experiments.engine.config import Common
from experiments.engine.fields import DATA, checked_text
from p2pjax.datasets.loaders import speakers, text
from p2pjax.datasets.loaders.named import load_examples
from p2pjax.types import InputError

# What every experiment on labelled examples takes beside data sets of its own.
FORMATS = ("npz", "idx", "leaf", "tff", "tfds:NAME")
_ALSO = (
    " Or labelled examples in --data_dir: your own arrays x, y and, where there are "
    "users, user in an npz file, idx files, LEAF's JSON folders, sqlite files of "
    "TensorFlow Federated, or any data set of images of TensorFlow Datasets, such as "
    "tfds:fashion_mnist."
)


def dataset_field(names: Sequence[str], help_text: str) -> Any:
    """A field for the name of a data set of labelled examples; None if not given.

    Args:
      names: data sets of the experiment's own.
      help_text: what they are.
    """

    def check(value: str) -> None:
        if value not in names and not is_format(value):
            known = (*names, *(name for name in FORMATS if name not in names))
            raise ValueError(f"need one of {', '.join(known)}, got '{value}'")

    return checked_text(None, help_text + _ALSO, check, topic=DATA)


def is_format(name: str) -> bool:
    """Whether the name is of a format, not of one data set."""
    return name in FORMATS[:-1] or name.startswith("tfds:")


def load_dataset(
    config: Common,
    dataset: str | None,
    embedded: Callable[[], Any],
    note: str,
    loaders: Mapping[str, Callable[[str], Any]],
) -> Any:
    """Reads the data set that is named, or makes the one that needs no download.

    Args:
      config: says where data is.
      dataset: its name; None if none is given.
      embedded: makes the data that needs no download.
      note: what it is, said where nothing was chosen.
      loaders: by name, those that read `--data_dir`.
    """
    data_dir = config.data_dir
    if dataset is None and data_dir is not None:
        choices = " or ".join(f"--dataset={name}" for name in loaders)
        raise InputError(f"Got --data_dir without --dataset: add {choices}.")
    if dataset is None:
        logging.info("No --dataset given: %s.", note)
        return embedded()
    if dataset.startswith("tfds:"):  # which has a folder of its own if none is given
        return load_examples(dataset, data_dir, download=config.download)
    if dataset not in loaders and not is_format(dataset):
        return embedded()
    if data_dir is None:
        raise InputError(f"Need --data_dir for --dataset={dataset}, got none.")
    if dataset in loaders:
        return loaders[dataset](data_dir)
    return load_examples(dataset, data_dir)


def least_words(config: Common, num_words: int) -> int:
    """Tokens that generated texts have at least: those of a few speakers.

    Args:
      config: says the seed.
      num_words: of the vocabulary at most.
    """
    few = speakers.speakers(8, seed=config.seed)
    return text.encode(few, num_words).vocabulary.num_ids


def users_of_runs(config: Common, num_agents: int) -> int:
    """How many users have to be generated so that every run has others.

    Args:
      config: says which runs there are.
      num_agents: of a run.
    """
    if config.first_run:
        logging.warning(
            "Generated users are drawn for runs 0 to %d together: only the last part "
            "of a study has the same users as all runs in one command.",
            config.runs[-1],
        )
    return num_agents * config.runs.stop
