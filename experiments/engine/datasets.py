"""The data set that a config names."""

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from experiments.engine.config import Common
from p2pjax.types import InputError


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
    if dataset is None or dataset not in loaders:
        return embedded()
    if data_dir is None:
        raise InputError(f"Need --data_dir for --dataset={dataset}, got none.")
    return loaders[dataset](data_dir)


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
