"""What methods cannot take of channels, attacks and rules is refused in a sentence."""

import re

import numpy as np
import optax
import pytest

import p2pjax as pj
from p2pjax.datasets import stacking
from p2pjax.exchange import attacks, channel, robust
from p2pjax.types import FederatedData, InputError

TASK = pj.classification(pj.nn.MLP((2,)), (3,))
RING, SIZE = pj.graphs.ring(6), 6
METHODS = {
    "dpsgd": pj.dpsgd,
    "d2": pj.d2,
    "sgp": pj.sgp,
    "gosgd": pj.gosgd,
    "choco_sgd": pj.choco_sgd,
}
ALIE, MEDIAN = attacks.alie((0,), 1.5), robust.median(1)


def make(name, graph=RING, **options):
    if name == "choco_sgd":
        options |= {"compression": channel.sign(), "consensus_step": 0.1}
    return METHODS[name](TASK, optax.sgd(0.1), graph, batch_size=2, **options)


CHANNELS = [
    ("d2", channel.drop(0.1), "D2 corrects with what was sent before, so it cannot"),
    ("dpsgd", channel.delay(1.0), "D-PSGD has no clock, so messages cannot be late"),
    ("d2", channel.stale(), "D2 cannot take messages of the exchange before"),
    ("sgp", channel.stale(), "SGP cannot take messages of the exchange before"),
    ("gosgd", channel.stale(), "GoSGD cannot take messages of the exchange before"),
    ("sgp", channel.noise(1.0), "SGP cannot take noisy messages: use a channel with"),
    ("gosgd", channel.noise(1.0), "GoSGD cannot take noisy messages"),
    ("dpsgd", channel.clip(1.0), "updates for clip, got the models of D-PSGD"),
    (
        "dpsgd",
        channel.chain(channel.error_feedback(), channel.top_k(0.1)),
        "updates for error feedback, got the models of D-PSGD: use choco_sgd, or",
    ),
    ("d2", channel.quantize(16), "D2 needs exact messages, got half: use a channel"),
    ("d2", channel.top_k(0.1), "D2 needs exact messages, got top_k"),
    ("sgp", channel.quantize(8), "for SGP, got uniform8: use one of quantize(16), or"),
    ("gosgd", channel.quantize(8), "for GoSGD, got uniform8: use one of quantize(16)"),
    ("dpsgd", channel.sign(), "carries whole models for D-PSGD, got sign: use one of"),
    ("dpsgd", channel.qsgd(4), "for D-PSGD, got qsgd as it is for updates"),
]


@pytest.mark.parametrize("name, given, message", CHANNELS)
def test_channels(name, given, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make(name, channel=given)


OTHERS = [
    (
        "sgp",
        {"aggregate": MEDIAN},
        "Need a protocol whose receivers may drop messages for a robust rule, got SGP: "
        "push-sum loses the mass of what is dropped; use D-PSGD.",
    ),
    ("gosgd", {"aggregate": MEDIAN}, "for a robust rule, got GoSGD: push-sum loses"),
    (
        "d2",
        {"aggregate": MEDIAN},
        "Need D-PSGD for a robust rule, got D2: its correction assumes one fixed "
        "symmetric matrix.",
    ),
    (
        "choco_sgd",
        {"aggregate": MEDIAN},
        "Need exact or quantised messages for a robust rule, got choco: distances of "
        "partly sent models mean nothing.",
    ),
    ("choco_sgd", {"attack": ALIE}, "Need D-PSGD for an attack, got CHOCO-SGD: rece"),
    (
        "dpsgd",
        {"aggregate": MEDIAN, "channel": channel.top_k(0.1)},
        "Need exact or quantised messages for a robust rule, got top_k: distances of "
        "partly sent models mean nothing.",
    ),
    *(
        (
            "dpsgd",
            {"attack": attack, "channel": given, **options},
            "Need an attack with a scale that sends the same to all receivers for "
            f"messages in {given.format.name}, which looks at all of a message, got "
            f"{attack.name} of each receiver: use one with local=False, or quantize",
        )
        for attack, given, options in (
            (attacks.dissensus((0,), 1.5), channel.qsgd(15), {}),
            (attacks.spectral((0,), 1.5), channel.top_k(0.1), {}),
            (attacks.alie((0,), 1.5, local=True), channel.random_k(0.1), {}),
            (attacks.alie((0,)), channel.qsgd(15), {"aggregate": robust.gts(1)}),
            (attacks.mimic((0,), "random"), channel.top_k(0.1), {}),
        )
    ),
    (
        "dpsgd",
        {"attack": attacks.foe(attacks.attached(2), 0.1), "channel": channel.qsgd(15)},
        "Need attackers that are agents for messages in qsgd, got 2 attached to each",
    ),
    (
        "dpsgd",
        {"attack": attacks.sign_flip((0,)), "channel": channel.stale()},
        "Need messages of the same exchange for sign_flip of what was learned, got st",
    ),
    (
        "dpsgd",
        {
            "attack": attacks.alie((0,)),
            "aggregate": robust.gts(1),
            "channel": channel.stale(),
        },
        "Need a scale of alie for stale messages, got None: attackers do not know",
    ),
    (
        "dpsgd",
        {"attack": ALIE, "channel": channel.chain(channel.top_k(0.1), channel.stale())},
        "Need whole models for an attack by stale messages, got top_k",
    ),
    (
        "dpsgd",
        {"attack": attacks.spectral((0,))},
        "Need a scale of spectral where models are mixed without a robust rule, got",
    ),
    ("sgp", {"attack": attacks.alie((0,))}, "Need a scale of alie where models are"),
    (
        "dpsgd",
        {"attack": attacks.alie((0,)), "aggregate": robust.ubar(0.5)},
        "Need a scale of alie for ubar, got None: what the rule would do cannot be",
    ),
    (
        "dpsgd",
        {"attack": attacks.foe((0,)), "aggregate": robust.nnm(MEDIAN)},
        "Need a scale of foe for nnm(median), got None",
    ),
    (
        "dpsgd",
        {"aggregate": robust.ubar(0.5), "score_before": True},
        "Need exchanges that take place at once for ubar, which tries models on data",
    ),
    (
        "dpsgd",
        {"channel": channel.drop(0.1, burst=2), "score_before": True},
        "Need exchanges that take place at once for losses in bursts, got score_before",
    ),
    (
        "dpsgd",
        {"mix_first": True, "channel": channel.top_k(0.1)},
        "carries whole models for D-PSGD, got top_k: use one of quantize(16), quantize",
    ),
    (
        "dpsgd",
        {"mix_first": True, "channel": channel.stale()},
        "D-PSGD cannot take messages of the exchange before",
    ),
    (
        "dpsgd",
        {"mix_first": True, "attack": attacks.sign_flip((0,))},
        "Need D-PSGD that adapts first for an attack on what was learned, got mix_firs",
    ),
    (
        "dpsgd",
        {"mix_first": True, "attack": attacks.backdoor((0,), boost=2.0)},
        "for an attack on what was learned, got mix_first: what it sends is the model",
    ),
    *(
        (
            name,
            {"attack": attacks.alie(attacks.attached(2), 1.5)},
            f"Need dpsgd for attackers beside each agent, got {label} without a place",
        )
        for name, label in (("d2", "D2"), ("sgp", "SGP"), ("gosgd", "GoSGD"))
    ),
]


@pytest.mark.parametrize("name, options, message", OTHERS)
def test_attacks_and_rules(name, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make(name, **options)


def test_a_protocol_with_weights_of_its_own():
    base = pj.protocols.dpsgd()
    own = pj.protocols.GossipProtocol(*base[:5])
    with pytest.raises(InputError, match="leaves it to a rule how messages count"):
        pj.gossip(TASK, optax.sgd(0.1), own, RING, batch_size=2, aggregate=MEDIAN)
    attack = attacks.alie(attacks.attached(2), 1.5)
    with pytest.raises(InputError, match="got This protocol without a place"):
        pj.gossip(TASK, optax.sgd(0.1), base, RING, batch_size=2, attack=attack)


STARTS = [
    (
        {"aggregate": robust.median(2)},
        RING,
        "Need more than 2 x 2 messages (with one's own) for median, got 3 at agent 0: "
        "lower b or use a denser graph.",
    ),
    (
        {"attack": attacks.alie((0, 6), 1.5)},
        RING,
        "Need Byzantine agents from 0 to 5 and an honest one beside them, got [0, 6]",
    ),
    (
        {"attack": attacks.alie(attacks.attached(1), 1.5)},
        pj.graphs.uniform_receive(RING),
        "Need a graph without weights of its own for attached attackers, who have none",
    ),
    (
        {"attack": attacks.alie(attacks.attached(1), 1.5)},
        pj.graphs.as_graph(np.triu(np.ones((SIZE, SIZE), int), 1)),
        "Need an undirected graph for Metropolis-Hastings weights",
    ),
]


@pytest.mark.parametrize("options, graph, message", STARTS)
def test_when_a_run_starts(options, graph, message):
    agent = {"x": np.ones((2, 3), np.float32), "y": np.zeros(2, np.int32)}
    split = stacking.stack_agents([agent] * SIZE)
    data = FederatedData(split, split, split, np.zeros(SIZE, np.int32))
    method = make("dpsgd", graph, **options)
    with pytest.raises(InputError, match=re.escape(message)):
        method.plan(np.random.default_rng(0), data, 1)


def test_attached_attackers_are_members():
    """A ring with two of them beside each agent has enough for a median of two."""
    agent = {"x": np.ones((2, 3), np.float32), "y": np.zeros(2, np.int32)}
    split = stacking.stack_agents([agent] * SIZE)
    data = FederatedData(split, split, split, np.zeros(SIZE, np.int32))
    attack = attacks.alie(attacks.attached(2), 1.5)
    method = make("dpsgd", attack=attack, aggregate=robust.median(2))
    inputs = method.plan(np.random.default_rng(0), data, 1)
    assert inputs.graph.ids.shape == (1, SIZE, 1 + 2 + 2)
    np.testing.assert_allclose(inputs.graph.weight, 1 / 5, rtol=1e-6)
    assert not inputs.attackers.is_byzantine.any()
