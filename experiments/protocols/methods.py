"""Methods of the studies by name: what each is made of, and on which graph."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import p2pjax as pj
from experiments.compare.methods import METHODS as COMPARED
from experiments.compare.methods import Problem, on_graph, per_round
from p2pjax.tasks.task import shapes_of
from p2pjax.types import Algorithm


class Method(NamedTuple):
    """How a method is made."""

    make: Callable[[Problem], Algorithm]
    has_momentum: bool = False  # of its optimizer
    graph: str | None = None  # its own; None for that of the study


def _clusters(problem: Problem) -> dict[str, Any]:
    """One model or head for each cluster there is."""
    return {"num_clusters": int(problem.data.cluster.max()) + 1}


def _facade(problem: Problem) -> dict[str, Any]:
    last = max(shapes_of(problem.task).params)  # layers are numbered
    return {"head": [f"params/{last}/.*"], **_clusters(problem)}


METHODS: Mapping[str, Method] = {
    "dpsgd": Method(on_graph(pj.dpsgd)),
    "dsgdm": Method(on_graph(pj.dpsgd), has_momentum=True),
    "qg_dsgdm": Method(on_graph(pj.qg_dsgdm, nesterov=True)),
    "gradient_tracking": Method(on_graph(pj.gradient_tracking)),
    "momentum_tracking": Method(on_graph(pj.momentum_tracking)),
    "exact_diffusion": Method(on_graph(pj.exact_diffusion)),
    "exact_diffusion_momentum": Method(on_graph(pj.exact_diffusion), has_momentum=True),
    "relay_sgd": Method(on_graph(pj.relay_sgd), graph="chain"),
    "relay_sgd_momentum": Method(
        on_graph(pj.relay_sgd), has_momentum=True, graph="chain"
    ),
    "sgp": Method(on_graph(pj.sgp), graph="one_peer_exponential"),
    "all_reduce": Method(on_graph(pj.dpsgd), graph="complete"),
    "all_reduce_momentum": Method(
        on_graph(pj.dpsgd), has_momentum=True, graph="complete"
    ),
    "dfedavgm": Method(on_graph(pj.dfedavgm)),
    "dfedsam": Method(on_graph(pj.dfedsam)),
    "k_gt": Method(on_graph(pj.k_gt)),
    "local_only": Method(COMPARED["local_only"]),
    "dfca_gi": Method(per_round(pj.dfca, _clusters)),
    "dfca_li": Method(
        per_round(pj.dfca, lambda p: {"same_start": False, **_clusters(p)})
    ),
    "facade": Method(per_round(pj.facade, _facade)),
    "panm": Method(COMPARED["panm"]),
    "oracle": Method(COMPARED["oracle"]),
}
