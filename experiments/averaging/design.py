"""What a study of partial averaging varies beside its schemes: learning, averaging.

A flag with several values is a factor of a design: all combinations are run, of each
way of averaging those that mean something to it. What has one value is in no setting,
unless `--design` asks for it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from experiments.averaging.config import AveragingConfig
from experiments.engine import config as engine_config
from experiments.engine import design
from p2pjax.types import Array, InputError, Key


class Choices(NamedTuple):
    """One combination; the fields are flags, the last as a rate of its own."""

    loss: str
    init: str
    weights: str
    update: str
    averaging: str
    cycles: int
    privacy_level: int
    rate: float | None  # of the grid; None: that of the update


LEARNING = ("loss", "init", "weights", "update")
WAYS = ("averaging", "cycles", "privacy_level")
# Factors that mean something to a way of averaging, beside how agents learn.
OF_AVERAGING: Mapping[str, tuple[str, ...]] = {
    "server": (),
    "gossip": (),
    "pairs": (),
    "per_model": ("cycles",),
    "private": ("cycles", "privacy_level"),
}


def choices_of(
    config: AveragingConfig, learning: Collection[str] = LEARNING
) -> list[tuple[dict[str, Any], Choices]]:
    """What rows say of each combination, and the combination.

    Args:
      config: of the experiment.
      learning: what of `LEARNING` means something to its networks.
    """
    check_used(config)
    found = []
    factors = _factors(config)
    for way in config.averaging:
        own = {**factors, "averaging": (way,)}
        relevant = {*learning, "averaging", "rate", *OF_AVERAGING[way]}
        named = {*LEARNING, *WAYS} if config.design else set()
        if len(config.averaging) > 1:
            named.add("averaging")
        for setting, chosen in design.combinations(own, relevant, named=named):
            found.append((setting, Choices(**chosen)))
    return found


def _factors(config: AveragingConfig) -> dict[str, Sequence[Any]]:
    return {
        "loss": config.loss,
        "init": config.init,
        "weights": config.weights,
        "update": config.update,
        "averaging": config.averaging,
        "cycles": config.cycles or (10,),
        "privacy_level": config.privacy_level or (3,),
        "rate": config.rate_grid or (None,),
    }


def varied(config: AveragingConfig) -> tuple[str, ...]:
    """What several combinations differ in, in the order of the settings.

    Args:
      config: of the experiment.
    """
    every = [setting for setting, _ in choices_of(config)]
    names = dict.fromkeys(name for setting in every for name in setting)
    return tuple(
        name
        for name in names
        if len({setting[name] for setting in every if name in setting}) > 1
    )


def the_only(config: AveragingConfig, why: str) -> Choices:
    """The combination of a config that has one.

    Args:
      config: of the experiment.
      why: what needs it, for a person.
    """
    found = choices_of(config)
    if len(found) > 1:
        raise InputError(
            f"Need one loss, one law of initial weights and so on for {why}, got "
            f"{len(found)} combinations: run it once for each."
        )
    return found[0][1]


def check_used(config: AveragingConfig) -> None:
    """Refuses settings of a gossip that no averaging has, and of an update."""
    for name, kinds in (
        ("cycles", ("per_model", "private")),
        ("tolerance", ("per_model",)),
        ("view_size", ("per_model",)),
        ("privacy_level", ("private",)),
    ):
        if getattr(config, name) is not None and not {*kinds} & {*config.averaging}:
            raise InputError(
                f"Need --averaging={' or '.join(kinds)} for --{name}, got "
                f"--averaging={','.join(config.averaging)}."
            )
    if config.rate_grid is not None and config.learning_rate is not None:
        raise InputError(
            "Need either --rate_grid, of which each rate is tried, or --learning_rate, "
            "got both."
        )
    for loss, given in _mini_batch_rates(config).items():
        has_it = loss in config.loss and "mini_batch" in config.update
        if given is not None and not (has_it or config.design):
            raise InputError(
                f"Need --loss={loss} and --update=mini_batch for --{loss}_rate, got "
                f"--loss={','.join(config.loss)} --update={','.join(config.update)}."
            )


def _mini_batch_rates(config: AveragingConfig) -> dict[str, float | None]:
    return {
        "squared_error": config.squared_error_rate,
        "cross_entropy": config.cross_entropy_rate,
    }


def rate_of(config: AveragingConfig, choices: Choices) -> float:
    """The step size of a combination.

    Args:
      config: of the experiment.
      choices: the combination.
    """
    if choices.rate is not None:
        return choices.rate
    of_mini_batches = _mini_batch_rates(config)[choices.loss]
    if choices.update == "mini_batch" and of_mini_batches is not None:
        return of_mini_batches
    return engine_config.rate(config, 0.1)


def from_minus_one_to_one(key: Key, shape: Sequence[int], dtype: Any = float) -> Array:
    """Initial weights with the same chance everywhere from -1 to 1.

    Args:
      key: of their randomness.
      shape: of the weights.
      dtype: of the weights.
    """
    return jax.random.uniform(key, shape, dtype, -1.0, 1.0)


# By law: initializers of the weights and of the biases.
WEIGHTS: Mapping[str, tuple[Any, Any]] = {
    "glorot": (nn.initializers.glorot_uniform(), nn.initializers.zeros),
    "uniform": (from_minus_one_to_one, from_minus_one_to_one),
}
