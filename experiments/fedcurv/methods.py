"""The methods of `experiments.fedcurv` by name."""

from typing import Any

from experiments.engine.config import agent_loop
from experiments.fedcurv.config import CURVATURES, Config
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._fedcurv_neighbors import fedcurv_neighbors
from p2pjax.algorithms._fedper import fedper
from p2pjax.algorithms._fedprox import fedprox
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._mean_regularized import mean_regularized
from p2pjax.algorithms._scaffold import scaffold
from p2pjax.engines.server import server_rounds
from p2pjax.graphs import generators
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm

HEAD = ("params/layer_2/.*",)


def make_algorithm(
    config: Config,
    method: str,
    strength: float,
    task: Task,
    learner: Learner,
    num_agents: int,
) -> Algorithm:
    """A method, ready to run.

    Args:
      config: of the experiment.
      method: its name.
      strength: of its penalty, if it has one.
      task: what each agent learns.
      learner: how.
      num_agents: N.
    """
    options: dict[str, Any] = {
        "batch_size": config.batch_size,
        "local_updates": epochs(config.num_epochs),
        "agent_loop": agent_loop(config, task),
    }
    curved: dict[str, Any] = {
        "curvature": CURVATURES[config.curvature](task),
        "report_trained": config.before_averaging,
        **options,
    }
    served = options | {"score_before": config.score_before}
    if method == "local_only":
        return local_only(task, learner, **options)
    if method == "fedavg" and config.before_averaging:
        return fedcurv(task, learner, penalty_weight=0.0, **curved)
    if method == "fedavg":
        return server_rounds(task, learner, **served)
    if method == "fedcurv":
        return fedcurv(task, learner, penalty_weight=strength, **curved)
    if method == "fedcurv_hessian":
        curved["curvature"] = CURVATURES["hessian"](task)
        return fedcurv(task, learner, penalty_weight=strength, **curved)
    if method == "fedcurv_ring":
        ring = generators.ring(num_agents)
        return fedcurv_neighbors(task, learner, ring, penalty_weight=strength, **curved)
    if method == "fedprox":
        return fedprox(task, learner, penalty_weight=strength, **served)
    if method == "ditto":  # whose own models are never averaged
        return ditto(task, learner, penalty_weight=strength, **options)
    if method == "ewc":
        return fedcurv(
            task, learner, penalty_weight=strength, own_curvature=True, **curved
        )
    if method == "mean_regularized":
        return mean_regularized(task, learner, penalty_weight=strength, **options)
    if method == "scaffold":
        return scaffold(task, learner, **served)
    assert method == "fedper", "the config knows no others"
    return fedper(task, learner, personal=HEAD, **served)
