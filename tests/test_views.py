"""Agents that know a few others: tables of views agree with tables of all pairs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_protocols import jit
from test_selection import KEY, known_losses, table_of

import p2pjax as pj
from p2pjax.graphs.topology import Topology
from p2pjax.selection import pair_values, tables
from p2pjax.selection.dac import dac, two_hop_similarity
from p2pjax.selection.diple import line_search
from p2pjax.selection.l2c import l2c
from p2pjax.selection.panm import panm
from p2pjax.selection.peer_sampling import partial_view
from p2pjax.selection.pens import pens
from p2pjax.selection.request_limits import limit_requests
from p2pjax.types import InputError

STAGES = {"num_peers": 2, "num_candidates": 4, "second_stage": 5}
SELECTIONS = {
    "pens": pens(**STAGES),
    "dac": dac(num_peers=2, sharpness=3.0),
    "panm": panm(matching_every=2, **STAGES),
    "l2c": l2c(num_kept=2, num_rounds_all=4),
}
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)


@st.composite
def views(draw):
    """Different peers of each agent, in any order, with unused slots anywhere.

    Of few shapes: each operation on another one is compiled.
    """
    num_agents = draw(st.sampled_from([2, 5, 8]))
    lists = []
    for n in range(num_agents):
        others = [j for j in range(num_agents) if j != n]
        lists.append(draw(st.lists(st.sampled_from(others), unique=True)))
    needed = max(1, max(map(len, lists)))
    width = max(needed, draw(st.sampled_from([num_agents // 2, num_agents + 1])))
    table = table_of(*lists, width=width)
    order = draw(st.permutations(range(width)))
    return Topology(*(leaf[:, np.array(order)] for leaf in table))


def dense(pairs):
    """`[N, N]`, 0 for those who are not known."""
    if not isinstance(pairs, pair_values.Known):
        return np.asarray(pairs)
    (ids, mask), value = jax.tree.map(np.asarray, pairs)
    found = np.zeros((len(ids), len(ids)), value.dtype)
    row, slot = np.nonzero(mask)
    found[row, ids[row, slot]] = value[row, slot]
    return found


class TestPairValues:
    @settings(deadline=None, max_examples=30)
    @given(st.data())
    def test_agree_with_a_table_of_all_pairs(self, data):
        view = data.draw(views())
        num_agents, width = view.mask.shape
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        known = np.asarray(tables.members(view))
        expected = np.zeros((num_agents, num_agents), np.int32)
        pairs = pair_values.blank(view, jnp.int32, forgets=True)
        assert pairs.value.shape == (num_agents, width)
        for _ in range(3):
            table = tables.where(rng.random(view.mask.shape) < 0.5, view)
            new = rng.integers(1, 99, view.mask.shape).astype(np.int32)
            for n, slot in zip(*np.nonzero(np.asarray(table.mask)), strict=True):
                expected[n, table.neighbor[n, slot]] = new[n, slot]
            pairs = pair_values.noted(pairs, table, jnp.asarray(new))
        assert (dense(pairs) == expected).all()
        all_others = tables.all_others(num_agents)
        found = pair_values.recalled(pairs, all_others, fill=-1)
        wanted = np.where(known, expected, -1)
        assert (found == np.asarray(tables.lookup(wanted, all_others))).all()
        # Some leave, and come back as strangers.
        fewer = tables.where(rng.random(view.mask.shape) < 0.5, view)
        left = pair_values.followed(pairs, fewer)
        assert (dense(left) == expected * np.asarray(tables.members(fewer))).all()
        back = pair_values.followed(left, view, fill=7)
        stayed = np.asarray(tables.members(fewer))
        assert (dense(back) == np.where(stayed, expected, 7) * known).all()

    @settings(deadline=None, max_examples=30)
    @given(views(), views())
    def test_contains_is_a_lookup_among_members(self, one, other):
        size = min(len(one.mask), len(other.mask))
        among, table = (
            tables.where(
                leaf.neighbor[:size] < size,
                Topology(*(part[:size] for part in leaf)),
            )
            for leaf in (one, other)
        )
        expected = tables.lookup(tables.members(among), table)
        assert (tables.contains(among, table) == expected).all()
        found = tables.search(tables.in_order(among), table)[1]
        assert (found == expected).all()

    def test_few_slots_need_no_table_of_all_pairs(self):
        graph = jax.tree.map(jnp.asarray, pj.graphs.random_views(50, 6, seed=0))
        some = tables.sample(KEY, graph, 3)
        assert np.asarray(tables.contains(graph, some)).all()
        found = np.asarray(tables.contains(some, graph))
        assert (found.sum(1) == 3).all()
        assert largest(lambda: tables.contains(some, graph)) < 50 * 50

    def test_two_hops_within_views(self):
        rng = np.random.default_rng(0)
        graph = pj.graphs.random_views(12, 5, seed=0)
        known = tables.members(jax.tree.map(jnp.asarray, graph))
        every = np.where(known, rng.random((12, 12)), 0).astype(np.float32)
        every[rng.random((12, 12)) < 0.3] = 0
        pairs = pair_values.blank(graph, jnp.float32, forgets=True)
        values = tables.lookup(jnp.asarray(every), pairs.about)
        pairs = pair_values.with_values(pairs, jnp.where(pairs.about.mask, values, 0))
        asked = tables.sample(KEY, jax.tree.map(jnp.asarray, graph), 3)
        found = rng.random((12, 3)).astype(np.float32)
        told = np.asarray(two_hop_similarity(pairs, asked, jnp.asarray(found)))
        for n in range(12):
            for slot, j in enumerate(np.asarray(pairs.about.neighbor)[n]):
                says = [
                    (found[n, c], every[p, j])
                    for c, p in enumerate(np.asarray(asked.neighbor)[n])
                    if every[p, j] > 0
                ]
                assert told[n, slot] == (max(says)[1] if says else 0)


class TestSelections:
    @pytest.mark.parametrize("name", SELECTIONS)
    @pytest.mark.parametrize("cap", [None, 3])
    def test_views_of_all_others_agree_with_tables_of_all_pairs(self, name, cap):
        """Ties included: draws and bests depend on `permitted` alone."""
        selection = SELECTIONS[name]
        if cap is not None:
            selection = limit_requests(selection, cap)
        losses = np.random.default_rng(1).random((9, 9)).round(1) + 0.1
        full = known_losses(losses, tables.all_others(9))
        runs = []
        for view in (full, full._replace(forgets=True)):
            state = selection.init(KEY, view)
            select = jit(
                lambda key, t, state, view=view: selection.select(key, t, state, view)
            )
            run = []
            for t in range(9):
                key = jax.random.fold_in(KEY, t)
                peers, fetched, state = select(key, jnp.int32(t), state)
                run.append(jax.tree.map(np.asarray, (peers, fetched)))
            is_known = isinstance(state, pair_values.Known)
            flat = [state] if is_known or name == "pens" else state
            pairs = [
                dense(part)
                for part in flat
                if isinstance(part, pair_values.Known | jax.Array)
            ]
            assert pairs
            runs.append((run, pairs))
        (all_runs, all_pairs), (view_runs, view_pairs) = runs
        jax.tree.map(np.testing.assert_array_equal, all_runs, view_runs)
        for one, other in zip(all_pairs, view_pairs, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_chance_is_one_of_a_view(self):
        graph = pj.graphs.random_views(40, 3, seed=0)
        view = known_losses(np.ones((40, 40)), jax.tree.map(jnp.asarray, graph))
        view = view._replace(forgets=True)
        selection = pens(num_peers=1, num_candidates=3, second_stage=9)
        kept = selection.init(KEY, view)
        # One of three peers and oneself is kept 9 / 4 times on average.
        kept = kept._replace(value=jnp.tile(jnp.asarray([2, 3, 0]), (40, 1)))
        peers, *_ = selection.select(KEY, jnp.int32(8), kept, view)
        assert (peers.ids[:, 1] == kept.about.neighbor[:, 1]).all()

    def test_who_leaves_a_view_is_forgotten_if_told_so(self):
        view = known_losses(np.ones((30, 30)), tables.all_others(30))
        for forgets, width in ((True, 5), (False, 30)):
            selection = partial_view(dac(num_peers=2), 5, forgets=forgets)
            state = selection.init(KEY, view)
            for t in range(6):
                key = jax.random.fold_in(KEY, t)
                *_, state = selection.select(key, jnp.int32(t), state, view)
            similarity = state.inner.similarity
            assert pair_values.values(similarity).shape == (30, width)


def largest(function, *arguments):
    """Elements of the largest array in a program."""

    def of(jaxpr):
        sizes = [0]
        for equation in jaxpr.eqns:
            sizes += [np.prod(v.aval.shape, dtype=int) for v in equation.outvars]
            for inner in jax.tree.leaves(
                equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")
            ):
                inner = getattr(inner, "jaxpr", inner)
                sizes += [of(inner)] if hasattr(inner, "eqns") else []
        return max(sizes)

    return of(jax.make_jaxpr(function)(*arguments).jaxpr)


SIZE, VIEW = 200, 8
METHODS = {
    "pens": {"num_peers": 2},
    "dac": {},
    "dac_cosine": {"similarity": pj.selection.update_cosine()},
    "panm": {},
    "panm_cosine": {"similarity": pj.selection.update_cosine()},
    "diple": {},
    "l2c": {"num_rounds_all": 1},
    "sparse": {"num_peers": 3},
}


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(SIZE * 4, 3)).astype(np.float32), np.arange(SIZE * 4) % 2
    data = pj.federate(
        x,
        y,
        num_agents=SIZE,
        split=pj.split.iid(),
        test_fraction=0.25,
        valid_fraction=0.25,
    )
    return pj.classification(pj.nn.MLP((24, 2)), data), data


class TestMethods:
    @pytest.mark.parametrize("losses", [False, True])
    @pytest.mark.parametrize("name", METHODS)
    def test_no_array_of_all_pairs(self, world, name, losses):
        """Nor of [N, K, P]: three copies of the largest leaf (72) are more than N."""
        task, data = world
        graph = pj.graphs.random_views(SIZE, VIEW, seed=0)
        more = {"channel": pj.channel.drop(0.2)} if losses else {}
        method = getattr(pj, name.removesuffix("_cosine"))(
            task, optax.sgd(0.1), graph, batch_size=2, **METHODS[name], **more
        )
        key = jax.random.key(0)
        inputs = method.plan(np.random.default_rng(0), data, 1)
        first = jax.tree.map(lambda leaf: leaf[0], inputs)
        state = jax.eval_shape(method.init, key, data)
        assert largest(method.init, key, data) < SIZE * SIZE
        assert all(leaf.size < SIZE * SIZE for leaf in jax.tree.leaves(state))
        round_size = largest(method.round, key, jnp.int32(0), first, state, data)
        assert round_size < SIZE * SIZE

    @pytest.mark.parametrize("name", ["pens", "dac", "panm"])
    def test_views_run_and_peers_stay_inside(self, world, name):
        task, data = world
        graph = pj.graphs.random_views(SIZE, VIEW, seed=0)
        method = getattr(pj, name)(
            task, optax.sgd(0.1), graph, batch_size=2, channel=pj.channel.drop(0.2)
        )
        step = jit(method.round)
        state = jit(method.init)(KEY, data)
        inputs = method.plan(np.random.default_rng(0), data, 3)
        known = np.asarray(tables.members(jax.tree.map(jnp.asarray, graph)))
        known = known | np.eye(SIZE, dtype=bool)
        for t in range(3):
            given = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
            state, info = step(jax.random.fold_in(KEY, t), t, given, state, data)
            ids = np.asarray(info.links.sender)
            assert known[np.arange(SIZE)[:, None], ids].all()
        assert np.asarray(info.received).sum() > SIZE

    def test_rewired_graphs_remember_all(self, world):
        task, data = world
        method = pj.pens(
            task,
            optax.sgd(0.1),
            lambda rng: pj.graphs.random_views(SIZE, VIEW, seed=rng),
            batch_size=2,
            rewire_every=1,
        )
        state = jax.eval_shape(method.init, KEY, data)
        assert state.selection_state.shape == (SIZE, SIZE)
        inputs = method.plan(np.random.default_rng(0), data, 1)
        first = jax.tree.map(lambda leaf: leaf[0], inputs)
        found = largest(method.round, KEY, jnp.int32(0), first, state, data)
        assert found >= SIZE * SIZE  # so that the test above can fail


class TestRandomViews:
    @pytest.mark.parametrize("num_agents, size", [(2, 1), (9, 3), (9, 8), (300, 16)])
    def test_different_others_in_order(self, num_agents, size):
        graph = pj.graphs.random_views(num_agents, size, seed=0)
        assert graph.neighbor.shape == (num_agents, size) and graph.mask.all()
        assert (np.diff(graph.neighbor, axis=1) > 0).all()
        assert (graph.neighbor != np.arange(num_agents)[:, None]).all()
        assert graph.neighbor.min() >= 0 and graph.neighbor.max() < num_agents

    def test_all_are_known_alike(self):
        drawn = [pj.graphs.random_views(7, 3, seed=s).neighbor for s in range(400)]
        counts = np.bincount(np.concatenate(drawn).ravel())
        close(counts / 400, 3, atol=0.25)
        first = np.stack(drawn)[:, 0]
        share = np.bincount(first.ravel(), minlength=7)[1:] / 400
        close(share, 0.5, atol=0.1)

    @pytest.mark.parametrize("size", [0, 5, 9])
    def test_views_that_cannot_be_are_refused(self, size):
        with pytest.raises(InputError, match="Need views of 1 to 4 of the 4 other"):
            pj.graphs.random_views(5, size, seed=0)


def test_shares_of_a_view_begin_untried():
    graph = jax.tree.map(jnp.asarray, pj.graphs.random_views(20, 4, seed=0))
    view = known_losses(np.ones((20, 20)), graph)._replace(forgets=True)
    shares = line_search().init(KEY, view)
    assert shares.value.shape == (20, 4) and (shares.value == 0.5).all()
