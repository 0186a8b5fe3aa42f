"""What methods of a study have in common, and what distinguishes its runs."""

from typing import NamedTuple

import numpy as np
import optax

from experiments.connections.limits import Limits
from experiments.connections.options import Options
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData


class Subject(NamedTuple):
    """What all methods of a study learn, and how."""

    config: Options
    task: Task
    optimizer: optax.GradientTransformation
    cluster: np.ndarray  # [N] the truth, for the oracle
    num_classes: int
    is_text: bool
    limits: Limits = Limits()


class Run(NamedTuple):
    """What a method may know of the run whose program it makes."""

    number: int
    data: FederatedData
