"""A NumPy reference of the engine: one agent, one cell, one parameter at a time.

Written from the paper's pseudo-code, not from the package: no stacking, no classes, no
padding. Agents may have networks of different widths.
"""

from collections.abc import Sequence

import numpy as np

Network = list[tuple[np.ndarray, np.ndarray]]  # per layer: kernel [in, out], bias [out]
Models = list[np.ndarray]  # per part: the model of every cell, -1 where local


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def forward(network: Network, x: np.ndarray) -> list[np.ndarray]:
    """Outputs of all parts, the input first."""
    outputs = [x]
    for kernel, bias in network:
        outputs.append(sigmoid(outputs[-1] @ kernel + bias))
    return outputs


def gradient(network: Network, x: np.ndarray, labels: np.ndarray) -> Network:
    """Of the mean over examples of half the squared error."""
    outputs = forward(network, x)
    target = np.eye(outputs[-1].shape[1])[labels]
    delta = (outputs[-1] - target) * outputs[-1] * (1 - outputs[-1]) / len(x)
    gradients = []
    for layer in reversed(range(len(network))):
        gradients.append((outputs[layer].T @ delta, delta.sum(0)))
        below = outputs[layer]
        delta = delta @ network[layer][0].T * below * (1 - below)
    return gradients[::-1]


def descend(network: Network, gradients: Network, rate: float) -> Network:
    return [
        (kernel - rate * dk, bias - rate * db)
        for (kernel, bias), (dk, db) in zip(network, gradients, strict=True)
    ]


def train_per_sample(
    network: Network, x: np.ndarray, labels: np.ndarray, rate: float
) -> Network:
    for i in range(len(x)):
        step = gradient(network, x[i : i + 1], labels[i : i + 1])
        network = descend(network, step, rate)
    return network


def average(
    networks: Sequence[Network],
    models: Sequence[Models],
    depends_on: Sequence[set[int]],
    *,
    cross_model: bool = False,
    weight: Sequence[float] | None = None,
) -> list[Network]:
    """Algorithm 1 (Algorithm 2 with `cross_model`), literally.

    Args:
      networks: of every agent.
      models: of every agent and part.
      depends_on: all models that each model depends on, directly or not.
      cross_model: also average between models of which neither depends on the other.
      weight: of every agent.
    """
    weight = np.ones(len(networks)) if weight is None else np.asarray(weight, float)
    result = [[(k.copy(), b.copy()) for k, b in network] for network in networks]
    num_layers = len(networks[0])

    def columns(agent, part, model):
        return np.flatnonzero(models[agent][part] == model)

    def members(*which):
        return [
            agent
            for agent in range(len(networks))
            if all(any((p == m).any() for p in models[agent]) for m in which)
        ]

    def mean_kernel(agents, layer, source, target):
        """Weights from cells of `source` to cells of `target`, one by one."""
        rows = {a: columns(a, layer, source) for a in agents}
        cols = {a: columns(a, layer + 1, target) for a in agents}
        shares = weight[agents] / weight[agents].sum()
        for i in range(len(rows[agents[0]])):
            for j in range(len(cols[agents[0]])):
                value = sum(
                    share * networks[a][layer][0][rows[a][i], cols[a][j]]
                    for share, a in zip(shares, agents, strict=True)
                )
                for a in agents:
                    result[a][layer][0][rows[a][i], cols[a][j]] = value

    def mean_bias(agents, layer, model):
        cols = {a: columns(a, layer + 1, model) for a in agents}
        shares = weight[agents] / weight[agents].sum()
        for j in range(len(cols[agents[0]])):
            value = sum(
                share * networks[a][layer][1][cols[a][j]]
                for share, a in zip(shares, agents, strict=True)
            )
            for a in agents:
                result[a][layer][1][cols[a][j]] = value

    for model, lower in enumerate(depends_on):
        agents = members(model)
        if len(agents) < 2:
            continue
        for layer in range(num_layers):
            mean_bias(agents, layer, model)
            for source in {model} | lower:
                mean_kernel(agents, layer, source, model)
            for target in lower:
                mean_kernel(agents, layer, model, target)
    if cross_model:
        for a in range(len(depends_on)):
            for b in range(a):
                agents = members(a, b)
                comparable = b in depends_on[a] or a in depends_on[b]
                if len(agents) < 2 or comparable:
                    continue
                for layer in range(num_layers):
                    mean_kernel(agents, layer, a, b)
                    mean_kernel(agents, layer, b, a)
    return result
