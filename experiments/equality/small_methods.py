"""Methods beside published numbers of agents with one number or two."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import p2pjax as pj
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.quadratics import rounds, vectors
from p2pjax.algorithms._gosgd import halving, prepare_graph
from p2pjax.datasets import stacking
from p2pjax.exchange.push_sum import push_sum_step
from p2pjax.graphs import analysis, topology
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import FederatedData, Key, PyTree, Ratio, Variables

KNOWN = vectors("protocols")
OPTIONS: dict[str, Any] = {"batch_size": 1, "agent_loop": VMAP}


def _task(size: int) -> pj.Task:
    """Half the squared distance of so many numbers to the agent's target."""

    def loss_fn(
        variables: Variables, batch: PyTree, key: Key | None
    ) -> tuple[jax.Array, PyTree]:
        del key
        loss = jnp.square(variables.params["x0"] - batch["c"][0]).sum() / 2
        return loss, variables.stats

    def evaluate_fn(variables: Variables, batch: PyTree) -> dict[str, Ratio]:
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    def init_fn(key: Key) -> Variables:
        del key
        return Variables({"x0": jnp.ones(size)}, {})

    return pj.Task(init_fn, loss_fn, evaluate_fn)


def _world(targets: Any) -> FederatedData:
    rows = np.array(targets, float).reshape(len(targets), 1, -1)
    split = stacking.stack_agents([{"c": row} for row in rows])
    return FederatedData(split, split, split, np.zeros(len(rows), np.int32))


def _models(algorithm: Any, targets: Any, num_rounds: int) -> np.ndarray:
    states = rounds(algorithm, num_rounds, data=_world(targets))
    return np.stack([np.asarray(state.variables.params["x0"]) for state in states])


def _sgp() -> tuple[Any, Any]:
    graph = topology.from_edges(3, np.array([0, 0, 1, 2]), np.array([1, 2, 2, 0]))
    algorithm = pj.sgp(_task(1), optax.sgd(0.5), graph, **OPTIONS)
    states = rounds(algorithm, 3, data=_world([0.0, 3, 6]))
    ours = [
        (np.asarray(state.variables.params["x0"])[:, 0], state.protocol_state)
        for state in states
    ]
    return ours, [(np.array(r["z"]), np.array(r["w"])) for r in KNOWN["sgp"]]


def _gosgd(name: str, directed: bool, senders: list[int]) -> tuple[Any, Any]:
    known = KNOWN["gosgd"][name]
    wires = prepare_graph(topology.stack([pj.graphs.ring(4, directed=directed)]))
    wires = jax.tree.map(lambda leaf: leaf[0], wires)
    sends = wires.has_receiver & np.isin(np.arange(4), senders)[:, None]
    means, weight = push_sum_step(halving(wires, sends), jnp.full(4, 0.25))
    stepped = np.array([0.5, 1.5, 2.5, 5.5])
    ours = (analysis.dense_matrix(means) @ stepped, weight)
    return ours, (np.array(known["x"]), np.array(known["w"]))


def _choco() -> tuple[Any, Any]:
    known = vectors("adversity_compression")["choco_sgd"]
    algorithm = pj.choco_sgd(
        _task(2),
        optax.sgd(known["eta"]),
        pj.graphs.ring(4),
        compression=pj.channel.top_k(0.5),
        consensus_step=known["gamma"],
        **OPTIONS,
    )
    ours = _models(algorithm, known["c"], 3)
    return ours, np.array([one["x"] for one in known["rounds 1-3"]])


def _d_cliques() -> tuple[Any, Any]:
    algorithm = pj.d_cliques(
        _task(1), optax.sgd(0.5), np.array([0, 1, 0, 1]), **OPTIONS
    )
    ours = _models(algorithm, [0.0, 2, 4, 10], 1)[0, :, 0]
    return ours, np.array(vectors("selection")["dcliques"]["x"])


def _row(subject: str, other: str, problem: str, run: Any) -> Comparison:
    return Comparison(
        subject,
        "methods",
        other,
        VECTORS,
        problem,
        run,
        tolerance=1e-8,
        convention="numbers have 9 digits",
        is_slow=True,
    )


COMPARISONS = [
    _row(
        "sgp",
        "Assran et al. (2019) by its text",
        "3 agents, directed graph, 3 rounds: models and weights",
        _sgp,
    ),
    _row(
        "gosgd (directed ring)",
        "Blot et al. (2019) by its text",
        "4 agents of which 2 send",
        partial(_gosgd, "directed ring, 0 and 2 send", True, [0, 2]),
    ),
    _row(
        "choco_sgd",
        "Koloskova et al. (2019) by its text",
        "4 agents, 2 numbers, top 1 of 2, 3 rounds",
        _choco,
    ),
    _row(
        "d_cliques",
        "Bellet et al. (2022) by its text",
        "4 agents in 2 cliques, 1 round",
        _d_cliques,
    ),
]
