"""What a global merge refuses; what it computes is in test_round_methods.py."""

import jax
import optax
import pytest

import p2pjax as pj

DATA = pj.datasets.digits(num_agents=4, split=pj.split.rotated(2), seed=0)
TASK = pj.classification(pj.nn.MLP((4, 10)), DATA)
RING = pj.graphs.ring(4)
OWN = {"batch_size": 32, "local_updates": pj.steps(1)}


def start(method):
    return jax.eval_shape(lambda: method.init(jax.random.key(0), DATA))


@pytest.mark.parametrize("name", ["dfca", "facade"])
def test_versions_of_models_are_no_models_of_agents(name):
    own = OWN | ({"head": ["params/layer_2/.*"]} if name == "facade" else {})
    method = getattr(pj, name)(TASK, optax.sgd(0.1), RING, num_clusters=2, **own)
    with pytest.raises(pj.InputError, match="one model of each agent.*rounds=\\(\\)"):
        start(pj.global_merge(method, TASK))
    start(pj.global_merge(method, TASK, rounds=()))  # scores only


def test_what_waits_for_the_next_exchange():
    method = pj.dpsgd(TASK, optax.sgd(0.1), RING, score_before=True, **OWN)
    with pytest.raises(pj.InputError, match="pending: use score_before=False"):
        start(pj.global_merge(method, TASK))
    start(pj.global_merge(pj.dpsgd(TASK, optax.sgd(0.1), RING, **OWN), TASK))
