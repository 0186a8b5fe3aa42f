"""The data sets of Corinzia, Buhmann (2019) and what their Table 2 prints."""

from collections.abc import Callable
from typing import NamedTuple

from p2pjax.datasets.loaders import digits, femnist, glyphs, har, mnist, vsn
from p2pjax.datasets.stacking import Examples

# Methods of which the authors' code says how many steps of Adam a client takes.
STEPS_KNOWN = ("local", "virtual")


class Dataset(NamedTuple):
    """One of the paper's data sets."""

    load: Callable[[str], Examples]  # of the public files
    embedded: Callable[[int, int, int], Examples]  # of (users, examples of each, seed)
    shape: tuple[int, ...]  # of an embedded example
    printed: dict[str, tuple[float, float]]  # Table 2: mean and stddev over 5 splits
    steps: int  # of Adam of a client in three refinements, see `adam_steps`
    is_dealt: bool = False  # the data has no users: examples are dealt to agents
    is_permuted: bool = False  # every agent has an order of pixels of its own


def adam_steps(train_size: int, batch_size: int, epochs: int) -> int:
    """Steps of a client in three refinements.

    The paper prints no epochs and no batch size; these are those of the authors' code.

    Args:
      train_size: training examples of a client, 75% of what it has.
      batch_size: of the authors' code.
      epochs: of a refinement in the authors' code.
    """
    return 3 * epochs * -(-train_size // batch_size)


def _digits(num_users: int, size: int, seed: int) -> Examples:
    del num_users, size, seed  # dealt later
    return digits.load()


DATASETS = {
    "mnist": Dataset(
        mnist.load,
        _digits,
        digits.SHAPE,
        {
            "global": (0.9678, 0.0007),
            "local": (0.9511, 0.0020),
            "fedavg": (0.9675, 0.0004),
            "virtual": (0.9666, 0.0017),
        },
        adam_steps(4500, 256, 100),
        is_dealt=True,
    ),
    "femnist": Dataset(
        femnist.load,
        lambda users, size, seed: glyphs.glyphs(users, size, seed=seed),
        glyphs.SHAPE,
        {
            "global": (0.44, 0.02),
            "local": (0.51, 0.01),
            "fedavg": (0.45, 0.05),
            "virtual": (0.56, 0.01),
        },
        adam_steps(417, 64, 200),
    ),
    "p_mnist": Dataset(
        mnist.load,
        _digits,
        digits.SHAPE,
        {
            "global": (0.919, 0.004),
            "local": (0.950, 0.003),
            "fedavg": (0.905, 0.002),
            "virtual": (0.949, 0.001),
        },
        adam_steps(4500, 256, 100),
        is_dealt=True,
        is_permuted=True,
    ),
    "vsn": Dataset(
        vsn.load,
        vsn.synthetic,
        (vsn.NUM_FEATURES,),
        {
            "global": (0.926, 0.005),
            "local": (0.960, 0.003),
            "fedavg": (0.916, 0.007),
            "virtual": (0.960, 0.002),
        },
        adam_steps(1575, 256, 200),
    ),
    "har": Dataset(
        har.load,
        har.synthetic,
        (har.NUM_FEATURES,),
        {
            "global": (0.797, 0.006),
            "local": (0.940, 0.001),
            "fedavg": (0.944, 0.004),
            "virtual": (0.944, 0.001),
        },
        adam_steps(257, 16, 200),
    ),
}
