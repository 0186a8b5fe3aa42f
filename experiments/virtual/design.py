"""What of the posteriors a study of `experiments.virtual` varies.

A flag with several values is a factor of a design: all combinations are run, of each
method those that mean something to it. What has one value is in no setting.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.engine import design
from experiments.engine.config import rate
from experiments.virtual.config import Config
from p2pjax.types import InputError


class Choices(NamedTuple):
    """One combination; the fields are flags, `rate` is of `--rates`."""

    initial_stddev: float
    prior_stddev: float
    divergence_weight: float
    deviation_rate: float
    gate: float
    largest_start: float
    prior_mode: str
    order: str
    rate: float
    epochs: int
    fedavg_rate: float


_BAYESIAN = (
    "initial_stddev",
    "prior_stddev",
    "divergence_weight",
    "deviation_rate",
    "rate",
    "epochs",
)
_COLUMNS = (*_BAYESIAN, "gate")
_SERVED = ("epochs", "fedavg_rate")
_VIRTUAL = tuple(name for name in Choices._fields if name != "fedavg_rate")
FACTORS: Mapping[str, tuple[str, ...]] = {
    "global": _BAYESIAN,
    "local": _BAYESIAN,
    "local_columns": _COLUMNS,
    "frozen_server": _COLUMNS,
    "fedavg": _SERVED,
    "fedprox": _SERVED,
    "fedper": _SERVED,
    "ditto": _SERVED,
    "scaffold": _SERVED,
    "ewc": _SERVED,
    "mean_regularized": _SERVED,
    "virtual": _VIRTUAL,
    "virtual_sync": tuple(name for name in _VIRTUAL if name != "order"),
}

# Names of flags by those of factors.
FLAGS = {name: name for name in Choices._fields} | {"rate": "rates"}


def choices_of(config: Config, method: str) -> list[tuple[dict[str, Any], Choices]]:
    """What rows say of each combination, and the combination.

    Args:
      config: of the experiment.
      method: its name.
    """
    rates = {"rate": rates_of(config)}
    factors = {
        name: rates.get(name) or getattr(config, name) for name in Choices._fields
    }
    found = design.combinations(factors, FACTORS[method])
    return [(setting, Choices(**named)) for setting, named in found]


def rates_of(config: Config) -> tuple[float, ...]:
    """Learning rates of the Bayesian networks; the paper's if none is given.

    Args:
      config: of the experiment.
    """
    if config.rates and config.learning_rate is not None:
        raise InputError("Need --rates or --learning_rate, got both: leave out one.")
    return config.rates or (rate(config, 1e-3),)
