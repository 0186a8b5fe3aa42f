"""What the hosts of `experiments.combination` have."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from absl import logging

from experiments.combination.config import Config
from experiments.engine.datasets import FORMATS, is_format, load_dataset
from experiments.engine.jobs import data_rng
from p2pjax.datasets import label_skew, partition
from p2pjax.datasets.loaders import breast_cancer, digits, hospital, mnist
from p2pjax.datasets.loaders.hospital import TableSplit
from p2pjax.datasets.stacking import Examples, over_splits
from p2pjax.types import FederatedData, InputError, Split


def load_examples(config: Config) -> Examples:
    """The data set that the config names."""
    own: dict[str, Callable[[str], Any]]
    embedded: Callable[[], Examples]
    if config.study == "hospital":
        embedded = partial(hospital.synthetic, 4000, config.seed)
        names, note = ["synthetic", "breast_cancer"], "made-up patients are used"
        if config.dataset == "breast_cancer":
            embedded = breast_cancer.load
        own = {"hospital": hospital.load}
    else:
        embedded = digits.load
        names, note = ["digits"], "scikit-learn's small digits are used"
        own = {"mnist": mnist.load}
    known = (*names, *own, *FORMATS)
    dataset = config.dataset
    if dataset is not None and dataset not in known and not is_format(dataset):
        raise InputError(
            f"Need --dataset={' or '.join(known)} for --study={config.study}, got "
            f"--dataset={config.dataset}."
        )
    return load_dataset(config, config.dataset, embedded, note, own)


def splits_of(config: Config, examples: Examples) -> dict[str, TableSplit]:
    """How many patients hosts have, by the name of the split; said if fewer.

    Args:
      config: of the experiment.
      examples: of two classes.
    """
    counts = [int((examples.y == label).sum()) for label in (1, 0)]
    found = {}
    for name in config.splits:
        found[name] = hospital.SPLITS[name].scaled(*counts)
        if found[name] is not hospital.SPLITS[name]:
            hosts, test = found[name].hosts, found[name].test
            logging.info(
                "Split %s is scaled to the %d positive and %d negative examples there "
                "are: hosts have (positive, negative) %s, the test %s.",
                *(name, *counts, " and ".join(map(str, hosts)), test),
            )
    return found


def hospital_data(
    config: Config, examples: Examples, split: TableSplit, run: int
) -> FederatedData:
    """Patients dealt anew in every run."""
    return hospital.world(examples, data_rng(config, run), split)


def digits_data(
    config: Config, examples: Examples, num_hosts: int, run: int
) -> FederatedData:
    """Two shards of images sorted by label for every host.

    Hosts test the combined model, which they all have, on equal parts of the test: the
    mean over hosts is its accuracy on the whole. Where the coordinator is to stop, they
    hold a fifth of their images out.
    """
    rng = data_rng(config, run)
    is_test = examples.is_test
    if is_test is None:
        is_test = np.arange(len(examples.y)) >= len(examples.y) * 4 // 5
    rows = np.flatnonzero(~is_test)
    if config.train_size is not None:
        if config.train_size > len(rows):
            raise InputError(
                f"Need at most the {len(rows)} training images there are, got "
                f"--train_size={config.train_size}."
            )
        rows = rng.permutation(rows)[: config.train_size]
    test = np.flatnonzero(is_test)[: config.test_size]
    shards = label_skew.pathological(examples.y[rows], rng, num_hosts)
    train = [rng.permutation(rows[own]) for own in shards]
    parts = np.split(test[: len(test) // num_hosts * num_hosts], num_hosts)
    data = partition.federated_data(examples, train, parts)
    return data if config.stop_after is None else partition.hold_out(data, 0.2)


def pooled(data: FederatedData) -> FederatedData:
    """One host that has each agent's data."""

    def together(split: Split) -> Split:
        sizes, longest = np.asarray(split.size), split.examples["y"].shape[1]
        is_real = np.arange(longest) < sizes[:, None]  # [N, M]
        joined = {k: np.asarray(v)[is_real][None] for k, v in split.examples.items()}
        return Split(joined, np.asarray([sizes.sum()], np.int32))

    return over_splits(together, [data], np.zeros(1, np.int32))
