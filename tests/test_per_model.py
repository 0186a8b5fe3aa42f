"""A gossip per partial model: against the spec, NumPy, a server and the literature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import assert_networks_close, stacked, unstacked
from partial_worlds import ManyModels, PartialWorld
from test_slices import VECTORS, cells_of, networks_of, plan_of, vector_b

from p2pjax.exchange import attacks, channel, mixing, robust
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass
from p2pjax.graphs import generators
from p2pjax.nn import mlp
from p2pjax.partial import ownership, placement
from p2pjax.partial.averaging import server
from p2pjax.partial.exchanges import Exchanges, exchanged
from p2pjax.partial.overlays import member_graphs, on_graph, random_members
from p2pjax.partial.peer_sampling import peer_sampling
from p2pjax.partial.per_model import Situation, cast_of, per_model, plain_exchanges
from p2pjax.partial.private_gossip import private_gossip
from p2pjax.types import LOCAL, InputError

WORLD = PartialWorld()
SIZE = WORLD.SIZE
OWNER = np.array([0, 0, 0, 1, 1, LOCAL])


def one_class(owner, width=3):
    return MixPlan((OwnerClass(np.asarray(owner), (Block(0, (0,), (width,)),)),))


def mixed(realisation, plan, params, rounds=1, seed=0):
    """Parameters after one averaging in double precision."""
    averaging = realisation.among(Situation(plan))
    inputs = averaging.plan(np.random.default_rng(seed), rounds)
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), inputs)
    leaves, structure = jax.tree.flatten(jax.tree.map(np.array, params))
    with jax.enable_x64(True):
        for owner, blocks in plan.classes:
            if (owner == LOCAL).all():
                continue
            # What the class does to the identity is its matrix: one small program.
            matrix = np.asarray(averaging.combine(inputs, owner)(jnp.eye(len(owner))))
            for leaf, start, stop in blocks:
                at = (slice(None), *map(slice, start, stop))
                leaves[leaf][at] = np.tensordot(matrix, leaves[leaf][at], 1)
    return jax.tree.unflatten(structure, leaves)


def one_after_the_other(x, owners, model, pairs, happens=None, step=None):
    """Models `[N, P]` after exchanges of `model` `[F]`, in NumPy."""
    x = x.astype(float)
    for f, (a, b) in enumerate(zip(*pairs, strict=True)):
        if a != b and (happens is None or happens[f]):
            shared = (owners[a] == model[f]) & (owners[b] == model[f])
            if step is None:
                x[a, shared] = x[b, shared] = (x[a, shared] + x[b, shared]) / 2
            else:
                x[a, shared], x[b, shared] = step(x[a, shared], x[b, shared])
    return x


def layout_model(owners, cycles):
    """Number of the model of each exchange of a round."""
    found = []
    for model in np.unique(owners[owners >= 0]):
        found += [model] * int((owners == model).any(1).sum())
    return np.tile(found, cycles)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_spec_vectors(vector):
    """With many cycles all vectors of the spec, weighted means among them."""
    depends = tuple(map(tuple, vector["deps_a_depends_on_b"]))
    cells, order = placement.align(cells_of(vector))
    own = stacked(networks_of(vector, "W_in", "b_in"))
    params = ownership.permute_cells(own, order, mlp.wiring(2))
    plan = plan_of(
        cells, depends, len(vector["LOW"]) - 1, params, cross_model=vector["cross"]
    )
    weight = None if vector["weights"] is None else np.asarray(vector["weights"], float)
    new = mixed(per_model(cycles=60, weight=weight), plan, params)
    back = ownership.permute_cells(new, order, mlp.wiring(2), inverse=True)
    wanted = networks_of(vector, "W_out", "b_out")
    assert_networks_close(unstacked(back), wanted, rtol=1e-9)


def test_spec_vector_of_one_exchange():
    """A-V1(g): 0 and 2 exchange model 0; nothing of model 1 moves."""
    params, plan = vector_b()
    averaging = per_model(cycles=1).among(Situation(plan))
    inputs = Exchanges(np.array([0, 1, 2, 0, 1]), np.array([2, 1, 2, 0, 1]))
    with jax.enable_x64(True):
        new = mixing.mix(params, plan, lambda o: averaging.combine(inputs, o))
    kernel = np.asarray(new["layer_1"]["kernel"])
    np.testing.assert_allclose(kernel[:, 0, 0], [3.5, 2, 3.5])
    before = np.asarray(params["layer_1"]["kernel"])
    np.testing.assert_array_equal(kernel[:, 0, 1], before[:, 0, 1])


def test_many_cycles_are_a_server_and_few_are_not():
    x = [np.random.default_rng(0).normal(size=(6, 3))]
    plan = one_class(OWNER)
    exact = mixing.mix(x, plan, mixing.by_group_mean)[0]
    np.testing.assert_allclose(
        mixed(per_model(cycles=50), plan, x)[0], exact, rtol=1e-6, atol=1e-7
    )
    short = mixed(per_model(cycles=1), plan, x)[0]
    assert np.abs(short - exact)[:3].max() > 1e-3
    np.testing.assert_allclose(short[3:5], exact[3:5], rtol=1e-6)  # of two members
    np.testing.assert_array_equal(short[5], x[0][5])


def test_variance_falls_by_the_known_factor():
    """Jelasity et al. (2005): 1 / (2 sqrt(e)) per cycle; the mean stays."""
    size, cycles, runs = 400, 3, 12
    rng = np.random.default_rng(0)
    cast = cast_of(one_class(np.zeros(size, int)))
    pairs = plain_exchanges(rng, random_members(), cast, cycles, runs)
    x = rng.normal(size=(runs, size)).astype(np.float32)
    run = jax.jit(jax.vmap(exchanged))
    variances = [x.var(1)]
    for cycle in range(cycles):
        at = slice(cycle * size, (cycle + 1) * size)
        now = Exchanges(pairs.first[:, at], pairs.second[:, at])
        before, x = x, np.asarray(run(x, now, np.ones((runs, size), bool)))
        np.testing.assert_allclose(x.mean(1), before.mean(1), atol=1e-6)
        variances.append(x.var(1))
    factors = np.divide(variances[1:], variances[:-1])
    assert factors.mean() == pytest.approx(1 / (2 * math.sqrt(math.e)), abs=0.01)


@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_rounds_in_numpy(lost):
    """Several models, exchanges lost as a whole, and what each agent sent of each."""
    cycles = 2
    owners, x, found, info, inputs = WORLD.averaged(
        per_model(cycles=cycles), 2, channel=channel.drop(lost)
    )
    model = layout_model(owners, cycles)
    counts = []
    for t in range(2):
        pairs = (inputs.first[t], inputs.second[t])
        happens = None
        if lost:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), t), 1)
            draw = ~jax.random.bernoulli(key, lost, (SIZE, len(model)))
            happens = np.asarray(draw)[np.minimum(*pairs), np.arange(len(model))]
        x = one_after_the_other(x, owners, model, pairs, happens)
        sent = np.zeros((SIZE, 2))
        for f, (a, b) in enumerate(zip(*pairs, strict=True)):
            sent[[a, b], model[f]] += 1
        counts.append(sent)
        np.testing.assert_allclose(info.models.messages[t], sent)
        np.testing.assert_allclose(info.sent[t], sent.sum(1))
        received = float(info.received[t].sum())
        assert received == (2 * happens.sum() if lost else sent.sum())
        if not lost:
            np.testing.assert_allclose(found[t], x, rtol=1e-5, atol=1e-6)
    numbers = [((owners == m).any(0)).sum() for m in (0, 1)]
    np.testing.assert_allclose(info.models.payload, np.multiply(counts, numbers))
    np.testing.assert_allclose(info.payload, info.models.payload.sum(2))


def test_lost_exchanges_keep_every_mean():
    owners, x, found, info, _ = WORLD.averaged(
        per_model(cycles=3), 2, channel=channel.drop(0.5)
    )
    for column in range(x.shape[1]):
        for model in np.unique(owners[:, column][owners[:, column] >= 0]):
            who = owners[:, column] == model
            mean = x[who, column].mean()
            assert found[-1][who, column].mean() == pytest.approx(mean, abs=1e-5)
    assert 0 < info.received.sum() < info.sent.sum()


class TestTolerance:
    def test_each_model_stops_when_its_members_agree(self):
        world, limit, cycles = ManyModels(), 0.05, 12
        owners, x, (found,), info, inputs = world.averaged(
            per_model(cycles=cycles, tolerance=limit)
        )
        model = layout_model(owners, cycles)
        pairs = np.stack([inputs.first[0], inputs.second[0]])
        cycle = np.repeat(np.arange(cycles), len(model) // cycles)
        y, needed = x.astype(float), {m: 0 for m in range(3)}
        is_open = {m: self.far(y, owners, m, limit) for m in needed}
        for c in range(cycles):
            runs = (cycle == c) & np.array([is_open[m] for m in model])
            y = one_after_the_other(y, owners, model, pairs, runs)
            for m in needed:
                needed[m] += is_open[m]
                is_open[m] = is_open[m] and self.far(y, owners, m, limit)
        assert not any(is_open.values()) and len(set(needed.values())) > 1
        np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)
        sizes = [(owners == m).any(1).sum() for m in range(3)]
        total = [2 * size * needed[m] for m, size in enumerate(sizes)]
        np.testing.assert_allclose(info.models.messages[0].sum(0), total)

    @staticmethod
    def far(x, owners, model, limit):
        """Whether a member is farther from the mean, in the root mean square."""
        has = owners == model
        mean = np.where(has, x, 0).sum(0) / np.maximum(has.sum(0), 1)
        square = np.where(has, (x - mean) ** 2, 0).sum(1) / np.maximum(has.sum(1), 1)
        return bool(np.sqrt(square.max()) > limit)

    def test_members_that_agree_exchange_nothing(self):
        _, x, (found,), info, _ = WORLD.averaged(
            per_model(cycles=3, tolerance=1e-3), shared_init=True
        )
        np.testing.assert_array_equal(found, x)
        assert info.sent.sum() == 0


class TestChannelsAndRules:
    def test_quantised_exchanges_one_after_the_other(self):
        def half(x):
            return x.astype(np.float16).astype(float)

        owners, x, (found,), info, inputs = WORLD.averaged(
            per_model(cycles=2), channel=channel.quantize(16)
        )

        def step(a, b):
            return a + (half(b) - half(a)) / 2, b + (half(a) - half(b)) / 2

        pairs = (inputs.first[0], inputs.second[0])
        wanted = one_after_the_other(
            x, owners, layout_model(owners, 2), pairs, step=step
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
        assert (info.bytes[0] == 2 * info.payload[0]).all()

    def test_clipping_contains_what_attackers_send(self):
        rule = robust.self_centered_clipping(0.5)
        attack = attacks.sign_flip((1,), of="model", scale=50.0)
        average = per_model(cycles=2)
        _, x, (ruled,), _, inputs = WORLD.averaged(
            average, attack=attack, aggregate=rule
        )
        _, _, (plain,), _, _ = WORLD.averaged(average, attack=attack)
        honest = np.arange(SIZE) != 1
        count = len(inputs.inputs.first[0])
        moved = np.linalg.norm(ruled - x, axis=1)[honest].max()
        assert 0 < moved <= 0.5 * count
        assert np.abs(plain[honest]).max() > 10 > np.abs(ruled[honest]).max()

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"channel": channel.top_k(0.5)}, "carries whole models"),
            ({"channel": channel.noise(0.1)}, "noisy"),
            ({"channel": channel.drop(0.1, per_edge=True)}, "per edge"),
            ({"aggregate": robust.krum(1)}, "rule for one message"),
            ({"attack": attacks.dissensus((1,))}, "Need"),
        ],
    )
    def test_refusals(self, options, message):
        with pytest.raises(InputError, match=message):
            WORLD.method(per_model(), **options)

    def test_tolerance_needs_what_can_agree(self):
        average = per_model(tolerance=0.1)
        with pytest.raises(InputError, match="members may never agree"):
            WORLD.method(average, channel=channel.quantize(16))
        with pytest.raises(InputError, match="no drift_threshold"):
            WORLD.method(average, drift_threshold=1.0)


@pytest.mark.slow
def test_dynamic_averaging_uses_exchanges_that_one_end_asked_for():
    """Nothing has drifted: no exchange; with a threshold of 0, all of them."""
    _, x, (found,), info, _ = WORLD.averaged(per_model(), drift_threshold=1e9)
    np.testing.assert_array_equal(found, x)
    assert info.sent.sum() == 0


@pytest.mark.slow
def test_scores_before_come_from_one_round_earlier():
    _, _, once, info, _ = WORLD.averaged(per_model(cycles=2), 2)
    _, _, again, before, _ = WORLD.averaged(per_model(cycles=2), 2, score_before=True)
    np.testing.assert_allclose(again, once, rtol=1e-6)
    np.testing.assert_allclose(before.sent, info.sent)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: per_model(cycles=0), "one cycle or more"),
        (lambda: per_model(tolerance=0.0), "tolerance above 0"),
        (lambda: per_model(lambda rng: generators.ring(4)), "one graph for the whole"),
        (lambda: member_graphs(lambda rng, n: None, rewire_every=0), "rewire_every"),
        (lambda: peer_sampling(1), "views of 2 agents"),
        (lambda: peer_sampling(num_contacts=1), "never hear of each other"),
        (lambda: peer_sampling(absent=1.0), "from 0 to below 1"),
        (
            lambda: per_model(generators.ring(5)).among(Situation(one_class(OWNER))),
            "as many agents as there are, 6, got one of 5",
        ),
        (
            lambda: per_model(weight=np.ones(5)).among(Situation(one_class(OWNER))),
            "each of 6 agents",
        ),
        (
            lambda: (
                per_model(member_graphs(lambda rng, n: [generators.ring(n)] * 2))
                .among(Situation(one_class(OWNER)))
                .plan(np.random.default_rng(0), 1)
            ),
            "one graph of the members",
        ),
    ],
)
def test_bad_settings_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


class TestOverlays:
    def test_a_graph_of_all_agents(self):
        members = {0: np.array([0, 1, 2]), 1: np.array([1, 4])}
        rng = np.random.default_rng(0)
        found = on_graph(generators.ring(6)).contacts(rng, members, 6, 3, 40)
        assert set(found[0][..., 1].ravel()) == {0, 2}
        assert (found[0][..., [0, 2]] == 1).all()
        assert (found[1] == members[1]).all()  # no link between them

    def test_members_that_cannot_reach_each_other(self):
        with pytest.warns(UserWarning, match="2 groups of agents fall into 4 parts"):
            per_model(generators.ring(6)).among(
                Situation(one_class([0, 1, 0, 1, 1, 0]))
            )

    def test_a_graph_per_model_reaches_the_mean(self):
        x = [np.random.default_rng(1).normal(size=(6, 3))]
        plan = one_class([0, 1, 0, 1, 1, 0])
        exact = mixing.mix(x, plan, mixing.by_group_mean)[0]
        overlay = member_graphs(lambda rng, n: generators.ring(n), rewire_every=2)
        new = mixed(per_model(overlay, cycles=60), plan, x, rounds=3)[0]
        np.testing.assert_allclose(new, exact, rtol=1e-5, atol=1e-6)


MEMBERS = {0: np.arange(40), 1: np.array([3, 29]), 2: np.array([5, 6, 17, 39])}


class TestPeerSampling:
    def contacts(self, rounds=30, **options):
        overlay = peer_sampling(6, **options)
        rng = np.random.default_rng(0)
        return overlay.contacts(rng, MEMBERS, 40, rounds, 3)

    def test_members_of_rare_models_find_each_other(self):
        found = self.contacts()
        for model, who in MEMBERS.items():
            assert np.isin(found[model], who).all()
            assert (found[model][-5:] != who).all()  # each knows another
        partners = [set(found[0][:, :, n].ravel()) for n in range(40)]
        assert min(map(len, partners)) > 15  # views change

    def test_at_first_hardly_any_are_known(self):
        found = self.contacts(rounds=1)
        assert (found[1][0] == MEMBERS[1]).all()

    def test_who_is_away_is_not_contacted_and_comes_back(self):
        found = self.contacts(rounds=60, absent=0.3)
        idle = (found[0] == MEMBERS[0]).all(1)  # [R, n]
        assert 0.2 < idle[10:].mean() < 0.4
        for t in range(60):
            away = MEMBERS[0][idle[t]]
            asked = found[0][t][:, ~idle[t]]
            # Who makes no contact may still be asked, but only if it knew none.
            assert np.isin(asked, away).mean() < 0.2
        assert (found[1][30:] != MEMBERS[1]).any()

    def test_the_gossip_on_views_nears_the_mean(self):
        plan = one_class(np.zeros(12, int))
        x = [np.random.default_rng(2).normal(size=(12, 3))]
        averaging = per_model(peer_sampling(4), cycles=5).among(Situation(plan))
        inputs = averaging.plan(np.random.default_rng(0), 15)
        run = jax.jit(
            lambda x, one: mixing.mix(x, plan, lambda o: averaging.combine(one, o))
        )
        new = x
        for t in range(15):
            new = run(new, jax.tree.map(lambda leaf: leaf[t], inputs))  # noqa: B023
        assert np.asarray(new[0]).std(0).max() < 1e-4
        np.testing.assert_allclose(np.mean(new[0], 0), x[0].mean(0), atol=1e-5)


def test_diverged_members_stay_in_their_model():
    x = np.ones((6, 3), np.float32)
    x[0] = np.inf
    averaging = per_model(cycles=20).among(Situation(one_class(OWNER)))
    inputs = averaging.plan(np.random.default_rng(0), 1)
    inputs = jax.tree.map(lambda leaf: leaf[0], inputs)
    new = np.asarray(averaging.combine(inputs, OWNER)(jnp.asarray(x)))
    assert not np.isfinite(new[:3]).any() and np.isfinite(new[3:]).all()


@pytest.mark.slow
def test_the_server_of_the_same_scheme():
    """Through the engine, on networks: what a server computes, to rounding."""
    _, _, (exact,), _, _ = WORLD.averaged(server(SIZE))
    _, _, (found,), _, _ = WORLD.averaged(per_model(cycles=40))
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "realisation",
    [
        per_model(),
        per_model(tolerance=0.1),
        private_gossip(),
        per_model(peer_sampling()),
    ],
)
def test_where_all_is_local_nothing_happens(realisation):
    """Level 0, and losses: models of no agent need no special case."""

    class Local(PartialWorld):
        MODELS = ()

    _, x, (found,), info, _ = Local().averaged(realisation, channel=channel.drop(0.2))
    np.testing.assert_array_equal(found, x)
    assert info.sent.sum() == 0 and info.models.messages.shape == (1, SIZE, 0)
