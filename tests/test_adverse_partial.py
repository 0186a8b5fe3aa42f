"""Partial models by servers, in pairs and by gossip: attacked, lossy and robust.

All against small loops in numpy, class by class; nothing is learned in between.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partial_worlds import ManyModels, flat
from server_rules import RULES
from test_adverse_gossip import largest
from test_protocols import close

from p2pjax.exchange import attacks, channel, robust
from p2pjax.exchange.aggregation import Extra, Manner
from p2pjax.exchange.attacks.base import Hostile
from p2pjax.exchange.central import combine_members
from p2pjax.exchange.encoding import parts_of
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass
from p2pjax.exchange.server_models import first_models, handed_out
from p2pjax.graphs import generators
from p2pjax.partial import averaging
from p2pjax.types import LOCAL, InputError

SLOW = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("compiled_quickly")
WORLD = ManyModels()
SIZE = WORLD.SIZE
SERVER, PAIRS = averaging.server(SIZE), averaging.random_pairs(SIZE)
GOSSIP = averaging.metropolis_gossip(SIZE, generators.complete(SIZE))


def hostile_number(number, byzantine=(1,)):
    """An attack that sends this number only."""
    return attacks.foe(byzantine, scale=1.0)._replace(
        hostile=lambda scene: Hostile(jnp.full_like(scene.rows[:1], number))
    )


def classes(owners):
    """Owner vector `[N]` and columns `[P]` bool of each owner class."""
    for pattern in np.unique(owners, axis=1).T:
        yield pattern, (owners == pattern[:, None]).all(0)


def groups(pattern):
    return [np.flatnonzero(pattern == g) for g in np.unique(pattern) if g != LOCAL]


def arrived_in(t, probability, shape=(SIZE, 1)):
    """What the links of a round deliver, as the engine draws it."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), t), 1)
    return ~np.asarray(jax.random.bernoulli(key, probability, shape))


def half(x):
    return np.asarray(x).astype(np.float16).astype(float)


# Two groups of three and one of four in one class, all agents but one in the other.
OWNERS = (
    np.array([2, 0, 1, 0, 1, 2, LOCAL, 0, 1, 2, 2]),
    np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, LOCAL, 0]),
    np.full(11, LOCAL),
)
PLAN = MixPlan(
    (
        OwnerClass(OWNERS[0], (Block(0, (0, 0), (2, 2)), Block(0, (0, 2), (1, 3)))),
        OwnerClass(OWNERS[1], (Block(0, (1, 2), (2, 3)), Block(1, (0,), (4,)))),
        OwnerClass(OWNERS[2], (Block(2, (), ()),)),
    )
)
COLUMNS = (np.array([0, 1, 3, 4, 2]), np.array([5, 6, 7, 8, 9]))  # of `[N, 11]`


def tree(x):
    x = jnp.asarray(x, jnp.float32)
    parts = [x[:, :6].reshape(-1, 2, 3), x[:, 6:10], x[:, 10]]
    return {"params": dict(zip("abc", parts, strict=True))}


class TestServersOfGroups:
    """Each group by itself, whatever others send, in groups of several sizes."""

    def served(self, rule, rows, models, weight):
        @jax.jit
        def run(rows, models, own, weight):
            manner, extra = Manner(PLAN, rule=rule), Extra(jax.random.key(0), 0)
            new, enough, rejected = combine_members(
                manner, rows, models, lambda owner: weight, extra
            )
            takes = [found & (weight > 0) for found in enough]
            return new, handed_out(PLAN, new, own, takes), enough, rejected

        own = np.full(rows.shape, 7.0)
        found = run(tree(rows), tree(models), tree(own), jnp.asarray(weight, "f4"))
        models, handed, enough, rejected = found
        # Agent 4 alone sends what is not finite, in columns that it shares.
        bad = ~np.isfinite(rows).all(1) & (np.arange(11) == 4)
        np.testing.assert_array_equal(rejected, bad)
        return flat(models, 3), flat(handed, 11), np.stack(enough)

    # Of three the two nearest have equal scores: krum takes the first, in buckets too.
    @pytest.mark.parametrize(
        "name",
        [
            n if n == "geometric" else pytest.param(n, marks=SLOW)
            for n in RULES
            if n != "bucket_krum"
        ],
    )
    def test_in_numpy(self, name):
        rule, expected = RULES[name]
        rng = np.random.default_rng(5)
        rows, models = rng.normal(size=(11, 11)), rng.normal(size=(3, 11))
        rows[0] = 1e3
        rows[4, 1] = np.nan  # in the first class
        rows[9, 7] = np.nan  # where it shares nothing
        weight = np.ones(11)
        weight[8] = 0  # so that agent 2 is alone in its group
        found, handed, enough = self.served(rule, rows, models, weight)
        new, out = models.copy(), np.full(rows.shape, 7.0)
        told = np.zeros((3, 11), bool)
        for number, columns in enumerate(COLUMNS):
            # In the order of sizes: groups 0, 1 and 2 in the one class.
            for row, members in enumerate(groups(OWNERS[number])):
                there = [
                    n
                    for n in members
                    if weight[n] > 0 and np.isfinite(rows[n, columns]).all()
                ]
                if len(there) < rule.min_members:
                    continue
                told[number, members] = True
                new[row, columns] = expected(
                    models[row, columns], rows[np.ix_(there, columns)]
                )
                taking = [n for n in members if weight[n] > 0]
                out[np.ix_(taking, columns)] = new[row, columns]
        assert told[0].sum() >= 7 and told[1].sum() == 10
        np.testing.assert_array_equal(enough, told)
        close(found, new, rtol=2e-4, atol=2e-4)
        close(handed, out, rtol=2e-4, atol=2e-4)

    def test_what_they_have_at_the_start(self):
        rows = np.random.default_rng(1).normal(size=(11, 11))
        found = flat(jax.jit(partial(first_models, PLAN))(tree(rows)), 3)
        expected = np.zeros((3, 11))
        for number, columns in enumerate(COLUMNS):
            for row, members in enumerate(groups(OWNERS[number])):
                expected[row, columns] = rows[np.ix_(members, columns)].mean(0)
        close(found, expected, rtol=1e-5, atol=1e-6)

    @SLOW
    def test_weights_of_members(self):
        """Only rules that ask for them read them; others count all alike."""
        rng = np.random.default_rng(2)
        rows, models = rng.normal(size=(11, 11)), np.zeros((3, 11))
        weight = rng.uniform(0.5, 2, 11)
        rule = robust.geometric_median(1, num_iterations=1, weighted=True)
        found, _, _ = self.served(rule, rows, models, weight)
        members, columns = groups(OWNERS[0])[1], COLUMNS[0]
        chosen = rows[np.ix_(members, columns)]
        beta = weight[members] / np.linalg.norm(chosen, axis=1)
        close(found[1, columns], beta @ chosen / beta.sum(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "rule",
    [robust.median(1), robust.krum(1), robust.nnm(robust.trimmed_mean(1))],
    ids=lambda rule: rule.name,
)
def test_servers_have_no_copies(rule):
    """Three groups of models with one large leaf, of which none is made."""
    size, wide = 12, 1 << 22
    owner = np.repeat([0, 1, 2], [3, 3, 6])
    plan = MixPlan((OwnerClass(owner, (Block(0, (0,), (wide,)),)),))

    def run(rows, models, own):
        manner, extra = Manner(plan, rule=rule), Extra(jax.random.key(0), 0)
        new, enough, _ = combine_members(
            manner, rows, models, lambda owner: jnp.ones(size), extra
        )
        return handed_out(plan, new, own, enough)

    shapes = [{"w": jax.ShapeDtypeStruct((n, wide), "f4")} for n in (size, 3, size)]
    assert largest(jax.make_jaxpr(run)(*shapes).jaxpr) == size * wide


def rounds_of_servers(owners, x, rule, expected, num_rounds, lost, byzantine, scale):
    """Models after each round; attackers turn what they would send around."""
    min_members, x = rule.min_members, x.astype(float)
    centres = {}
    for t in range(num_rounds):
        arrived = arrived_in(t, lost)[:, 0]
        rows = half(x)
        rows[byzantine] = half(-scale * rows[byzantine])
        x = x.copy()
        for pattern, columns in classes(owners):
            for members in groups(pattern):
                name = (tuple(pattern), members[0])
                first = centres.get(name)
                if first is None:
                    first = x[np.ix_(members, columns)].mean(0)
                there = members[arrived[members]]
                centres[name] = first
                if len(there) >= min_members:
                    chosen = rows[np.ix_(there, columns)]
                    centres[name] = expected(first, chosen)
                    x[np.ix_(there, columns)] = centres[name]
        yield x, arrived


class TestServers:
    @pytest.mark.filterwarnings("ignore:multi_krum promises something")
    @pytest.mark.parametrize(
        "name, score_before",
        [
            pytest.param("geometric", False, marks=SLOW),
            pytest.param("geometric", True, marks=SLOW),
            ("median", False),
            pytest.param("nna", False, marks=SLOW),
            pytest.param("multi_krum", False, marks=SLOW),
            pytest.param("clipping", False, marks=SLOW),
        ],
    )
    def test_rounds_with_losses(self, name, score_before):
        """Absent members keep what they have; servers remember what they computed."""
        rule, expected = RULES[name]
        num_rounds, lost = 5, 0.3
        owners, x, found, info, _ = WORLD.averaged(
            SERVER,
            num_rounds,
            attack=attacks.sign_flip((1,), of="model", scale=3.0),
            channel=channel.chain(channel.quantize(16), channel.drop(lost)),
            aggregate=rule,
            score_before=score_before,
        )
        absent = 0
        plain = rounds_of_servers(owners, x, rule, expected, num_rounds, lost, [1], 3.0)
        for t, (wanted, arrived) in enumerate(plain):
            close(found[t], wanted, rtol=3e-3, atol=3e-3)
            absent += (~arrived).sum()
        assert 0 < absent < num_rounds * SIZE
        close(info.bytes, info.payload * 2.0)

    @SLOW
    def test_attackers_of_each_model(self):
        """They know all honest members of a model, not what will be lost."""
        owners, x, (found,), _, _ = WORLD.averaged(
            SERVER,
            attack=attacks.alie((1, 5), scale=1.5),
            aggregate=robust.trimmed_mean(1),
        )
        wanted = x.astype(float)
        for pattern, columns in classes(owners):
            for members in groups(pattern):
                rows = x[np.ix_(members, columns)].astype(float)
                honest = ~np.isin(members, (1, 5))
                known = rows[honest]
                rows[~honest] = known.mean(0) + 1.5 * known.std(0, ddof=1)
                new = RULES["trimmed"][1](None, rows)
                wanted[np.ix_(members, columns)] = new
        close(found, wanted, rtol=1e-4, atol=1e-5)

    @SLOW
    @pytest.mark.parametrize("number", [np.nan, np.inf])
    def test_hostile_numbers_are_contained(self, number):
        _, _, (found,), _, _ = WORLD.averaged(
            SERVER, attack=hostile_number(number), aggregate=robust.nna(1)
        )
        assert np.isfinite(found).all()

    @SLOW
    def test_models_that_none_asks_for_stay(self):
        """Dynamic averaging with a threshold that is never reached."""
        _, x, (found,), info, _ = WORLD.averaged(
            SERVER, aggregate=robust.median(1), drift_threshold=1e6
        )
        close(found, x)
        assert info.sent.sum() == 0

    def test_doubts(self):
        with pytest.warns(
            UserWarning, match=r"2 x 1 \+ 3 messages .* got 4 at agent 0"
        ):
            WORLD.method(SERVER, aggregate=robust.krum(1))


def pair_rounds(owners, x, partner, step, lost=0.0, send=lambda rows: rows):
    """Models after each round; `step(t, own, message, decoded own)` of a class."""
    for t, partner_now in enumerate(partner):
        arrived = arrived_in(t, lost)[:, 0]
        arrived = arrived[np.minimum(np.arange(SIZE), partner_now)]
        decoded = half(x)
        rows = send(decoded)
        new = x.copy()
        for pattern, columns in classes(owners):
            for n in range(SIZE):
                k = partner_now[n]
                same = k != n and pattern[n] != LOCAL and pattern[n] == pattern[k]
                if same and arrived[n]:
                    new[n, columns] = step(
                        t, x[n, columns], rows[k, columns], decoded[n, columns]
                    )
        x = new
        yield x


class TestPairs:
    LOSSY = channel.chain(channel.quantize(16), channel.drop(0.4))

    def test_balance_in_lossy_pairs(self):
        """An exchange is lost as a whole; attackers send a number of 16 bits."""
        num_rounds = 4
        owners, x, found, info, inputs = WORLD.averaged(
            PAIRS,
            num_rounds,
            attack=attacks.sign_flip((1,), of="model", scale=0.5),
            aggregate=robust.balance(2.0, num_rounds=8),
            channel=self.LOSSY,
        )
        partner = np.asarray(inputs.inputs)
        taken = []

        def step(t, own, message, decoded):
            limit = 2.0 * np.exp(-t / 8) * np.linalg.norm(own)
            taken.append(np.linalg.norm(message - own) <= limit)
            return (own + message) / 2 if taken[-1] else own

        def send(decoded):
            rows = decoded.copy()
            rows[1] = half(-0.5 * decoded[1])
            return rows

        plain = pair_rounds(owners, x.astype(float), partner, step, 0.4, send)
        for t, wanted in enumerate(plain):
            close(found[t], wanted, rtol=3e-3, atol=1e-3)
        assert 0 < sum(taken) < len(taken)
        both = np.asarray(info.received)
        for t in range(num_rounds):
            close(both[t], both[t][partner[t]])
        assert 0 < both.sum() < num_rounds * SIZE

    @SLOW
    def test_means_stay_where_exchanges_are_lost(self):
        """Without a rule: in pairs that all share, nothing of a mean is lost."""
        owners, x, found, _, _ = WORLD.averaged(PAIRS, 4, channel=self.LOSSY)
        shared = (owners == owners[0]).all(0)
        close(found[-1][:, shared].mean(0), x[:, shared].mean(0), atol=1e-5)
        assert (found[-1] != found[0]).any()

    @pytest.mark.parametrize(
        "rule",
        [
            robust.self_centered_clipping(0.5),
            robust.balance(num_rounds=3),
        ],
        ids=lambda rule: rule.name,
    )
    @SLOW
    def test_hostile_numbers_are_contained(self, rule):
        _, _, (found,), _, _ = WORLD.averaged(
            PAIRS, attack=hostile_number(np.nan), aggregate=rule
        )
        assert np.isfinite(found).all()


def test_lost_messages_are_no_members_of_a_rule():
    """Gossip on a complete graph; weights of what is lost do not move before."""
    lost = 0.3
    owners, x, (found,), _, inputs = WORLD.averaged(
        GOSSIP,
        attack=attacks.sign_flip((1,), of="mean", scale=2.0),
        aggregate=robust.median(1),
        channel=channel.drop(lost),
    )
    neighbor = np.asarray(inputs.inputs.neighbor)[0]
    arrived = arrived_in(0, lost, neighbor.shape)
    for pattern, columns in classes(owners):
        for n in range(SIZE):
            wanted = x[n, columns]
            if pattern[n] != LOCAL:
                known = [k for k in np.flatnonzero(pattern == pattern[n]) if k != 1]
                rows = x.astype(float)[:, columns]
                rows[1] = -2 * rows[known].mean(0)
                heard = [
                    k
                    for k, there in zip(neighbor[n], arrived[n], strict=True)
                    if there and pattern[k] == pattern[n]
                ]
                if len(heard) >= 2:
                    wanted = np.median([x[n, columns], *rows[heard]], axis=0)
            close(found[n, columns], wanted, rtol=1e-4, atol=1e-5)


def part_columns(params):
    """Owners and columns of each leaf in each class, in the order of a message."""
    leaves = jax.tree.leaves(params)
    ends = np.cumsum([0] + [leaf[0].size for leaf in leaves])
    for part in parts_of(WORLD.sharing.plan, params):
        numbers = np.arange(leaves[part.leaf][0].size) + ends[part.leaf]
        numbers = numbers.reshape(leaves[part.leaf].shape[1:])
        blocks = [
            numbers[tuple(map(slice, block.start, block.stop))].reshape(-1)
            for block in part.blocks
        ]
        owner = WORLD.sharing.plan.classes[part.owner_class].owner
        yield owner, np.concatenate(blocks)


@pytest.mark.parametrize(
    "byzantine, hostile",
    [((1, 5), "model"), ((2,), "mean")],
)
@SLOW
def test_parts_of_hostile_models(byzantine, hostile):
    """Half of the numbers of each leaf of a class, of attackers the largest."""
    num_rounds, bad = 3, list(byzantine)
    owners, start, found, _, _ = WORLD.averaged(
        GOSSIP,
        num_rounds,
        attack=attacks.sign_flip(byzantine, of=hostile, scale=2.0),
        channel=channel.top_k(0.5),
    )
    params = WORLD.method(GOSSIP).init(jax.random.key(0), WORLD.world()).variables
    parts = list(part_columns(params.params))
    assert sum(len(columns) for _, columns in parts) == (owners >= 0).any(0).sum()
    x, last = start.astype(float), start.astype(float)
    for t in range(num_rounds):
        new = x.copy()
        for owner, columns in parts:
            count = max(1, len(columns) // 2)
            rows, mask = x[:, columns].copy(), np.zeros((SIZE, len(columns)), bool)
            for n in range(SIZE):
                score = np.abs(rows[n] - last[n, columns])
                if n in bad:
                    known = (owner == owner[n]) & ~np.isin(np.arange(SIZE), bad)
                    told = x[n, columns] if hostile == "model" else 0
                    if hostile == "mean" and known.any():
                        told = x[np.ix_(known, columns)].mean(0)
                    rows[n] = -2 * told
                    score = np.abs(rows[n])
                mask[n, np.argsort(-score, kind="stable")[:count]] = True
            for members in groups(owner):  # all hear all others of their group
                for n in members:
                    for k in members[members != n]:
                        gap = rows[k] - x[n, columns]
                        new[n, columns] += np.where(mask[k], gap, 0) / len(members)
            honest = np.zeros_like(mask)  # what attackers would have sent is kept
            for n in range(SIZE):
                score = np.abs(x[n, columns] - last[n, columns])
                honest[n, np.argsort(-score, kind="stable")[:count]] = True
            last[:, columns] = np.where(honest, x[:, columns], last[:, columns])
        x = new
        close(found[t], x, rtol=1e-4, atol=1e-5)


BALANCE = robust.balance(9.0, num_rounds=3)


@pytest.mark.parametrize(
    "average, options",
    [
        (SERVER, {"aggregate": robust.geometric_median(1)}),
        pytest.param(PAIRS, {"aggregate": BALANCE}, marks=SLOW),
        pytest.param(GOSSIP, {"channel": channel.top_k(0.5)}, marks=SLOW),
        pytest.param(GOSSIP, {"channel": channel.qsgd(15)}, marks=SLOW),
    ],
    ids=["server", "pairs", "sparse", "qsgd"],
)
def test_who_attacks_is_an_input(average, options):
    attack = attacks.sign_flip((1,), of="model", scale=0.5)
    method = WORLD.method(average, attack=attack, **options)
    world, key, count = WORLD.world(), jax.random.key(0), []

    @jax.jit
    def one_round(inputs, state):
        count.append(0)
        return method.round(key, jnp.int32(0), inputs, state, world)[0]

    inputs = method.plan(np.random.default_rng(2), world, 1)
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], inputs)
    found = []
    for byzantine in ([1], [2, 6], []):
        is_byzantine = jnp.asarray(np.isin(np.arange(SIZE), byzantine))
        attackers = inputs.attackers._replace(is_byzantine=is_byzantine)
        state = jax.jit(method.init)(key, world)
        state = one_round(inputs._replace(attackers=attackers), state)
        found.append(flat(state.variables.params, SIZE))
    assert len(count) == 1
    assert (found[0] != found[1]).any() and (found[0] != found[2]).any()


def test_refusals():
    attached = attacks.foe(attacks.attached(2), scale=0.1)
    for average, options, message in (
        (SERVER, {"aggregate": robust.cs_plus(1)}, "server of Partial averaging, got"),
        (SERVER, {"aggregate": robust.ubar(0.5)}, "rule for a set of messages"),
        (SERVER, {"aggregate": robust.median(2)}, "Need 5 members .* got 4 of model 1"),
        (SERVER, {"attack": attached}, "attackers that are agents"),
        (SERVER, {"attack": attacks.alie((0,))}, "Need a scale of alie"),
        (SERVER, {"attack": attacks.mimic((0,), "random")}, "sends the same to all"),
        (SERVER, {"channel": channel.noise(0.1)}, "noisy"),
        (PAIRS, {"aggregate": robust.krum(1)}, "rule for one message"),
        (PAIRS, {"channel": channel.random_k(0.1)}, "carries whole models"),
        (PAIRS, {"channel": channel.drop(0.1, per_edge=True)}, "per edge"),
    ):
        with pytest.raises(InputError, match=message):
            WORLD.method(average, **options)
