"""Methods beside published iterates, where the authors' code cannot be installed.

The numbers are in `tests/vectors`, with 12 significant digits. They were made by plain
NumPy from the papers; which of them equal the code of others is said of each.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import p2pjax as pj
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.quadratics import (
    DISTINCT,
    EDGES,
    RATE,
    SAID,
    SIZE,
    START,
    iterates,
    method,
    rounds,
    task,
    vectors,
)
from p2pjax.algorithms._divshare import arriving
from p2pjax.asynchronous.pairs import waves_of
from p2pjax.engines.stepwise import GossipInputs
from p2pjax.engines.tokens import Holders
from p2pjax.exchange.fragments import fragment_columns
from p2pjax.types import Peers, Variables

MATRIX_WEIGHTS: dict[str, Any] = {"mixing_weights": pj.graphs.metropolis_hastings}
CHAIN = [(n, n + 1) for n in range(SIZE - 1)]
HEAVY = optax.sgd(RATE, momentum=0.9)
ON_GRAPH = f"{SAID}, 6 edges, iterates 1 to 5 and 10, equal and distinct starts"
AUTHORS = "RelaySGD's authors' quadratics code"
EQUAL = f"the rule of the paper; equal to {AUTHORS} when the numbers were made"
# Of each entry of step_baselines.json and round_methods.json: file, subject, method,
# options, and where the numbers come from.
ITERATES: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "dsgd_atc": ("step_baselines", "dpsgd", "dpsgd", MATRIX_WEIGHTS, EQUAL),
    "d2": ("step_baselines", "d2", "d2", {}, EQUAL),
    "exact_diffusion": (
        "step_baselines",
        "exact_diffusion",
        "exact_diffusion",
        {},
        EQUAL,
    ),
    "gt_semi_atc": (
        "step_baselines",
        "gradient_tracking (semi-ATC)",
        "gradient_tracking",
        {},
        EQUAL,
    ),
    "gt_cta": (
        "step_baselines",
        "gradient_tracking (combine_then_adapt)",
        "gradient_tracking",
        {"order": "combine_then_adapt"},
        "DIGing by its text",
    ),
    "qg_dsgdm": (
        "step_baselines",
        "qg_dsgdm",
        "qg_dsgdm",
        {},
        f"Lin et al. (2021) by its text; {AUTHORS} scales momentum by 1 - beta and "
        "differs by 0.41, equal to 2e-16 with that scaling",
    ),
    "qg_dsgdm_n": (
        "step_baselines",
        "qg_dsgdm (nesterov)",
        "qg_dsgdm",
        {"nesterov": True},
        "Lin et al. (2021) by its text",
    ),
    "momentum_tracking": (
        "step_baselines",
        "momentum_tracking",
        "momentum_tracking",
        {},
        "Takezawa et al. (2023) by its text",
    ),
    "relay_sgd_bfs_tree": (
        "step_baselines",
        "relay_sgd (spanning tree)",
        "relay_sgd",
        {},
        EQUAL,
    ),
    "relay_sgd_chain": (
        "step_baselines",
        "relay_sgd (chain)",
        "relay_sgd",
        {"graph": CHAIN},
        EQUAL,
    ),
    "dfedsam": (
        "round_methods",
        "dfedsam",
        "dfedsam",
        {"rate": 0.02, "rho": 0.1, "local_updates": pj.epochs(3)},
        "Shi et al. (2023) by its text",
    ),
    "dfedsam_mgs_q4": (
        "round_methods",
        "dfedsam (num_exchanges=4)",
        "dfedsam",
        {
            "rate": 0.02,
            "rho": 0.1,
            "local_updates": pj.epochs(3),
            "num_exchanges": 4,
        },
        "Shi et al. (2023) by its text",
    ),
}


def _iterates(name: str) -> tuple[Any, Any]:
    file, _, made, options, _ = ITERATES[name]
    known = vectors(file)["methods"][name]
    options = {"graph": EDGES} | options
    algorithm = method(made, options.pop("graph"), **options)
    ours, theirs = {}, {}
    for key, start in (("x", START), ("x_from_distinct", DISTINCT)):
        if key in known:  # RelaySGD starts from equal models
            x = iterates(algorithm, start=start)
            ours[key] = [x[int(number) - 1] for number in known[key]]
            theirs[key] = [np.array(rows, float) for rows in known[key].values()]
    return ours, theirs


EVENTS = vectors("baselines_events")


def _teleportation() -> tuple[Any, Any]:
    known = EVENTS["teleportation"]
    now = np.array(known["holders_by_step"])
    later = np.concatenate([now[1:], now[-1:]])
    holders = Holders(now[:, None], later[:, None], np.zeros_like(now)[:, None])
    algorithm = pj.teleportation(
        task(), optax.sgd(RATE), pj.graphs.ring(4), batch_size=1
    )
    data_inputs = algorithm.plan(np.random.default_rng(0), _world(), len(now))
    states = rounds(algorithm, len(now), inputs=data_inputs._replace(holders=holders))
    ours = np.stack([state.tokens.variables.params["x0"] for state in states])
    return ours, np.array(known["z"])


def _ad_psgd() -> tuple[Any, Any]:
    known = EVENTS["ad_psgd"]
    _, agent, partner = np.array(known["events_time_agent_partner"]).T
    agent, partner = (x.astype(np.int32)[:, None] for x in (agent, partner))
    algorithm = pj.ad_psgd(task(), optax.sgd(RATE), EDGES, batch_size=1)
    drawn = algorithm.plan(np.random.default_rng(0), _world(), len(agent))
    pairs = zip(agent, partner, strict=True)
    inputs = drawn._replace(
        agent=agent,
        partner=partner,
        wave=np.stack([waves_of(*pair, SIZE) for pair in pairs]),
    )
    at = Variables({"x0": jnp.asarray(DISTINCT)}, {})
    states = rounds(
        algorithm,
        len(agent),
        start=DISTINCT,
        inputs=inputs,
        begin=lambda state: state._replace(snapshot=at),
    )
    shown = known["x_after_event"]
    ours = [states[int(number) - 1].variables.params["x0"] for number in shown]
    return ours, [np.array(rows, float) for rows in shown.values()]


def _divshare() -> tuple[Any, Any]:
    known = EVENTS["divshare"]
    sends = np.full((4, 3, SIZE, 1), SIZE, np.int32)
    is_late = np.zeros(sends.shape, bool)
    place = [int(at[0][0]) for at in fragment_columns([np.zeros(3)], 3)]
    late = {tuple(message) for message in known["one_round_late"]}
    for number, messages in enumerate(known["sends_sender_fragment_receiver"]):
        for sender, fragment, receiver in messages:
            slot = (number, place.index(fragment), sender, 0)
            sends[slot] = receiver
            is_late[slot] = (number, sender, fragment, receiver) in late
    algorithm = pj.divshare(
        task(),
        optax.sgd(RATE),
        None,
        num_fragments=3,
        batch_size=1,
        late_probability=0.5,
    )
    states = rounds(algorithm, 4, start=START, inputs=arriving(sends, is_late))
    ours = np.stack([state.variables.params["x0"] for state in states])
    return ours, np.array(known["x_after_round"])


def _dfca() -> tuple[Any, Any]:
    known = EVENTS["dfca"]
    algorithm = method("dfca", EDGES, task=task((2, 1)))
    versions = tuple(
        {"params/x0": _rows(one[:2]), "params/x1": _rows(one[2:])}
        for one in known["theta_start_of_everybody"]
    )
    states = rounds(algorithm, 3, begin=lambda s: s._replace(versions=versions))
    ours = [
        np.stack([np.concatenate(list(v.values()), 1) for v in state.versions], 1)
        for state in states
    ]
    return ours, [np.array(one["theta"]) for one in known["rounds"]]


def _facade() -> tuple[Any, Any]:
    known = EVENTS["facade"]
    algorithm = method("facade", EDGES, task=task((2, 1)), head=("params/x1",))
    versions = tuple({"params/x1": _rows([head])} for head in known["heads_start"])

    def begin(state: Any) -> Any:
        params = {**state.variables.params, "x0": _rows(known["core_start"])}
        return state._replace(
            versions=versions, variables=state.variables._replace(params=params)
        )

    states = rounds(algorithm, 3, begin=begin)
    ours = [
        (s.variables.params["x0"], np.concatenate([*map(_head, s.versions)], 1))
        for s in states
    ]
    theirs = [(np.array(r["core"]), np.array(r["head"])) for r in known["rounds"]]
    return ours, theirs


def _head(version: dict[str, Any]) -> Any:
    return version["params/x1"]


def _rows(values: Any) -> Any:
    return jnp.asarray(np.tile(np.array(values, float), (SIZE, 1)))


def _world() -> Any:
    from experiments.equality.quadratics import world

    return jax.tree.map(jnp.asarray, world())


def _epidemic(variant: str) -> tuple[Any, Any]:
    known = vectors("round_methods")["epidemic"]
    lists = known[f"{variant}_in_neighbours"]
    width = 1 + max(len(one) for of_round in lists for one in of_round)
    ids = np.tile(np.arange(SIZE)[:, None], (len(lists), 1, width))
    weight = np.zeros(ids.shape)
    for number, of_round in enumerate(lists):
        for agent, senders in enumerate(of_round):
            ids[number, agent, 1 : 1 + len(senders)] = senders
            weight[number, agent, : 1 + len(senders)] = 1 / (1 + len(senders))
    numbers = np.arange(len(lists), dtype=np.int32)
    peers = Peers(ids.astype(np.int32)[:, None], weight[:, None])
    algorithm = method(
        "epidemic",
        None,
        rate=known["eta"],
        num_peers=2,
        variant=variant,
        local_updates=pj.steps(1),
    )
    inputs = GossipInputs(numbers, np.ones_like(numbers), peers)
    ours = iterates(algorithm, len(lists), start=START, inputs=inputs)
    return ours, np.array(known[f"{variant}_x"])


def _merge() -> tuple[Any, Any]:
    known = vectors("round_methods")["single_merge"]
    plain = method("dpsgd", EDGES, **MATRIX_WEIGHTS)
    merged = pj.global_merge(plain, task(), rounds=(100,))
    ours = iterates(merged, 100)[-1]
    return ours, np.tile(known["merged"], (SIZE, 1))


def _published(
    subject: str, other: str, problem: str, run: Any, tolerance: float = 1e-9
) -> Comparison:
    return Comparison(
        subject, "methods", other, VECTORS, problem, run, tolerance, is_slow=True
    )


COMPARISONS = [
    *(
        _published(subject, source, ON_GRAPH, partial(_iterates, name))
        for name, (_, subject, _, _, source) in ITERATES.items()
    ),
    _published(
        "teleportation",
        "Takezawa and Stich (2025), from the abstract and a third simulator",
        f"{SAID}, 4 tokens, 5 steps",
        _teleportation,
    ),
    _published(
        "ad_psgd",
        "Lian et al. (2018) by its text",
        f"{SAID}, 12 events",
        _ad_psgd,
    ),
    _published(
        "divshare",
        "Biswas et al. (2025), text and code read, not run",
        f"{SAID}, 3 fragments, 4 rounds, 2 late messages",
        _divshare,
    ),
    _published(
        "dfca",
        "Kirch et al. (2026) by its text",
        f"{SAID}, 2 clusters, 3 rounds",
        _dfca,
    ),
    _published(
        "facade",
        "Biswas et al. (2025), text and code read, not run",
        f"{SAID}, 2 heads, 3 rounds",
        _facade,
    ),
    *(
        _published(
            f"epidemic ({variant})",
            "de Vos et al. (2023), text and code read, not run",
            f"{SAID}, 2 peers, 3 rounds",
            partial(_epidemic, variant),
        )
        for variant in ("oracle", "local")
    ),
    _published(
        "global_merge",
        "Zhu et al. (2026) by its text",
        f"{SAID}, 100 steps of D-PSGD, then the mean",
        _merge,
    ),
]
