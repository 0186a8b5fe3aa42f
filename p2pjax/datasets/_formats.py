"""Any data set in one of the public formats, split among agents.

Arguments that all of them have are those of `federate`. Images are uint8
`[N, M, H, W, C]`. Each format is described in `data/README.md`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from p2pjax.datasets._federate import Seed, federate_examples, with_channels
from p2pjax.datasets.loaders.needs import need_users
from p2pjax.datasets.split import Splitter
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData


def npz(
    path: str | Path,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    test_fraction: float | None = None,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Data of your own in one npz archive of x, y and user.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "own.npz")
    >>> names = np.array(["cat", "dog"] * 10)
    >>> np.savez(path, x=np.zeros((20, 5)), y=names, user=np.repeat(["ann", "bob"], 10))
    >>> npz(path).train.examples["x"].shape
    (2, 8, 5)

    Args:
      path: an archive of x `[E, ...]`, y `[E]` from 0 or names of classes, user `[E]`
        (numbers or names; may be left out if there is a split) and, if you like, split
        `[E]` (which are test examples). Bytes x `[E, H, W]` are images of one channel,
        an axis that is added. Names are numbered in sorted order.
      num_agents: N; None makes each user an agent.
      split: one of `pj.split`; None is by user.
      test_fraction: part of each agent's examples that is tested; None keeps to the
        archive's own split or, where it has none, is 0.2.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import npz as loader

    needs_user = split is None
    examples = loader.load(path, needs_user=needs_user)
    return _by_user(
        with_channels(examples) if examples.x.dtype == np.uint8 else examples,
        str(path),
        num_agents=num_agents,
        split=split,
        test_fraction=_own_split(examples, test_fraction),
        valid_fraction=valid_fraction,
        seed=seed,
    )


def leaf(
    path: str | Path,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    pixels: bool = True,
    test_fraction: float | None = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """A data set in the JSON format of LEAF: images as FEMNIST's, or features.

    Caldas et al. (2018), "LEAF: a benchmark for federated settings",
    https://arxiv.org/abs/1812.01097.
    `pj.datasets.leaf("leaf/data/synthetic/data", pixels=False)` has a user per agent.

    Args:
      path: a folder with train/*.json and test/*.json, or all_data*.json; or one file.
      num_agents: N; None makes each user an agent.
      split: one of `pj.split`; None is by user.
      pixels: whether inputs are images of 28 x 28 pixels with paper 1 and ink 0; else
        they are features and stay as they are.
      test_fraction: part of each agent's examples that is tested, of training and test
        files together; None tests on test files only, which have other users where
        LEAF was told to split by user.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import leaf as loader

    return _by_user(
        with_channels(loader.load(path, pixels=pixels)),
        str(path),
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def tff(
    path: str | Path,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    label: str = "label",
    splits: Sequence[str] | None = None,
    max_users: int | None = None,
    test_fraction: float | None = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Images by client in the sqlite format of TensorFlow Federated.

    EMNIST, CIFAR-100, CelebA and files of your own, without TensorFlow.
    `pj.datasets.tff("data/emnist_all.sqlite", max_users=100)` has a client per agent.
    Texts are read by `datasets.loaders.tff.load_texts`.

    Args:
      path: a .sqlite or .sqlite.lzma file, or a folder with one.
      num_agents: N; None makes each client an agent.
      split: one of `pj.split`; None is by client.
      label: the feature that is the class, such as "smiling" of CelebA.
      splits: names of the training and the test split, where there are several, such
        as ("digits_only_train", "digits_only_test") of EMNIST.
      max_users: the first so many clients only.
      test_fraction: part of each agent's examples that is tested, of training and test
        split together; None tests on the test split only, which has other clients in
        CIFAR-100.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import tff as loader

    examples = loader.load(path, label=label, splits=splits, max_users=max_users)
    return _by_user(
        with_channels(examples),
        str(path),
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def idx(
    path: str | Path,
    *,
    num_agents: int,
    split: Splitter,
    test_fraction: float | None = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Images in the four idx files of MNIST, Fashion-MNIST, Kuzushiji-MNIST or EMNIST.

    `pj.datasets.idx("data/fashion", num_agents=20, split=pj.split.dirichlet(0.3))`.

    Args:
      path: a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and the same
        of t10k (or test), with or without .gz; one of the files in a folder with
        several data sets, such as EMNIST's.
      num_agents: N.
      split: one of `pj.split`; there are no users.
      test_fraction: part of each agent's examples that is tested, of the published
        training and test images together; None tests on published test images only,
        which small agents may not have.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import idx as loader

    return federate_examples(
        with_channels(loader.load(path)),
        None,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def tfds(
    name: str,
    *,
    num_agents: int,
    split: Splitter,
    image_shape: tuple[int, int, int] | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    test_fraction: float | None = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Labelled images of TensorFlow Datasets, such as "mnist", "svhn_cropped".

    Needs `pip install 'p2pjax[tfds]'`; TensorFlow only to prepare (`download`).
    `pj.datasets.tfds("cifar100", num_agents=20, split=pj.split.iid())`.

    Args:
      name: a data set whose examples have image, all of one size, and label.
      num_agents: N.
      split: one of `pj.split`; there are no users.
      image_shape: height, width and channels that its images must have; None is any.
      data_dir: where data sets are prepared; ~/tensorflow_datasets if None.
      download: whether to download and prepare it where it is not there.
      test_fraction: part of each agent's examples that is tested, of the published
        training and test images together; None tests on published test images only,
        which small agents and some data sets do not have.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import images_tfds as loader

    return federate_examples(
        with_channels(loader.load_tfds(name, data_dir, download, image_shape)),
        None,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def _own_split(examples: Examples, test_fraction: float | None) -> float | None:
    return 0.2 if test_fraction is None and examples.is_test is None else test_fraction


def _by_user(
    examples: Examples, name: str, *, split: Splitter | None, **options: Any
) -> FederatedData:
    """Agents are users unless there is a split; data without users needs one."""
    if split is None:
        need_users(examples, name)
    users = examples.user if len(np.unique(examples.user)) > 1 else None
    return federate_examples(examples, users, split=split, **options)
