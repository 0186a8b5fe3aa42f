"""Formats and poisoned data in methods whose messages are not those of a round."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slow_cases import marked
from test_protocols import world_of

import p2pjax as pj
from p2pjax.exchange import attacks, channel

SIZE, BYZANTINE = 6, 3
RING = pj.graphs.ring(SIZE)
TASK = pj.classification(pj.nn.MLP((4, 3)), (5,))
RNG = np.random.default_rng(0)
DATA = world_of(
    [
        {
            "x": RNG.normal(size=(4, 5)).astype(np.float32),
            "y": RNG.integers(0, 3, 4).astype(np.int32),
        }
        for _ in range(SIZE)
    ]
)
NUMBERS = 5 * 4 + 4 + 4 * 3 + 3
FRAGMENTS = 3
LEAVES = 4
METHODS = {
    "ad_psgd": lambda **more: pj.ad_psgd(
        TASK, optax.sgd(0.5), RING, batch_size=2, **more
    ),
    "dfca": lambda **more: pj.dfca(
        TASK, optax.sgd(0.5), RING, batch_size=2, num_clusters=1, **more
    ),
    "divshare": lambda **more: pj.divshare(
        TASK, optax.sgd(0.5), batch_size=2, num_fragments=FRAGMENTS, **more
    ),
    "facade": lambda **more: pj.facade(
        TASK,
        optax.sgd(0.5),
        RING,
        batch_size=2,
        num_clusters=1,
        head=["params/layer_2/.*"],
        **more,
    ),
    "teleportation": lambda **more: pj.teleportation(
        TASK, optax.sgd(0.5), pj.graphs.ring(3), batch_size=2, **more
    ),
}


def run(method, data=DATA, num_rounds=2, is_byzantine=None):
    """Reported models `[N, P]`, the last round's info and metrics."""
    data, key = jax.tree.map(jnp.asarray, data), jax.random.key(0)
    inputs = method.plan(np.random.default_rng(0), data, num_rounds)
    if is_byzantine is not None:
        rows = np.tile(is_byzantine, (num_rounds, 1))
        inputs = inputs._replace(attackers=inputs.attackers._replace(is_byzantine=rows))

    @jax.jit
    def advance(inputs):
        def one(state, scanned):
            t, now = scanned
            return method.round(jax.random.fold_in(key, t), t, now, state, data)

        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        state, info = jax.lax.scan(one, method.init(key, data), (numbers, inputs))
        models = method.models(state)
        return models.reported.params, info, method.evaluate(models, data)

    params, info, metrics = advance(inputs)
    leaves = [np.asarray(leaf).reshape(SIZE, -1) for leaf in jax.tree.leaves(params)]
    return np.concatenate(leaves, 1), info, metrics


@pytest.mark.parametrize("name", marked(METHODS, "dfca", "ad_psgd"))
def test_fewer_bytes(name, compiled_quickly):
    """Models move by what the format loses, and a little only."""
    plain, free, _ = run(METHODS[name]())
    spread = np.abs(plain).max()
    for stage, bits, error, has_scale in (
        (channel.quantize(16), 16 * NUMBERS, 2e-3, False),
        (channel.quantize(8), 8 * NUMBERS + 32 * LEAVES, 5e-2, True),
    ):
        found, info, _ = run(METHODS[name](channel=stage))
        gap = np.abs(found - plain).max()
        assert 0 < gap < error * spread
        total, sent = np.asarray(info.bytes)[-1].sum(), np.asarray(info.sent)[-1].sum()
        np.testing.assert_array_equal(info.sent, free.sent)
        if name in ("dfca", "facade"):
            bits += 32  # the number of the version
        if name == "divshare":  # each fragment has a part of each leaf, and its scale
            assert (
                total == SIZE * (bits + 32 * LEAVES * (FRAGMENTS - 1) * has_scale) / 8
            )
        elif name == "teleportation":  # tokens that move are exact
            moved = (total - sent * -(-bits // 8)) / (4 * NUMBERS - -(-bits // 8))
            assert moved == round(moved) and 0 < moved < sent
        else:
            assert total == sent * -(-bits // 8)


@pytest.mark.parametrize("name", marked(METHODS, "dfca", "teleportation"))
def test_label_flip_is_learning_from_flipped_labels(name, compiled_quickly):
    flipped = jax.tree.map(np.copy, DATA)
    labels = flipped.train.examples["y"]
    labels[BYZANTINE] = 2 - labels[BYZANTINE]
    method = METHODS[name](attack=attacks.label_flip((BYZANTINE,), num_classes=3))
    found, _, metrics = run(method)
    wanted, *_ = run(METHODS[name](), flipped)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert np.isnan(metrics["accuracy"]).tolist() == [
        n == BYZANTINE for n in range(SIZE)
    ]
    honest, _, metrics = run(method, is_byzantine=np.zeros(SIZE, bool))
    assert np.abs(found - honest).max() > 1e-4
    assert np.isfinite(metrics["accuracy"]).all()


@pytest.mark.parametrize("name", METHODS)
def test_other_attacks_are_refused(name):
    for attack in (
        attacks.sign_flip((0,)),
        attacks.alie((0,), 1.5),
        attacks.backdoor((0,), boost=2.0),
    ):
        with pytest.raises(pj.InputError, match="Need an attack on the data of agents"):
            METHODS[name](attack=attack)
    with pytest.raises(pj.InputError, match="use one of quantize"):
        METHODS[name](channel=channel.top_k(0.1))
