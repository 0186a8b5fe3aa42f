"""Asynchronous methods under attack and with robust rules, one event after the other.

A model is five parameters and two statistics; a training halves its distance to the
agent's example: four pixels and a label.
"""

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lowering import assert_lowers
from test_events import AT_ONCE, TIMINGS, random_receivers, sequentially
from test_multi_task import scalar_task, scalar_world
from test_protocols import close, run, world_of

from p2pjax import sharding
from p2pjax.algorithms._multi_task import multi_task
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.asynchronous import events, merging, task_groups, waves
from p2pjax.asynchronous.events import Timing
from p2pjax.asynchronous.messages import Mailing, posted
from p2pjax.exchange import attacks, channel, robust
from p2pjax.exchange.attacks.base import Attack, Hostile
from p2pjax.graphs import generators, topology
from p2pjax.graphs.topology import Topology
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.learner import Learner
from p2pjax.types import InputError, Ratio, Variables

SLOW = pytest.mark.slow
N, BYZANTINE, CLASSES, ROUNDS = 6, (1, 4), 10, 5
GRAPH = topology.unstack(random_receivers(np.random.default_rng(1), N, 2))[0]
DELAYS = Timing(mean_delay=0.6, loss_probability=0.2)
RNG = np.random.default_rng(8)
PIXELS = RNG.uniform(size=(N, 1, 2, 2)).astype(np.float32)
LABELS = np.array([[3], [1], [9], [7], [2], [5]], np.int32)
WORLD = world_of([{"x": x, "y": y} for x, y in zip(PIXELS, LABELS, strict=True)])
START = np.concatenate([np.ones(5), np.zeros(2)])


def numbers_of(examples):
    pixels = examples["x"].reshape(*examples["x"].shape[:-2], 4)
    return jnp.concatenate([pixels, examples["y"].astype(jnp.float32)[..., None]], -1)


def flat(variables):
    """`[..., 7]`, parameters first."""
    params, stats = variables
    leaves = [params["a"], params["b"], stats["batch_stats"]["mean"]]
    return np.concatenate(leaves, axis=-1)


def task_of():
    """A label is right if the last parameter is near it."""

    def evaluate(variables, batch):
        last = variables.params["b"][-1]
        error = jnp.abs(last - batch["y"].astype(jnp.float32))
        valid = batch["valid"].astype(jnp.float32)
        right = (error < 0.5).astype(jnp.float32)
        return {
            "accuracy": Ratio((right * valid).sum(), valid.sum()),
            "loss": Ratio((error * valid).sum(), valid.sum()),
        }

    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    stats = {"batch_stats": {"mean": jnp.zeros(2)}}
    return Task(
        lambda key: Variables(params, stats),
        loss=lambda variables, batch, key: (jnp.zeros(()), variables.stats),
        evaluate=evaluate,
    )


def step_fn(key, variables, opt_state, batch, context):
    """Halfway to the example; statistics go to its label and its first pixel."""
    del key, context
    target = numbers_of({name: batch[name][0] for name in "xy"})
    params, stats = variables
    new = {
        "a": (params["a"] + target[:2]) / 2,
        "b": (params["b"] + target[2:]) / 2,
    }
    mean = (stats["batch_stats"]["mean"] + target[jnp.array([4, 0])]) / 2
    return Variables(new, {"batch_stats": {"mean": mean}}), opt_state, jnp.zeros(())


TASK, LEARNER = task_of(), Learner(lambda variables: (), step_fn)


def build(agent_loop=VMAP, **options):
    defaults = {"batch_size": 1, "fine_tuning": False, "agent_loop": agent_loop}
    return p2p_bn(TASK, LEARNER, GRAPH, **(defaults | options))


def targets(labels=LABELS, pixels=PIXELS):
    return np.asarray(numbers_of({"x": pixels[:, 0], "y": labels[:, 0]}))


def by_events(schedule, sends, merge, *, at_once=True, goal=None):
    """Models after every epoch, trained and with all mail merged, `[R, N, 7]`.

    `sends` is (agent, before, after) -> message, `merge` (own, message, t) -> own.
    """
    goal = targets() if goal is None else goal
    models, waiting, sent = [START] * N, [[] for _ in range(N)], {}
    arrivals = list(
        zip(schedule.after, schedule.receiver, schedule.source, strict=True)
    )
    ends = np.searchsorted(schedule.epoch, np.arange(ROUNDS), side="right") - 1
    trained, averaged = [], []

    def deliver(number):
        while arrivals and arrivals[0][0] <= number:
            _, receiver, source = arrivals.pop(0)
            waiting[receiver].append(source)

    def with_mail(agent, now):
        model = models[agent]
        for source in waiting[agent]:
            t = schedule.epoch[source] if at_once else now
            model = merge(model, sent[source], t)
        return model

    for number, agent in enumerate(schedule.agent.tolist()):
        deliver(number)
        before = with_mail(agent, schedule.epoch[number])
        waiting[agent] = []
        halfway = (before[:5] + goal[agent]) / 2
        mean = (before[5:] + goal[agent][[4, 0]]) / 2
        models[agent] = np.concatenate([halfway, mean])
        sent[number] = sends(agent, before, models[agent])
        if number in ends:
            deliver(number + 1)
            trained.append(np.stack(models))
            now = schedule.epoch[number]
            averaged.append(np.stack([with_mail(n, now) for n in range(N)]))
    return np.stack(trained), np.stack(averaged)


def schedule_of(timing=Timing(), num_rounds=ROUNDS):
    to = topology.receivers(GRAPH)
    to = Topology(*(np.stack([leaf] * num_rounds) for leaf in to))
    return events.draw(
        np.random.default_rng(5), to, np.ones(N, int), num_rounds, timing
    )


def models_of(method, num_rounds=ROUNDS):
    inputs = method.plan(np.random.default_rng(5), WORLD, num_rounds)
    states, info = run(method, WORLD, num_rounds, inputs=inputs)
    return jax.vmap(method.models)(states), info


# What is sent: parameters in place of the agent's own, statistics as they are.


def attacker_sends(hostile):
    def sends(agent, before, after):
        if agent not in BYZANTINE:
            return after
        return np.concatenate([hostile(before[:5], after[:5]), after[5:]])

    return sends


def honest(agent, before, after):
    return after


def halved(own, message, t):
    return (own + message) / 2


# Rules for one message, by hand.


class Counted:
    """A rule that remembers how often it took less than half."""

    def __init__(self, share):
        self.share, self.shares = share, []

    def __call__(self, own, message, t):
        share = 0.0
        if np.isfinite(message).all():
            share = self.share(own[:5], message[:5], t)
        self.shares.append(share)
        return own if share == 0 else (1 - share) * own + share * message

    @property
    def is_mixed(self):
        return len({share < 0.5 for share in self.shares}) == 2


def clipping(radius):
    def share(own, message, t):
        distance = np.linalg.norm(message - own)
        return 0.5 * min(1, radius / max(distance, 1e-9))

    return robust.self_centered_clipping(radius), Counted(share)


def balance(gamma, kappa, num_rounds=ROUNDS):
    def share(own, message, t):
        limit = gamma * np.exp(-kappa * t / num_rounds) * np.linalg.norm(own)
        return 0.5 * (np.linalg.norm(message - own) <= limit)

    return robust.balance(gamma, kappa, num_rounds=num_rounds), Counted(share)


FLIP = attacks.sign_flip(BYZANTINE, scale=3.0)
FLIPPED = attacker_sends(lambda before, after: before - 3 * (after - before))
RULES = {"clipping": partial(clipping, 2.0), "balance": partial(balance, 0.9, 0.7)}


@pytest.mark.parametrize(
    "name, timing, agent_loop, max_width",
    [
        ("clipping", Timing(), VMAP, 2),
        ("balance", Timing(loss_probability=0.3), IN_PLACE, None),
        ("clipping", DELAYS, IN_PLACE, None),
        ("balance", DELAYS, VMAP, None),
        pytest.param("balance", Timing(poisson=True), VMAP, None, marks=SLOW),
        pytest.param("clipping", Timing(), IN_PLACE, None, marks=SLOW),
    ],
)
def test_rules_against_flipped_updates(name, timing, agent_loop, max_width):
    """Each message is merged with what its receiver has when it comes."""
    rule, merge = RULES[name]()
    at_once = not timing.mean_delay
    method = build(
        agent_loop,
        attack=FLIP,
        aggregate=rule,
        timing=timing,
        max_width=max_width,
        num_mailboxes=None if at_once else 20,
    )
    models, info = models_of(method)
    trained, averaged = by_events(schedule_of(timing), FLIPPED, merge, at_once=at_once)
    assert merge.is_mixed
    close(flat(models.trained), trained, rtol=1e-5, atol=1e-5)
    if at_once:
        close(flat(models.averaged), averaged, rtol=1e-5, atol=1e-5)
        assert (averaged != trained).any()
    else:
        assert models.averaged is None
    assert info.bytes is None
    is_byzantine = np.isin(np.arange(N), BYZANTINE)
    np.testing.assert_array_equal(models.is_byzantine, [is_byzantine] * ROUNDS)


def flipped_labels():
    labels = LABELS.copy()
    labels[list(BYZANTINE)] = CLASSES - 1 - labels[list(BYZANTINE)]
    return targets(labels)


def triggered():
    """One pixel has full ink, and the label is 0."""
    pixels, labels = PIXELS.copy(), LABELS.copy()
    pixels[list(BYZANTINE), :, 0, 1], labels[list(BYZANTINE)] = 1, 0
    return targets(labels, pixels)


BACKDOOR = partial(attacks.backdoor, BYZANTINE, share=1.0, patch=(0, 1, 1, 1))
ATTACKS = {
    "update": (FLIP, FLIPPED, targets()),
    "model": (
        attacks.sign_flip(BYZANTINE, of="model", scale=0.5),
        attacker_sends(lambda before, after: -0.5 * after),
        targets(),
    ),
    "label_flip": (attacks.label_flip(BYZANTINE, CLASSES), honest, flipped_labels()),
    "backdoor": (BACKDOOR(), honest, triggered()),
    "boosted": (
        BACKDOOR(boost=4.0),
        attacker_sends(lambda before, after: before + 4 * (after - before)),
        triggered(),
    ),
}


@pytest.mark.parametrize(
    "name, agent_loop",
    [
        ("update", IN_PLACE),
        pytest.param("model", VMAP, marks=SLOW),
        ("label_flip", VMAP),
        ("boosted", VMAP),
        pytest.param("label_flip", IN_PLACE, marks=SLOW),
        pytest.param("backdoor", IN_PLACE, marks=SLOW),
        pytest.param("boosted", IN_PLACE, marks=SLOW),
        pytest.param("update", VMAP, marks=SLOW),
    ],
)
def test_attacks_on_plain_means(name, agent_loop):
    attack, sends, goal = ATTACKS[name]
    models, _ = models_of(build(agent_loop, attack=attack))
    trained, averaged = by_events(schedule_of(), sends, halved, goal=goal)
    close(flat(models.trained), trained, rtol=1e-4, atol=1e-4)
    close(flat(models.averaged), averaged, rtol=1e-4, atol=1e-4)


def one_model(shift=0.0):
    params = {"a": jnp.arange(2.0) + shift, "b": jnp.arange(300.0) + shift}
    return Variables(params, {"batch_stats": {"mean": jnp.full(2, 3.0)}})


@pytest.mark.parametrize(
    "around, centre", [pytest.param("zero", 0.0, marks=SLOW), ("own", 1.0)]
)
def test_gaussian_messages(around, centre):
    """Other numbers for each leaf and message; statistics as they are."""
    attack = attacks.gaussian(BYZANTINE, std=2.0, around=around)
    mailing = Mailing(channel=channel.quantize(16), attack=attack)
    send = jax.vmap(
        lambda number, who: posted(
            mailing, jax.random.key(3), jnp.int32(0), number, one_model(), who
        )
    )
    who = jnp.array([True, True, False])
    sent = jax.jit(send)(jnp.array([5, 8, 8]), who)
    own = np.asarray(one_model().params["b"])
    noise = (np.asarray(sent["params"]["b"])[:2] - centre * own) / 2
    assert np.abs(noise.mean(1)).max() < 0.25
    assert np.abs(noise.std(1) - 1).max() < 0.15
    assert np.abs(np.corrcoef(noise)[0, 1]) < 0.25
    first = np.asarray(sent["params"]["a"])[:2] / 2 - centre * np.arange(2.0) / 2
    assert not np.isclose(first, noise[:, :2], atol=1e-2).any()
    for leaf in jax.tree.leaves(sent["params"]):  # in the format of the messages
        np.testing.assert_array_equal(leaf, np.asarray(leaf, np.float16))
    close(sent["params"]["b"][2], own)
    close(sent["batch_stats"]["mean"], np.full((3, 2), 3.0))


def test_leaves_that_stay_are_not_sent():
    mailing = Mailing(("params/a", "batch_stats/.*"), attack=FLIP)
    before = {"params": {"a": None, "b": one_model(1.0).params["b"]}}
    before |= {"batch_stats": {"mean": None}}
    message = posted(
        mailing,
        jax.random.key(0),
        jnp.int32(0),
        jnp.int32(0),
        one_model(),
        jnp.array(True),
        before,
    )
    assert message["params"]["a"] is None and message["batch_stats"]["mean"] is None
    close(message["params"]["b"], np.arange(300.0) + 4)  # 1 - 3 (0 - 1)


def sends_only(number):
    return Attack(
        "number",
        BYZANTINE,
        hostile=lambda scene: Hostile(jnp.full_like(scene.rows, number)),
        per_sender=True,
        needs_others=False,
    )


@pytest.mark.parametrize(
    "name, number, agent_loop, timing",
    [
        ("clipping", jnp.nan, VMAP, Timing()),
        pytest.param("balance", jnp.inf, IN_PLACE, DELAYS, marks=SLOW),
        pytest.param("balance", jnp.nan, IN_PLACE, Timing(), marks=SLOW),
        pytest.param("clipping", 1e30, VMAP, DELAYS, marks=SLOW),
    ],
)
def test_what_is_not_finite_is_not_merged(name, number, agent_loop, timing):
    rule, merge = RULES[name]()
    at_once = not timing.mean_delay
    method = build(
        agent_loop,
        attack=sends_only(number),
        aggregate=rule,
        timing=timing,
        num_mailboxes=None if at_once else 20,
    )
    models, _ = models_of(method)
    # Squares of 1e30 overflow in single precision.
    sends = attacker_sends(lambda before, after: np.full(5, np.nan))
    trained, _ = by_events(schedule_of(timing), sends, merge, at_once=at_once)
    assert np.isfinite(trained).all() and 0.0 in merge.shares
    close(flat(models.trained), trained, rtol=1e-5, atol=1e-5)


@SLOW
def test_without_a_rule_it_is_merged_as_it_is():
    models, _ = models_of(build(attack=sends_only(jnp.nan)), 3)
    assert np.isnan(flat(models.averaged)[-1]).any()


class TestOneMessage:
    RULE = robust.self_centered_clipping(1.0)

    def tree(self, x, y, mean):
        x, y, mean = (jnp.asarray(leaf, jnp.float32) for leaf in (x, y, mean))
        return {"params": {"x": x, "y": y}, "batch_stats": mean}

    def merged(self, message, is_merged=(True, True), rule=RULE):
        own = self.tree([3.0, 4.0], 1.0, [1.0])
        groups = {"params": {"x": 0, "y": 1}, "batch_stats": 0}
        args = (rule, jnp.int32(0), groups, jnp.array(is_merged), own)
        found = merging.merged(*args, message)
        return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), found)

    def test_each_group_by_itself(self):
        message = self.tree([3.0, 8.0], 1.5, [5.0])  # 4 and 0.5 away
        found = self.merged(message)
        assert found == {
            "params": {"x": [3.0, 4.5], "y": 1.25},
            "batch_stats": [1.5],  # an eighth, as of its group
        }
        assert self.merged(message, (True, False)) == {
            "params": {"x": [3.0, 4.5], "y": 1.0},
            "batch_stats": [1.5],
        }

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_statistics_that_are_not_finite(self, bad):
        found = self.merged(self.tree([3.0, 4.5], 1.5, [bad]))
        assert found["params"] == {"x": [3.0, 4.0], "y": 1.25}
        assert found["batch_stats"] == [1.0]

    def test_long_steps_keep_variances_positive(self):
        rule = robust.self_centered_clipping(1e3, step_size=4.0)
        found = self.merged(self.tree([4.0, 4.0], 1.0, [9.0]), rule=rule)
        assert found["params"]["x"] == [5.0, 4.0]  # 2 (m - x)
        assert found["batch_stats"] == [9.0]

    def test_balance_is_relative_to_the_own_model(self):
        rule = robust.balance(0.5, 0.0, alpha=0.75, num_rounds=10)
        near, far = ([3.0, 6.4], 1.4, [5.0]), ([3.0, 6.6], 1.6, [5.0])
        assert self.merged(self.tree(*near), rule=rule)["params"] == {
            "x": [3.0, pytest.approx(4.6)],
            "y": pytest.approx(1.1),
        }
        assert self.merged(self.tree(*far), rule=rule) == {
            "params": {"x": [3.0, 4.0], "y": 1.0},
            "batch_stats": [1.0],
        }


def clipped(own, message):
    return own + 0.5 * np.clip(message - own, -0.4, 0.4)


@pytest.mark.parametrize("max_width", [None, 3])
@pytest.mark.parametrize("name", {**TIMINGS, **AT_ONCE})
def test_waves_merge_in_the_order_of_arrivals(name, max_width):
    """Scalars and a merging in which order matters, on the host."""
    timing = (TIMINGS | AT_ONCE)[name]
    at_once = not timing.mean_delay
    rng = np.random.default_rng(1)
    graph = random_receivers(rng, 12, 3, num_graphs=3)
    schedule = events.draw(rng, graph, rng.integers(5, 20, 12), 8, timing)
    rank = np.arange(12) // 4
    packed, num_slots, mail = waves.pack(
        schedule, 12, 8, max_width=max_width, at_once=at_once, in_turn=rank
    )
    assert mail == () and (num_slots == 1) == at_once
    centre, start = rng.normal(size=12), rng.normal(size=12)

    def train(number, agent, x):
        return (x + centre[agent]) / 2 + np.sin(3 * x + number)

    models = start.copy()
    boxes = np.tile(start[:, None], (1, num_slots)) if at_once else {}
    for epoch, wave in itertools.product(*map(range, packed.width.shape)):
        places = [(epoch, wave, e) for e in range(packed.width[epoch, wave])]
        for at in reversed(places):
            agent = packed.agent[at]
            if at_once:
                models[agent] = boxes[agent, 0]
            else:
                for slot in packed.slots[at][:, 0]:
                    if slot >= 0:
                        models[agent] = clipped(models[agent], boxes.pop((agent, slot)))
            models[agent] = train(packed.training[at], agent, models[agent])
            if at_once:
                boxes[agent, 0] = models[agent]
        for at in sorted(places, key=lambda at: rank[packed.agent[at]]):
            for to, slot in zip(
                packed.receiver[at], packed.receiver_slot[at], strict=True
            ):
                message = models[packed.agent[at]]
                if to < 12 and at_once:
                    boxes[to, 0] = clipped(boxes[to, 0], message)
                elif to < 12:
                    assert (to, slot) not in boxes
                    boxes[to, slot] = message
    expected = sequentially(schedule, start, train, clipped)
    np.testing.assert_allclose(models, expected, rtol=0, atol=1e-12)


def test_eight_bits_with_attack_and_rule():
    """What attackers send passes the format too; bytes are those of the format."""
    rule, merge = clipping(2.0)
    method = build(attack=FLIP, aggregate=rule, channel=channel.quantize(8))
    models, info = models_of(method)

    def as_bytes(values):
        scale = np.abs(values).max() / 127
        return np.round(values / scale) * scale

    def sends(agent, before, after):
        """Attackers reverse what others would decode, and that is encoded."""
        model = after.copy()
        for part in (slice(0, 2), slice(2, 5)):
            model[part] = as_bytes(after[part])
            if agent in BYZANTINE:
                flipped = before[part] - 3 * (model[part] - before[part])
                model[part] = as_bytes(flipped)
        return model

    trained, _ = by_events(schedule_of(), sends, merge)
    close(flat(models.trained), trained, rtol=1e-3, atol=1e-3)
    assert merge.is_mixed
    of_one = 5 + 2 * 4 + 2 * 4  # bytes, two scales, two statistics
    close(info.bytes, info.sent * of_one)
    close(info.payload, info.sent * 7)


@SLOW
def test_rules_that_clip_nothing_are_plain_means():
    far = robust.self_centered_clipping(1e6)
    (plain, _), (ruled, _) = map(models_of, (build(), build(aggregate=far)))
    for one, other in zip(*map(jax.tree.leaves, (plain, ruled)), strict=True):
        close(one, other, rtol=1e-5, atol=1e-5)


def program(method):
    inputs = method.plan(np.random.default_rng(0), WORLD, 1)
    first = jax.tree.map(lambda leaf: leaf[0], inputs)
    state = jax.eval_shape(method.init, jax.random.key(0), WORLD)
    args = (jax.random.key(0), jnp.int32(0), first, state, WORLD)
    text = str(jax.make_jaxpr(method.round)(*args))
    return re.sub(r"0x[0-9a-f]+", "", text), state, inputs


@pytest.mark.parametrize("agent_loop", [IN_PLACE, VMAP])
def test_nothing_is_added_where_nothing_is_asked_for(agent_loop):
    plain, state, inputs = program(build(agent_loop))
    off, *_ = program(build(agent_loop, attack=None, aggregate=None))
    assert off == plain
    assert state.is_byzantine == state.before == inputs.waves[0].slots == ()
    rule = robust.self_centered_clipping(1.0)
    other, ruled, _ = program(build(agent_loop, aggregate=rule))
    assert other != plain
    assert jax.tree.leaves(ruled.mailbox) == jax.tree.leaves(state.mailbox)


def test_attackers_are_inputs_and_not_judged():
    """Other attackers are the same program; their scores are not there."""
    method = build(attack=ATTACKS["boosted"][0], aggregate=RULES["clipping"]()[0])
    inputs = method.plan(np.random.default_rng(0), WORLD, 2)
    traces = []

    @jax.jit
    def two_rounds(inputs):
        traces.append(0)
        state = method.init(jax.random.key(0), WORLD)
        for t in range(2):
            now = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
            state, _ = method.round(jax.random.key(t), jnp.int32(t), now, state, WORLD)
        models = method.models(state)
        return models, method.evaluate(models, WORLD)

    found = []
    for byzantine in ((1, 4), (0,), ()):
        who = np.tile(np.isin(np.arange(N), byzantine), (2, 1))
        attackers = inputs.attackers._replace(is_byzantine=who)
        models, scores = two_rounds(inputs._replace(attackers=attackers))
        for name in ("loss", "accuracy_after", "diverged", "attack_success"):
            np.testing.assert_array_equal(np.isnan(scores[name]), who[0])
        success = np.abs(flat(models.reported)[:, 4]) < 0.5
        np.testing.assert_array_equal(
            scores["attack_success"][~who[0]], success[~who[0]]
        )
        found.append(flat(models.reported))
    assert len(traces) == 1
    assert (found[0] != found[1]).any() and (found[1] != found[2]).any()


def test_poisoned_agents_are_content_with_what_they_learned():
    """They decide by poisoned validation data too, or they would freeze themselves."""

    def evaluate(variables, batch):
        error = jnp.square(variables.params["x"] - batch["y"].astype(jnp.float32))
        return {
            name: Ratio(-error.sum(), jnp.ones(())) for name in ("accuracy", "loss")
        }

    def loss(variables, batch, key):
        error = jnp.square(variables.params["x"] - batch["y"].astype(jnp.float32))
        return error.sum() / 2, variables.stats

    params = {"x": jnp.full((), 4.5), "norm": {"scale": jnp.ones(1)}}
    task = Task(
        lambda key: Variables(params, {}), loss, evaluate, norm=frozenset({"norm"})
    )
    method = p2p_bn(
        task,
        optax.sgd(0.3),
        GRAPH,
        batch_size=1,
        attack=attacks.label_flip(BYZANTINE, CLASSES),
        agent_loop=VMAP,
    )
    world = world_of([{"y": y} for y in LABELS])
    states, _ = run(method, world, 1)
    progress, _ = states.agents.memory
    assert not progress.is_frozen.any()
    goal = np.where(np.isin(np.arange(N), BYZANTINE), 9 - LABELS[:, 0], LABELS[:, 0])
    found = states.agents.variables.params["x"][0]
    close(found, 4.5 + 0.3 * (goal - 4.5), rtol=1e-5)


def several_tasks(agent_loop=VMAP, **options):
    groups = task_groups.groups([scalar_task(jnp.ones(()))] * 2, [2, 2])
    defaults = {"batch_size": 1, "agent_loop": agent_loop, "encoder_freeze": False}
    options = defaults | options
    graph = generators.complete(4)
    return groups, multi_task(groups, optax.sgd(0.5), graph, **options)


@pytest.mark.parametrize(
    "agent_loop, timing",
    [
        (VMAP, Timing()),
        pytest.param(IN_PLACE, DELAYS, marks=SLOW),
        pytest.param(IN_PLACE, Timing(), marks=SLOW),
        pytest.param(VMAP, DELAYS, marks=SLOW),
    ],
)
def test_agents_of_two_tasks(agent_loop, timing):
    """Encoders and heads are merged each by itself, heads within a task."""
    at_once = not timing.mean_delay
    groups, method = several_tasks(
        agent_loop,
        attack=attacks.sign_flip((3,), of="model"),
        aggregate=robust.self_centered_clipping(1.5),
        timing=timing,
        num_mailboxes=None if at_once else 20,
    )
    c, d = np.array([0.0, 4, 10, -3]), np.array([2.0, -6, 1, 5])
    world, num_rounds = scalar_world(groups, c, d), 5
    inputs = method.plan(np.random.default_rng(5), world, num_rounds)
    states, _ = run(method, world, num_rounds, inputs=inputs)
    to = topology.receivers(generators.complete(4))
    to = Topology(*(np.stack([leaf] * num_rounds) for leaf in to))
    schedule = events.draw(
        np.random.default_rng(5), to, np.ones(4, int), num_rounds, timing
    )

    def merge(mine, theirs):
        (agent, *own), (sender, *message) = mine, theirs
        if sender == 3:
            message = [-number for number in message]
        for part in (0, 1) if agent // 2 == sender // 2 else (0,):
            gap = message[part] - own[part]
            own[part] += 0.5 * np.clip(gap, -1.5, 1.5)
        return agent, *own

    def train(number, agent, model):
        return agent, (model[1] + c[agent]) / 2, (model[2] + d[agent]) / 2

    start = [(agent, 1.0, 1.0) for agent in range(4)]
    expected = np.array(sequentially(schedule, start, train, merge))
    params = jax.tree.map(lambda leaf: leaf[-1], states.agents.variables.params)
    close(params["encoder"]["x"], expected[:, 1], rtol=1e-5, atol=1e-5)
    heads = np.concatenate([part["x"] for part in params["head"].parts])
    close(heads, expected[:, 2], rtol=1e-5, atol=1e-5)
    assert states.is_byzantine[-1].tolist() == [False] * 3 + [True]


OTHERS = "Need all agents' messages of a round for {}, got {}: use sign_flip, gaussian,"
ONE_MESSAGE = (
    "Need a rule for one message for {}, got {}: use self_centered_clipping or"
)
REFUSED = [
    *(
        ({"attack": attack}, OTHERS.format(attack.name, "{}"))
        for attack in (
            attacks.alie((0,), 1.5),
            attacks.foe((0,), 0.1),
            attacks.mimic((0,)),
            attacks.dissensus((0,), 1.0),
            attacks.spectral((0,), 1.0),
            attacks.sign_flip((0,), of="mean"),
            attacks.gaussian((0,), around="mean"),
        )
    ),
    (
        {"attack": attacks.gaussian(attacks.attached(2))},
        "Need attackers that are agents for {}, got 2 attached to each agent: give",
    ),
    *(
        ({"aggregate": rule}, ONE_MESSAGE.format("{}", rule.name))
        for rule in (
            robust.median(1),
            robust.centered_clipping(1.0),
            robust.gts(1),
            robust.ubar(0.5),
            robust.nnm(robust.balance(num_rounds=3), 1),
        )
    ),
]


@pytest.mark.parametrize("options, sentence", REFUSED)
def test_refusals(options, sentence):
    for name, make in (("P2P-BN", build), ("Multi-task learning", several_tasks)):
        with pytest.raises(InputError, match=re.escape(sentence.format(name))):
            make(**options)


def test_refusals_of_agents_and_tasks():
    method = build(attack=attacks.sign_flip((N,)))
    with pytest.raises(InputError, match="Need Byzantine agents from 0 to 5"):
        method.plan(np.random.default_rng(0), WORLD, 1)
    with pytest.raises(InputError, match="Need an attack on messages for Multi-task"):
        several_tasks(attack=attacks.label_flip((0,), 3))
    rule = robust.self_centered_clipping(1.0)
    method = build(aggregate=rule, timing=DELAYS, num_mailboxes=1)
    with pytest.raises(InputError, match="mailboxes per agent for these delays, got 1"):
        method.plan(np.random.default_rng(0), WORLD, 6)


@SLOW
@pytest.mark.parametrize("timing", [Timing(), DELAYS])
def test_same_numbers_on_several_devices(timing):
    rule = robust.balance(0.9, 0.7, num_rounds=ROUNDS)
    results = []
    for num_devices in (1, 3):
        options = {"attack": FLIP, "aggregate": rule, "timing": timing}
        method = build(IN_PLACE, num_mailboxes=20, **options)
        with jax.set_mesh(sharding.agents_mesh(N, num_devices)):
            models, _ = models_of(method)
        results.append(flat(models.trained))
    close(*results, rtol=1e-5, atol=1e-6)


@SLOW
@pytest.mark.parametrize("agent_loop", [IN_PLACE, VMAP])
@pytest.mark.parametrize("timing", [Timing(), DELAYS])
def test_rounds_lower(agent_loop, timing):
    rule = robust.balance(num_rounds=3)
    options = {"attack": BACKDOOR(boost=2.0), "aggregate": rule, "timing": timing}
    assert_lowers(build(agent_loop, num_mailboxes=20, **options), WORLD)
