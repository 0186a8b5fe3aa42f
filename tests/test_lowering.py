"""Rounds lower for accelerators, though none is here to run them."""

import numpy as np
import pytest
from lowering import assert_lowers
from test_partial_averaging import SCHEME, build, random_world

from p2pjax import averaging, topology, training

REALISATIONS = {
    "server": averaging.server(4),
    "gossip": averaging.gossip(4, topology.ring(4)),
    "pairs": averaging.random_pairs(4),
}


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("realisation", REALISATIONS)
def test_vmapped_round_lowers(platform, realisation):
    algorithm, _, _ = build(
        SCHEME, real=REALISATIONS[realisation], agent_loop=training.VMAP
    )
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    assert_lowers(algorithm, world, platform)
