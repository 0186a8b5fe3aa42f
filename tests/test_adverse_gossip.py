"""Gossip that is compressed, attacked, lossy and robust: contracts of whole methods."""

import json
import re
from functools import partial
from pathlib import Path

import attacks_reference
import jax
import jax.extend
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from adversity_reference import ENCODE

import p2pjax as pj
from p2pjax.datasets import stacking
from p2pjax.engines.communication import GossipState
from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.exchange import attacks, channel, pipeline, robust
from p2pjax.exchange.owner_classes import whole_model
from p2pjax.exchange.pipeline import Attackers, Memory
from p2pjax.simulation._simulate import Snapshot
from p2pjax.simulation._used import Used
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, Peers, Ratio, Variables

SLOW = pytest.mark.slow
WORLDS = json.loads(
    (Path(__file__).parent / "vectors/adversity_attacks.json").read_text()
)["averaging_two_worlds"]
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
SIZE = 6
pytestmark = pytest.mark.usefixtures("compiled_quickly")


def world_of(agents):
    split = stacking.stack_agents(agents)
    return FederatedData(split, split, split, np.zeros(len(agents), np.int32))


def quadratic(width=5):
    """Half the squared distance of a vector to targets."""

    def loss_fn(variables, batch, key):
        del key
        valid = batch["valid"].astype(variables.params["x"].dtype)
        gaps = jnp.square(variables.params["x"][None] - batch["c"]).sum(1) / 2
        return (gaps * valid).sum() / jnp.maximum(valid.sum(), 1), variables.stats

    def evaluate_fn(variables, batch):
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    def init_fn(key):
        del key
        return Variables({"x": jnp.zeros(width)}, {})

    return Task(init_fn, loss_fn, evaluate_fn)


def quadratic_world(targets):
    """One example `[width]` of each agent."""
    return world_of([{"c": np.asarray(target)[None]} for target in targets])


def rounds(method, data, models, num_rounds=1, key=None):
    """States after each of some rounds that start from given models."""
    key = jax.random.key(0) if key is None else key
    data = jax.tree.map(jnp.asarray, data)
    inputs = method.plan(np.random.default_rng(0), data, num_rounds)
    state = method.init(key, data)
    params = jax.tree.map(jnp.asarray, models)
    state = state._replace(variables=Variables(params, state.variables.stats))
    advance = jax.jit(method.round)
    states = []
    for t in range(num_rounds):
        now = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        key_round = jax.random.fold_in(key, t)
        state, _ = advance(key_round, jnp.int32(t), now, state, data)
        states.append(state)
    return states


RULES = {
    "cs+": robust.cs_plus,
    "gts": robust.gts,
    "cg": robust.clipped_gossip,
    "ios": robust.ios,
}


@pytest.mark.parametrize(
    "name", [n if n == "cg" else pytest.param(n, marks=SLOW) for n in RULES]
)
def test_published_averaging_in_two_worlds(name):
    """26 agents that only average, three attackers beside each, with line search."""
    known = WORLDS["first two steps, seed 0, f=3, spectral, sound"]
    attack = attacks.spectral(attacks.attached(3))
    # All weights are 1 / 24, and the step of one neighbour is 1 / lambda_max.
    step = {} if name == "ios" else {"step_size": 24 / WORLDS["lambda_max"]}
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        task = quadratic()
        method = pj.dpsgd(
            task,
            optax.sgd(0.0),
            attacks_reference.two_worlds(),
            batch_size=1,
            attack=attack,
            aggregate=RULES[name](3, **step),
        )
        start = np.random.default_rng(0).normal(size=(26, 5)) / np.sqrt(5)
        states = rounds(method, quadratic_world(start), {"x": start}, 2)
        for state, wanted in zip(states, known[name], strict=True):
            x = state.variables.params["x"]
            close(x[0], wanted["agent 0"], atol=2e-6)
            close(x[13], wanted["agent 13"], atol=2e-6)


def mlp(*, norm=False, seed=0):
    """A small network and images of 8 x 8 pixels, whose classes can be told apart."""
    rng = np.random.default_rng(seed)
    agents = []
    for _ in range(SIZE):
        y = rng.integers(3, size=8)
        x = rng.uniform(0, 0.3, size=(8, 64))
        x[np.arange(8), 5 + 7 * y] = 1
        agents.append({"x": x.astype(np.float32), "y": y.astype(np.int32)})
    layers = pj.nn.MLP((4, 3), norm="batch") if norm else pj.nn.MLP((4, 3))
    return pj.classification(layers, (64,)), world_of(agents)


TASK, DATA = mlp()
RING = pj.graphs.ring(SIZE)
COMPLETE = pj.graphs.complete(SIZE)


def dpsgd(graph=COMPLETE, task=TASK, *, learning_rate=0.1, **options):
    return pj.dpsgd(task, optax.sgd(learning_rate), graph, batch_size=8, **options)


def jaxpr_of(method, data=DATA):
    """Of a round."""
    inputs = method.plan(np.random.default_rng(0), data, 1)
    now = jax.tree.map(lambda leaf: leaf[0], inputs)
    key, t = jax.random.key(0), jnp.int32(0)
    state = jax.eval_shape(method.init, key, data)
    return jax.make_jaxpr(method.round)(key, t, now, state, data), state


def printed(jaxpr):
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))


class TestContract:
    def test_a_plain_exchange_is_unchanged(self):
        plain, state = jaxpr_of(dpsgd())
        named, _ = jaxpr_of(dpsgd(channel=channel.PERFECT, attack=None, aggregate=None))
        assert printed(plain) == printed(named)
        assert isinstance(state, GossipState) and state.memory == ()
        other, _ = jaxpr_of(dpsgd(channel=channel.quantize(8)))
        assert len(printed(other)) > len(printed(plain))

    def test_who_attacks_is_an_input(self):
        """The program of all of it; Byzantine agents are not judged, others are."""
        method = dpsgd(
            attack=attacks.alie((1, 4), 3.0),
            aggregate=robust.clipped_gossip(1),
            channel=channel.chain(channel.quantize(8), channel.drop(0.2)),
        )
        data, key = jax.tree.map(jnp.asarray, DATA), jax.random.key(0)
        inputs = method.plan(np.random.default_rng(0), data, 2)
        now = jax.tree.map(lambda leaf: leaf[0], inputs)
        assert now.attackers.is_byzantine.tolist() == [0, 1, 0, 0, 1, 0]
        count = []

        @jax.jit
        def advance(inputs, state):
            count.append(1)
            state, info = method.round(key, jnp.int32(0), inputs, state, data)
            return state, info, method.evaluate(method.models(state), data)

        state = method.init(key, data)
        found = []
        for byzantine in ([0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 1], [0] * SIZE):
            is_byzantine = np.array(byzantine, bool)
            attackers = now.attackers._replace(is_byzantine=is_byzantine)
            new, info, metrics = advance(now._replace(attackers=attackers), state)
            assert set(metrics) == {"accuracy", "accuracy_after", "diverged", "loss"}
            for values in metrics.values():
                assert np.isnan(values).tolist() == is_byzantine.tolist()
            found.append(np.asarray(jax.tree.leaves(new.variables.params)[1]))
        assert len(count) == 1
        assert not np.allclose(found[0], found[1])
        assert not np.allclose(found[0], found[2])
        # 259 + 12 + 3 + 4 numbers in four parts: 8 bits each and a scale of each part
        close(info.bytes, info.sent * (275 + 4 * 4))


def sub_jaxprs(value):
    if isinstance(value, jax.extend.core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, jax.extend.core.Jaxpr):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from sub_jaxprs(one)


def largest(jaxpr):
    """Numbers of the largest array anywhere in a program."""
    found = 0
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            found = max(found, getattr(variable.aval, "size", 0))
        for value in equation.params.values():
            for inner in sub_jaxprs(value):
                found = max(found, largest(inner))
    return found


WIDE, NUM_AGENTS, NUM_SLOTS = 1 << 22, 16, 6  # nothing of it is ever made


def big_exchange(rule, attack, given):
    """A function of stacked models with one large leaf, and their shapes."""
    shape = jax.ShapeDtypeStruct((NUM_AGENTS, WIDE), jnp.float32)
    one = {"params": {"w": jax.ShapeDtypeStruct((WIDE,), jnp.float32)}}
    plan = whole_model(NUM_AGENTS, one)
    exchange = pipeline.make_exchange(plan, given, attack, rule)
    ids = (np.arange(NUM_AGENTS)[:, None] + np.arange(NUM_SLOTS)) % NUM_AGENTS
    peers = Peers(jnp.asarray(ids, jnp.int32), jnp.full(ids.shape, 1 / NUM_SLOTS))
    key, t = jax.random.key(0), jnp.int32(0)

    def run(models, arrived):
        memory = Memory(attackers=Attackers(jnp.arange(NUM_AGENTS) == 2))
        sent, _ = pipeline.transmit(exchange, key, t, models, memory, models)
        return pipeline.deliver(
            exchange, key, t, sent, models, models, lambda owner: peers, arrived
        )[0]

    return run, ({"params": {"w": shape}}, jax.ShapeDtypeStruct(ids.shape, bool))


EIGHT_BITS = channel.chain(channel.quantize(8), channel.drop(0.1))
ALIE = attacks.alie((2,), 1.5)


class TestMemory:
    @pytest.mark.parametrize(
        "rule",
        [robust.clipped_gossip(1), robust.median(1), robust.nnm(robust.krum(1))],
        ids=lambda rule: rule.name,
    )
    @pytest.mark.parametrize(
        "attack",
        [ALIE, attacks.dissensus((2,)), attacks.sign_flip((2,))],
        ids=lambda attack: attack.name,
    )
    def test_no_receiver_has_copies(self, rule, attack):
        run, shapes = big_exchange(rule, attack, EIGHT_BITS)
        assert largest(jax.make_jaxpr(run)(*shapes).jaxpr) == NUM_AGENTS * WIDE

    @pytest.mark.parametrize(
        "attack, rule",
        [
            (ALIE, robust.clipped_gossip(1)),
            pytest.param(ALIE, robust.median(1), marks=SLOW),
            pytest.param(ALIE, robust.krum(1), marks=SLOW),
            pytest.param(ALIE, None, marks=SLOW),
            pytest.param(attacks.dissensus((2,)), robust.gts(1), marks=SLOW),
            pytest.param(attacks.gaussian((2,)), robust.gts(1), marks=SLOW),
        ],
        ids=lambda one: None if one is None else one.name,
    )
    def test_no_second_copy(self, attack, rule):
        """With what a program takes beside the models, which it overwrites."""
        jax.config.update("jax_disable_most_optimizations", False)
        run, shapes = big_exchange(rule, attack, EIGHT_BITS)
        program = jax.jit(run, donate_argnums=0).lower(*shapes).compile()
        models = 4 * NUM_AGENTS * WIDE
        assert program.memory_analysis().temp_size_in_bytes < 0.2 * models


def stacked_models(seed=0, task=TASK):
    """Others for each agent."""
    models = jax.vmap(task.init)(jax.random.split(jax.random.key(seed), SIZE))
    return models.params


def test_quantised_messages_keep_the_mean():
    """On a symmetric matrix, although no agent gets what others have."""
    start = np.random.default_rng(2).normal(size=(SIZE, 5)).astype(np.float32)
    method = pj.dpsgd(
        quadratic(),
        optax.sgd(0.0),
        RING,
        batch_size=1,
        channel=channel.quantize(8),
        mixing_weights=pj.graphs.metropolis_hastings,
    )
    (state,) = rounds(method, quadratic_world(start), {"x": start})
    x = state.variables.params["x"]
    close(x.mean(0), start.mean(0))
    exact = (start + np.roll(start, 1, 0) + np.roll(start, -1, 0)) / 3
    assert 1e-4 < np.abs(x - exact).max() < 0.1


def test_late_parts_of_models():
    """What arrives late are the numbers that were sent, not those sent now."""
    start = np.random.default_rng(2).normal(size=(SIZE, 5)).astype(np.float32)
    given = channel.chain(channel.top_k(0.4), channel.stale())
    method = pj.dpsgd(quadratic(), optax.sgd(0.0), RING, batch_size=1, channel=given)
    first, second = rounds(method, quadratic_world(start), {"x": start}, 2)
    close(first.variables.params["x"], start / 3)  # others had zeros at the start
    mask = np.zeros_like(start, bool)
    np.put_along_axis(mask, np.argsort(-np.abs(start), 1)[:, :2], True, 1)
    x = start / 3
    new = x.copy()
    for shift in (1, -1):
        sent, values = np.roll(mask, shift, 0), np.roll(start, shift, 0)
        new += np.where(sent, values - x, 0) / 3
    close(second.variables.params["x"], new)


@pytest.mark.parametrize(
    "format, rule",
    [
        (None, None),
        (channel.qsgd(10**6), None),
        pytest.param(channel.quantize(16), robust.median(1), marks=SLOW),
        pytest.param(None, robust.gts(1), marks=SLOW),
    ],
    ids=["exact", "qsgd", "half median", "gts"],
)
def test_attackers_whose_messages_are_late(format, rule):
    """They knew the exchange before; receivers have their own models of now."""
    start = np.random.default_rng(2).normal(size=(SIZE, 5)).astype(np.float32)
    stages = [stage for stage in (format, channel.stale()) if stage is not None]
    attack = attacks.foe((1,), 2.0)
    method = pj.dpsgd(
        quadratic(),
        optax.sgd(0.0),
        RING,
        batch_size=1,
        channel=channel.chain(*stages),
        attack=attack,
        aggregate=rule,
    )
    found = rounds(method, quadratic_world(start), {"x": start}, 3)
    honest = [n for n in range(SIZE) if n != 1]
    last, x = np.zeros_like(start), start.astype(float)
    for state in found:
        rows = last.copy()
        rows[1] = -2 * last[honest].mean(0)
        last, new = x, np.empty_like(x)
        for n in range(SIZE):
            heard = rows[[(n - 1) % SIZE, (n + 1) % SIZE]]
            if rule is None:
                new[n] = (x[n] + heard.sum(0)) / 3
                continue
            members = np.concatenate([x[n][None], heard])
            has = robust.received_from_members(jnp.asarray(members))
            new[n] = robust.apply(rule, has, jnp.asarray(members))
        x = new
        tolerance = 1e-5 if format is None else 5e-3
        close(state.variables.params["x"], x, atol=tolerance, rtol=0)


FORMATS = {  # bits of 5 numbers
    "none": (channel.PERFECT, 5 * 32),
    "half": (channel.quantize(16), 5 * 16),
    "uniform8": (channel.quantize(8), 5 * 8 + 32),
    "qsgd": (channel.qsgd(15), 32 + 5 * (1 + 4)),
    "top_k": (channel.top_k(0.5), 2 * (32 + 3)),
    "random_k": (channel.random_k(0.5), 2 * 32 + 32),
}


@pytest.mark.parametrize(
    "name", [n if n == "top_k" else pytest.param(n, marks=SLOW) for n in FORMATS]
)
def test_bytes_of_formats(name):
    given, bits = FORMATS[name]
    data = quadratic_world(np.ones((4, 5), np.float32))
    graph = pj.graphs.ring(4)
    task = quadratic()
    method = pj.dpsgd(
        task,
        optax.sgd(0.1),
        graph,
        batch_size=1,
        channel=channel.chain(given, channel.drop(0.3)),  # lost ones count too
    )
    (now,) = pj.simulate(jax.random.key(0), method, data, num_rounds=1)
    assert now.used.messages == 8
    assert now.used.bytes == 8 * -(-bits // 8)


def test_label_flip_is_learning_from_flipped_labels():
    flipped = jax.tree.map(np.copy, DATA)
    labels = flipped.train.examples["y"]
    labels[2] = 2 - labels[2]
    start, plain = stacked_models(), dpsgd(learning_rate=1.0)
    attack = attacks.label_flip((2,), num_classes=3)
    (found,) = rounds(dpsgd(attack=attack, learning_rate=1.0), DATA, start)
    (wanted,) = rounds(plain, flipped, start)
    (honest,) = rounds(plain, DATA, start)

    def gap(one, other):
        apart = jax.tree.map(lambda a, b: np.abs(a - b).max(), one, other)
        return max(jax.tree.leaves(apart))

    assert gap(found.variables.params, wanted.variables.params) < 1e-6
    assert gap(found.variables.params, honest.variables.params) > 1e-4


@pytest.mark.parametrize(
    "updates",
    [pytest.param(pj.steps(1), marks=SLOW), pytest.param(pj.epochs(2), marks=SLOW)],
    ids=["steps", "epochs"],
)
def test_a_boosted_backdoor(updates):
    """What is sent is scaled; success is told of honest agents."""
    attack = attacks.backdoor((1,), boost=4.0, share=1.0)
    method = dpsgd(attack=attack, learning_rate=0.5, local_updates=updates)
    # Stealthy, without sending: what each agent makes of its own data.
    alone = dpsgd(
        pj.graphs.as_graph(np.eye(SIZE, dtype=int) * 0),
        attack=attacks.backdoor((1,), share=1.0),
        learning_rate=0.5,
        local_updates=updates,
    )
    start = stacked_models()
    (state,) = rounds(method, DATA, start)
    (own,) = rounds(alone, DATA, start)
    models = (state.variables.params, start, own.variables.params)
    for new, before, after in zip(*map(jax.tree.leaves, models), strict=True):
        sent = np.array(after)
        sent[1] = before[1] + 4 * (after[1] - before[1])
        rest = sent.sum(0) - sent
        close(new, (after + rest) / SIZE, atol=1e-5)  # the own model counts as it is
    metrics = method.evaluate(method.models(state), DATA)
    x, y = (np.array(DATA.test.examples[name]) for name in "xy")
    x.reshape(SIZE, -1, 8, 8)[:, :, 6:, 6:] = 1
    for agent in (0, 2, 3, 4, 5):
        variables = jax.tree.map(lambda leaf, n=agent: leaf[n], state.variables)
        chosen = TASK.predict(variables, {"x": x[agent]}).argmax(1)
        wanted = (chosen == 0)[y[agent] != 0].mean()
        close(metrics["attack_success"][agent], wanted)
    assert np.isnan(metrics["attack_success"][1])
    assert np.isfinite(metrics["accuracy"][2]) and np.isnan(metrics["accuracy"][1])


def test_mimic_learns_a_direction():
    """Two rounds of averaging against the formulas of the attack."""
    attack = attacks.mimic((0,), "direction")
    task, width = quadratic(), 5
    rng = np.random.default_rng(4)
    start = rng.normal(size=(SIZE, width)).astype(np.float32)
    options = {"batch_size": 1, "attack": attack}
    method = pj.dpsgd(task, optax.sgd(0.0), COMPLETE, **options)
    data = quadratic_world(start)
    first = method.init(jax.random.key(0), jax.tree.map(jnp.asarray, data))
    v = np.asarray(first.memory.attack["params"]["x"], float)
    v /= np.linalg.norm(v)
    x = start.astype(float)
    for t, state in enumerate(rounds(method, data, {"x": start}, 2)):
        centered = x[1:] - x[1:].mean(0)
        products = centered @ v
        hostile = x[1 + np.abs(products).argmax()]
        sent = np.concatenate([hostile[None], x[1:]])
        new = np.tile(sent.mean(0), (SIZE, 1))
        new[0] += (x[0] - hostile) / SIZE  # its own model counts as it is
        close(state.variables.params["x"], new, atol=1e-5)
        v = t / (t + 1) * v + products @ centered / (t + 1)
        v /= np.linalg.norm(v)
        learned = np.asarray(state.memory.attack["params"]["x"], float)
        close(learned / np.linalg.norm(learned), v, atol=1e-4)
        x = new


CHANNELS = {
    "exact": channel.PERFECT,
    "half": channel.quantize(16),
    "uniform8": channel.quantize(8),
}


def ubar_reference(models, data, sent_to, share, alpha):
    """Models after an exchange of all with all; `sent_to(i, j)` is what i gets."""
    x = np.asarray(models, float)
    centers = np.asarray(data.train.examples["c"], float)[:, 0]
    found = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        messages = np.array([sent_to(i, j) for j in others])
        far = np.linalg.norm(messages - x[i], axis=1)
        near = np.argsort(far, kind="stable")[: max(int(share * len(others)), 1)]
        loss = [np.square(messages[k] - centers[i]).sum() / 2 for k in near]
        own = np.square(x[i] - centers[i]).sum() / 2
        good = [k for k, value in zip(near, loss, strict=True) if value <= own]
        good = good or [near[int(np.argmin(loss))]]
        found.append(alpha * x[i] + (1 - alpha) * messages[good].mean(0))
    return np.array(found)


@pytest.mark.parametrize(
    "name, given",
    [
        ("alie", "exact"),
        pytest.param("alie", "uniform8", marks=SLOW),
        pytest.param("sign_flip", "exact", marks=SLOW),
        pytest.param("sign_flip", "half", marks=SLOW),
        pytest.param("none", "half", marks=SLOW),
        pytest.param("none", "exact", marks=SLOW),
    ],
)
def test_ubar_tries_what_it_receives(name, given):
    rng = np.random.default_rng(5)
    targets, start = rng.normal(size=(2, SIZE, 5)).astype(np.float32)
    byzantine, honest = (0, 3), [1, 2, 4, 5]
    attack = {
        "alie": attacks.alie(byzantine, 1.5),
        "sign_flip": attacks.sign_flip(byzantine, of="model", scale=0.5),
        "none": None,
    }[name]

    whole = [slice(0, 5)]
    decoded = np.array([ENCODE[given](row, whole) for row in start.astype(float)])

    def sent_to(i, j):
        if attack is None or j not in byzantine:
            return decoded[j]
        known = decoded[honest]
        bad = -0.5 * decoded[j]
        if name == "alie":
            bad = known.mean(0) + 1.5 * known.std(0, ddof=1)
        return ENCODE[given](bad, whole)

    task, data = quadratic(), quadratic_world(targets)
    method = pj.dpsgd(
        task,
        optax.sgd(0.0),
        COMPLETE,
        batch_size=1,
        attack=attack,
        aggregate=robust.ubar(0.6, alpha=0.3),
        channel=CHANNELS[given],
    )
    (state,) = rounds(method, data, {"x": start})
    wanted = ubar_reference(start, data, sent_to, 0.6, 0.3)
    close(state.variables.params["x"], wanted, atol=1e-5)


def test_ubar_fills_in_what_is_not_sent():
    """A model of another agent is tried with the own values of what stays."""
    rng = np.random.default_rng(6)
    start = {name: rng.normal(size=(SIZE, 5)).astype(np.float32) for name in "xy"}
    base, targets = quadratic(), start["y"] + start["x"][[1, 2, 3, 4, 5, 0]]

    def total(variables):
        return Variables({"x": variables.params["x"] + variables.params["y"]}, {})

    task = base._replace(
        init=lambda key: Variables({"x": jnp.zeros(5), "y": jnp.zeros(5)}, {}),
        loss=lambda variables, batch, key: (
            base.loss(total(variables), batch, key)[0],
            variables.stats,
        ),
        evaluate=lambda variables, batch: base.evaluate(total(variables), batch),
    )
    method = pj.dpsgd(
        task,
        optax.sgd(0.0),
        COMPLETE,
        batch_size=1,
        aggregate=robust.ubar(1.0, alpha=0.5),
        local_patterns=("params/y",),
    )
    (state,) = rounds(method, quadratic_world(targets), start)
    close(state.variables.params["y"], start["y"])
    # Of all models only that of the next agent is perfect with the own `y`.
    x, others = start["x"], state.variables.params["x"]
    for i in range(SIZE):
        own = np.square(x[i] + start["y"][i] - targets[i]).sum()
        loss = np.square(x + start["y"][i] - targets[i]).sum(1)
        good = [j for j in range(SIZE) if j != i and loss[j] <= own]
        assert (i + 1) % SIZE in good
        close(others[i], (x[i] + x[good].mean(0)) / 2)


def snapshot(metrics, num_rounds=1):
    used = Used(*(np.int64(0) for _ in Used._fields))
    return Snapshot(num_rounds, None, metrics, None, used)


def test_means_of_a_history_are_over_honest_agents():
    nan = np.nan
    metrics = {"accuracy": [0.5, nan, 0.7, 0.9], "diverged": [0.0, nan, 0.0, 0.0]}
    metrics = {name: np.array(values) for name, values in metrics.items()}
    later = {**metrics, "accuracy": np.array([0.6, nan, nan, 1.0])}
    later["diverged"] = np.array([0.0, nan, 1.0, 0.0])
    history = pj.History([snapshot(metrics), snapshot(later, 2)])
    ax = history.plot("accuracy")
    mean, diverged = ax.lines[0].get_ydata()
    assert mean == pytest.approx(0.7)
    assert np.isnan(diverged)  # of an honest agent, which is not hidden
    table = history.to_pandas()
    assert np.flatnonzero(table["accuracy"].isna()).tolist() == [1, 5, 6]
    # Two runs side by side, with attackers of their own.
    two = {name: np.stack([values, values[::-1]]) for name, values in metrics.items()}
    runs = snapshot(two)._replace(used=Used(*(np.zeros(2, int) for _ in Used._fields)))
    drawn = pj.History([runs]).plot("accuracy").lines[0].get_ydata()
    assert drawn == pytest.approx([0.7])
    plt.close("all")


def test_who_attacks_has_not_diverged():
    """Not in warnings either."""

    def evaluate(models, data):
        del models, data
        return {"diverged": jnp.array([jnp.nan, 0.0])}

    data = quadratic_world(np.zeros((2, 5), np.float32))
    method = pj.local_only(quadratic(), optax.sgd(0.0), batch_size=1)
    (now,) = pj.simulate(
        jax.random.key(0), method, data, num_rounds=1, evaluate=evaluate
    )
    assert np.isnan(now.metrics["diverged"][0])


def test_metrics_of_all_agents_together_stay():
    def evaluate(models, data):
        del models, data
        return {
            "loss": jnp.ones(3),
            "spread": jnp.ones(()),
            "classes": jnp.ones((3, 2)),
        }

    found = of_honest_agents(evaluate, TASK, attacks.alie((1,), 1.0))(
        pj.Models(None, is_byzantine=jnp.array([False, True, False])), DATA
    )
    assert np.isnan(found["loss"]).tolist() == [False, True, False]
    assert found["spread"] == 1
    assert np.isnan(found["classes"]).sum() == 2
