"""The flags of `experiments.vsn`."""

import dataclasses

from experiments.averaging.config import AveragingConfig
from experiments.averaging.schemes import scheme_file_field
from experiments.engine.datasets import dataset_field
from experiments.engine.fields import DATA, integer, integers, switch
from experiments.engine.layouts import network_field


@dataclasses.dataclass(frozen=True)
class Config(AveragingConfig):
    """What is compared, and on which sensors."""

    dataset: str | None = dataset_field(
        ("synthetic", "vsn"),
        "Generated sensors (synthetic, the default), or the vehicle sensor network in "
        "--data_dir (vsn).",
    )
    num_agents: int = integer(16, "Sensors, one per agent.", at_least=1, topic=DATA)
    train_size: int = integer(
        50, "Training examples per agent.", at_least=1, topic=DATA
    )
    test_size: int = integer(200, "Test examples per agent.", at_least=1, topic=DATA)
    standardize: bool = switch(
        False,
        "Centre and scale every feature by the agent's own training examples.",
        topic=DATA,
    )
    network: str = network_field("100=50=20=1", "Layout of every agent's network.")
    levels: tuple[int, ...] = integers(
        (0, 15, 30, 60, 80, 100), "Averaging levels in percent."
    )
    scheme_file: str | None = scheme_file_field()
