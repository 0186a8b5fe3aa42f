"""Models whose members change: against a plain loop, and what is found on digits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from test_federated import network_world

import p2pjax as pj
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import digits
from p2pjax.exchange.owner_classes import owner_arrays
from p2pjax.partial import changing_members
from p2pjax.partial.changing_members import Grouping, Groups, group_averaging
from p2pjax.partial.schemes import PartialModel, Scheme, dependency_closure
from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.types import LOCAL, InputError, Variables

TASK = pj.classification(pj.nn.MLP((8, 2)), (2,), softmax_cross_entropy)
SIZE, RATE, EVERY = 6, 0.5, 2
SGD = optax.sgd(RATE)
OTHER = [1, 2, 3, 0, 5, 4]  # whose training examples an agent is validated on


def of_two_kinds():
    """The last two agents name the classes the other way round."""
    world = network_world((5,) * SIZE)
    x = world.train.examples["x"]
    is_other = np.arange(SIZE)[:, None] > 3
    y = ((x[..., 0] > 0) ^ is_other).astype(np.int32)
    train = world.train._replace(examples={"x": x, "y": y})
    valid = train._replace(examples={"x": x[OTHER], "y": y[OTHER]})
    return world._replace(train=train, valid=valid)


WORLD = of_two_kinds()
OVERLAPPING = pj.partial.slots(0.5, 0.25, 0.25)
NESTED = pj.partial.slots(0.5, 0.25, 0.25, nested=True)


def halves(before, now):
    """Agents of which the first output class has grown most, and the others."""
    (before,), (now,) = map(jax.tree.leaves, (before, now))
    growth = (now - before)[..., 0].sum(1)
    return np.where(growth > np.median(growth), 3, 5)[:, None]


def thirds(before, now):
    """Agents with the smallest and the largest weights; the others in none."""
    del before
    (now,) = jax.tree.leaves(now)
    rank = np.argsort(np.argsort(now[..., 0].sum(1)))
    return np.select([rank < 2, rank > 3], [0, 1], LOCAL)[:, None]


def of_weights(find):
    return Grouping(lambda learned: learned.outputs, find)


def method_of(scheme, leave_after=None):
    changing = pj.partial.changing(
        scheme,
        of_weights(halves),
        of_weights(thirds),
        every=EVERY,
        leave_after=leave_after,
    )
    return pj.partial_averaging(
        TASK, SGD, changing, batch_size=5, shared_init=leave_after is not None
    )


@jax.jit
def loss_and_gradient(params, x, y):
    def loss(params):
        batch = {"x": x, "y": y, "valid": jnp.ones(len(y), bool)}
        return TASK.loss(Variables(params, {}), batch, None)[0]

    return jax.value_and_grad(loss)(params)


class PlainLoop:
    """One agent and one number after the other."""

    def __init__(self, scheme, params, leave_after):
        self.scheme = scheme((2, 8, 2), SIZE)
        one = jax.tree.map(lambda leaf: leaf[0], params)
        sharing = pj.partial.compile_scheme(self.scheme, TASK.wiring, TASK)
        owners = owner_arrays(sharing.plan, one)
        self.unravel = ravel_pytree(one)[1]
        flat = np.concatenate(
            [leaf.reshape(SIZE, -1) for leaf in jax.tree.leaves(owners)], axis=1
        )
        self.owner = flat[0]  # the same in all agents
        self.models = self.flat(params)
        self.leave_after = leave_after
        self.group = np.tile([0, LOCAL, LOCAL], (SIZE, 1))
        self.num_losses = np.zeros((SIZE, 3), int)
        self.gone = np.zeros((SIZE, 3), bool)
        self.below = dependency_closure(self.scheme.depends, 3)
        self.measured = self.outputs()

    def flat(self, params):
        rows = [np.asarray(leaf).reshape(SIZE, -1) for leaf in jax.tree.leaves(params)]
        return np.concatenate(rows, axis=1)

    def loss_and_gradient(self, agent, vector):
        x, y = (WORLD.train.examples[name][agent] for name in "xy")
        params = self.unravel(jnp.asarray(vector, jnp.float32))
        loss, gradient = loss_and_gradient(params, x, y)
        return float(loss), np.asarray(ravel_pytree(gradient)[0])

    def outputs(self):
        rows = [self.unravel(row)["layer_2"]["kernel"] for row in self.models]
        return {"layer_2/kernel": np.stack(rows)}

    def members(self, agent, model):
        """Who averages a model with an agent, itself among them."""
        needed = [model, *np.flatnonzero(self.below[model])]
        mine = self.group[agent, needed]
        if LOCAL in mine:
            return [agent]
        return [n for n in range(SIZE) if (self.group[n, needed] == mine).all()]

    def mean(self, agent, models):
        """An agent's model after it took the means of some partial models."""
        after = self.models[agent].copy()
        for model in models:
            own = self.owner == model
            rows = self.models[self.members(agent, model)]
            after[own] = rows[:, own].mean(0)
        return after

    def round(self, t):
        self.models = np.stack(
            [
                row - RATE * self.loss_and_gradient(agent, row)[1]
                for agent, row in enumerate(self.models)
            ]
        )
        if (t + 1) % EVERY == 0:
            self.look()
        sizes = [(self.owner == model).sum() for model in range(3)]
        together = [
            [len(self.members(agent, model)) > 1 for model in range(3)]
            for agent in range(SIZE)
        ]
        self.models = np.stack([self.mean(n, range(3)) for n in range(SIZE)])
        return np.sum(together, 1), np.asarray(together) @ sizes

    def look(self):
        now = self.outputs()
        found = [find(self.measured, now) for find in (halves, thirds)]
        self.measured = now
        self.group[:, 1:] = np.concatenate(found, axis=1)
        self.group[self.gone] = LOCAL
        if self.leave_after is None:
            return
        left = np.zeros((SIZE, 3), bool)
        for agent in range(SIZE):
            other = OTHER[agent]
            own = self.loss_and_gradient(other, self.models[agent])[0]
            for model in range(3):
                with_mean = self.mean(agent, [model])
                loses = self.loss_and_gradient(other, with_mean)[0] > own
                count = self.num_losses[agent, model] + 1 if loses else 0
                self.num_losses[agent, model] = count
                if count >= self.leave_after:
                    above = np.flatnonzero(self.below[:, model])
                    left[agent, [model, *above]] = True
        self.gone |= left
        self.group[self.gone] = LOCAL


@pytest.mark.parametrize(
    "scheme, leave_after",
    [(OVERLAPPING, None), (NESTED, 2)],
    ids=["overlapping", "nested, leaving"],
)
def test_a_plain_loop(scheme, leave_after):
    """Eight rounds, one trace; groups change, and agents leave."""
    method = method_of(scheme, leave_after)
    state = method.init(jax.random.key(0), WORLD)
    plain = PlainLoop(scheme, state.variables.params, leave_after)
    step = jax.jit(method.round)
    seen, some_left = set(), False
    for t in range(8):
        state, info = step(jax.random.key(t), jnp.int32(t), (), state, WORLD)
        sent, payload = plain.round(t)
        np.testing.assert_array_equal(state.groups.group, plain.group)
        np.testing.assert_allclose(
            plain.flat(state.variables.params), plain.models, rtol=1e-4, atol=1e-5
        )
        np.testing.assert_array_equal(info.sent, sent)
        np.testing.assert_array_equal(info.payload, payload)
        seen.add(plain.group.tobytes())
        some_left |= 0 < plain.gone.sum() < plain.gone.size
    assert step._cache_size() == 1
    assert len(seen) >= 2
    observed = method.models(state).observed
    np.testing.assert_array_equal(observed["group_1"], plain.group[:, 1])
    assert some_left == (leave_after is not None)


def test_seeds_side_by_side():
    """As one after the other."""
    method = method_of(OVERLAPPING)
    worlds = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), WORLD)
    keys = jax.random.split(jax.random.key(1), 2)

    def after(key, world):
        state = method.init(key, world)
        for t in range(2):
            state, _ = method.round(key, jnp.int32(t), (), state, world)
        return state.groups.group

    with jax.debug_key_reuse(False):
        both = jax.jit(jax.vmap(after))(keys, worlds)
    first = jax.jit(after)(keys[0], jax.tree.map(lambda leaf: leaf[0], worlds))
    np.testing.assert_array_equal(both[0], first)
    assert (both[0] != both[1]).any()


def test_agents_that_diverge_are_in_no_group():
    method = method_of(OVERLAPPING)
    state = method.init(jax.random.key(0), WORLD)
    params = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), state.variables.params)
    state = state._replace(
        variables=state.variables._replace(params=params),
        groups=state.groups._replace(group=state.groups.group.at[:, 0].set(LOCAL)),
    )
    now = jnp.int32(EVERY - 1)
    state, _ = jax.jit(method.round)(jax.random.key(0), now, (), state, WORLD)
    group = np.asarray(state.groups.group)
    assert (group[2] == LOCAL).all() and (group[[0, 1, 3, 4, 5], 1] >= 0).all()
    finite = np.isfinite(np.asarray(state.variables.params["layer_1"]["kernel"]))
    assert finite.all((1, 2)).tolist() == [True, True, False, True, True, True]


def test_groups_within_groups_are_parts_of_them():
    """Equal numbers in a model mean nothing between groups of a lower one."""
    below = dependency_closure([(1, 0), (2, 1)], 3)
    averaging = group_averaging(4, below)
    group = jnp.array([[0, 0, 7], [0, 0, 7], [0, 1, 7], [LOCAL, 1, 7]])
    groups = Groups(group, jnp.ones(3, bool))

    def mean(model):
        owner = np.full(4, model)
        linked = averaging.links(groups, owner)[:, 0].tolist()
        block = jnp.array([0.0, 1, 2, 4])
        return averaging.combine(groups, owner, None)(block).tolist(), linked

    assert mean(0) == ([1, 1, 1, 4], [True, True, True, False])
    assert mean(1) == ([0.5, 0.5, 2, 4], [True, True, False, False])
    assert mean(2) == mean(1)
    assert not averaging.links(groups, np.full(4, LOCAL)).any()


def swapped_digits(seed):
    """Eight agents with 100 digits each; the last four name 8 what others name 9."""
    world = partition.iid_blocks(
        digits.load(),
        np.random.default_rng(seed),
        num_agents=8,
        train_size=100,
        test_size=200,
    )
    tables = np.tile(np.arange(10), (8, 1))
    tables[4:, [8, 9]] = [9, 8]
    return partition.relabel(world, tables)


def test_swapped_labels_are_found_by_predictions_and_not_by_cosines():
    """By groups that differ from the mean alike, and by AUCCCR's utilities."""
    world, key, num_rounds = swapped_digits(0), jax.random.key(0), 300
    probe = {name: leaf[0] for name, leaf in world.test.examples.items()}
    by_value = pj.selection.by_value(pj.selection.root_of_size(4))
    changing = pj.partial.changing(
        pj.partial.slots(0.5, 0.25, 0.25),
        pj.partial.by_predictions(probe),
        pj.partial.by_predictions(probe, find=by_value),
        every=num_rounds,
    )
    task = pj.classification(pj.nn.MLP((16, 10)), world)
    method = pj.partial_averaging(task, optax.sgd(0.5), changing, batch_size=20)
    start = jax.device_get(method.init(key, world).variables.params)
    for number, now in enumerate(pj.simulate(key, method, world, num_rounds), 1):
        if number == num_rounds - 1:  # before groups average for the first time
            params = jax.device_get(now.state.variables.params)
    for model in (1, 2):
        group = np.asarray(now.metrics[f"group_{model}"])
        assert group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    similarity = pj.partial.update_similarity(start, params)
    assert not pj.partial.find_groups(similarity).any()


def test_nested_groups_of_several_leaves():
    rng = np.random.default_rng(0)
    outer, inner = np.arange(12) // 6, np.arange(12) // 3
    features = rng.normal(size=(2, 20))[outer] * 5 + rng.normal(size=(4, 20))[inner]
    features = features + 0.5 * rng.normal(size=(12, 20))
    found = pj.partial.nested_groups(pj.partial.alike, features, 2)
    assert found[:, 0].tolist() == outer.tolist()
    assert found[:, 1].tolist() == inner.tolist()

    def pairs(both):
        one, other = both
        assert len(one) == len(other)
        return np.arange(len(one)) // 2 - 1  # the first two in none

    found = pj.partial.nested_groups(pairs, (features, features), 1)
    assert found[:, 0].tolist() == [LOCAL] * 2 + np.repeat(range(5), 2).tolist()


class TestRefusals:
    def test_changing(self):
        layer = pj.partial.by_output_layer()
        with pytest.raises(InputError, match="got every=0"):
            pj.partial.changing(OVERLAPPING, layer, every=0)
        with pytest.raises(InputError, match="got neither"):
            pj.partial.changing(OVERLAPPING, every=1)
        with pytest.raises(InputError, match="slots\\(0.6, 0.4\\), got float"):
            pj.partial.changing(0.5, layer, every=1)
        with pytest.raises(InputError, match="depth of 1 or more, got 0"):
            pj.partial.by_output_layer(depth=0)
        with pytest.raises(InputError, match="got \\['x'\\]: add y"):
            pj.partial.by_predictions({"x": np.zeros((1, 2))})

    def test_slots(self):
        for shares in ((0.5,), (0.0, 0.5), (0.7, 0.4)):
            with pytest.raises(InputError, match="together at most 1"):
                pj.partial.slots(*shares)

    def test_schemes(self):
        some = Scheme(((2, 8, 2),) * SIZE, (PartialModel((2, 4, 2), (0, 1)),))
        for scheme, models in ((some, "1 models, \\[0\\]"), (pj.partial.level(0), "0")):
            changing = pj.partial.changing(scheme, every=1, leave_after=1)
            with pytest.raises(InputError, match=f"got {models}"):
                pj.partial_averaging(TASK, SGD, changing, batch_size=5).init(
                    jax.random.key(0), WORLD
                )
        assert changing_members.check_models(OVERLAPPING((2, 8, 2), 3), 2).shape == (
            3,
            3,
        )

    @pytest.mark.parametrize(
        "options",
        [
            {"channel": pj.channel.drop(0.1)},
            {"drift_threshold": 0.1},
            {"aggregate": pj.robust.median(1)},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_options(self, options):
        changing = pj.partial.changing(
            OVERLAPPING, pj.partial.by_output_layer(), every=1
        )
        method = pj.partial_averaging(TASK, SGD, changing, batch_size=5, **options)
        with pytest.raises(InputError, match="where members of models change"):
            method.init(jax.random.key(0), WORLD)

    def test_other_averaging(self):
        changing = pj.partial.changing(OVERLAPPING, every=1, leave_after=1)
        with pytest.raises(InputError, match="Need averaging by a server"):
            pj.partial_averaging(
                TASK, SGD, changing, batch_size=5, averaging=pj.partial.random_pairs
            )

    def test_no_validation_data(self):
        changing = pj.partial.changing(OVERLAPPING, every=1, leave_after=1)
        method = pj.partial_averaging(TASK, SGD, changing, batch_size=5)
        none = jax.tree.map(lambda leaf: leaf[:, :0], WORLD.valid.examples)
        world = WORLD._replace(valid=WORLD.valid._replace(examples=none))
        with pytest.raises(InputError, match="Need validation data"):
            method.init(jax.random.key(0), world)
