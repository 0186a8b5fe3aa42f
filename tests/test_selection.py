"""Ways of choosing peers: published numbers, plain loops, caps and partial views."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.mixture import GaussianMixture
from test_protocols import (
    TARGETS,
    TOY,
    TOY_LEARNER,
    jit,
    run,
    toy_world,
)

from p2pjax.algorithms._d_cliques import d_cliques
from p2pjax.algorithms._diple import diple
from p2pjax.datasets import stacking
from p2pjax.engines.pulling import pull
from p2pjax.graphs import analysis, clusters, generators, topology
from p2pjax.graphs.topology import Topology
from p2pjax.selection import (
    aucccr,
    gaussian_mixture,
    peer_evaluation,
    similarity,
    tables,
)
from p2pjax.selection.base import PeerView
from p2pjax.selection.d_cliques import clique_graph, cliques, skew
from p2pjax.selection.dac import DACState, annealed_sharpness, dac
from p2pjax.selection.diple import bisected, line_search, normalised
from p2pjax.selection.l2c import l2c, learning_rate
from p2pjax.selection.panm import matched, panm
from p2pjax.selection.peer_sampling import exchange_views, partial_view
from p2pjax.selection.peer_view import make_peer_view
from p2pjax.selection.pens import is_kept_often, pens
from p2pjax.selection.request_limits import apply_request_limit, limit_requests
from p2pjax.selection.sparse import sparse
from p2pjax.training import agent_loop, samplers
from p2pjax.types import InputError, Peers, Split, Variables

VECTORS = json.loads((Path(__file__).parent / "vectors/selection.json").read_text())
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-4)  # float32
KEY = jax.random.key(0)
fit = jit(gaussian_mixture.fit)
match = jit(matched)


def table_of(*peers, width=None):
    """A table of lists of peers, agent by agent."""
    width = max(map(len, peers)) if width is None else width
    ids = np.tile(np.arange(len(peers), dtype=np.int32)[:, None], (1, width))
    mask = np.zeros(ids.shape, bool)
    for n, own in enumerate(peers):
        ids[n, : len(own)] = own
        mask[n, : len(own)] = True
    return Topology(jnp.asarray(ids), jnp.asarray(mask))


def known_losses(losses, permitted, sizes=None):
    """A view of agents whose losses on each other's data are known, `[N, N]`."""
    num_agents = len(losses)
    losses = jnp.asarray(losses, jnp.float32)
    split = Split({"c": jnp.zeros((num_agents, 1))}, jnp.ones(num_agents))
    return PeerView(
        permitted=permitted,
        sizes=jnp.asarray([1] * num_agents if sizes is None else sizes),
        params={"x": jnp.zeros(num_agents)},
        before={"x": jnp.zeros(num_agents)},
        train=split,
        valid=split,
        loss=None,
        over_pairs=lambda fn, table, split: tables.lookup(losses, table),
        mix=None,
        sent=jax.tree.leaves,
        gradient=None,
        predictions=None,
        model_size=1,
    )


def chooser(selection, view):
    """Asks again and again; whom and what comes back as numpy, the state as it is."""
    select = jit(lambda key, t, state: selection.select(key, t, state, view))
    start = jit(lambda: selection.init(KEY, view))()

    def choose_fn(t=0, state=None):
        key = jax.random.fold_in(KEY, t)
        *found, state = select(key, jnp.int32(t), start if state is None else state)
        return *jax.tree.map(np.asarray, tuple(found)), state

    return choose_fn


def choose(selection, view, t=0, state=None):
    return chooser(selection, view)(t, state)


def played(*args, **options):
    """States and infos of all rounds as numpy."""
    return jax.tree.map(np.asarray, run(*args, **options))


def row(peers, agent=0):
    """Whom an agent averages with, and how much each counts."""
    ids, weight = np.asarray(peers.ids[agent]), np.asarray(peers.weight[agent])
    return {int(j): float(w) for j, w in zip(ids, weight, strict=True) if w > 0}


class TestFixedGraphs:
    @pytest.mark.parametrize(
        "graph, expected",
        [
            (generators.complete(4), [2.5] * 4),
            (
                clusters.oracle([0, 0, 1, 1], 1, seed=0),
                [1.0, 1, 4, 4],
            ),
        ],
    )
    def test_sparse_and_oracle(self, graph, expected):
        algorithm = pull(TOY, TOY_LEARNER, sparse(), graph, batch_size=1)
        states, info = played(algorithm, toy_world(), 2)
        x = states.variables.params["x"]
        close(x[0], [0.5, 1.5, 2.5, 5.5])
        # The second round averages and steps halfway to the targets.
        close(2 * x[1] - np.array(TARGETS), expected)
        degree = graph.mask.sum(1)
        assert (info.sent == degree).all() and (info.received == degree).all()

    def test_models_count_the_same_if_told_so(self):
        algorithm = pull(
            TOY,
            TOY_LEARNER,
            sparse(),
            generators.complete(4),
            batch_size=4,
            equal_weights=True,
        )
        states, _ = played(algorithm, toy_world(sizes=[1, 1, 2, 4]), 2)
        x = states.variables.params["x"][1]
        close(2 * x - np.array(TARGETS), [2.5] * 4)

    def test_graphs_change(self):
        sequence = topology.stack([generators.ring(4, directed=True)] * 2)
        sequence.neighbor[1] = (np.arange(4)[:, None] + 1) % 4  # the other way round
        algorithm = pull(
            TOY, TOY_LEARNER, sparse(), sequence, batch_size=1, rewire_every=2
        )
        _, info = played(algorithm, toy_world(), 4)
        senders = np.asarray(info.links.sender[:, :, 0])
        assert senders[:, 1].tolist() == [0, 0, 2, 2]

    def test_random_peers_and_drawn_graphs(self):
        algorithm = pull(
            TOY,
            TOY_LEARNER,
            sparse(1),
            lambda rng: generators.directed_regular(4, 2, seed=rng),
            batch_size=1,
            rewire_every=2,
        )
        _, info = played(algorithm, toy_world(), 6)
        assert (info.received == 1).all()
        assert len(np.unique(info.links.sender, axis=0)) > 3


class TestPENS:
    def test_keeps_the_best_candidates(self):
        losses = np.full((6, 6), 9.0)
        losses[0, [1, 2, 4, 5]] = [0.9, 0.4, 1.3, 0.6]
        permitted = table_of([1, 2, 4, 5], *[[0]] * 5)
        view = known_losses(losses, permitted, [100, 100, 50, 100, 100, 200])
        peers, pulled, kept = choose(pens(num_peers=2, num_candidates=4), view)
        assert sorted(row(peers)) == [0, *VECTORS["pens"]["sel"]]
        x = analysis.dense_matrix(peers)[0] @ np.arange(1, 7)
        close(x, VECTORS["pens"]["x0"])
        assert pulled.mask[0].sum() == 4 and pulled.mask[1].sum() == 1
        assert kept[0].tolist() == [0, 0, 1, 0, 0, 1]

    def test_of_equal_models_the_lowest_number_is_kept(self):
        view = known_losses(np.ones((4, 4)), tables.all_others(4))
        peers, *_ = choose(pens(num_peers=1, num_candidates=3), view)
        assert [sorted(row(peers, n)) for n in range(4)] == [
            [0, 1],
            [0, 1],
            [0, 2],
            [0, 3],
        ]

    def test_models_that_are_not_numbers_are_not_kept(self):
        losses = np.ones((4, 4))
        losses[0, 1:] = [np.nan, np.inf, 3]
        peers, *_ = choose(
            pens(num_peers=3, num_candidates=3),
            known_losses(losses, tables.all_others(4)),
        )
        assert sorted(row(peers)) == [0, 3]

    def test_second_stage_needs_more_than_chance(self):
        kept = jnp.asarray([[0, 3, 4, 5, 0, 2]] + [[0] * 6] * 5)
        often = is_kept_often(kept, 2, 9, num_known=6)
        assert often[0].tolist() == [False, False, True, True, False, False]
        view = known_losses(np.ones((6, 6)), tables.all_others(6))
        selection = pens(num_peers=3, num_candidates=4, second_stage=9)
        ask = chooser(selection, view)
        # The last round of the first stage still tries four.
        _, pulled, _ = ask(7, kept)
        assert (pulled.mask.sum(1) == 4).all()
        peers, pulled, after = ask(8, kept)
        # Of three peers, more than 3 * 9 / 6 = 4.5 are needed.
        assert sorted(row(peers)) == [0, 3]
        # Agents that know nobody draw from all.
        assert (pulled.mask.sum(1) == [1, 3, 3, 3, 3, 3]).all()
        assert (after == kept).all()


class TestDAC:
    def test_probabilities(self):
        similar = np.zeros((5, 5), np.float32)
        similar[0, 1:] = [0.5, 0.4, 0, 0.25]
        view = known_losses(np.ones((5, 5)), tables.all_others(5))

        for name, sharpness in (("tau30", 30.0), ("tau1", 1.0)):
            selection = dac(num_peers=1, sharpness=sharpness)
            state = selection.init(KEY, view)._replace(similarity=jnp.asarray(similar))

            @jit
            @jax.vmap
            def first(key, selection=selection, state=state):
                return selection.select(key, jnp.int32(9), state, view)[1].ids[0, 0]

            drawn = np.asarray(first(jax.random.split(KEY, 4000)))
            share = np.bincount(drawn, minlength=5)[1:] / 4000
            np.testing.assert_allclose(share, VECTORS["dac"][name], atol=0.03)

    def test_annealed_sharpness(self):
        for r, expected in VECTORS["dac"]["tau_var"].items():
            close(annealed_sharpness(30.0, jnp.int32(int(r))), expected)

    def test_two_hops(self):
        similar = np.zeros((5, 5), np.float32)
        similar[1, 4], similar[2, 3], similar[2, 4] = 0.2, 0.33, 0.6
        losses = np.full((5, 5), 7.0)
        losses[0, [1, 2]] = 2.0, 2.5
        view = known_losses(losses, table_of([1, 2], [2], [1], [], []))
        selection = dac(num_peers=2)
        start = DACState(jnp.asarray(similar), jnp.zeros((5, 5), bool), ())
        peers, pulled, state = choose(selection, view, t=3, state=start)
        close(state.similarity[0], [0, 0.5, 0.4, 0.33, 0.2])
        assert state.is_met[0].tolist() == [False, True, True, False, False]
        # Agent 1 met 2 and believes it, though it knew better of nobody else.
        close(state.similarity[1], [0, 0, 1 / 7, 0.33, 0.6])
        assert row(peers) == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
        assert pulled.mask.sum(1).tolist() == [2, 1, 1, 0, 0]

    def test_peers_as_good_as_impossible_are_not_drawn(self):
        similar = np.zeros((4, 4), np.float32)
        similar[0, 1], similar[1, 0] = 26.0, 24.0  # exp(-780) and exp(-720)
        view = known_losses(np.ones((4, 4)), tables.all_others(4))
        start = DACState(jnp.asarray(similar), jnp.zeros((4, 4), bool), ())
        _, pulled, _ = choose(dac(), view, state=start)
        assert pulled.mask.sum(1).tolist() == [1, 3, 3, 3]

    @pytest.mark.parametrize(
        "compare, num_models",
        [(None, 1), (similarity.update_cosine(), 2)],
        ids=["loss", "update_cosine"],
    )
    def test_peers_send_what_they_are_compared_by(self, compare, num_models):
        """Cosines take a model and an update, which counted as one model once."""
        selection = dac(num_peers=2, similarity=compare)
        algorithm = pull(TOY, TOY_LEARNER, selection, batch_size=1)
        _, info = played(algorithm, toy_world(), 3)
        assert (info.received == 2).all()
        np.testing.assert_array_equal(info.payload, num_models * info.sent)


class TestPANM:
    @pytest.mark.parametrize("name", ["naem_S", "naem_loss"])
    def test_two_groups(self, name):
        vector = VECTORS[name]
        sign = 1 if name == "naem_S" else -1
        scores = sign * np.array(vector["s"], np.float32)
        in_bag = np.array(vector["in_bag"], bool)
        found = fit(scores, in_bag, np.ones(8, bool))
        close(found.mixture.weight, vector["pi"])
        close(sign * found.mixture.mean, vector["mu"])
        close(found.mixture.variance, vector["var"])
        assert found.label.tolist() == [bool(label) for label in vector["label"]]
        assert found.num_iterations == vector["iters"]
        alike = match(scores[None], in_bag[None], np.ones((1, 8), bool))
        assert alike[0].tolist() == [bool(label) for label in vector["label"]]

    def test_fits_as_scikit_learn_does(self):
        rng = np.random.default_rng(0)
        for _ in range(20):
            num = rng.integers(5, 13)
            values = rng.normal(size=num) + 2 * (rng.random(num) < 0.5)
            is_one = np.arange(num) >= rng.integers(1, num)
            groups = [values[~is_one], values[is_one]]
            theirs = GaussianMixture(
                2,
                weights_init=[len(g) / num for g in groups],
                means_init=[[g.mean()] for g in groups],
                precisions_init=[[[1 / (g.var() + 1e-6)]] for g in groups],
            ).fit(values[:, None])
            padded = np.pad(values, (0, 12 - num)).astype("f4")
            ours = fit(padded, np.pad(is_one, (0, 12 - num)), np.arange(12) < num)
            close(ours.mixture.mean, theirs.means_[:, 0], atol=1e-3)
            close(ours.mixture.variance, theirs.covariances_[:, 0, 0], atol=1e-3)
            assert (
                ours.label[:num].tolist()
                == (theirs.predict(values[:, None]) == 1).tolist()
            )

    def test_bags_without_anything_to_compare_stay(self):
        scores = np.array(
            [[0.1, 0.9, 0.5], [0.1, 0.9, 0.5], [0.1, -np.inf, 0.5]], np.float32
        )
        mask = np.ones((3, 3), bool)
        mask[0, 1] = False
        in_bag = np.array([[True, False, True], [False] * 3, [False, True, False]])
        alike = match(scores, in_bag, mask)
        assert alike.tolist() == [
            [True, False, True],
            [False] * 3,
            [False, True, False],
        ]

    def test_cosines(self):
        now = np.array([[1, 0], [1, 1], [0, 1], [-1, 0]], np.float32)
        ever = np.array([[1, 1], [2, 1], [1, 1], [0, -1]], np.float32)
        view = known_losses(np.ones((4, 4)), tables.all_others(4))._replace(
            params={"x": jnp.asarray(ever + 5)},
            before={"x": jnp.asarray(ever + 5 - now)},
        )
        compare = similarity.update_cosine()
        start = {"x": jnp.full((1, 2), 5.0)}
        found = jit(lambda: compare.measure(start, view, view.permitted))()
        close(found[0], list(VECTORS["panmgrad"].values()))
        close(compare.init(view)["x"], view.params["x"][:1])
        assert compare.payload(view) == 2

    def test_first_stage_keeps_neighbours_and_tries_new_ones(self):
        losses = np.full((10, 10), 5.0)
        losses[0, 7] = 0.1
        view = known_losses(losses, tables.all_others(10))
        selection = panm(num_peers=3, num_candidates=6, second_stage=100)
        ask = chooser(selection, view)
        state, seen = None, set()
        for t in range(12):
            peers, pulled, state = ask(t, state)
            assert (pulled.mask.sum(1) == 6).all()
            before = set(row(peers)) - {0}
            fetched = set(pulled.ids[0][pulled.mask[0]].tolist())
            assert before <= fetched
            if 7 in seen:
                assert 7 in before
            seen |= fetched
        assert seen == set(range(1, 10))

    def test_second_stage_matches_now_and_then(self):
        cluster = np.arange(12) % 2
        rng = np.random.default_rng(0)
        losses = np.where(cluster[:, None] == cluster, 0.5, 3.0) + 0.1 * rng.random(
            (12, 12)
        )
        view = known_losses(losses, tables.all_others(12))
        stages = {"second_stage": 10, "matching_every": 5}
        ask, as_in_the_thesis = (
            chooser(
                panm(num_peers=2, num_candidates=4, counts_all=all_, **stages), view
            )
            for all_ in (True, False)
        )
        state, sizes, num_kept = None, [], 0
        for t in range(40):
            before = state
            _, pulled, state = ask(t, state)
            sizes.append(np.asarray(state.bag).sum(1))
            fetched = pulled.mask.sum(1)
            if t + 1 < 10:
                assert (fetched == 4).all()
                assert (pulled.counted == pulled.mask).all()
            elif (t + 1) % 5:
                assert (fetched == 2).all()
                assert (sizes[-1] == sizes[-2]).all()
            else:
                assert (fetched <= 4 + 4 + 2).all() and (fetched >= 4 + 2).all()
            if t + 1 >= 10:  # as the thesis counts, only what is examined costs
                _, cheap, _ = as_in_the_thesis(t, before)
                num_inside = sizes[-2]
                num_examined = np.minimum(num_inside, 4) + np.minimum(
                    11 - num_inside, 4
                )
                is_matching = (t + 1) % 5 == 0
                assert (cheap.mask.sum(1) == is_matching * num_examined).all()
                counted = pulled.counted & pulled.mask
                assert (counted.sum(1) == is_matching * num_examined).all()
                is_examined = np.zeros((12, 12), bool)
                agent, slot = np.nonzero(cheap.mask)
                is_examined[agent, np.asarray(cheap.ids)[agent, slot]] = True
                has_changed = np.asarray(state.bag) != np.asarray(before.bag)
                assert (has_changed <= is_examined).all()
                num_kept += (np.asarray(before.bag) & ~is_examined).sum() * is_matching
        assert num_kept > 0  # members that a matching did not examine
        # Nobody from outside is in anybody's bag, and most of the cluster is; but a
        # bag of two with nearly equal losses takes others for a different group.
        is_inside = (cluster[:, None] == cluster) & ~np.eye(12, dtype=bool)
        bag = np.asarray(state.bag)
        assert (bag <= is_inside).all()
        assert bag.sum() > 0.5 * is_inside.sum()


def test_leaves_that_stay_are_not_compared():
    """Heads are opposite, what is sent is alike; also with one start for all."""
    params = {"head": jnp.asarray([1.0, -1.0, 1.0]), "body": jnp.asarray([1.0, 2, -3])}
    start = jax.tree.map(jnp.zeros_like, params)
    look = make_peer_view(
        TOY,
        equal_weights=False,
        probe=None,
        local=("params/head",),
        agent_loop=agent_loop.IN_PLACE,
    )
    view = look(
        tables.all_others(3), Variables(params, {}), start, toy_world([0.0] * 3)
    )
    table = table_of([1, 2], [0, 2], [0, 1])
    for before in (start, jax.tree.map(lambda leaf: leaf[:1], start)):
        found = jit(lambda before: view.cosines(before, table))(before)
        close(found, [[1, -1], [1, -1], [-1, -1]])


class TestL2C:
    def test_rate_falls(self):
        close([learning_rate(step) for step in (0, 100, 300)], [0.1, 0.05, 0.025])
        view = known_losses(np.tile([0.5, 1, 2], (3, 1)), tables.all_others(3))
        with jax.numpy_dtype_promotion("standard"):
            ask = chooser(l2c(num_kept=2), view)
            _, _, first = ask()
            _, _, second = ask(1, first)
            gradients = [
                jax.nn.softmax(logits) - jax.nn.softmax(-np.array([0.5, 1, 2]) / 2)
                for logits in (np.zeros(3), first.logits[0])
            ]
        mean = (0.9 * 0.1 * gradients[0] + 0.1 * gradients[1]) / (1 - 0.9**2)
        square = 0.999 * 0.001 * gradients[0] ** 2 + 0.001 * gradients[1] ** 2
        step = mean / (np.sqrt(square / (1 - 0.999**2)) + 1e-7)
        close(second.logits[0] - first.logits[0], -0.1 / 1.01 * step, atol=1e-5)

    def test_surrogate(self):
        vector = VECTORS["l2c_surrogate"]
        losses = np.tile(np.array([0.5, 1, 2]), (3, 1))
        view = known_losses(losses, tables.all_others(3))
        with jax.numpy_dtype_promotion("standard"):
            peers, pulled, state = choose(l2c(num_kept=1), view)
        close(state.logits[0], vector["alpha_after_adam"])
        weight = row(peers)
        close([weight[j] for j in range(3)], vector["mix"])
        close([weight[j] for j in range(3)], vector["wstar"])
        close(analysis.dense_matrix(peers)[0] @ [1, 2, 6], vector["x"])
        # Adam's first step hides the size of the gradient; plain steps show it.
        ask = chooser(l2c(num_kept=1, optimizer=optax.sgd(1.0)), view)
        _, _, state = ask()
        close(state.logits[0], -np.array(vector["grad"]))
        assert state.kept.neighbor[:, 0].tolist() == [1, 0, 0]
        # Later weights know both the losses and the logits.
        peers, pulled, state = ask(1, state)
        expected = np.exp(-losses[0] / 2 - np.array(vector["grad"]))
        close([row(peers)[j] for j in range(3)], expected / expected.sum())
        assert (pulled.mask.sum(1) == 2).all()
        peers, pulled, state = ask(10, state)
        assert (pulled.mask.sum(1) == 1).all()
        assert set(row(peers)) == {0, 1}

    def test_bilevel(self):
        vector = VECTORS["l2c_bilevel"]
        after = Variables({"x": jnp.asarray([0.5, 1.5, 5.5])}, {})
        before = {"x": jnp.ones(3)}
        look = make_peer_view(
            TOY, equal_weights=False, probe=None, local=(), agent_loop=agent_loop.VMAP
        )
        world = jax.tree.map(jnp.asarray, toy_world([0.0, 0, 0]))
        view = look(tables.all_others(3), after, before, world)
        third = Peers(jnp.asarray([[0, 1, 2]] * 3), jnp.full((3, 3), 1 / 3))
        mixed = view.before["x"] + view.mix(after.params, third)["x"] - 1
        close(mixed, [vector["theta"]] * 3)
        gradient = view.gradient({"x": mixed}, view.valid)
        learned = 1 - np.array([0.5, 1.5, 5.5])  # before - after
        close(-np.asarray(gradient["x"])[0] * learned, vector["dL/dw"])
        selection = l2c(bilevel=True, num_kept=1, optimizer=optax.sgd(0.1))
        assert selection.merges_updates
        peers, _, state = choose(selection, view)
        close(state.logits[0], vector["alpha"])
        close(state.logits[0], -0.1 * np.array(vector["dL/dalpha"]))
        expected = np.exp(vector["alpha"])
        close([row(peers)[j] for j in range(3)], expected / expected.sum())

    def test_updates_are_merged(self):
        """Everybody adds the weighted mean of what was learned to what it had."""
        # Rate 0 keeps the weights equal.
        selection = l2c(bilevel=True, optimizer=optax.sgd(0.0))
        world = toy_world()
        states, _ = played(pull(TOY, TOY_LEARNER, selection, batch_size=1), world, 3)
        x, targets = np.ones(4), np.array(TARGETS)
        for found in np.asarray(states.variables.params["x"]):
            after = (x + targets) / 2
            close(found, after)
            x = x + (after - x).mean()

    def test_needs_validation_examples(self):
        world = toy_world()
        empty = Split({"c": np.zeros((4, 0), "f4")}, np.zeros(4, "i4"))
        algorithm = pull(TOY, TOY_LEARNER, l2c(), batch_size=1)
        with pytest.raises(InputError, match="validation examples for L2C"):
            run(algorithm, world._replace(valid=empty), 1)


class TestDiPLe:
    def test_bisection(self):
        find = jit(lambda c: bisected(lambda share: (0.5 + share) - c, 0.005))
        for target, expected in VECTORS["diple_bis"].items():
            assert find(jnp.float32(float(target))) == expected
        assert find(jnp.nan) == 0  # no slope, no step

    def test_weights(self):
        vector = VECTORS["diple_mix"]
        table = table_of([1, 2, 3], [0], [0], [0])
        shares = jnp.zeros((4, 3)).at[0].set(jnp.asarray([0.30078125, 0, 1]))
        peers = normalised(table, shares)
        close(analysis.dense_matrix(peers)[0], vector["w"])
        close(analysis.dense_matrix(peers)[0] @ [0.5, 1.5, 1.5, 1.5], vector["x"])
        assert peers.ids[0].tolist() == [0, 1, 0, 3]

    @pytest.mark.parametrize("own_gradients", [False, True])
    def test_useless_peers_are_not_asked_again(self, own_gradients):
        """Also if the network has gradients of its own, so no forward mode."""
        models = Variables({"x": jnp.asarray([0.5, 1.5, -3.0, 0.6])}, {})
        same = jax.custom_vjp(lambda x: x)
        same.defvjp(lambda x: (x, None), lambda _, g: (g,))

        def evaluate(variables, batch):
            return TOY.evaluate(jax.tree.map(same, variables), batch)

        look = make_peer_view(
            TOY._replace(evaluate=evaluate) if own_gradients else TOY,
            equal_weights=False,
            probe=None,
            local=(),
            agent_loop=agent_loop.IN_PLACE,
        )
        world = jax.tree.map(jnp.asarray, toy_world([0.8, 1.5, -3.0, 0.6]))
        view = look(tables.all_others(4), models, models.params, world)
        ask = chooser(line_search(), view)
        _, pulled, shares = ask()
        assert (pulled.mask.sum(1) == 3).all()
        close(shares[0], [0.5, 0.30078125, 0, 1])
        peers, pulled, _ = ask(1, shares)
        assert sorted(row(peers)) == [0, 1, 3]
        # The others are where their loss is least: they stay alone.
        assert pulled.mask.sum(1).tolist() == [2, 0, 0, 0]
        assert row(peers, 1) == {1: 1.0}

    def test_useless_peers_come_back_by_chance(self):
        models = Variables({"x": jnp.asarray([0.5, 1.5, -3.0, 0.6])}, {})
        look = make_peer_view(
            TOY,
            equal_weights=False,
            probe=None,
            local=(),
            agent_loop=agent_loop.IN_PLACE,
        )
        world = jax.tree.map(jnp.asarray, toy_world([0.8, 1.5, -3.0, 0.6]))
        view = look(tables.all_others(4), models, models.params, world)
        ask = chooser(line_search(return_probability=0.25), view)
        found = [ask(t, jnp.zeros((4, 4)))[1].mask for t in range(40)]
        # Three peers of each of four agents, forty times.
        assert np.mean(found) == pytest.approx(0.25, abs=0.06)
        _, pulled, shares = ask(0, jnp.zeros((4, 4)).at[0, 1].set(1.0))
        assert pulled.mask[0, 0] and shares[0, 1] == 0.30078125
        with pytest.raises(InputError, match="between 0 and 1, got 1.5: 0 asks"):
            line_search(return_probability=1.5)

    def test_a_search_on_validation_examples_needs_some(self):
        world = toy_world()
        empty = Split({"c": np.zeros((4, 0), "f4")}, np.zeros(4, "i4"))
        search = line_search(on_valid=True)
        algorithm = diple(TOY, TOY_LEARNER, batch_size=1, selection=search)
        with pytest.raises(InputError, match="Need validation examples for a line"):
            run(algorithm, world._replace(valid=empty), 1)

    def test_useless_peers_are_not_asked_under_a_cap_either(self):
        models = Variables({"x": jnp.zeros(8)}, {})
        look = make_peer_view(
            TOY,
            equal_weights=False,
            probe=None,
            local=(),
            agent_loop=agent_loop.IN_PLACE,
        )
        world = jax.tree.map(jnp.asarray, toy_world(np.zeros(8)))
        view = look(tables.all_others(8), models, models.params, world)
        ask = chooser(limit_requests(line_search(num_peers=3), 2), view)
        shares = jnp.full((8, 8), 0.5).at[:, 4:].set(0)
        for t in range(5):
            _, pulled, _ = ask(t, shares)
            assert pulled.mask.any() and (pulled.ids[pulled.mask] < 4).all()

    @pytest.mark.parametrize("from_start", [False, True])
    def test_a_cycle_step_by_step(self, from_start):
        """Two agents that ask each other, scalar models, in plain Python."""
        targets, rate = np.array([1.0, 2.0]), 0.5
        valid = np.array([1.4, 1.2]) if from_start else targets
        algorithm = diple(
            TOY,
            TOY_LEARNER,
            batch_size=1,
            num_iterations=2,
            selection=line_search(on_valid=from_start),
            from_start=from_start,
        )
        world = toy_world(targets)._replace(valid=toy_world(valid).train)
        states, info = played(algorithm, world, 3)
        x, shares = np.ones(2), np.full((2, 2), 0.5)
        for cycle in range(3):
            h = x - rate * (x - targets)
            weight = np.zeros((2, 2))
            for n, j in ((0, 1), (1, 0)):
                is_asked = shares[n, j] > 0
                if is_asked:
                    looks = np.where(np.arange(2) == n, x if from_start else h, h)
                    found = float(bisect(line_slope(looks, valid, n, j), 0.005))
                    shares[n, j] = found if found >= 0.0025 else 0.0
                weight[n] = np.array([0.5, 0.5])
                weight[n, j] = shares[n, j] if is_asked else 0
                # Once to look, and in each iteration if it counts.
                used = 2 * (weight[n, j] > 0)
                assert info.received[cycle, n] == (1 + used if is_asked else 0)
            weight /= weight.sum(1, keepdims=True)
            best, best_loss = h.copy(), np.full(2, np.inf)
            x = h
            for _ in range(2):
                x = x - rate * (x - targets)
                x = weight @ x
                for step in (0, rate):
                    x = x - step * (x - targets)
                    loss = (x - targets) ** 2 / 2
                    best = np.where(loss < best_loss, x, best)
                    best_loss = np.minimum(loss, best_loss)
            x = best
            close(states.variables.params["x"][cycle], x)
        assert (info.examples == 5).all()

    def test_examples_are_counted(self):
        # An agent of five takes 2, 2 and 1 at a time.
        for step, expected in enumerate([0, 2, 4, 5, 7, 9, 10, 12]):
            assert (
                samplers.examples_in_steps(np.int32(step), np.int32(5), 2) == expected
            )


def bisect(slope, tolerance):
    """In plain Python."""
    if slope(0.0) >= 0:
        return 0.0
    if slope(1.0) <= 0:
        return 1.0
    left, right = 0.0, 1.0
    while (right - left) / 2 > tolerance:
        middle = (left + right) / 2
        if slope(middle) == 0:
            return middle
        left, right = (left, middle) if slope(middle) > 0 else (middle, right)
    return (left + right) / 2


def line_slope(h, targets, n, j):
    return lambda a: ((1 - a) * h[n] + a * h[j] - targets[n]) * (h[j] - h[n])


class TestAUCCCR:
    features = np.array([[0, 0], [0.2, 0], [3, 0], [3.2, 0]])

    @pytest.mark.parametrize(
        "name, group",
        [
            ("{01}{23}", [0, 0, 1, 1]),
            ("{0123}", [0, 0, 0, 0]),
            ("alone", [aucccr.ALONE] * 4),
        ],
    )
    def test_utilities(self, name, group):
        found = aucccr.utilities(self.features, np.array(group), aucccr.root_of_size())
        close(found, VECTORS["aucccr"][name]["u"], atol=1e-6)
        close(found.sum(), VECTORS["aucccr"][name]["total"], atol=1e-6)

    def test_groups(self):
        group = aucccr.value_groups(np.random.default_rng(0), self.features)
        assert group.tolist() == [0, 0, 1, 1]
        far = np.array([[0.0, 0], [100, 0], [0.1, 0], [200, 300]])
        group = aucccr.value_groups(np.random.default_rng(0), far)
        assert group.tolist() == [0, aucccr.ALONE, 0, aucccr.ALONE]

    def test_groups_of_many(self):
        rng = np.random.default_rng(1)
        cluster = rng.integers(0, 3, 30)
        features = 10 * np.eye(3)[cluster] + 0.1 * rng.normal(size=(30, 3))
        group = aucccr.value_groups(rng, features)
        same = cluster[:, None] == cluster
        assert ((group[:, None] == group) == same).all() and (group >= 0).all()

    def test_value(self):
        close(aucccr.root_of_size(40)(np.array(50)), 6.324555, atol=1e-6)
        close(aucccr.root_of_size(20)(np.array(50)), 4.472136, atol=1e-6)

    def test_profiles(self):
        outputs = np.array([[[0.9, 0.1, 0], [0.5, 0.5, 0], [0, 0, 1]]])
        found = aucccr.profiles(outputs, np.array([0, 0, 2]))
        close(found[0].reshape(3, 3), [[0.7, 0.3, 0], [0, 0, 0], [0, 0, 1]])

    def test_topology(self):
        group = np.array([0] * 6 + [1, 1] + [aucccr.ALONE])
        graph = aucccr.group_graph(np.random.default_rng(0), group, degree=3)
        assert topology.in_degrees(graph).tolist() == [3] * 6 + [1, 1, 0]
        assert topology.out_degrees(graph).tolist() == [3] * 6 + [1, 1, 0]
        sender, receiver = topology.edges(graph)
        assert (group[sender] == group[receiver]).all()


class TestDCliques:
    def test_swaps_remove_the_skew(self):
        pure = np.array([[5, 0], [3, 0], [0, 2], [0, 9]])  # sizes do not count
        before, after = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
        assert skew(pure, before).tolist() == [1, 1]
        assert skew(pure, after).tolist() == [0, 0]
        for seed in range(5):
            rng = np.random.default_rng(seed)
            found = cliques(rng, pure, max_size=2, num_swaps=20)
            assert skew(pure, found).tolist() == [0, 0]

    def test_skew_never_rises(self):
        rng = np.random.default_rng(0)
        histograms = rng.integers(0, 50, (23, 4)) + 1
        totals = []
        for num_swaps in (0, 3, 30, 300):
            found = cliques(
                np.random.default_rng(5), histograms, max_size=5, num_swaps=num_swaps
            )
            assert np.bincount(found).tolist() == [5, 5, 5, 4, 4]
            totals.append(skew(histograms, found).sum())
        assert (np.diff(totals) < 0).all()

    def test_topology(self):
        graph = clique_graph(np.repeat(np.arange(10), 10))
        degree = topology.in_degrees(graph)
        assert degree.sum() == 2 * (450 + 45)
        assert degree.mean() == 9.9 and set(degree) == {9, 10}
        assert not analysis.is_directed(graph)

    def test_one_round(self):
        vector = VECTORS["dcliques"]
        clique = np.array([0, 1, 0, 1])
        algorithm = d_cliques(TOY, optax.sgd(0.5), clique, batch_size=1)
        states, info = played(algorithm, toy_world(), 1)
        close(states.variables.params["x"][0], vector["x"])
        # A gradient from the clique mate, and models of one or two neighbours.
        assert info.sent.tolist() == info.received.tolist() == [[3, 3, 2, 2]]
        assert info.links.arrived.sum(2).tolist() == [[3, 3, 2, 2]]
        assert info.merged.arrived.sum(2).tolist() == [[2, 2, 1, 1]]

    def test_gradients_that_stay(self):
        algorithm = d_cliques(
            TOY,
            optax.sgd(0.5),
            np.zeros(4, int),
            batch_size=1,
            local_patterns=("params/x",),
        )
        states, info = played(algorithm, toy_world(), 1)
        close(states.variables.params["x"][0], [0.5, 1.5, 2.5, 5.5])
        assert info.payload.sum() == 0

    def test_label_histograms(self):
        split = stacking.stack_agents(
            [{"y": np.array([0, 2, 2])}, {"y": np.array([1])}]
        )
        assert stacking.label_histograms(split, 3).tolist() == [[1, 0, 2], [0, 1, 0]]


class TestMaxRequests:
    @pytest.mark.parametrize("most", [1, 3])
    def test_nobody_is_asked_too_often(self, most):
        rng = np.random.default_rng(most)
        num_agents, num_slots = 12, 4
        everybody = tables.all_others(num_agents)
        scores = jnp.asarray(
            np.tile(rng.normal(size=num_agents), (num_agents, 1)), "f4"
        )
        wanted = tables.top_k(everybody, tables.lookup(scores, everybody), num_slots)
        view = known_losses(np.ones((num_agents,) * 2), everybody)
        view = view._replace(max_requests=most)
        found = jit(lambda key: apply_request_limit(key, view, wanted))(KEY)
        ids, mask = map(np.asarray, found)
        assert (ids != np.arange(num_agents)[:, None])[mask].all()
        load = np.bincount(ids[mask], minlength=num_agents)
        assert load.max() <= most
        for n in range(num_agents):
            own = ids[n][mask[n]]
            assert len(set(own)) == len(own)
            if len(own) < num_slots:  # only where nobody was left to ask
                rest = set(range(num_agents)) - {n, *own.tolist()}
                assert all(load[j] == most for j in rest)
        kept = (ids == np.asarray(wanted.neighbor)) & mask
        popular = np.bincount(np.asarray(wanted.neighbor).ravel())
        assert kept.sum() == np.minimum(popular, most).sum()
        if most < 4:
            assert not mask.all() or most * num_agents >= mask.size

    def test_places_taken_before_count(self):
        num_agents = 5
        view = known_losses(np.ones((5, 5)), tables.all_others(num_agents))
        before = table_of([1], [2], [1], [1], [1])
        wanted = table_of([1, 2], [0, 3], [1, 3], [2, 4], [2, 3])
        view = view._replace(max_requests=3)
        tight = jit(lambda key: apply_request_limit(key, view, wanted, before))(KEY)
        # Who has asked 1 before may do so again, in the place that it has.
        assert tight.neighbor[0, 0] == tight.neighbor[2, 0] == 1
        both = np.concatenate([tight.neighbor[tight.mask], before.neighbor[:, 0]])
        repeated = 2  # 0 and 2 ask 1 twice, which is one place
        load = np.bincount(both, minlength=5)
        assert load[1] - repeated <= 4 and (np.delete(load, 1) <= 3).all()


class TestViewSize:
    def test_views_stay_fresh(self):
        num_agents, size = 40, 8
        permitted = tables.all_others(num_agents)
        known = tables.sample(KEY, permitted, size)
        # Half of the agents are known to nobody at first.
        known = Topology(known.neighbor // 2, known.mask)
        known = tables.where(known.neighbor != jnp.arange(num_agents)[:, None], known)
        stay = tables.padded(table_of(*[[(n + 1) % num_agents] for n in range(40)]), 2)

        @jit
        def advance(key, known):
            known = exchange_views(key, known, stay, permitted)
            return known, tables.members(known)

        seen = np.zeros((num_agents, num_agents))
        for t in range(150):
            known, members = advance(jax.random.fold_in(KEY, t), known)
            members = np.asarray(members)
            seen += members
            assert members.sum() == np.asarray(known.mask).sum()  # nobody twice
            assert not members.diagonal().any()
            assert members[np.arange(40), (np.arange(40) + 1) % 40].all()
        assert np.asarray(known.mask).all()
        met = (seen > 0).sum(1)
        assert met.min() > 35  # of 39
        shown = seen.sum(0)
        assert shown.min() > 0.5 * shown.mean() and shown.max() < 2 * shown.mean()

    def test_only_permitted_agents_enter(self):
        graph = generators.ring(10)
        permitted = jax.tree.map(jnp.asarray, graph)
        is_permitted = tables.members(permitted)
        advance = jit(
            lambda key, known: exchange_views(
                key, known, tables.empty(10, 1), permitted
            )
        )
        known = permitted
        for t in range(5):
            known = advance(jax.random.fold_in(KEY, t), known)
        assert (np.asarray(tables.members(known)) <= np.asarray(is_permitted)).all()


class TestProbe:
    def test_agreement(self):
        outputs = np.array(
            [[[1, 0], [0.5, 0.5]], [[1, 0], [0.5, 0.5]], [[0, 1], [0.5, 0.5]]]
        )
        view = known_losses(np.ones((3, 3)), tables.all_others(3))._replace(
            predictions=lambda: jnp.asarray(outputs, jnp.float32), model_size=16
        )
        compare = similarity.agreement()
        found = compare.measure((), view, view.permitted)
        close(found, [[1, 0.5], [1, 0.5], [0.5, 0.5]])
        assert compare.payload(view) == 4 / 16

    @pytest.mark.parametrize(
        "choice, num_fetched, num_merged",
        [
            (partial(panm, num_peers=1, num_candidates=3), 3, 1),
            (partial(dac, num_peers=2), 2, 2),
        ],
        ids=["panm", "dac"],
    )
    def test_candidates_send_predictions_and_merged_peers_models(
        self, choice, num_fetched, num_merged
    ):
        probe = peer_evaluation.Probe(
            lambda variables, batch: jax.nn.softmax(
                jnp.stack([variables.params["x"] * batch["a"], batch["a"]], 1)
            ),
            {"a": np.ones(3, np.float32)},
        )
        compared = choice(similarity=similarity.agreement())
        algorithm = pull(TOY, TOY_LEARNER, compared, batch_size=1, probe=probe)
        _, info = played(algorithm, toy_world(), 3)
        assert (info.received == num_fetched).all()
        # One parameter is a model; predictions are 3 x 2 numbers.
        sent = 4 * (num_fetched * 6 + num_merged)
        assert info.payload.sum(1).tolist() == [sent] * 3

    def test_needs_a_probe(self):
        compared = dac(similarity=similarity.agreement())
        with pytest.raises(InputError, match="Need a probe"):
            run(pull(TOY, TOY_LEARNER, compared, batch_size=1), toy_world(), 1)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: sparse(0), "num_peers=0"),
        (lambda: pens(num_peers=4, num_candidates=3), "num_candidates=3"),
        (lambda: pens(second_stage=0), "second_stage=0"),
        (lambda: dac(num_peers=0), "num_peers=0"),
        (lambda: dac(sharpness=-1.0), "sharpness=-1.0"),
        (lambda: panm(num_peers=0), "num_peers=0"),
        (lambda: panm(matching_every=0), "matching_every=0"),
        (lambda: panm(second_stage=1), "second_stage of 2 or more"),
        (lambda: l2c(num_kept=0), "num_kept=0"),
        (lambda: l2c(num_rounds_all=0), "num_rounds_all=0"),
        (lambda: line_search(tolerance=0.7), "tolerance=0.7"),
        (lambda: similarity.update_cosine(1.5), "from 0 to 1, got 1.5"),
        (lambda: limit_requests(pens(), 0), "max_requests of 1 or more, got 0"),
        (lambda: partial_view(pens(), 1), "2 agents or more"),
        (lambda: diple(TOY, TOY_LEARNER, batch_size=1, num_iterations=0), "iteration"),
        (
            lambda: d_cliques(TOY, optax.sgd(0.1), np.zeros((2, 2)), batch_size=1),
            "clique of every agent",
        ),
        (lambda: cliques(None, np.zeros((2, 3))), "none without examples"),
        (lambda: cliques(None, np.ones((2, 3)), max_size=0), "max_size=0"),
        (lambda: aucccr.value_groups(None, np.full((2, 2), np.nan)), "finite features"),
        (lambda: aucccr.profiles(np.ones((2, 3)), np.ones(3)), "for 3 labels"),
        (
            lambda: run(
                pull(TOY, TOY_LEARNER, sparse(), generators.ring(5), batch_size=1),
                toy_world(),
                1,
            ),
            "as the data have, 4, got one of 5",
        ),
        (
            lambda: pull(
                TOY,
                TOY_LEARNER,
                sparse(),
                generators.ring(4),
                batch_size=1,
                rewire_every=2,
            ),
            "rewire_every=2 and one graph",
        ),
        (
            lambda: pull(
                TOY,
                TOY_LEARNER,
                sparse(),
                lambda rng: [generators.ring, generators.complete][rng.random() < 0.6](
                    4
                ),
                batch_size=1,
                rewire_every=1,
            ).plan(np.random.default_rng(1), toy_world(), 5),
            "graphs of one width",
        ),
    ],
)
def test_refuses(build, message):
    with pytest.raises(InputError, match=message):
        build()
