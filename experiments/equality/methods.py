"""Methods beside decent-bench, gossipy and torch, on the quadratics."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import optax

import p2pjax as pj
from experiments.equality import decent_bench_runs, gossipy_runs, torch_optimizers
from experiments.equality.comparison import Comparison
from experiments.equality.quadratics import (
    DISTINCT,
    EDGES,
    NUM_ROUNDS,
    RATE,
    SAID,
    SIZE,
    iterates,
    method,
    rounds,
    task,
)

WEIGHTS: dict[str, Any] = {"mixing_weights": pj.graphs.metropolis_hastings}
LOCAL: dict[str, Any] = {"local_updates": pj.epochs(3)}
SERVED = {"step_size": 0.02, "num_local_steps": 3}
ADAPTIVE = {"server_rate": 0.1, "tau": 0.01}
THEIR_ADAPTIVE = {"server_step_size": 0.1, "epsilon": 0.01}
NEIGHBORS = [
    [j for edge in EDGES for i, j in (edge, edge[::-1]) if i == n] for n in range(SIZE)
]
ON_GRAPH = f"{SAID}, 6 edges, Metropolis-Hastings weights, 10 iterations"
AT_SERVER = f"{SAID}, a server, 3 local steps, 10 rounds"
MOMENT = "decent-bench starts the second moment at 0, the paper and p2pjax at tau^2"


def _peers(
    subject: str,
    name: str,
    other: str,
    theirs: dict[str, Any] | None = None,
    *,
    convention: str = "",
    differs: str = "",
    **options: Any,
) -> Comparison:
    """A method on the graph beside decent-bench."""

    def run() -> tuple[Any, Any]:
        ours = iterates(method(name, EDGES, **options), start=DISTINCT)
        given = {"step_size": RATE} | (theirs or {})
        return ours, decent_bench_runs.peers(other, **given)

    return Comparison(
        subject,
        "methods",
        other,
        "decent-bench",
        ON_GRAPH,
        run,
        convention=convention,
        differs=differs,
        is_slow=True,
    )


def _server(
    subject: str,
    name: str,
    other: str,
    theirs: dict[str, Any] | None = None,
    *,
    convention: str = "",
    differs: str = "",
    **options: Any,
) -> Comparison:
    """A method with a server beside decent-bench."""

    def run() -> tuple[Any, Any]:
        ours = iterates(method(name, rate=0.02, **LOCAL, **options))
        found = decent_bench_runs.server(other, **SERVED, **(theirs or {}))
        return ours, np.repeat(found[:, None], SIZE, 1)

    return Comparison(
        subject,
        "methods",
        other + (", v0 = tau^2" if "moment" in (theirs or {}) else ""),
        "decent-bench",
        AT_SERVER,
        run,
        convention=convention,
        differs=differs,
        is_slow=True,
    )


def _fedopt(rule: str, other: str) -> list[Comparison]:
    """With their start of the second moment, and with the paper's."""
    beta = {} if rule == "adagrad" else {"beta_2": 0.99}
    theirs = THEIR_ADAPTIVE | beta
    options: dict[str, Any] = {"rule": rule, **ADAPTIVE}
    subject = f"fedopt ({rule})"
    same = theirs | {"moment": ADAPTIVE["tau"] ** 2}
    return [
        _server(
            subject,
            "fedopt",
            other,
            same,
            convention=f"{MOMENT}; here tau^2 was put in theirs",
            **options,
        ),
        _server(subject, "fedopt", other, theirs, differs=MOMENT, **options),
    ]


DECENT_BENCH = [
    _peers("dpsgd (mix_first)", "dpsgd", "DGD", mix_first=True, **WEIGHTS),
    _peers("dpsgd", "dpsgd", "ATC", **WEIGHTS),
    _peers("gradient_tracking (semi-ATC)", "gradient_tracking", "ATC_Tracking"),
    _peers(
        "gradient_tracking (adapt_then_combine)",
        "gradient_tracking",
        "AugDGM",
        order="adapt_then_combine",
    ),
    _peers(
        "gradient_tracking (combine_then_adapt)",
        "gradient_tracking",
        "SimpleGT",
        order="combine_then_adapt",
        differs="SimpleGT is EXTRA with the identity in place of (I + W) / 2",
    ),
    _peers("extra", "extra", "EXTRA"),
    _peers("exact_diffusion", "exact_diffusion", "ED"),
    _peers(
        "exact_diffusion (mix_first_step=False)",
        "exact_diffusion",
        "NIDS",
        mix_first_step=False,
        convention="NIDS does not communicate in its first iteration",
    ),
    _peers(
        "k_gt",
        "k_gt",
        "KGT",
        {"step_size": 0.02, "num_local_steps": 3, "aux_step_size": 0.8},
        convention="corrections start at 0 in both, not at the paper's differences",
        rate=0.02,
        communication_step=0.8,
        **LOCAL,
    ),
    _server("fedavg", "fedavg", "FedAvg"),
    _server("fedprox", "fedprox", "FedProx", {"penalty": 0.5}, penalty_weight=0.5),
    _server(
        "scaffold",
        "scaffold",
        "Scaffold",
        convention="option II of the paper; clients count the same in both",
    ),
    *_fedopt("adam", "FedAdam"),
    *_fedopt("yogi", "FedYogi"),
    *_fedopt("adagrad", "FedAdagrad"),
]


def _averaged() -> tuple[Any, Any]:
    algorithm = method("dpsgd", EDGES, mixing_weights=pj.graphs.uniform_receive)
    ours = iterates(algorithm, start=DISTINCT)
    return ours, gossipy_runs.averaged(NEIGHBORS)


def _pulled(*args: Any, name: str, neighbors: Any, **options: Any) -> tuple[Any, Any]:
    """Models after averaging, which is before the next round trains."""
    algorithm = method(name, *args, **options)
    states = rounds(algorithm, start=DISTINCT)
    found = [algorithm.models(state).averaged for state in states]
    ours = np.stack([np.asarray(one.params["x0"]) for one in found if one is not None])
    return ours, gossipy_runs.averaged(neighbors)


def _pens() -> tuple[Any, Any]:
    algorithm = method("pens", num_peers=2, num_candidates=SIZE - 1)
    ours = iterates(algorithm, NUM_ROUNDS + 1, start=DISTINCT)
    return ours[1:], gossipy_runs.chosen(2)


def _gossipy(
    subject: str, other: str, run: Callable[[], tuple[Any, Any]], convention: str = ""
) -> Comparison:
    problem = f"{SAID}, plain means, 10 rounds"
    return Comparison(
        subject,
        "methods",
        other,
        "gossipy-dfl",
        problem,
        run,
        convention=convention,
        is_slow=True,
    )


ALL_OTHERS = [[j for j in range(SIZE) if j != n] for n in range(SIZE)]
PLAIN = "equal sizes, so that weights by size are those of a plain mean"
GOSSIPY = [
    _gossipy(
        "dpsgd (uniform_receive)",
        "TorchModelHandler, update then merge",
        _averaged,
    ),
    _gossipy(
        "sparse",
        "TorchModelHandler, update then merge",
        partial(_pulled, EDGES, name="sparse", neighbors=NEIGHBORS),
        PLAIN,
    ),
    _gossipy(
        "oracle",
        "TorchModelHandler, update then merge",
        partial(
            _pulled,
            np.zeros(SIZE, int),
            name="oracle",
            neighbors=ALL_OTHERS,
            degree=SIZE - 1,
        ),
        f"one cluster; {PLAIN}",
    ),
    _gossipy(
        "pens",
        "PENSNode, first stage",
        _pens,
        "gossipy ranks by accuracy; minus the loss was put in its place",
    ),
]


def _trained(
    optimizer: optax.GradientTransformation, other: str, **options: Any
) -> tuple[Any, Any]:
    ours = iterates(method("local_only", optimizer=optimizer), start=DISTINCT)
    return ours, torch_optimizers.alone(other, **options)


def _torch(
    subject: str, other: str, run: Callable[[], tuple[Any, Any]], convention: str = ""
) -> Comparison:
    problem = f"{SAID}, full gradients by autograd, 10 steps"
    return Comparison(
        subject,
        "methods",
        other,
        "torch",
        problem,
        run,
        convention=convention,
        is_slow=True,
    )


def _central() -> tuple[Any, Any]:
    optimizer = optax.sgd(RATE, momentum=0.9)
    algorithm = pj.central(task(), optimizer, batch_size=SIZE)
    return iterates(algorithm), torch_optimizers.central(0.9)


def _with_momentum(nesterov: bool) -> tuple[Any, Any]:
    optimizer = optax.sgd(RATE, momentum=0.9, nesterov=nesterov)
    algorithm = method("dpsgd", EDGES, optimizer=optimizer, **WEIGHTS)
    ours = iterates(algorithm, start=DISTINCT)
    return ours, torch_optimizers.gossip(0.9, nesterov)


def _dfedavgm() -> tuple[Any, Any]:
    ours = iterates(method("dfedavgm", EDGES, rate=0.02, **LOCAL), start=DISTINCT)
    return ours, torch_optimizers.restarted(0.02, 0.9, 3)


TORCH = [
    _torch(
        f"local_only ({name})",
        other,
        partial(_trained, optimizer, other.split("(")[0], **options),
        convention,
    )
    for name, optimizer, other, options, convention in (
        ("sgd", optax.sgd(RATE), "SGD", {}, ""),
        (
            "momentum",
            optax.sgd(RATE, momentum=0.9),
            "SGD(momentum)",
            {"momentum": 0.9},
            "dampening 0, which is torch's default",
        ),
        (
            "Nesterov momentum",
            optax.sgd(RATE, momentum=0.9, nesterov=True),
            "SGD(nesterov)",
            {"momentum": 0.9, "nesterov": True},
            "",
        ),
        ("adam", optax.adam(RATE), "Adam", {}, "eps outside of the root in both"),
        (
            "adamw",
            optax.adamw(RATE, weight_decay=0.01),
            "AdamW",
            {"weight_decay": 0.01},
            "decay times the rate in both",
        ),
    )
]
TORCH += [
    _torch("central", "SGD(momentum), one model", _central),
    _torch(
        "dpsgd (momentum)",
        "SGD(momentum), then a product with the matrix",
        partial(_with_momentum, False),
        "DSGDm: momentum is private and never mixed",
    ),
    _torch(
        "dpsgd (Nesterov momentum)",
        "SGD(nesterov), then a product with the matrix",
        partial(_with_momentum, True),
        "DSGDm-N: momentum is private and never mixed",
    ),
    _torch(
        "dfedavgm",
        "SGD(momentum) made anew in each round, then a product with the matrix",
        _dfedavgm,
        "momentum starts at 0 in every round",
    ),
]
COMPARISONS = [*DECENT_BENCH, *GOSSIPY, *TORCH]
