"""Agents with different tasks: receive rule, encoder freeze, memory, the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from p2pjax import (
    events,
    graphs,
    task_groups,
    tasks,
    topology,
    training,
    waves,
)
from p2pjax.algorithms.multi_task import multi_task
from p2pjax.data import AgentData, World
from p2pjax.task_groups import PerTask
from p2pjax.topology import Topology
from p2pjax.training import IN_PLACE, VMAP
from p2pjax.types import Variables

# The thesis' examples on scalars: an encoder and a head, one step is an epoch.


def scalar_task(head):
    """Gradient (encoder - c, head - d), with c and d in the agent's one example."""

    def loss(variables, batch, key):
        del key
        encoder, head = variables.params["encoder"]["x"], variables.params["head"]["x"]
        error = jnp.square(encoder - batch["c"]) + jnp.square(head - batch["d"])
        return (error / 2).sum(), variables.stats

    def init(key):
        del key
        return Variables({"encoder": {"x": jnp.ones(())}, "head": {"x": head}}, {})

    return tasks.Task(init, loss, evaluate=None)


def scalar_world(groups, c, d):
    """Gradients are 0 for agents that stand at (c, d)."""

    def split(group):
        own = slice(group.start, group.stop)
        examples = {"c": np.float32(c[own])[:, None], "d": np.float32(d[own])[:, None]}
        return AgentData(examples, np.ones(group.stop - group.start, np.int32))

    worlds = [World(*[split(g)] * 3, np.zeros(g.stop - g.start)) for g in groups]
    return task_groups.joined_world(worlds)


def chosen_order(monkeypatch, order):
    order = iter(order)
    monkeypatch.setattr(
        events._Simulation, "_next_uniform", lambda self: next(order, None)
    )


def run_scalars(monkeypatch, start, c, d, order, freeze, agent_loop):
    """Agents 0 and 1 of task A and 2 of task B; 0 sends to both, 2 sends to 0."""
    groups = task_groups.groups(
        [scalar_task(jnp.ones(())), scalar_task(jnp.ones(()))], [2, 1]
    )
    world = scalar_world(groups, c, d)
    chosen_order(monkeypatch, order)
    graph = topology.from_edges(3, np.array([0, 0, 2]), np.array([1, 2, 0]))
    method = multi_task(
        groups,
        lambda task: training.gradient_descent(task, training.by_part(optax.sgd(0.5))),
        graph,
        batch_size=1,
        encoder_freeze=freeze,
        agent_loop=agent_loop,
    )
    with pytest.warns(UserWarning, match="protocol ends"):
        inputs = method.plan(np.random.default_rng(0), world, 3)
    state = method.init(jax.random.key(0), world)
    encoder, head = np.float32(start).T
    params = {
        "encoder": {"x": jnp.asarray(encoder)},
        "head": PerTask(({"x": jnp.asarray(head[:2])}, {"x": jnp.asarray(head[2:])})),
    }
    agents = state.agents._replace(variables=Variables(params, {}))
    state = state._replace(agents=agents)
    for t in range(2):
        now = jax.tree.map(lambda leaf: leaf[t], inputs)  # noqa: B023
        state, _ = method.round(jax.random.key(t), jnp.int32(t), now, state, world)
    params = state.agents.variables.params
    heads = np.concatenate([part["x"] for part in params["head"].parts])
    return np.stack([params["encoder"]["x"], heads], axis=1)


@pytest.mark.parametrize("agent_loop", [IN_PLACE, VMAP])
def test_the_receive_rule_and_the_freeze_of_the_thesis(monkeypatch, agent_loop):
    """0 sends (2, 12) to 1 = (3, 20) of its task and 2 = (5, -4) of the other.

    They merge to (2.5, 16) and (3.5, -4). With gradient (1, 2) and rate 0.5, agent 2
    becomes (3.5, -5) frozen and (3.0, -5) not.
    """
    start = [(2, 12), (3, 20), (5, -4)]
    c, d = np.array([2, 3, 5.0]), np.array([12, 20, -4.0])

    def run(order, freeze):
        return run_scalars(monkeypatch, start, c, d, order, freeze, agent_loop)

    # Everybody starts where its gradient is 0, so that the first epoch changes nothing.
    for freeze in (False, True):
        # 1 goes on from (2.5, 16) by half of the way to (3, 20), also with freezing.
        found = run([0, 1], freeze)
        np.testing.assert_allclose(found[1], [2.75, 18])
        np.testing.assert_allclose(found[0], [2, 12])
    # 2 is at (3.5, -4) when it wakes; its example (5, -4) draws the encoder back.
    np.testing.assert_allclose(run([0, 2], False)[2], [4.25, -4])
    np.testing.assert_allclose(run([0, 2], True)[2], [3.5, -4])


@pytest.mark.parametrize("freeze, encoder", [(True, 3.5), (False, 3.0)])
def test_the_gradient_of_the_thesis_example(freeze, encoder):
    """Agent 2 wakes at (3.5, -4) with gradient (1, 2) and rate 0.5."""
    task = scalar_task(jnp.ones(()))
    learner = training.gradient_descent(task, training.by_part(optax.sgd(0.5)))
    variables = Variables(
        {"encoder": {"x": jnp.float32(3.5)}, "head": {"x": jnp.float32(-4)}}, {}
    )
    batch = {"c": jnp.float32([2.5]), "d": jnp.float32([-6])}
    extra = training.Extra(frozen={"encoder": jnp.asarray(freeze)})
    new, _, _ = learner.step(
        jax.random.key(0), variables, learner.init(variables), batch, extra
    )
    assert float(new.params["encoder"]["x"]) == encoder
    assert float(new.params["head"]["x"]) == -5


def test_the_host_knows_who_is_frozen():
    """A training is partial if a message of another task came since the last one."""
    rng = np.random.default_rng(0)
    task = np.repeat([0, 1], 10)
    graph = graphs.clustered(rng, task)
    to = topology.receivers(graph)
    to = Topology(to.neighbor[None], to.mask[None])
    schedule = events.draw(rng, to, np.full(20, 5), 6)
    packed, _ = waves.pack(
        schedule,
        20,
        6,
        num_groups=2,
        merges=lambda sender, receiver: (True, task[sender] == task[receiver]),
    )
    flag, expected = np.zeros(20, bool), []
    arrivals = list(
        zip(schedule.after, schedule.receiver, schedule.source, strict=True)
    )
    for number, agent in enumerate(schedule.agent):
        while arrivals and arrivals[0][0] <= number:
            _, receiver, source = arrivals.pop(0)
            flag[receiver] |= task[schedule.agent[source]] != task[receiver]
        expected.append(flag[agent])
        flag[agent] = False
    used = np.arange(packed.agent.shape[2]) < packed.width[..., None]
    found = np.zeros(len(expected), bool)
    found[packed.training[used]] = packed.is_partial[used]
    np.testing.assert_array_equal(found, expected)
    assert 0.3 < np.mean(expected) < 0.8
    # Every task has its own trainings, in the same waves.
    tables = waves.by_task(packed, [0, 10])
    np.testing.assert_array_equal(sum(t.width for t in tables), packed.width)
    for number, table in enumerate(tables):
        own = np.arange(table.agent.shape[2]) < table.width[..., None]
        assert (task[table.agent] == number).all()
        trainings = np.sort(table.training[own])
        np.testing.assert_array_equal(
            trainings, np.flatnonzero(task[schedule.agent] == number)
        )
        place = np.argsort(table.training[own])
        np.testing.assert_array_equal(
            table.is_partial[own][place], np.asarray(expected)[trainings]
        )
