"""L2C: learn whom to collaborate with from the validation loss.

Li et al. (2022), "Learning to collaborate in decentralized learning of personalized
models", CVPR 2022.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import PullOptions
from p2pjax.engines.pulling import pull
from p2pjax.graphs.conversion import GraphLike
from p2pjax.selection.l2c import l2c as l2c_selection
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def l2c(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    bilevel: bool = False,
    num_kept: int = 3,
    num_rounds_all: int = 10,
    weight_optimizer: optax.GradientTransformation | None = None,
    **options: Unpack[PullOptions],
) -> Algorithm:
    """Learning to collaborate (Li et al. 2022). Needs validation data.

    https://doi.org/10.1109/CVPR52688.2022.00954.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: whom each agent may choose, see `graphs.as_graph`; None permits all others.
      batch_size: B.
      bilevel: the paper's bilevel form; else as in the code of Sajina (2025).
      num_kept: peers left after the first rounds.
      num_rounds_all: rounds in which all agents are peers of each other.
      weight_optimizer: of the collaboration weights; Adam with a decaying rate if None.
      **options: see `PullOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(
      ...     num_agents=8, split=pj.split.rotated(2), valid_fraction=0.1)
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.l2c(task, optax.sgd(0.1), batch_size=32)
      >>> method.round_is
      'average with the peers chosen last time, ...choose peers'
    """
    selection = l2c_selection(
        bilevel=bilevel,
        num_kept=num_kept,
        num_rounds_all=num_rounds_all,
        optimizer=weight_optimizer,
    )
    return pull(
        task,
        optimizer,
        selection,
        graph,
        batch_size=batch_size,
        name="L2C",
        **options,
    )
