"""Peer-to-peer, personalized and multi-task learning, simulated in JAX.

    import p2pjax as pj

    data = pj.datasets.digits(num_agents=16, split=pj.split.dirichlet(0.3))
    task = pj.classification(pj.nn.MLP((32, 10)), data)
    method = pj.dpsgd(task, optax.sgd(0.1), pj.graphs.ring(16), batch_size=16)
    for now in pj.simulate(jax.random.key(0), method, data, num_rounds=20):
        print(now.num_rounds, now.metrics["accuracy"].mean(), now.used.messages)

Every method is a function of a task, an optimizer and, where it has one, a graph; it
returns an `Algorithm`. Names of arguments are the same everywhere.
"""

from p2pjax import (
    datasets,
    graphs,
    nn,
    partial,
    protocols,
    selection,
    sharding,
    tasks,
    types,
)
from p2pjax._version import __version__
from p2pjax.algorithms._ad_psgd import ad_psgd
from p2pjax.algorithms._aucccr import aucccr
from p2pjax.algorithms._central import central
from p2pjax.algorithms._choco_sgd import choco_sgd
from p2pjax.algorithms._combination import combination
from p2pjax.algorithms._complete_training import complete_training
from p2pjax.algorithms._d2 import d2
from p2pjax.algorithms._d_cliques import d_cliques
from p2pjax.algorithms._dac import dac
from p2pjax.algorithms._dfca import dfca
from p2pjax.algorithms._dfedavgm import dfedavgm
from p2pjax.algorithms._dfedsam import dfedsam
from p2pjax.algorithms._diple import diple
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._divshare import divshare
from p2pjax.algorithms._dpsgd import dpsgd
from p2pjax.algorithms._epidemic import epidemic
from p2pjax.algorithms._exact_diffusion import exact_diffusion
from p2pjax.algorithms._extra import extra
from p2pjax.algorithms._facade import facade
from p2pjax.algorithms._fedavg import fedavg
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._fedcurv_neighbors import fedcurv_neighbors
from p2pjax.algorithms._fedopt import fedopt
from p2pjax.algorithms._fedper import fedper
from p2pjax.algorithms._fedprox import fedprox
from p2pjax.algorithms._gosgd import gosgd
from p2pjax.algorithms._gradient_tracking import gradient_tracking
from p2pjax.algorithms._k_gt import k_gt
from p2pjax.algorithms._l2c import l2c
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._momentum_tracking import momentum_tracking
from p2pjax.algorithms._multi_task import multi_task
from p2pjax.algorithms._oracle import oracle
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.algorithms._panm import panm
from p2pjax.algorithms._partial_averaging import partial_averaging
from p2pjax.algorithms._pens import pens
from p2pjax.algorithms._qg_dsgdm import qg_dsgdm
from p2pjax.algorithms._relay_sgd import relay_sgd
from p2pjax.algorithms._scaffold import scaffold
from p2pjax.algorithms._sgp import sgp
from p2pjax.algorithms._sparse import sparse
from p2pjax.algorithms._teleportation import teleportation
from p2pjax.algorithms._virtual import virtual
from p2pjax.asynchronous.events import Absence, Timing
from p2pjax.asynchronous.task_groups import groups as task_groups
from p2pjax.checkpoint import load_state, save_state
from p2pjax.datasets import federate, split
from p2pjax.engines.combining import GlobalStopping
from p2pjax.engines.global_merge import global_merge
from p2pjax.engines.pulling import pull
from p2pjax.engines.repetition import repeat_rounds
from p2pjax.engines.stepwise import gossip
from p2pjax.evaluation.test_sets import before_and_after, on_test_sets
from p2pjax.exchange import attacks, channel, factors, robust
from p2pjax.exchange.shared import FED_BN, FULL, SILO_BN
from p2pjax.simulation._history import History
from p2pjax.simulation._simulate import Snapshot, simulate
from p2pjax.simulation._sweep import SweepRun, sweep
from p2pjax.simulation._used import Used
from p2pjax.tasks import (
    Network,
    Task,
    classification,
    lora,
    lora_merged,
    lora_residual,
    masked_token,
    next_token,
    tagging,
)
from p2pjax.tasks._associative import associative
from p2pjax.tasks.bayesian import variational_classification
from p2pjax.training import curvature
from p2pjax.training.associative import associative_rule
from p2pjax.training.early_stopping import LocalStopping
from p2pjax.training.learner import Learner, gradient_descent, per_sample
from p2pjax.training.local_updates import LocalUpdates, epochs, steps
from p2pjax.types import (
    Algorithm,
    FederatedData,
    Info,
    InputError,
    Models,
    Split,
    Variables,
)

METHODS = (
    "ad_psgd",
    "aucccr",
    "central",
    "choco_sgd",
    "combination",
    "complete_training",
    "d2",
    "d_cliques",
    "dac",
    "dfca",
    "dfedavgm",
    "dfedsam",
    "diple",
    "ditto",
    "divshare",
    "dpsgd",
    "exact_diffusion",
    "extra",
    "facade",
    "epidemic",
    "fedavg",
    "fedcurv",
    "fedcurv_neighbors",
    "fedopt",
    "fedper",
    "fedprox",
    "gosgd",
    "gradient_tracking",
    "k_gt",
    "l2c",
    "local_only",
    "momentum_tracking",
    "multi_task",
    "oracle",
    "p2p_bn",
    "panm",
    "partial_averaging",
    "pens",
    "qg_dsgdm",
    "relay_sgd",
    "scaffold",
    "sgp",
    "sparse",
    "teleportation",
    "virtual",
)  # names of all methods

__all__ = [
    "FED_BN",
    "FULL",
    "METHODS",
    "SILO_BN",
    "Absence",
    "Algorithm",
    "FederatedData",
    "GlobalStopping",
    "History",
    "Info",
    "InputError",
    "Learner",
    "LocalStopping",
    "LocalUpdates",
    "Models",
    "Network",
    "Snapshot",
    "Split",
    "SweepRun",
    "Task",
    "Timing",
    "Used",
    "Variables",
    "__version__",
    "ad_psgd",
    "associative",
    "associative_rule",
    "attacks",
    "aucccr",
    "before_and_after",
    "central",
    "channel",
    "choco_sgd",
    "classification",
    "combination",
    "complete_training",
    "curvature",
    "d2",
    "d_cliques",
    "dac",
    "datasets",
    "dfca",
    "dfedavgm",
    "dfedsam",
    "diple",
    "ditto",
    "divshare",
    "dpsgd",
    "epidemic",
    "epochs",
    "exact_diffusion",
    "extra",
    "facade",
    "factors",
    "fedavg",
    "fedcurv",
    "fedcurv_neighbors",
    "federate",
    "fedopt",
    "fedper",
    "fedprox",
    "global_merge",
    "gosgd",
    "gossip",
    "gradient_descent",
    "gradient_tracking",
    "graphs",
    "k_gt",
    "l2c",
    "load_state",
    "local_only",
    "lora",
    "lora_merged",
    "lora_residual",
    "masked_token",
    "momentum_tracking",
    "multi_task",
    "next_token",
    "nn",
    "on_test_sets",
    "oracle",
    "p2p_bn",
    "panm",
    "partial",
    "partial_averaging",
    "pens",
    "per_sample",
    "protocols",
    "pull",
    "qg_dsgdm",
    "relay_sgd",
    "repeat_rounds",
    "robust",
    "save_state",
    "scaffold",
    "selection",
    "sgp",
    "sharding",
    "simulate",
    "sparse",
    "split",
    "steps",
    "sweep",
    "tagging",
    "task_groups",
    "tasks",
    "teleportation",
    "types",
    "variational_classification",
    "virtual",
]
