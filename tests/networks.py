"""Between the engine's stacked parameters and the reference's lists of networks."""

import itertools

import numpy as np


def stacked(networks):
    """Networks of equal widths -> `{"layer_1": {"kernel": [N, ...], ...}}`."""
    return {
        f"layer_{layer + 1}": {
            "kernel": np.stack([network[layer][0] for network in networks]),
            "bias": np.stack([network[layer][1] for network in networks]),
        }
        for layer in range(len(networks[0]))
    }


def unstacked(params):
    """The inverse of `stacked`."""
    num_agents = params["layer_1"]["bias"].shape[0]
    return [
        [
            (
                np.asarray(params[f"layer_{layer + 1}"]["kernel"][agent]),
                np.asarray(params[f"layer_{layer + 1}"]["bias"][agent]),
            )
            for layer in range(len(params))
        ]
        for agent in range(num_agents)
    ]


def without_padding(networks, cells, order):
    """Own networks, in own column order, of agents whose cells may be padded."""
    result = []
    for agent, network in enumerate(networks):
        columns = []
        for part, own in zip(cells, order, strict=True):
            real = np.flatnonzero(part[agent] != -2)
            columns.append(real[np.argsort(own[agent, real])])
        result.append(
            [
                (kernel[np.ix_(columns[i], columns[i + 1])], bias[columns[i + 1]])
                for i, (kernel, bias) in enumerate(network)
            ]
        )
    return result


def random_networks(rng, num_agents, widths):
    return [
        [
            (rng.normal(size=(a, b)), rng.normal(size=b))
            for a, b in itertools.pairwise(widths)
        ]
        for _ in range(num_agents)
    ]


def assert_networks_close(actual, expected, **tolerance):
    for mine, theirs in zip(actual, expected, strict=True):
        for (k1, b1), (k2, b2) in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(k1, k2, **tolerance)
            np.testing.assert_allclose(b1, b2, **tolerance)
