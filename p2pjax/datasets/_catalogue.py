"""Public and generated data sets by name, split among agents.

Arguments that all of them have are those of `federate`: `num_agents`, `split`,
`test_fraction`, `valid_fraction` and `seed`. Images are uint8 `[N, M, H, W, C]` with
background 0 and ink 255. What each data set is, where its files are to be had and under
which licence is in `data/README.md`. Data sets by their format are in `_formats`.
"""

from pathlib import Path

import numpy as np

from p2pjax.datasets._federate import (
    Seed,
    federate_examples,
    generator,
    with_channels,
)
from p2pjax.datasets.split import Splitter
from p2pjax.types import FederatedData


def digits(
    *,
    num_agents: int,
    split: Splitter,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """1797 handwritten digits of 8 x 8 pixels; nothing to download.

    Needs scikit-learn, which brings them.

    >>> import p2pjax.datasets as datasets
    >>> data = digits(num_agents=5, split=datasets.split.iid(), seed=0)
    >>> data.train.examples["x"].shape
    (5, 287, 8, 8, 1)

    Args:
      num_agents: N.
      split: one of `pj.split`; there are no users.
      test_fraction: part of each agent's examples that is tested.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import digits as loader

    return federate_examples(
        with_channels(loader.load()),
        None,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def glyphs(
    *,
    num_agents: int,
    split: Splitter | None = None,
    num_users: int | None = None,
    samples_per_user: int = 200,
    num_classes: int = 62,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Digits and letters of 28 x 28 pixels by writers who differ, drawn by the program.

    Stands in for FEMNIST; nothing to download.

    >>> data = glyphs(num_agents=3, samples_per_user=20, num_classes=10)
    >>> data.train.examples["x"].shape
    (3, 16, 28, 28, 1)

    Args:
      num_agents: N.
      split: one of `pj.split`; None makes each writer an agent.
      num_users: writers, as many as agents if None.
      samples_per_user: images of each writer.
      num_classes: 62 for 0-9, A-Z, a-z in this order, or 10 for the digits.
      test_fraction: part of each agent's examples that is tested.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random, the writers too.
    """
    from p2pjax.datasets.loaders import glyphs as loader

    rng = generator(seed)
    if isinstance(seed, np.random.Generator):
        seed = int(rng.integers(2**31))
    examples = loader.glyphs(
        num_agents if num_users is None else num_users,
        samples_per_user,
        seed=seed,
        num_classes=num_classes,
    )
    return federate_examples(
        with_channels(examples),
        examples.user,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=rng,
    )


def mnist(
    path: str | Path,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    test_fraction: float | None = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """MNIST, 70000 handwritten digits of 28 x 28 pixels, from its published files.

    LeCun et al. (1998), https://doi.org/10.1109/5.726791.
    `pj.datasets.mnist("data/mnist", num_agents=100, split=pj.split.pathological())`.

    Args:
      path: a folder with the four idx files or mnist.npz, or that file. Writers are
        known if mnist_writer_ids.npz lies beside them.
      num_agents: N; None makes each writer an agent.
      split: one of `pj.split`; None is by writer, where writers are known.
      test_fraction: part of each agent's examples that is tested, of the published
        training and test images together; None tests on published test images only,
        which writers and small agents may not have.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import mnist as loader

    examples = loader.load(path)
    return federate_examples(
        with_channels(examples),
        examples.user if examples.user.any() else None,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def femnist(
    path: str | Path,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    variant: str = "a",
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """FEMNIST, digits and letters of 28 x 28 pixels by about 3500 writers.

    Caldas et al. (2018), "LEAF: a benchmark for federated settings",
    https://arxiv.org/abs/1812.01097.
    `pj.datasets.femnist("data/femnist", num_agents=100)` has the largest writers.

    Args:
      path: a folder or file: npz, HDF5 or sqlite (TensorFlow Federated) or JSON (LEAF).
      num_agents: N; None makes each writer an agent.
      split: one of `pj.split`; None is by writer.
      variant: "a" has 62 classes, "m" 47 (upper and lower case merged where they look
        the same), "d" the digits only.
      test_fraction: part of each agent's examples that is tested.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import femnist as loader

    examples = loader.variant(loader.load(path), variant)
    return federate_examples(
        with_channels(examples),
        examples.user,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def cifar10(
    path: str | Path,
    *,
    num_agents: int,
    split: Splitter,
    test_fraction: float | None = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """CIFAR-10, 60000 photographs of 32 x 32 pixels in three colours.

    Krizhevsky (2009), "Learning multiple layers of features from tiny images",
    https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf.
    `pj.datasets.cifar10("data", num_agents=20, split=pj.split.dirichlet(0.1))`.

    Args:
      path: the folder cifar-10-batches-py, or the one it is in, or a cifar10*.npz.
      num_agents: N.
      split: one of `pj.split`; there are no users.
      test_fraction: part of each agent's examples that is tested, of the published
        training and test images together; None tests on published test images only,
        which small agents may not have.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import cifar10 as loader

    return federate_examples(
        loader.load(path),
        None,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def har(
    path: str | Path,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Six activities of 30 people by 561 features of a phone's motion.

    Anguita et al. (2013), "A public domain dataset for human activity recognition using
    smartphones", https://archive.ics.uci.edu/dataset/240.
    `pj.datasets.har("data/UCI HAR Dataset")` has one person per agent.

    Args:
      path: the published folder, or an npz archive, or a folder with uci_har*.npz.
      num_agents: N; None makes each person an agent.
      split: one of `pj.split`; None is by person.
      test_fraction: part of each agent's examples that is tested (the published parts
        are of different people).
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import har as loader

    examples = loader.load(path)
    return federate_examples(
        examples,
        examples.user,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def vsn(
    path: str | Path,
    *,
    num_agents: int | None = None,
    split: Splitter | None = None,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: Seed = 0,
) -> FederatedData:
    """Two vehicles by 100 acoustic and seismic features of 23 sensors.

    Duarte, Hu (2004), "Vehicle classification in distributed sensor networks",
    https://doi.org/10.1016/j.jpdc.2004.03.020.
    `pj.datasets.vsn("data")` has one sensor per agent. Features are as published;
    `datasets.loaders.vsn.standardize(data)` scales them by each agent's own training
    examples.

    Args:
      path: an npz archive, or a folder with one vsn*.npz.
      num_agents: N; None makes each sensor an agent.
      split: one of `pj.split`; None is by sensor.
      test_fraction: part of each agent's examples that is tested.
      valid_fraction: part of each agent's examples that is held out for validation.
      seed: of all that is random.
    """
    from p2pjax.datasets.loaders import vsn as loader

    examples = loader.load(path)
    return federate_examples(
        examples,
        examples.user,
        num_agents=num_agents,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
    )
