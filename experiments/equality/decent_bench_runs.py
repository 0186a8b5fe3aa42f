"""decent-bench on the quadratics; it needs Python 3.13.

pip install decent-bench
"""

from typing import Any

import numpy as np

from experiments.equality.quadratics import (
    DISTINCT,
    EDGES,
    NUM_ROUNDS,
    SIZE,
    START,
    A,
    B,
)


def peers(name: str, start: np.ndarray = DISTINCT, **options: Any) -> np.ndarray:
    """Models of all agents after each iteration, `[R, 5, 3]`.

    Args:
      name: a class of `decent_bench.algorithms.p2p`.
      start: `[5, 3]`.
      **options: of the class.
    """
    import networkx as nx
    from decent_bench.algorithms import p2p
    from decent_bench.networks import P2PNetwork

    agents = _agents()
    network = P2PNetwork(nx.from_edgelist(EDGES), [agents[n] for n in _order()])
    return _stepped(
        getattr(p2p, name)(x0=_at(agents, start), **options), network, agents
    )


def server(name: str, moment: float | None = None, **options: Any) -> np.ndarray:
    """The server's model after each round, `[R, 3]`, from the common start.

    Args:
      name: a class of `decent_bench.algorithms.federated`.
      moment: what the second moment begins with, where it is not zero.
      **options: of the class.
    """
    from decent_bench.algorithms import federated
    from decent_bench.networks import FedNetwork

    clients = _agents()
    network = FedNetwork(clients)
    algorithm = getattr(federated, name)(x0=_at(clients, START), **options)
    return _stepped(algorithm, network, [network.server()], moment)[:, 0]


def compressed(name: str, message: np.ndarray, **options: Any) -> np.ndarray:
    """What a scheme of `decent_bench.schemes` makes of a message."""
    from decent_array import interoperability as iop
    from decent_bench import schemes

    _use_numpy()
    scheme = getattr(schemes, name)(**options)
    return np.asarray(iop.to_numpy(scheme.compress(iop.from_numpy(message))))


def weights(edges: list[tuple[int, int]]) -> np.ndarray:
    """Its mixing matrix of these edges, among agents in the order they occur in."""
    import networkx as nx
    from decent_array import interoperability as iop
    from decent_bench.networks import P2PNetwork

    graph = nx.from_edgelist(edges)
    network = P2PNetwork(graph, _agents(len(graph)))
    found = np.asarray(iop.to_numpy(network.weights))
    place = np.argsort(list(graph))
    return found[np.ix_(place, place)]


def _use_numpy() -> None:
    from decent_array import interoperability as iop

    iop.set_backend("numpy")


def _order() -> list[int]:
    """Agents as networkx lists them, which is the order decent-bench wants."""
    import networkx as nx

    return list(nx.from_edgelist(EDGES))


def _agents(number: int = SIZE) -> list[Any]:
    from decent_array import interoperability as iop
    from decent_bench.agents import Agent
    from decent_bench.costs import QuadraticCost

    _use_numpy()
    return [
        Agent(QuadraticCost(iop.from_numpy(a.T @ a), iop.from_numpy(-a.T @ b)))
        for a, b in zip(
            np.resize(A, (number, 3, 3)), np.resize(B, (number, 3)), strict=True
        )
    ]


def _at(agents: list[Any], rows: np.ndarray) -> dict[Any, Any]:
    from decent_array import interoperability as iop

    return {
        agent: iop.from_numpy(row.copy())
        for agent, row in zip(agents, rows, strict=True)
    }


def _stepped(
    algorithm: Any, network: Any, shown: list[Any], moment: float | None = None
) -> np.ndarray:
    """As its own `run` does, with a look at the models after each iteration."""
    from decent_array import interoperability as iop

    algorithm.initialize(network)
    if moment is not None:
        second = network.server().aux_vars
        second["v"] = second["v"] + moment
    found = []
    for iteration in range(NUM_ROUNDS):
        network._step(iteration)
        algorithm.step(network, iteration)
        found.append([np.asarray(iop.to_numpy(agent.x)) for agent in shown])
    return np.array(found)
