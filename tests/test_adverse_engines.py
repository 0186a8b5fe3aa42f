"""Servers, chosen peers and partial models under attack, with rules and formats.

All against small loops in numpy: each agent halves its distance to a target, and what
happens to its message is written out.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from partial_worlds import PartialWorld
from server_rules import RULES, clipped_of, median_of
from test_events import quadratic
from test_protocols import close, run, world_of

from p2pjax.algorithms._aucccr import aucccr
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._dpsgd import dpsgd
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.algorithms._partial_averaging import partial_averaging
from p2pjax.engines.clients import participants
from p2pjax.engines.pulling import pull
from p2pjax.engines.server import server_rounds
from p2pjax.exchange import attacks, channel, robust
from p2pjax.exchange.aggregation import Extra, Manner
from p2pjax.exchange.attacks.base import Hostile
from p2pjax.exchange.central import combine_clients
from p2pjax.exchange.owner_classes import whole_model
from p2pjax.exchange.pipeline import make_exchange
from p2pjax.graphs import generators
from p2pjax.nn import mlp
from p2pjax.partial import averaging
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.selection.l2c import l2c
from p2pjax.selection.pens import pens
from p2pjax.selection.sparse import sparse
from p2pjax.tasks._classification import classification
from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import InputError, Ratio, Variables

SLOW = pytest.mark.slow
OPTIONS = {"batch_size": 1, "agent_loop": VMAP}
N, BYZANTINE = 6, 1
RING = generators.ring(N)
TARGETS = np.random.default_rng(7).normal(size=(N, 5)).astype(np.float32)


def vector_task():
    """Half the squared distance of five numbers, in two leaves, to a target."""

    def loss_fn(variables, batch, key):
        del key
        x = jnp.concatenate([variables.params["a"], variables.params["b"]])
        valid = batch["valid"].astype(jnp.float32)
        losses = jnp.square(x[None] - batch["c"]).sum(1) / 2
        return (losses * valid).sum() / jnp.maximum(valid.sum(), 1), variables.stats

    def evaluate_fn(variables, batch):
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    return Task(lambda key: Variables(params, {}), loss_fn, evaluate_fn)


TASK = vector_task()
LEARNER = optax.sgd(0.5)
WORLD = world_of([{"c": target[None]} for target in TARGETS])
START = np.ones((N, 5))


def halfway(x):
    return x + (TARGETS - x) / 2


def flat(params):
    """`[..., 5]` of the two leaves."""
    return np.concatenate([params["a"], params["b"]], axis=-1)


def others(agent=BYZANTINE):
    return [n for n in range(N) if n != agent]


class TestRulesOfAServer:
    """Its own model is the centre of some, and a member of none."""

    PLAN = whole_model(N, {"params": {"a": jnp.zeros(2), "b": jnp.zeros(3)}})

    def combined(self, rule, rows, own, weight):
        def tree(x):
            x = jnp.asarray(x, jnp.float32)
            return {"params": {"a": x[..., :2], "b": x[..., 2:]}}

        extra = Extra(jax.random.key(0), jnp.int32(0))
        combine = jax.jit(partial(combine_clients, Manner(self.PLAN, rule=rule)))
        new, is_enough, rejected = combine(
            tree(rows), tree(own), jnp.asarray(weight), extra
        )
        is_bad = (weight > 0) & ~np.isfinite(rows).all(1)
        np.testing.assert_array_equal(rejected, is_bad)
        return flat(new["params"])[0], bool(is_enough)

    @pytest.mark.parametrize("name", RULES)
    def test_in_numpy(self, name):
        rule, expected = RULES[name]
        rng = np.random.default_rng(3)
        rows, own = rng.normal(size=(N, 5)), rng.normal(size=(1, 5)) + 2
        rows[4] = 1e3
        weight = np.array([1, 1, 0, 1, 1, 1], np.float32)
        found, is_enough = self.combined(rule, rows, own, weight)
        assert is_enough
        close(found, expected(own[0], rows[weight > 0]), rtol=2e-4, atol=2e-4)

    def test_what_is_not_finite_is_not_there(self):
        rows = np.random.default_rng(0).normal(size=(N, 5))
        rows[0, 3] = np.nan
        for rule, expected in (RULES["median"], RULES["krum"]):
            found, _ = self.combined(rule, rows, np.zeros((1, 5)), np.ones(N, "f4"))
            close(found, expected(None, rows[1:]), rtol=1e-5)

    @pytest.mark.parametrize("name", ["median", "geometric", "nnm"])
    def test_too_few_keep_the_model(self, name):
        rows, own = np.ones((N, 5)), np.full((1, 5), 7.0)
        weight = np.array([1, 0, 0, 0, 0, 1], np.float32)
        found, is_enough = self.combined(RULES[name][0], rows, own, weight)
        assert not is_enough
        close(found, own[0])


class TestServer:
    def states(self, num_rounds=3, **options):
        method = server_rounds(TASK, LEARNER, **OPTIONS, **options)
        inputs = method.plan(np.random.default_rng(0), WORLD, num_rounds)
        states, info = run(method, WORLD, num_rounds, inputs=inputs)
        models = jax.vmap(method.models)(states).averaged.params
        return flat(models), info, inputs

    def test_median_of_chosen_clients_with_flipped_updates(self):
        found, info, (chosen, attackers) = self.states(
            num_clients=5,
            attack=attacks.sign_flip((BYZANTINE,), scale=3.0),
            aggregate=robust.median(1),
        )
        assert attackers.is_byzantine.sum(1).tolist() == [1] * 3
        s = START[0]
        for t in range(3):
            rows = halfway(np.tile(s, (N, 1)))
            rows[BYZANTINE] = s - 3 * (rows[BYZANTINE] - s)
            s = median_of(s, rows[chosen[t]])
            close(found[t], np.tile(s, (N, 1)), rtol=1e-5, atol=1e-6)
        assert info.bytes is None

    def test_attackers_know_the_chosen_honest_clients(self):
        found, _, (chosen, _) = self.states(
            num_clients=4, attack=attacks.alie((BYZANTINE, 4), scale=1.5)
        )
        s = START[0]
        is_honest = ~np.isin(np.arange(N), (BYZANTINE, 4))
        for t in range(3):
            rows = halfway(np.tile(s, (N, 1)))
            known = rows[chosen[t] & is_honest]
            rows[~is_honest] = known.mean(0) + 1.5 * known.std(0, ddof=1)
            s = rows[chosen[t]].mean(0)
            close(found[t][0], s, rtol=1e-5, atol=1e-6)

    def test_error_feedback_of_those_who_send(self):
        """Largest number of each leaf; what is left out waits for the next time."""
        found, info, chosen = self.states(
            num_rounds=4,
            num_clients=3,
            channel=channel.chain(channel.error_feedback(), channel.top_k(0.4)),
        )
        s, left = START[0], np.zeros((N, 5))
        for t in range(4):
            wanted = halfway(np.tile(s, (N, 1))) - s + left
            sent = np.zeros_like(wanted)
            for n, (first, last) in (
                (n, p) for n in range(N) for p in ((0, 2), (2, 5))
            ):
                at = first + np.abs(wanted[n, first:last]).argmax()
                sent[n, at] = wanted[n, at]
            left = np.where(chosen[t][:, None], wanted - sent, left)
            s = s + sent[chosen[t]].mean(0)
            close(found[t][0], s, rtol=1e-5, atol=1e-6)
        # A number and one or two bits for its position, of two leaves.
        close(info.bytes, chosen * float(-(-(32 + 1 + 32 + 2) // 8)))
        close(info.payload, chosen * 5.0)

    def test_clipped_and_attacked_updates_in_a_format(self):
        found, info, _ = self.states(
            num_rounds=2,
            channel=channel.chain(channel.clip(0.7), channel.quantize(16)),
            attack=attacks.foe((BYZANTINE,), scale=2.0),
            aggregate=robust.centered_clipping(0.5, num_iterations=2),
        )
        s = START[0]
        for t in range(2):
            update = halfway(np.tile(s, (N, 1))) - s
            length = np.linalg.norm(update, axis=1, keepdims=True)
            update = update * np.minimum(1, 0.7 / length)
            update = update.astype(np.float16).astype(float)
            hostile = -2 * update[others()].mean(0)  # of updates, not clipped
            update[BYZANTINE] = hostile.astype(np.float16)
            s = s + clipped_of(np.zeros(5), update)
            close(found[t][0], s, rtol=2e-3, atol=2e-4)
        close(info.bytes, np.full((2, N), 10.0))

    def test_noise_is_on_updates(self):
        std = 0.3
        options = {**OPTIONS, "channel": channel.noise(std)}
        method = server_rounds(TASK, optax.sgd(0.0), **options)
        world = world_of([{"c": TARGETS[:1]}] * 64)
        states, _ = run(method, world, 4)
        steps = np.diff(flat(states.variables.params)[:, 0], axis=0) * 8 / std
        assert 0.5 < steps.std() < 1.7  # of a mean over 64, in its own units

    def test_lost_clients_and_too_few(self):
        """Two or fewer that arrive are not enough for a median against one."""
        lossy = channel.drop(0.4)
        found, _, chosen = self.states(
            num_rounds=6, channel=lossy, aggregate=robust.median(1)
        )
        plan = TestRulesOfAServer.PLAN
        s, numbers = START[0], []
        for t in range(6):
            key = jax.random.fold_in(jax.random.key(0), t)
            _, counts = participants(make_exchange(plan, lossy), key, t, chosen[t])
            numbers.append(int(counts.sum()))
            if counts.sum() >= 3:
                s = median_of(s, halfway(np.tile(s, (N, 1)))[np.asarray(counts)])
            close(found[t][0], s, rtol=1e-5, atol=1e-6)
        assert min(numbers) < 3 <= max(numbers)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "options",
        [
            {
                "channel": channel.chain(
                    channel.error_feedback(), channel.top_k(0.4), channel.drop(0.2)
                ),
                "attack": attacks.mimic((BYZANTINE,), "direction"),
                "aggregate": robust.nna(1),
                "num_clients": 4,
            },
            {"attack": attacks.sign_flip((0,)), "server_opt": optax.sgd(0.5)},
        ],
    )
    def test_pending_means_are_the_same(self, options):
        pending, _, _ = self.states(score_before=True, **options)
        at_once, _, _ = self.states(**options)
        close(pending, at_once, rtol=1e-5, atol=1e-6)
        assert len(np.unique(at_once[:, 0], axis=0)) > 1

    def test_personal_models_of_ditto(self):
        attack = attacks.sign_flip((BYZANTINE,), scale=5.0)
        options = {**OPTIONS, "penalty_weight": 0.1, "attack": attack}
        method = ditto(TASK, LEARNER, aggregate=robust.median(1), **options)
        states, _ = run(method, WORLD, 1)
        rows = halfway(START)
        rows[BYZANTINE] = 1 - 5 * (rows[BYZANTINE] - 1)
        close(flat(states.shared.variables.params)[0, 0], np.median(rows, 0), rtol=1e-5)
        last = jax.tree.map(lambda leaf: leaf[-1], states)
        loss = method.evaluate(method.models(last), WORLD)["loss"]
        assert np.isnan(loss).tolist() == [n == BYZANTINE for n in range(N)]


def neighbors(n):
    return [(n - 1) % N, (n + 1) % N]


def as_bytes(rows):
    """Each leaf by itself: 255 steps of its largest number."""
    found = np.empty_like(rows)
    for first, last in ((0, 2), (2, 5)):
        scale = np.abs(rows[:, first:last]).max(1, keepdims=True) / 127
        found[:, first:last] = np.round(rows[:, first:last] / scale) * scale
    return found


class TestPulling:
    def states(self, selection=sparse(), num_rounds=3, graph=RING, **options):
        method = pull(TASK, LEARNER, selection, graph, **OPTIONS, **options)
        states, info = run(method, WORLD, num_rounds)
        return flat(states.variables.params), states, info

    def test_median_of_peers_that_flip_their_models(self):
        found, states, info = self.states(
            attack=attacks.sign_flip((BYZANTINE,), of="model", scale=2.0),
            aggregate=robust.median(1),
        )
        x = START
        for t in range(3):
            x = halfway(x)
            close(found[t], x, rtol=1e-5, atol=1e-6)
            rows = x.copy()
            rows[BYZANTINE] = -2 * x[BYZANTINE]
            close(flat(states.decoded["params"])[t], rows, rtol=1e-5, atol=1e-6)
            x = np.stack(
                [np.median([x[n], *rows[neighbors(n)]], axis=0) for n in range(N)]
            )
        assert info.bytes is None

    def test_one_hostile_row_for_all_in_eight_bits(self):
        found, _, info = self.states(
            attack=attacks.alie((BYZANTINE,), scale=1.5), channel=channel.quantize(8)
        )
        x = START
        for t in range(3):
            x = halfway(x)
            close(found[t], x, rtol=1e-4, atol=1e-5)
            rows = as_bytes(x)
            known = rows[others()]
            rows[BYZANTINE] = known.mean(0) + 1.5 * known.std(0, ddof=1)
            rows[[BYZANTINE]] = as_bytes(rows[[BYZANTINE]])
            mean = [(rows[n] + rows[neighbors(n)].sum(0)) / 3 for n in range(N)]
            x = x + np.stack(mean) - rows
        close(info.bytes, np.full((3, N), 2 * (5 + 8.0)))

    def test_hostile_peers_are_judged_by_what_they_send(self):
        """All learn the same, so that loss alone tells who attacks."""
        world = world_of([{"c": TARGETS[:1]}] * N)
        for scale, is_chosen in ((None, True), (50.0, False)):
            attack = scale and attacks.sign_flip((BYZANTINE,), scale=scale)
            selection = pens(num_peers=2, num_candidates=5, second_stage=100)
            method = pull(TASK, optax.sgd(0.1), selection, attack=attack, **OPTIONS)
            _, info = run(method, world, 2)
            merged = np.asarray(info.merged.sender)[
                np.asarray(info.merged.arrived, bool)
            ]
            assert (merged == BYZANTINE).any() == is_chosen

    def test_ubar_looks_at_losses(self):
        found, _, _ = self.states(
            attack=attacks.gaussian((BYZANTINE,), std=0.01),
            aggregate=robust.ubar(1.0),
            num_rounds=2,
            graph=generators.complete(N),
        )
        trained = halfway(START)
        loss = np.square(trained[None] - TARGETS[:, None]).sum(2)  # [receiver, sender]
        loss[:, BYZANTINE] = np.square(TARGETS).sum(1)  # nearly 0
        for n in others():
            own = np.square(trained[n] - TARGETS[n]).sum()
            others_of = [k for k in range(N) if k != n]
            good = [k for k in others_of if loss[n, k] <= own]
            good = good or [others_of[np.argmin(loss[n, others_of])]]
            rows = trained.copy()
            rows[BYZANTINE] = 0
            merged = (trained[n] + rows[good].mean(0)) / 2
            close(found[1, n], merged + (TARGETS[n] - merged) / 2, atol=0.02)

    @SLOW
    def test_updates_that_are_merged(self):
        """A radius that clips nothing is plain mixing, of updates too."""
        selection = l2c(
            num_kept=2, num_rounds_all=2, optimizer=optax.sgd(0.5), bilevel=True
        )
        plain, _, _ = self.states(selection, 4)
        rule = robust.self_centered_clipping(1e6)
        close(self.states(selection, 4, aggregate=rule)[0], plain, rtol=1e-4)

    @SLOW
    def test_lost_peers_are_no_members(self):
        options = {"channel": channel.drop(0.5), "aggregate": robust.median(1)}
        found, states, _ = self.states(num_rounds=5, **options)
        x, kept = START, 0
        for t in range(5):
            x = halfway(x)
            close(found[t], x, rtol=1e-5, atol=1e-6)
            weight = np.asarray(states.peers.weight[t])
            ids = np.asarray(states.peers.ids[t])
            rows = x
            x = np.stack(
                [
                    np.median(rows[ids[n]], axis=0)
                    if (weight[n] > 0).all()
                    else rows[n]
                    for n in range(N)
                ]
            )
            kept += (weight == 0).any(1).sum()
        assert 0 < kept < 30

    @SLOW
    def test_aucccr_is_attacked_too(self):
        task = classification(mlp.MLP((4, 2)), (2,), softmax_cross_entropy)
        rng = np.random.default_rng(0)
        world = world_of(
            [
                {"x": rng.normal(size=(4, 2)).astype("f4"), "y": np.arange(4) % 2}
                for _ in range(N)
            ]
        )
        attack = attacks.label_flip((BYZANTINE,), num_classes=2)
        options = {"degree": 2, "num_probes": 4, "attack": attack}
        method = aucccr(task, LEARNER, num_agents=N, **options, **OPTIONS)
        states, _ = run(method, world, 2)
        last = jax.tree.map(lambda leaf: leaf[-1], states)
        assert np.asarray(method.models(last).is_byzantine).sum() == 1


class TestPartialModels(PartialWorld):
    @pytest.mark.parametrize("score_before", [False, pytest.param(True, marks=SLOW)])
    def test_a_rule_for_each_model_by_itself(self, score_before):
        graph = generators.complete(self.SIZE)
        owners, x, (found,), info, _ = self.averaged(
            averaging.metropolis_gossip(self.SIZE, graph),
            attack=attacks.sign_flip((0,), of="mean", scale=2.0),
            aggregate=robust.median(1),
            channel=channel.quantize(16),
            score_before=score_before,
        )
        rows = x.astype(np.float16).astype(float)
        for column in range(x.shape[1]):
            for n in range(self.SIZE):
                heard = self.members(owners, n, column)
                values = []
                for k in heard:
                    # honest members of the model, as attackers see them
                    honest = [h for h in [n, *heard] if h != 0]
                    hostile = np.float16(-2 * rows[honest, column].mean())
                    values.append(hostile if k == 0 else rows[k, column])
                expected = np.median([x[n, column], *values])
                close(found[n, column], expected, rtol=2e-3, atol=1e-4)
        sizes = [c.size for c in self.sharing.plan.classes]
        assert len(sizes) > 2 and info.bytes.min() > 0
        close(info.bytes, info.payload * 2.0)

    def test_pairs_clip_what_is_far(self):
        radius = 0.4
        owners, x, (found,), _, inputs = self.averaged(
            averaging.random_pairs(self.SIZE),
            attack=attacks.sign_flip((1,), of="model"),
            aggregate=robust.self_centered_clipping(radius),
        )
        partner = np.asarray(inputs.inputs)[0]
        rows = x.copy()
        rows[1] = -x[1]
        moved = 0
        for pattern in np.unique(owners, axis=1).T:  # an owner class
            columns = (owners == pattern[:, None]).all(0)
            for n in range(self.SIZE):
                k = partner[n]
                expected = x[n, columns]
                if k != n and pattern[n] >= 0 and pattern[k] == pattern[n]:
                    gap = rows[k, columns] - x[n, columns]
                    length = np.linalg.norm(gap)
                    expected = expected + gap / 2 * min(1, radius / length)
                    moved += length > radius
                close(found[n, columns], expected, rtol=1e-5, atol=1e-6)
        assert moved

    def test_servers_take_the_mean_of_what_arrives(self):
        owners, x, (found,), info, _ = self.averaged(
            averaging.server(self.SIZE),
            attack=attacks.foe((0,), scale=0.5),
            channel=channel.quantize(16),
        )
        rows = x.astype(np.float16).astype(float)
        for column in range(x.shape[1]):
            for n in range(self.SIZE):
                heard = [n, *self.members(owners, n, column)]
                values = rows[heard, column]
                if 0 in heard and len(heard) > 1:
                    honest = [k for k in heard if k != 0]
                    hostile = -0.5 * rows[honest, column].mean()
                    values = [hostile if k == 0 else rows[k, column] for k in heard]
                expected = np.mean(values) if owners[n, column] >= 0 else x[n, column]
                close(found[n, column], expected, rtol=2e-3, atol=1e-3)
        close(info.bytes, info.payload * 2.0)

    @SLOW
    def test_sparse_messages(self):
        graph = generators.complete(self.SIZE)
        average = averaging.metropolis_gossip(self.SIZE, graph)
        options = {"num_rounds": 3, "average_every": 2}
        *_, found, info, _ = self.averaged(
            average, channel=channel.random_k(0.5), **options
        )
        *_, all_of_it, _, _ = self.averaged(
            average, channel=channel.top_k(1.0), **options
        )
        *_, plain, _, _ = self.averaged(average, **options)
        close(all_of_it, plain, rtol=1e-5, atol=1e-6)
        assert (found[0] != found[2]).any()
        assert info.bytes[0].sum() == 0 < info.bytes[1].sum()

    @SLOW
    def test_the_fiedler_vector_of_each_model(self):
        graph = generators.complete(self.SIZE)
        with pytest.warns(UserWarning, match="simple second eigenvalue"):
            *_, found, _, inputs = self.averaged(
                averaging.metropolis_gossip(self.SIZE, graph),
                attack=attacks.spectral((4,), scale=1.0),
                aggregate=robust.clipped_gossip(1),
            )
        assert inputs.attackers.prepared.shape[1:] == (
            len(self.sharing.plan.classes),
            self.SIZE,
        )
        assert np.isfinite(found).all()


def not_finite(agent=BYZANTINE):
    """An attacker that sends no numbers."""
    return attacks.foe((agent,), scale=1.0)._replace(
        hostile=lambda scene: Hostile(jnp.full_like(scene.rows[:1], jnp.nan))
    )


TOLD = {
    "server": partial(server_rounds, TASK, LEARNER),
    "gossip": partial(dpsgd, TASK, LEARNER, RING),
    "pull": partial(pull, TASK, LEARNER, sparse(), RING),
}


@pytest.mark.parametrize(
    "name, is_pending",
    [
        ("server", False),
        ("server", True),
        ("gossip", False),
        ("gossip", True),
        ("pull", True),  # what is fetched is merged in the next round
    ],
)
def test_rejected_messages_are_told(name, is_pending):
    """At their receivers; those that a server rejects at their senders."""
    options = {} if name == "pull" else {"score_before": is_pending}
    method = TOLD[name](
        attack=not_finite(), aggregate=robust.median(1), **OPTIONS, **options
    )
    _, info = run(method, WORLD, 2)
    one_round = np.zeros(N)
    one_round[BYZANTINE if name == "server" else neighbors(BYZANTINE)] = 1
    first = np.zeros(N) if is_pending else one_round
    np.testing.assert_array_equal(info.rejected, [first, one_round])


def test_nothing_is_rejected_without_a_rule():
    method = TOLD["gossip"](attack=not_finite(), **OPTIONS)
    assert run(method, WORLD, 1)[1].rejected is None


ATTACKED = {
    "server": lambda **options: server_rounds(TASK, LEARNER, **OPTIONS, **options),
    "pull": lambda **options: pull(TASK, LEARNER, sparse(), RING, **OPTIONS, **options),
}


@pytest.mark.parametrize("name", ATTACKED)
def test_attackers_are_inputs_and_not_judged(name):
    """Another attacker is the same program; its scores are not there."""
    method = ATTACKED[name](
        attack=attacks.sign_flip((BYZANTINE,)), aggregate=robust.median(1)
    )
    traces = []

    @jax.jit
    def one_round(inputs, state):
        traces.append(0)
        return method.round(jax.random.key(0), jnp.int32(0), inputs, state, WORLD)

    inputs = method.plan(np.random.default_rng(0), WORLD, 1)
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], inputs)
    found = {}
    for byzantine in (BYZANTINE, 4):
        who = inputs.attackers._replace(is_byzantine=jnp.arange(N) == byzantine)
        state = method.init(jax.random.key(0), WORLD)
        state, _ = one_round(inputs._replace(attackers=who), state)
        models = method.models(state)
        loss = method.evaluate(models, WORLD)["loss"]
        assert np.isnan(loss).tolist() == [n == byzantine for n in range(N)]
        found[byzantine] = flat(models.averaged.params)
    assert len(traces) == 1
    assert (found[BYZANTINE] != found[4]).any()


@pytest.mark.parametrize("name", ["server", pytest.param("pull", marks=SLOW)])
def test_poisoned_data(name):
    """An agent that learns from other targets sends what it learned."""
    poison = lambda key, batch: {**batch, "c": -batch["c"]}
    attack = attacks.Attack("other_targets", (BYZANTINE,), poison=poison)
    method = ATTACKED[name](attack=attack)
    states, _ = run(method, WORLD, 1)
    models = jax.vmap(method.models)(states)
    rows = halfway(START)
    rows[BYZANTINE] = 1 + (-TARGETS[BYZANTINE] - 1) / 2
    if name == "server":
        expected = np.tile(rows.mean(0), (N, 1))
    else:
        expected = np.stack([rows[[n, *neighbors(n)]].mean(0) for n in range(N)])
    close(flat(models.averaged.params)[0], expected, rtol=1e-5, atol=1e-6)
    assert np.asarray(models.is_byzantine)[0].tolist() == [
        n == BYZANTINE for n in range(N)
    ]


class TestAsynchronous:
    def build(self, through=channel.PERFECT):
        graph = generators.complete(4)
        options = {"batch_size": 1, "fine_tuning": False, "agent_loop": VMAP}
        return p2p_bn(quadratic(), LEARNER, graph, channel=through, **options)

    def test_messages_of_sixteen_bits(self):
        world = world_of([{"c": np.full(1, c, np.float32)} for c in (0.1, 2.3, 4.7, 9)])
        exact, plain = run(self.build(), world, 2)
        found, info = run(self.build(channel.quantize(16)), world, 2)
        models = [np.asarray(s.agents.variables.params["x"]) for s in (exact, found)]
        gap = np.abs(models[0] - models[1]).max()
        assert 0 < gap < 0.02
        close(info.bytes, info.payload * 2)
        assert plain.bytes is None

    @pytest.mark.parametrize(
        "stage",
        [
            channel.top_k(0.5),
            channel.qsgd(15),
            channel.noise(0.1),
            channel.clip(1.0),
            channel.stale(),
            channel.drop(0.5, per_edge=True),
            channel.drop(0.5, burst=3),
            channel.chain(channel.error_feedback(), channel.sign()),
        ],
    )
    def test_other_stages_are_refused(self, stage):
        with pytest.raises(InputError, match="P2P-BN"):
            self.build(stage)


LOCAL_ALIE = attacks.alie((0,), scale=1.0, local=True)
ATTACHED = attacks.foe(attacks.attached(2), scale=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attack": LOCAL_ALIE}, "sends the same to all receivers"),
        ({"attack": attacks.dissensus((0,), scale=1.0)}, "sends the same to all"),
        ({"attack": attacks.spectral((0,), scale=1.0)}, "sends the same to all"),
        ({"attack": attacks.mimic((0,), "random")}, "sends the same to all"),
        ({"attack": attacks.alie((0,))}, "Need a scale of alie"),
        ({"attack": ATTACHED}, "Need attackers that are agents"),
        ({"channel": channel.stale()}, "exchange before"),
        ({"channel": channel.delay(1.0)}, "has no clock"),
        ({"channel": channel.drop(0.1, per_edge=True)}, "per edge"),
    ],
)
@pytest.mark.parametrize("name", ATTACKED)
def test_refusals(name, options, message):
    with pytest.raises(InputError, match=message):
        ATTACKED[name](**options)


def test_refusals_of_chosen_peers():
    build = ATTACKED["pull"]
    for stage, message in (
        (channel.top_k(0.1), "carries whole models"),
        (channel.qsgd(4), "as it is for updates"),
        (channel.noise(0.1), "noisy"),
        (channel.clip(1.0), "updates for clip"),
        (
            channel.chain(channel.error_feedback(), channel.sign()),
            "updates for error feedback",
        ),
    ):
        with pytest.raises(InputError, match=message):
            build(channel=stage)
    with pytest.raises(InputError, match="5 messages or more .* at most 3"):
        build(aggregate=robust.median(2)).init(jax.random.key(0), WORLD)
    with pytest.warns(UserWarning, match=r"2 x 1 \+ 3 messages"):
        build(aggregate=robust.krum(1)).init(jax.random.key(0), WORLD)


def test_refusals_of_servers():
    for rule in (
        robust.self_centered_clipping(1.0),
        robust.clipped_gossip(1),
        robust.cs_plus(1),
        robust.gts(1),
        robust.ios(1),
        robust.balance(num_rounds=3),
        robust.ubar(0.5),
        robust.trimmed_mean(1, keep_self=True),
        robust.nnm(robust.gts(1)),
    ):
        with pytest.raises(InputError, match="rule for a set of messages"):
            ATTACKED["server"](aggregate=rule)
    few = ATTACKED["server"](aggregate=robust.median(2), num_clients=4)
    with pytest.raises(InputError, match="Need 5 clients or more .* got 4"):
        few.plan(np.random.default_rng(0), WORLD, 1)
    with pytest.raises(InputError, match="needs exact messages"):
        fedcurv(
            TASK, LEARNER, penalty_weight=0.0, channel=channel.quantize(8), **OPTIONS
        )


def test_refusals_of_partial_models():
    build = TestPartialModels().method
    gossip = averaging.metropolis_gossip(5, generators.complete(5))
    pairs, server = averaging.random_pairs(5), averaging.server(5)
    for average, options, message in (
        (gossip, {"attack": ATTACHED}, "attackers that are agents"),
        (gossip, {"aggregate": robust.ubar(0.5)}, "looks at models alone"),
        (gossip, {"attack": attacks.alie((0,))}, "Need a scale of alie"),
        (gossip, {"channel": channel.sign()}, "carries whole models"),
        (pairs, {"aggregate": robust.median(1)}, "rule for one message"),
        (pairs, {"attack": attacks.spectral((0,), scale=1.0)}, "Need one graph"),
        (pairs, {"channel": channel.top_k(0.5)}, "carries whole models"),
        (pairs, {"channel": channel.noise(0.5)}, "noisy"),
        (server, {"aggregate": robust.gts(1)}, "rule for a set of messages"),
        (server, {"aggregate": robust.median(2)}, "Need 5 members .* got 4 of model 0"),
        (server, {"attack": LOCAL_ALIE}, "sends the same to all receivers"),
        (server, {"channel": channel.top_k(0.5)}, "carries whole models"),
        (server, {"channel": channel.stale()}, "exchange before"),
    ):
        with pytest.raises(InputError, match=message):
            build(average, **options)
    sparse_and_rule = {"channel": channel.top_k(0.5), "aggregate": robust.median(1)}
    with pytest.raises(InputError, match="distances of partly sent models"):
        build(gossip, **sparse_and_rule)
    method = build(gossip, aggregate=robust.median(2))
    with pytest.raises(InputError, match="Need more than 2 x 2 messages"):
        method.plan(np.random.default_rng(0), TestPartialModels().world(), 1)


def test_partial_averaging_takes_attacks():
    task = classification(mlp.MLP((3, 2)), (2,), softmax_cross_entropy)
    attack = attacks.label_flip((BYZANTINE,), num_classes=2)
    options = {"agent_loop": VMAP, "attack": attack, "batch_size": 1}
    method = partial_averaging(task, LEARNER, _everything, **options)
    examples = {"x": np.ones((1, 2), "f4"), "y": np.zeros(1, "i4")}
    world = world_of([examples] * N)
    states, _ = run(method, world, 1)
    last = jax.tree.map(lambda leaf: leaf[-1], states)
    loss = method.evaluate(method.models(last), world)["loss"]
    assert np.isnan(loss).tolist() == [n == BYZANTINE for n in range(N)]


def _everything(layout, num_agents):
    return Scheme(
        (layout,) * num_agents, (PartialModel(layout, tuple(range(num_agents))),)
    )
