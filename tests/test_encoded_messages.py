"""Every engine sends through the exchange: messages are encoded, then attacked."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_virtual
from test_events import quadratic, random_receivers, sequentially
from test_multi_task import scalar_task, scalar_world
from test_protocols import TOY, close, run, toy, toy_world

from p2pjax.algorithms._d_cliques import mean_gradient_steps
from p2pjax.algorithms._diple import diple
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._fedcurv_neighbors import fedcurv_neighbors
from p2pjax.algorithms._gosgd import gosgd_protocol
from p2pjax.algorithms._multi_task import multi_task
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.algorithms._sgp import sgp_protocol
from p2pjax.algorithms._virtual import virtual
from p2pjax.asynchronous import events, task_groups
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.combining import combined_rounds
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.engines.pulling import pull
from p2pjax.engines.server import server_rounds
from p2pjax.exchange import factors, pipeline
from p2pjax.exchange.pipeline import Exchange
from p2pjax.exchange.shared import where_sent
from p2pjax.graphs import generators, topology
from p2pjax.nn import mlp
from p2pjax.partial import averaging
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.selection.dac import dac
from p2pjax.selection.l2c import l2c
from p2pjax.selection.pens import pens
from p2pjax.selection.similarity import update_cosine
from p2pjax.selection.sparse import sparse
from p2pjax.tasks._classification import classification
from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.training import samplers
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.early_stopping import for_epochs
from p2pjax.training.learner import as_learner
from p2pjax.training.local_updates import epochs
from p2pjax.types import Variables

STILL = as_learner(TOY, optax.sgd(0.0))  # models change by messages only
OPTIONS = {"batch_size": 1, "agent_loop": VMAP}
RING = generators.ring(5)
SLOW = pytest.mark.slow
WORLD = toy_world([10.0] * 5)


def doubled(key, t, message, memory):
    del key, t
    return jax.tree.map(lambda leaf: 2 * leaf, message), memory, jnp.float32(0)


def plus_one(key, t, messages):
    del key, t
    return jax.tree.map(lambda leaf: leaf + 1, messages)


def same(key, t, message, memory):
    del key, t
    return message, memory, jnp.float32(0)


def with_messages(monkeypatch, encode=doubled, attack=plus_one):
    """A message m arrives as 2 m + 1, and as 2 m in asynchronous methods."""

    def changed(init, encode_fn, attack_fn, arrive, combine, **fields):
        del encode_fn, attack_fn, fields  # also how blocks would be read
        return Exchange(init, encode, attack, arrive, combine, changes_messages=True)

    monkeypatch.setattr(pipeline, "Exchange", changed)


AVERAGING = {
    "dpsgd": lambda learner: toy(neighbor_averaging(), RING, learner=learner),
    "sgp": lambda learner: toy(sgp_protocol(), RING, learner=learner),
    "gosgd": lambda learner: toy(gosgd_protocol(1.0), RING, learner=learner),
    "pending": lambda learner: toy(
        neighbor_averaging(), RING, learner=learner, score_before=True
    ),
    "sparse": lambda learner: pull(TOY, learner, sparse(2), **OPTIONS),
    "pens": lambda learner: pull(
        TOY, learner, pens(num_peers=2, num_candidates=3), **OPTIONS
    ),
    "fedavg": lambda learner: server_rounds(TOY, learner, **OPTIONS),
    "fedavg_pending": lambda learner: server_rounds(
        TOY, learner, score_before=True, **OPTIONS
    ),
    "fedcurv": lambda learner: fedcurv(TOY, learner, penalty_weight=0.0, **OPTIONS),
    "fedcurv_neighbors": lambda learner: fedcurv_neighbors(
        TOY, learner, RING, penalty_weight=0.0, **OPTIONS
    ),
    "combination": lambda learner: combined_rounds(
        TOY, for_epochs(learner, 1, **OPTIONS), factors.mean, agent_loop=VMAP
    ),
}
# One of each engine is fast enough for every run of the tests.
FAST = ("dpsgd", "pens", "fedavg_pending", "fedcurv", "combination")
NAMES = [n if n in FAST else pytest.param(n, marks=SLOW) for n in AVERAGING]


@pytest.mark.parametrize("name", NAMES)
def test_each_agent_averages_what_arrives(name, monkeypatch):
    """All models are equal, so any mean of the messages is one of them."""
    with_messages(monkeypatch)
    method = AVERAGING[name](STILL)
    states, _ = run(method, WORLD, 3)
    models = jax.vmap(method.models)(states)
    expected = np.array([3.0, 7, 15])  # 2 m + 1 from 1 on, not 2 (m + 1)
    close(models.averaged.params["x"], np.tile(expected[:, None], (1, 5)))
    if models.trained is not None:  # before it is sent
        close(models.trained.params["x"], np.tile([[1.0], [3], [7]], (1, 5)))


@pytest.mark.parametrize("name", [*NAMES[5:6], pytest.param("fedcurv", marks=SLOW)])
def test_what_arrives_unchanged_changes_nothing(name, monkeypatch):
    """Whether an engine keeps messages beside models makes no difference."""
    world = toy_world([0.0, 2, 4, 10, -3], [1, 2, 3, 1, 2])
    learner = as_learner(TOY, optax.sgd(0.1))
    results = []
    for changes in (False, True):
        if changes:
            with_messages(monkeypatch, same, lambda key, t, messages: messages)
        method = AVERAGING[name](learner)
        states, info = run(method, world, 3)
        results.append((jax.vmap(method.models)(states), info))
    assert (np.diff(results[0][0].reported.params["x"], axis=0) != 0).any()
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(one, other)


def test_models_are_kept_once_where_messages_are_models(monkeypatch):
    method = AVERAGING["pens"](STILL)
    assert method.init(jax.random.key(0), WORLD).decoded == ()
    curved = partial(fedcurv, TOY, STILL, penalty_weight=1.0, **OPTIONS)
    assert curved().init(jax.random.key(0), WORLD).received == ()
    with_messages(monkeypatch)
    states, _ = run(AVERAGING["pens"](STILL), WORLD, 2)
    close(states.variables.params["x"], np.tile([[1.0], [3]], (1, 5)))
    close(states.decoded["params"]["x"], np.tile([[3.0], [7]], (1, 5)))


class TestViews:
    """Peers are judged by what arrives of them."""

    def losses(self):
        """Of the models of all others on each agent's data, after a round."""
        seen = []

        def select(key, t, state, view):
            seen.append(view.cross_loss(view.permitted, view.train))
            return sparse(2).select(key, t, state, view)

        method = pull(TOY, STILL, sparse(2)._replace(select=select), **OPTIONS)
        state = method.init(jax.random.key(0), WORLD)
        seen.clear()
        method.round(jax.random.key(0), jnp.int32(0), None, state, WORLD)
        return np.asarray(seen[0])

    def test_losses(self, monkeypatch):
        close(self.losses(), np.full((5, 4), (1 - 10) ** 2 / 2))
        with_messages(monkeypatch)
        close(self.losses(), np.full((5, 4), (3 - 10) ** 2 / 2))

    @pytest.mark.parametrize(
        "selection",
        [
            dac(num_peers=2, similarity=update_cosine()),
            pytest.param(
                l2c(num_kept=2, num_rounds_all=4, optimizer=optax.sgd(0.5)), marks=SLOW
            ),
        ],
        ids=["cosines", "l2c"],
    )
    def test_all_selections_run(self, selection, monkeypatch):
        world = toy_world([0.0, 2, 4, 10, -3])
        build = partial(pull, TOY, optax.sgd(0.1), selection, **OPTIONS)
        plain, _ = run(build(), world, 3)
        with_messages(monkeypatch)
        other, _ = run(build(), world, 3)
        found = other.variables.params["x"]
        assert np.isfinite(found).all()
        assert (found[1:] != plain.variables.params["x"][1:]).all()


def test_leaves_that_stay_are_not_encoded(monkeypatch):
    def loss(variables, batch, key):
        del key
        return jnp.float32(0) * variables.params["x"], variables.stats

    params = {"own": jnp.ones(()), "x": jnp.ones(())}
    task = TOY._replace(init=lambda key: Variables(params, {}), loss=loss)
    with_messages(monkeypatch)
    local = {"local_patterns": ("params/own",), **OPTIONS}
    for build in (
        partial(server_rounds, task, optax.sgd(0.1)),
        partial(fedcurv, task, optax.sgd(0.1), penalty_weight=0.0),
        partial(pull, task, optax.sgd(0.1), sparse(2)),
    ):
        method = build(**local)
        states, _ = run(method, WORLD, 2)
        found = jax.vmap(method.models)(states).averaged.params
        close(found["own"], np.ones((2, 5)))
        close(found["x"], np.tile([[3.0], [7]], (1, 5)))


def test_ditto(monkeypatch):
    with_messages(monkeypatch)
    states, _ = run(ditto(TOY, STILL, penalty_weight=0.5, **OPTIONS), WORLD, 2)
    close(states.shared.variables.params["x"], np.tile([[3.0], [7]], (1, 5)))
    close(states.variables.params["x"], np.ones((2, 5)))  # never sent


def test_diple(monkeypatch):
    """Two averages of a cycle; the second is closer to the targets."""
    with_messages(monkeypatch)
    method = diple(TOY, STILL, num_peers=2, num_iterations=2, **OPTIONS)
    states, _ = run(method, WORLD, 1)
    close(states.variables.params["x"], np.full((1, 5), 7.0))


@pytest.mark.parametrize(
    "name", ["fedcurv", pytest.param("fedcurv_neighbors", marks=SLOW)]
)
def test_curvatures_are_messages_too(name, monkeypatch):
    graph = () if name == "fedcurv" else (RING,)
    build = {"fedcurv": fedcurv, "fedcurv_neighbors": fedcurv_neighbors}[name]
    curvature = lambda key, variables, examples, size: {"x": jnp.float32(5)}
    with_messages(monkeypatch)
    method = build(
        TOY,
        optax.sgd(0.01),
        *graph,
        penalty_weight=0.25,
        curvature=curvature,
        **OPTIONS,
    )
    states, _ = run(method, WORLD, 2)
    sent = 1 + 0.01 * 9  # from 1 towards 10
    close(states.sent["x"][0], np.full(5, sent))
    close(states.received.params["x"][0], np.full(5, 2 * sent + 1))
    close(states.received.curvature["x"], np.full((2, 5), 11.0))
    # 2 * weight * sum of h (x - w) over the others, with both as they arrived; each
    # starts from the mean, which is what the others sent: no pull in round two.
    start = 2 * sent + 1
    close(states.sent["x"][1], np.full(5, start + 0.01 * (10 - start)), rtol=1e-4)


def test_gradients_of_cliques(monkeypatch):
    clique = np.array([0, 0, 1, 1, 1])
    world = toy_world([0.0, 2, 4, 10, -2])
    train = mean_gradient_steps(clique, ())(
        as_learner(TOY, optax.sgd(0.5)), samplers.cyclic_window(1), 1, VMAP
    )
    variables = Variables({"x": jnp.ones(5)}, {})
    args = (jax.random.key(0), jnp.int32(0), variables, (optax.EmptyState(),) * 2)
    plain, *_ = train(*args, world.train)
    means = np.array([0.0, 0, -3, -3, -3])
    close(plain.params["x"], 1 - 0.5 * means)
    with_messages(monkeypatch)
    found, *_ = train(*args, world.train)
    close(found.params["x"], 1 - 0.5 * (2 * means + 1))


def test_factors_of_virtual(monkeypatch):
    world = test_virtual.world_of([(2.0, 1.0), (1.0, -0.5), (3.0, 0.0)])
    build = partial(
        virtual,
        test_virtual.CONJUGATE,
        optax.sgd(0.05),
        batch_size=1,
        local_updates=epochs(3),
        agent_loop=VMAP,
    )
    plain, *_ = test_virtual.run(build(), world, 1)
    with_messages(monkeypatch)
    found, *_ = test_virtual.run(build(), world, 1)
    close(found[0, 0], 2 * plain[0, 0] + 1)  # who was refined
    close(found[0, 1:], plain[0, 1:])


class TestPartialModels:
    """Three hidden cells, of which agents share one, two or none."""

    def build(self, **options):
        task = classification(mlp.MLP((3, 2)), (2,), softmax_cross_entropy)
        scheme = Scheme(
            networks=((2, 3, 2),) * 4,
            models=(
                PartialModel((2, 1, 2), (0, 1, 2)),
                PartialModel((0, 1, 0), (0, 1)),
            ),
        )
        self.sharing = compile_scheme(scheme, mlp.wiring(2), task)
        return partial_rounds(
            task,
            optax.sgd(0.0),
            samplers.cyclic_window(1),
            self.sharing,
            averaging.server(4),
            agent_loop=VMAP,
            **options,
        )

    def world(self):
        world = toy_world([0.0] * 4)
        examples = {"x": np.ones((4, 1, 2), "f4"), "y": np.zeros((4, 1), "i4")}
        split = world.train._replace(examples=examples)
        return world._replace(train=split, valid=split, test=split)

    @pytest.mark.slow
    @pytest.mark.parametrize("score_before", [False, True])
    def test_only_what_is_shared_is_encoded(self, score_before, monkeypatch):
        with_messages(monkeypatch)
        method = self.build(score_before=score_before)
        world = self.world()
        start = method.init(jax.random.key(0), world).variables.params
        states, _ = run(method, world, 1)
        averaged = jax.vmap(method.models)(states).averaged.params
        ones = jax.tree.map(jnp.ones_like, start)
        zeros = jax.tree.map(jnp.zeros_like, start)
        is_shared = where_sent(self.sharing.plan, ones, zeros)
        num_shared = sum(leaf.sum() for leaf in jax.tree.leaves(is_shared))
        num_all = sum(leaf.size for leaf in jax.tree.leaves(is_shared))
        assert 0 < num_shared < num_all
        for was, new, shared in zip(
            *map(jax.tree.leaves, (start, averaged, is_shared)), strict=True
        ):
            close(new[0], np.where(shared > 0, 2 * was + 1, was), rtol=1e-6)


def schedule_of(graph, sizes, num_rounds):
    to = topology.receivers(graph)
    to = type(to)(*(np.stack([leaf] * num_rounds) for leaf in to))
    return events.draw(np.random.default_rng(5), to, sizes, num_rounds)


@pytest.mark.parametrize("agent_loop", [IN_PLACE, VMAP])
class TestWaves:
    """One sender at a time encodes; there is no attack."""

    def states(self, method, world, num_rounds):
        inputs = method.plan(np.random.default_rng(5), world, num_rounds)
        return run(method, world, num_rounds, inputs=inputs)[0]

    def test_one_task(self, agent_loop, monkeypatch):
        graph = topology.unstack(random_receivers(np.random.default_rng(1), 5, 2))[0]
        build = partial(
            p2p_bn, quadratic(), STILL, graph, batch_size=1, fine_tuning=False
        )
        schedule = schedule_of(graph, np.ones(5, int), 4)
        with_messages(monkeypatch)
        states = self.states(build(agent_loop=agent_loop), WORLD, 4)
        expected = sequentially(
            schedule,
            [1.0] * 5,
            lambda number, agent, x: x,
            lambda mine, theirs: (mine + 2 * theirs) / 2,
        )
        close(states.agents.variables.params["x"][-1], expected, rtol=1e-6)
        assert len(set(expected)) > 2

    def test_two_tasks(self, agent_loop, monkeypatch):
        groups = task_groups.groups([scalar_task(jnp.ones(()))] * 2, [2, 2])
        world = scalar_world(groups, np.zeros(4), np.zeros(4))
        graph = generators.complete(4)
        with_messages(monkeypatch)
        method = multi_task(
            groups, optax.sgd(0.0), graph, batch_size=1, agent_loop=agent_loop
        )
        states = self.states(method, world, 4)
        schedule = schedule_of(graph, np.ones(4, int), 4)

        def merge(mine, theirs):
            (agent, encoder, head), (sender, *other) = mine, theirs
            if agent // 2 == sender // 2:
                head = (head + 2 * other[1]) / 2
            return agent, (encoder + 2 * other[0]) / 2, head

        expected = sequentially(
            schedule,
            [(agent, 1.0, 1.0) for agent in range(4)],
            lambda number, agent, model: model,
            merge,
        )
        params = jax.tree.map(lambda leaf: leaf[-1], states.agents.variables.params)
        heads = np.concatenate([part["x"] for part in params["head"].parts])
        found = np.stack([np.arange(4), params["encoder"]["x"], heads], axis=1)
        close(found, expected, rtol=1e-6)
