"""Asynchronous protocols: the schedule, its waves, and the sequential oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pjax import sharding
from p2pjax.algorithms._p2p_bn import momentum, p2p_bn
from p2pjax.asynchronous import events, waves
from p2pjax.asynchronous.events import Absence, Timing
from p2pjax.asynchronous.wakes import Agent
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange import shared
from p2pjax.graphs import generators, topology
from p2pjax.graphs.topology import Topology
from p2pjax.nn.gru import NextWord
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.learner import StepContext, gradient_descent, norm_and_rest
from p2pjax.types import FederatedData, InputError, Ratio, Split, Variables

TIMINGS = {
    "thesis": Timing(),
    "clocks": Timing(poisson=True),
    "speeds": Timing(poisson=True, speed=np.linspace(0.3, 3, 12)),
    "delays": Timing(mean_delay=0.7),
    "losses": Timing(loss_probability=0.5),
    "everything": Timing(
        poisson=True,
        speed=np.linspace(0.3, 3, 12),
        mean_delay=0.5,
        loss_probability=0.5,
        absences=(
            Absence(0, 0, 1.5),
            Absence(3, 1.0, 2.0),
            *(Absence(agent, 1.5) for agent in (1, 5, 7, 8)),
        ),
    ),
}


def random_receivers(rng, num_agents, degree, num_graphs=1):
    """Directed, every agent sends to `degree` others and receives from as many."""
    drawn = []
    for _ in range(num_graphs):
        columns = []
        while len(columns) < degree:
            column = rng.permutation(num_agents)
            used = [np.arange(num_agents), *columns]
            if all((column != other).all() for other in used):
                columns.append(column)
        drawn.append(np.stack(columns, axis=1))
    neighbor = np.stack(drawn)
    return Topology(neighbor, np.ones(neighbor.shape, bool))


def line(num_agents):
    """Undirected: 0 - 1 - 2 - ..."""
    neighbor = np.stack([np.arange(num_agents) - 1, np.arange(num_agents) + 1], axis=1)
    mask = (neighbor >= 0) & (neighbor < num_agents)
    own = np.arange(num_agents)[:, None]
    return Topology(np.where(mask, neighbor, own)[None], mask[None])


def sequentially(schedule, start, train, merge):
    """The protocol as it is written: one event after the other."""
    models, sent, last = list(start), {}, list(start)
    arrivals = list(
        zip(schedule.after, schedule.receiver, schedule.source, strict=True)
    )
    for number, agent in enumerate(schedule.agent.tolist()):
        while arrivals and arrivals[0][0] <= number:
            _, receiver, source = arrivals.pop(0)
            models[receiver] = merge(models[receiver], sent[source])
        models[agent] = train(number, agent, models[agent])
        sent[number] = last[agent] = models[agent]
    return last


def at_ends(schedule, num_epochs, start, train, merge):
    """As `sequentially`: models with all that has arrived at the end of every epoch."""
    ends = np.searchsorted(schedule.epoch, np.arange(num_epochs), side="right")
    found = []
    for end in ends.tolist():
        until = schedule.after <= end
        so_far = schedule._replace(
            # Everybody wakes once more, to merge what has arrived.
            agent=np.concatenate([schedule.agent[:end], np.arange(len(start))]),
            receiver=schedule.receiver[until],
            source=schedule.source[until],
            after=schedule.after[until],
        )

        def train_or_wake(number, agent, model, end=end):
            return train(number, agent, model) if number < end else model

        found.append(sequentially(so_far, start, train_or_wake, merge))
    return found


def by_waves(packed, num_slots, start, train, mail=(), averaged=None):
    """Scalar models, wave by wave; the order within a wave is turned around."""
    models, mailbox = np.array(start), np.zeros((len(start) + 1, num_slots))
    mailbox = mailbox.astype(models.dtype)
    for epoch, widths in enumerate(packed.width):
        if mail:
            mailbox[:-1] *= mail.decay[epoch]
        for wave in range((widths > 0).sum()):
            places = [
                (epoch, wave, place)
                for place in reversed(range(packed.width[epoch, wave]))
            ]
            for at in places:
                agent, slot = packed.agent[at], packed.slot[at]
                merged = packed.own[at][0] * models[agent]
                if packed.has_mail[at]:
                    merged += mailbox[agent, slot]
                    mailbox[agent, slot] = 0
                models[agent] = train(packed.training[at], agent, merged)
            for at in places:
                for k in range(packed.receiver.shape[-1]):
                    to = packed.receiver[at][k], packed.receiver_slot[at][k]
                    share = packed.coefficient[at][k, 0]
                    mailbox[to] += share * models[packed.agent[at]]
        if mail:
            averaged.append(mail.own[epoch, :, 0] * models + mailbox[:-1, 0])
    return models


@pytest.mark.parametrize("name", TIMINGS)
@pytest.mark.parametrize("max_width", [None, 3])
def test_waves_equal_the_sequence_on_scalars(name, max_width):
    rng = np.random.default_rng(1)
    graph = random_receivers(rng, 12, 3, num_graphs=3)
    sizes = rng.integers(5, 20, 12)
    schedule = events.draw(rng, graph, sizes, 8, TIMINGS[name])
    packed, num_slots, _ = waves.pack(schedule, 12, 8, max_width=max_width)
    centre, start = rng.normal(size=12), rng.normal(size=12)

    def train(number, agent, x):
        return (x + centre[agent]) / 2 + np.sin(3 * x + number)

    expected = sequentially(schedule, start, train, lambda a, b: (a + b) / 2)
    found = by_waves(packed, num_slots, start, train)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert packed.width.sum() == len(schedule.agent)
    assert max_width is None or packed.width.max() <= max_width
    assert ("delays" in name or name == "everything") == (num_slots > 1)


def halved(mine, theirs):
    return (mine + theirs) / 2


ABSENT = Timing(absences=(Absence(0, 0.5, 2.5), Absence(3, 1.0)), loss_probability=0.3)
AT_ONCE = {
    name: timing for name, timing in TIMINGS.items() if not timing.mean_delay
} | {"absences": ABSENT}


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("max_width", [None, 3])
def test_mailboxes_are_up_to_date_at_the_ends_of_epochs(name, max_width):
    rng = np.random.default_rng(1)
    graph = random_receivers(rng, 12, 3, num_graphs=3)
    sizes = rng.integers(5, 20, 12)
    schedule = events.draw(rng, graph, sizes, 8, AT_ONCE[name])
    plain, *_ = waves.pack(schedule, 12, 8, max_width=max_width)
    packed, num_slots, mail = waves.pack(
        schedule, 12, 8, max_width=max_width, at_once=True
    )
    assert num_slots == 1
    assert (packed.coefficient > 0).sum() > (plain.coefficient > 0).sum()
    centre, start = rng.normal(size=12), rng.normal(size=12)

    def train(number, agent, x):
        return (x + centre[agent]) / 2 + np.sin(3 * x + number)

    averaged = []
    found = by_waves(packed, num_slots, start, train, mail, averaged)
    expected = sequentially(schedule, start, train, halved)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    expected = at_ends(schedule, 8, start, train, halved)
    np.testing.assert_allclose(averaged, expected, rtol=0, atol=1e-12)
    assert (np.array(averaged)[-1] != found).any()


def test_mail_of_a_long_sleep_in_single_precision():
    """Hundreds of messages, whose coefficients are far below what 32 bits can hold."""
    num_epochs = 60
    rng = np.random.default_rng(0)
    graph = topology.receivers(generators.complete(6))
    graph = Topology(graph.neighbor[None], graph.mask[None])
    timing = Timing(poisson=True, speed=np.array([0.002, 1, 1, 1, 1, 1]))
    schedule = events.draw(rng, graph, np.ones(6, int), num_epochs, timing)
    packed, num_slots, mail = waves.pack(schedule, 6, num_epochs, at_once=True)
    wakes = np.flatnonzero(schedule.agent == 0)
    asleep = [
        ((schedule.receiver == 0) & (schedule.after > a) & (schedule.after <= b)).sum()
        for a, b in zip(wakes, [*wakes[1:], len(schedule.agent)], strict=True)
    ]
    assert max(asleep) > 160  # 2^-149 is the smallest number
    start = rng.normal(size=6)
    averaged = []
    by_waves(
        packed,
        num_slots,
        start.astype(np.float32),
        lambda number, agent, x: x + np.float32(agent + 1) / np.float32(1 + number),
        mail,
        averaged,
    )
    expected = at_ends(
        schedule,
        num_epochs,
        start,
        lambda number, agent, x: x + (agent + 1) / (1 + number),
        halved,
    )
    np.testing.assert_allclose(averaged, expected, rtol=1e-5, atol=1e-5)


@given(seed=st.integers(0, 1000), num_agents=st.integers(4, 9), poisson=st.booleans())
def test_schedules_keep_the_rules(seed, num_agents, poisson):
    """Everybody once at first; then only who has received; epochs by examples."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, num_agents)
    graph = random_receivers(rng, num_agents, 2)
    schedule = events.draw(rng, graph, sizes, 4, Timing(poisson=poisson))
    assert sorted(schedule.agent[:num_agents].tolist()) == list(range(num_agents))
    assert (schedule.sent[:num_agents] == 0).all()
    assert (schedule.sent[num_agents:] == 2).all()
    eligible = np.ones(num_agents, bool)
    for number in range(num_agents, len(schedule.agent)):
        agent = schedule.agent[number]
        assert eligible[agent]
        eligible[agent] = False
        now = schedule.after == number + 1
        assert (schedule.source[now] == number).all()
        np.testing.assert_array_equal(
            schedule.receiver[now], np.sort(graph.neighbor[0, agent])
        )
        eligible[schedule.receiver[now]] = True
    done = np.cumsum(sizes[schedule.agent]) - sizes[schedule.agent]
    np.testing.assert_array_equal(schedule.epoch, done // sizes.sum())
    assert (np.diff(schedule.time) >= 0).all()
    assert schedule.epoch[-1] == 3


def test_wave_widths_and_messages_of_sparse_graphs():
    """About 10 agents at once among 100, about 80 among 1000; 3 messages per event."""
    for num_agents, num_epochs, low, high in ((100, 20, 8, 12), (1000, 4, 65, 95)):
        rng = np.random.default_rng(0)
        graph = random_receivers(rng, num_agents, 3)
        sizes = np.full(num_agents, 10)
        schedule = events.draw(rng, graph, sizes, num_epochs)
        packed, num_slots, _ = waves.pack(schedule, num_agents, num_epochs)
        width = packed.width[1:].sum() / (packed.width[1:] > 0).sum()
        assert low < width < high
        assert num_slots == 1
        sent = waves.traffic(schedule, num_agents, num_epochs).sent
        np.testing.assert_array_equal(
            sent.sum(1), [0] + [3 * num_agents] * (num_epochs - 1)
        )


def test_absences_may_overlap():
    rng = np.random.default_rng(0)
    away = (Absence(0, 1, 10), Absence(0, 2, 3), Absence(1, 4, 6), Absence(1, 5, 9))
    schedule = events.draw(
        rng, random_receivers(rng, 6, 2), np.full(6, 5), 15, Timing(absences=away)
    )
    for agent, start, stop in ((0, 1, 10), (1, 4, 9)):
        times = schedule.time[schedule.agent == agent]
        assert not ((times >= start) & (times < stop)).any()
        assert (times < start).any() and (times >= stop).any()


def test_losses_and_departures_never_stall():
    rng = np.random.default_rng(0)
    away = events.random_absences(rng, 20, 0.3, 2.0)
    assert len(away) == 6
    timing = Timing(loss_probability=0.5, absences=away)
    schedule = events.draw(
        rng, random_receivers(rng, 20, 3), np.full(20, 5), 30, timing
    )
    assert schedule.epoch[-1] == 29
    gone = [absence.agent for absence in away]
    late = schedule.time > 2.0
    assert not np.isin(schedule.agent[late], gone).any()
    assert not np.isin(schedule.receiver[schedule.after > late.argmax()], gone).any()
    traffic = waves.traffic(schedule, 20, 30)
    np.testing.assert_array_equal(
        traffic.trainings.sum(0), np.bincount(schedule.agent, minlength=20)
    )
    assert 0.2 < traffic.received.sum() / schedule.sent.sum() < 0.5
    np.testing.assert_array_equal(traffic.links.arrived.sum(2), traffic.received)
    pairs, expected = np.zeros((20, 20)), np.zeros((20, 20))
    receiver = np.arange(20)[:, None]
    for sender, count in zip(*traffic.links, strict=True):
        np.add.at(pairs, (receiver, sender), count)
    sender = schedule.agent[schedule.source]
    np.add.at(expected, (schedule.receiver, sender), 1)
    np.testing.assert_array_equal(pairs, expected)
    nothing_arrives = Timing(loss_probability=1.0)
    alone = events.draw(
        rng, random_receivers(rng, 6, 2), np.full(6, 5), 5, nothing_arrives
    )
    assert alone.epoch[-1] == 4
    assert alone.num_restarts == 3
    assert len(alone.receiver) == 0


def test_a_graph_without_edges_ends_with_a_warning():
    nobody = Topology(np.zeros((1, 4, 1), int), np.zeros((1, 4, 1), bool))
    with pytest.warns(UserWarning, match="ends in network epoch 3 of 9"):
        schedule = events.draw(np.random.default_rng(0), nobody, np.full(4, 3), 9)
    assert len(schedule.agent) == 8  # at the start and once more


def test_bad_schedules_are_refused():
    rng = np.random.default_rng(0)
    graph = random_receivers(rng, 4, 2)
    for timing, message in (
        (Timing(loss_probability=1.5), "loss probability from 0 to 1"),
        (Timing(mean_delay=-1.0), "mean delay of 0 or more"),
        (Timing(speed=np.ones(3)), "positive speed for each of 4 agents"),
        (Timing(absences=(Absence(4, 0),)), "agents 0 to 3"),
        (Timing(absences=(Absence(1, 2, 2),)), "end after they start"),
    ):
        with pytest.raises(InputError, match=message):
            events.draw(rng, graph, np.full(4, 5), 2, timing)
    with pytest.raises(InputError, match="agents with examples"):
        events.draw(rng, graph, np.zeros(4, int), 2)
    with pytest.raises(InputError, match="receivers \\[epochs, 5, degree\\]"):
        events.draw(rng, graph, np.full(5, 5), 2)


# The thesis' example: a line, scalars, one step of SGD is an epoch.


def quadratic():
    """F(x) = (x - c)^2 / 2, c in the agent's one example."""

    def evaluate(variables, batch):
        error = jnp.square(variables.params["x"] - batch["c"]).sum()
        one = jnp.ones(())
        return {"accuracy": Ratio(-error, one), "loss": Ratio(error, one)}

    return Task(
        init=lambda key: Variables({"x": jnp.ones(())}, {}),
        loss=lambda v, batch, key: (
            (jnp.square(v.params["x"] - batch["c"]) / 2).sum(),
            v.stats,
        ),
        evaluate=evaluate,
    )


def toy_world(centres):
    centres = np.asarray(centres, np.float32)
    split = Split({"c": centres[:, None]}, np.ones(len(centres), np.int32))
    return FederatedData(split, split, split, np.zeros(len(centres), np.int32))


def test_the_thesis_example(monkeypatch):
    """Line 0 - 1 - 2, awake in the order 0, 2, 1, 0."""
    world = toy_world([0, 4, 10])
    task = quadratic()
    order = iter([0, 2, 1, 0])
    monkeypatch.setattr(
        events._Simulation, "_next_uniform", lambda self: next(order, None)
    )
    learner = gradient_descent(task, optax.sgd(0.5))
    method = p2p_bn(
        task,
        learner,
        topology.unstack(line(3))[0],
        batch_size=1,
        fine_tuning=False,
    )
    with pytest.warns(UserWarning, match="protocol ends"):
        inputs = method.plan(np.random.default_rng(0), world, 3)
    state = method.init(jax.random.key(0), world)
    seen, messages = [], 0
    for t in range(3):
        now = jax.tree.map(lambda leaf: leaf[t], inputs)  # noqa: B023
        state, info = method.round(jax.random.key(t), jnp.int32(t), now, state, world)
        seen.append(np.asarray(state.agents.variables.params["x"]).tolist())
        messages += info.sent.sum()
    # After its last training: 0.25 -> merged with 1's -> 2.265625 -> trained.
    assert seen[0] == [0.5, 2.5, 5.5]
    assert seen[1] == [0.25, 4.28125, 7.75]
    assert seen[2] == [1.1328125, 4.28125, 7.75]
    assert messages == 5


@pytest.mark.parametrize("agent_loop", [IN_PLACE, VMAP])
@pytest.mark.parametrize("loss", [0.0, 0.4])
def test_averaged_models_equal_the_oracle(agent_loop, loss):
    """P2P-BN at the end of every round, with and without lost messages."""
    num_rounds, centres = 7, np.array([0, 4, 10, -3, 7, 1.0])
    graph = topology.unstack(random_receivers(np.random.default_rng(1), 6, 2))[0]
    timing = Timing(loss_probability=loss)
    method = p2p_bn(
        quadratic(),
        gradient_descent(quadratic(), optax.sgd(0.3)),
        graph,
        batch_size=1,
        fine_tuning=False,
        timing=timing,
        agent_loop=agent_loop,
    )
    world = toy_world(centres)
    inputs = method.plan(np.random.default_rng(5), world, num_rounds)
    to = topology.receivers(graph)
    to = Topology(*(np.stack([leaf] * num_rounds) for leaf in to))
    schedule = events.draw(
        np.random.default_rng(5), to, np.ones(6, int), num_rounds, timing
    )
    expected = at_ends(
        schedule,
        num_rounds,
        [1.0] * 6,
        lambda number, agent, x: x + 0.3 * (centres[agent] - x),
        halved,
    )
    state = method.init(jax.random.key(0), world)
    start = method.models(state)
    np.testing.assert_array_equal(start.averaged.params["x"], start.trained.params["x"])
    step = jax.jit(method.round)
    for t in range(num_rounds):
        now = jax.tree.map(lambda leaf: leaf[t], inputs)  # noqa: B023
        state, _ = step(jax.random.key(t), jnp.int32(t), now, state, world)
        models = method.models(state)
        found = np.asarray(models.averaged.params["x"])
        np.testing.assert_allclose(found, expected[t], rtol=1e-5, atol=1e-5)
        assert models.reported is models.trained
        assert t == 0 or (abs(found - models.trained.params["x"]) > 1e-2).any()


def test_with_delays_there_are_no_averaged_models():
    """What is still on its way is in the same mailboxes."""
    graph = generators.ring(4)
    learner = gradient_descent(quadratic(), optax.sgd(0.3))
    build = dict(batch_size=1, fine_tuning=False, timing=Timing(mean_delay=0.5))
    method = p2p_bn(quadratic(), learner, graph, **build)
    models = method.models(method.init(jax.random.key(0), toy_world(range(4))))
    assert models.averaged is None
    assert models.reported is models.trained


def test_scores_before_and_after_merging():
    world = toy_world([0.0, 4, 10, -3])
    method = p2p_bn(
        quadratic(),
        gradient_descent(quadratic(), optax.sgd(0.3)),
        generators.ring(4),
        batch_size=1,
        fine_tuning=False,
    )
    *_, last = simulate(jax.random.key(0), method, world, 3)
    models = method.models(last.state)
    for name, some in (
        ("accuracy", models.trained),
        ("accuracy_before", models.trained),
        ("accuracy_after", models.averaged),
    ):
        error = np.square(some.params["x"] - world.test.examples["c"][:, 0])
        np.testing.assert_allclose(last.metrics[name], -error, rtol=1e-5)
    assert (last.metrics["accuracy"] != last.metrics["accuracy_after"]).any()


def test_momentum_grows_as_published():
    found = momentum(jnp.asarray([0, 1, 5, 10, 20, 40, 47, 48, 100]))
    expected = [0.9, 0.901793, 0.909, 0.91809, 0.936544, 0.974571, 0.988242, 0.99, 0.99]
    np.testing.assert_allclose(found, expected, atol=2e-6)


# Real networks: a GRU with batch norm against the sequential oracle.

VOCAB, LENGTH = 15, 4


def text_world(rng, num_agents, smallest=3, largest=14):
    sizes = rng.integers(smallest, largest + 1, num_agents).astype(np.int32)

    def split(sizes):
        shape = (num_agents, int(sizes.max()))
        return Split(
            {
                "x": rng.integers(0, VOCAB, (*shape, LENGTH)).astype(np.int16),
                "y": rng.integers(1, VOCAB, shape).astype(np.int16),
            },
            sizes,
        )

    return FederatedData(
        split(sizes),
        split(np.full(num_agents, 6, np.int32)),
        split(np.full(num_agents, 4, np.int32)),
        np.zeros(num_agents, np.int32),
    )


def build(num_agents, degree=3, seed=0, optimizer=None, **options):
    module = NextWord(VOCAB, embedding=5, units=6, dense=4, batch_norm=True)
    task = next_token(module, LENGTH, ignore_token=1)
    optimizer = optimizer or optax.sgd(0.05)
    learner = gradient_descent(task, optimizer, norm_and_rest(task.norm))

    def graph(rng):
        return generators.directed_regular(num_agents, degree, seed=rng)

    defaults = {"batch_size": 4, "rewire_every": 2, "growing_momentum": True}
    return p2p_bn(task, optimizer, graph, **(defaults | options)), task, learner


def oracle(method, task, learner, world, num_rounds, timing, local=()):
    """One agent after the other, merging leaf by leaf, in plain Python."""
    rng = np.random.default_rng(5)
    inputs = method.plan(np.random.default_rng(5), world, num_rounds)
    num_agents = len(world.train.size)
    drawn = [
        generators.directed_regular(num_agents, 3, seed=rng)
        for _ in range(num_rounds // 2)
    ]
    to = topology.receivers(topology.stack([drawn[t // 2] for t in range(num_rounds)]))
    schedule = events.draw(rng, to, np.asarray(world.train.size), num_rounds, timing)
    state = method.init(jax.random.key(0), world)
    sampler = samplers.shuffled_epochs(4, 14)
    agents = [
        jax.tree.map(lambda leaf: np.asarray(leaf)[n], state.agents)  # noqa: B023
        for n in range(len(world.train.size))
    ]
    step = jax.jit(learner.step)
    evaluate = jax.jit(task.evaluate)

    def of(split, agent):
        return {name: leaf[agent] for name, leaf in split.examples.items()}

    def train(number, agent, model):
        del number
        variables, opt_state, (progress, rate) = model
        valid = samplers.whole_set(of(world.valid, agent), world.valid.size[agent])
        before = evaluate(variables, valid)["accuracy"]
        size = world.train.size[agent]
        frozen = {"rest": jnp.asarray(progress.is_frozen)}
        per_epoch = -(-int(size) // 4)
        for k in range(per_epoch):
            number = jnp.int32(int(progress.num_wakes) * per_epoch + k)
            draw = sampler(jax.random.key(0), number, jnp.int32(size))
            batch = samplers.take_batch(of(world.train, agent), draw)
            variables, opt_state, _ = step(
                jax.random.key(0),
                variables,
                opt_state,
                batch,
                StepContext(None, frozen),
            )
        after = evaluate(variables, valid)["accuracy"]
        improved = float(after.total) > float(before.total)
        num_wakes = int(progress.num_wakes) + 1
        grown = min(0.9 * 1.01 ** (num_wakes / 5), 0.99)
        variables = variables._replace(
            stats=variables.stats | {"momentum": np.float32(grown)}
        )
        memory = (type(progress)(np.asarray(not improved), np.int32(num_wakes)), rate)
        return Agent(variables, opt_state, memory)

    def merge(mine, theirs):
        def mean(a, b):
            return jax.tree.map(lambda p, q: (p + q) / 2, a, b)

        params = mean(mine.variables.params, theirs.variables.params)
        stats = dict(mine.variables.stats)
        if local == shared.FULL:
            stats["batch_stats"] = mean(
                stats["batch_stats"], theirs.variables.stats["batch_stats"]
            )
        return mine._replace(variables=Variables(params, stats))

    return schedule, inputs, sequentially(schedule, agents, train, merge)


def run_all(method, world, inputs, num_rounds):
    state = method.init(jax.random.key(0), world)
    step = jax.jit(method.round)
    infos = []
    for t in range(num_rounds):
        now = jax.tree.map(lambda leaf: leaf[t], inputs)  # noqa: B023
        state, info = step(jax.random.key(t), jnp.int32(t), now, state, world)
        infos.append(info)
    return state, infos


def assert_same_agents(state, expected, **tolerance):
    for agent, one in enumerate(expected):
        for found, wanted in zip(
            *map(jax.tree.leaves, (state.agents, one)), strict=True
        ):
            found = np.asarray(found)[agent]
            if found.dtype == bool or np.issubdtype(found.dtype, np.integer):
                np.testing.assert_array_equal(found, wanted)
            else:
                np.testing.assert_allclose(found, wanted, **tolerance)


ORACLE_TIMINGS = {
    "thesis": Timing(),
    "everything": Timing(
        mean_delay=0.5,
        loss_probability=0.5,
        absences=tuple(Absence(agent, 3.0) for agent in range(0, 18, 3)),
    ),
}


@pytest.mark.parametrize(
    "name, agent_loop",
    [
        ("thesis", IN_PLACE),
        ("everything", VMAP),
        ("thesis", VMAP),
        ("everything", IN_PLACE),
    ],
)
@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_waves_equal_the_oracle_on_a_gru_with_batch_norm(name, agent_loop):
    """20 agents, 200 events, SGD in single precision; flags and counts identical."""
    num_agents, num_rounds, timing = 20, 10, ORACLE_TIMINGS[name]
    world = text_world(np.random.default_rng(0), num_agents)
    width = 8 if agent_loop == VMAP else None
    method, task, learner = build(
        num_agents, timing=timing, agent_loop=agent_loop, max_width=width
    )
    schedule, inputs, expected = oracle(
        method, task, learner, world, num_rounds, timing
    )
    assert len(schedule.agent) >= 170
    state, infos = run_all(method, world, inputs, num_rounds)
    assert_same_agents(state, expected, rtol=1e-5, atol=1e-5)
    frozen = np.asarray(state.agents.memory[0].is_frozen)
    assert 0 < frozen.sum() < num_agents
    sent = np.zeros(num_agents)
    np.add.at(sent, schedule.agent, schedule.sent)
    np.testing.assert_array_equal(np.sum([i.sent for i in infos], 0), sent)
    trained = np.bincount(schedule.agent, minlength=num_agents) * world.train.size
    np.testing.assert_array_equal(np.sum([i.examples for i in infos], 0), trained)
    assert np.isfinite(np.asarray(infos[-1].train_loss)).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.mailbox))
    times = [float(info.time) for info in infos]
    assert times == sorted(times)
    assert times[-1] > 3


@pytest.mark.parametrize("name", ["thesis", "everything"])
@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_waves_equal_the_oracle_in_double_precision(name):
    """20 agents, 200 events; also where 30% leave and half of the messages is lost."""
    num_agents, num_rounds, timing = 20, 10, ORACLE_TIMINGS[name]
    with jax.enable_x64(True):
        world = text_world(np.random.default_rng(0), num_agents)
        method, task, learner = build(
            num_agents, timing=timing, optimizer=optax.adam(1e-2)
        )
        init = task.init

        def in_double(key):
            params, stats = init(key)
            return jax.tree.map(
                lambda x: x.astype(jnp.float64), Variables(params, stats)
            )

        task = task._replace(init=in_double)
        optimizer = optax.adam(1e-2)
        learner = gradient_descent(task, optimizer, norm_and_rest(task.norm))
        method = p2p_bn(
            task,
            optimizer,
            lambda rng: generators.directed_regular(num_agents, 3, seed=rng),
            batch_size=4,
            rewire_every=2,
            timing=timing,
            growing_momentum=True,
        )
        schedule, inputs, expected = oracle(
            method, task, learner, world, num_rounds, timing
        )
        assert len(schedule.agent) >= 170
        state, infos = run_all(method, world, inputs, num_rounds)
        sent = np.zeros(num_agents)
        np.add.at(sent, schedule.agent, schedule.sent)
        np.testing.assert_array_equal(np.sum([i.sent for i in infos], 0), sent)
        for agent, one in enumerate(expected):
            frozen = state.agents.memory[0].is_frozen[agent]
            assert bool(frozen) == bool(one.memory[0].is_frozen)
            for found, wanted in zip(
                *map(
                    jax.tree.leaves,
                    (state.agents.variables.params, one.variables.params),
                ),
                strict=True,
            ):
                assert found.dtype == jnp.float64
                np.testing.assert_allclose(
                    np.asarray(found)[agent], wanted, rtol=0, atol=1e-9
                )


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_same_numbers_on_several_devices():
    world = text_world(np.random.default_rng(0), 8)
    results = []
    for num_devices in (1, 4):
        method, task, _ = build(8, timing=Timing(loss_probability=0.2))
        with jax.set_mesh(sharding.agents_mesh(8, num_devices)):
            *_, last = simulate(
                jax.random.key(0),
                method,
                world,
                4,
                eval_every=4,
                evaluate=on_test_sets(task),
            )
            kernel = last.state.agents.variables.params["dense"]["kernel"]
            assert len(kernel.sharding.device_set) == num_devices
        results.append(jax.tree.map(np.asarray, (last.state, last.metrics)))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_too_few_mailboxes_are_refused():
    world = text_world(np.random.default_rng(0), 12)
    method, _, _ = build(12, timing=Timing(mean_delay=1.0), num_mailboxes=1)
    with pytest.raises(InputError, match="mailboxes per agent for these delays, got 1"):
        method.plan(np.random.default_rng(0), world, 8)


def test_sharing_rules_keep_statistics_at_home():
    """With FedBN and SiloBN nobody's running statistics reach anybody."""
    world = text_world(np.random.default_rng(0), 6)
    sizes = {}
    for name, local in (("full", shared.FULL), ("silo", shared.SILO_BN)):
        method, _, _ = build(6, local_patterns=local)
        state = jax.eval_shape(method.init, jax.random.key(0), world)
        sizes[name] = sum(leaf.size for leaf in jax.tree.leaves(state.mailbox))
    # Means and variances of 6 units and of 4 dense cells, for 6 agents.
    assert sizes["full"] - sizes["silo"] == 6 * 2 * (6 + 4)


@pytest.mark.parametrize("work, num_epochs", [(2, 1), (5, 2), (3, 7)])
def test_first_trainings_beyond_the_last_epoch_are_left_out(work, num_epochs):
    """Where agents train for several epochs, the first pass alone may take longer."""
    sizes = np.full(4, 10)
    ring = generators.ring(4)
    to = Topology(*(np.asarray(leaf)[None] for leaf in ring))
    schedule = events.draw(
        np.random.default_rng(0), to, sizes, num_epochs, work=work * sizes
    )
    assert schedule.epoch.max() == num_epochs - 1
    assert len(schedule.agent) == len(schedule.epoch) == len(schedule.time)
    processed = work * 10 * np.arange(len(schedule.agent))
    np.testing.assert_array_equal(schedule.epoch, processed // 40)
    waves.pack(schedule, 4, num_epochs)
