"""DFCA and FACADE: published iterates, a plain loop, identities, what they refuse."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quadratics
from quadratics import EDGES, ETA, SIZE, VECTORS, gradients, in_64_bits, losses

import p2pjax as pj
from p2pjax.graphs.schedule import varying

GRAPH = pj.graphs.as_graph(EDGES)
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
TASK = quadratics.task((2, 1))  # a core of two coordinates, a head of one
HEAD = ("params/x1",)


def dfca(task=TASK, graph=GRAPH, **options):
    return pj.dfca(task, optax.sgd(ETA), graph, batch_size=1, **options)


def facade(task=TASK, graph=GRAPH, head=HEAD, **options):
    return pj.facade(task, optax.sgd(ETA), graph, batch_size=1, head=head, **options)


def leaf(rows):
    return jnp.asarray(np.array(rows, float))


def started(method, core, versions):
    """The state at a common core, if there is one, and these versions `[k, ...]`."""
    data = jax.tree.map(jnp.asarray, quadratics.world())
    state = method.init(jax.random.key(0), data)
    tiled = [np.tile(version, (SIZE, 1)) for version in versions]
    if core is None:
        new = tuple(
            {"params/x0": leaf(v[:, :2]), "params/x1": leaf(v[:, 2:])} for v in tiled
        )
        return state._replace(versions=new), data
    params = {**state.variables.params, "x0": leaf(np.tile(core, (SIZE, 1)))}
    return (
        state._replace(
            versions=tuple({"params/x1": leaf(v)} for v in tiled),
            variables=state.variables._replace(params=params),
        ),
        data,
    )


def run(method, core, versions, num_rounds, seed=0):
    """States, infos and reported models after every round."""
    state, data = started(method, core, versions)
    inputs = method.plan(np.random.default_rng(seed), data, num_rounds)
    step, found = quadratics.jit(method.round), []
    for t in range(num_rounds):
        one = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t]), inputs)
        key = jax.random.fold_in(jax.random.key(seed), t)
        state, info = step(key, jnp.int32(t), one, state, data)
        found.append((state, info, method.models(state).reported))
    return found


def test_published_iterates_of_dfca():
    expected = VECTORS["dfca"]
    with in_64_bits():
        found = run(dfca(), None, expected["theta_start_of_everybody"], 3)
    for (state, info, models), published in zip(found, expected["rounds"], strict=True):
        theta = np.stack(
            [np.concatenate(list(version.values()), 1) for version in state.versions], 1
        )
        close(theta, published["theta"])
        assert state.choice.tolist() == published["choice"]
        own = np.concatenate([models.params["x0"], models.params["x1"]], 1)
        close(own, theta[np.arange(SIZE), published["choice"]])
        assert info.sent.tolist() == [3, 2, 3, 2, 2] == info.received.tolist()
        assert info.payload.tolist() == [9, 6, 9, 6, 6]
        assert info.bytes.tolist() == [48, 32, 48, 32, 32]  # an integer travels along
    start = np.array(expected["theta_start_of_everybody"])
    first = np.stack([losses(np.tile(x, (SIZE, 1))) for x in start], 1)
    close(first, expected["rounds"][0]["losses"])


def test_published_iterates_of_facade():
    expected = VECTORS["facade"]
    heads = np.array(expected["heads_start"])[:, None]
    with in_64_bits():
        found = run(facade(), expected["core_start"], heads, 3)
    for (state, info, _), published in zip(found, expected["rounds"], strict=True):
        close(state.variables.params["x0"], published["core"])
        head = np.concatenate([v["params/x1"] for v in state.versions], 1)
        close(head, published["head"])
        assert state.choice.tolist() == published["choice"]
        assert info.payload.tolist() == [9, 6, 9, 6, 6]


def reference(x, choices_of, graphs, head_only):
    """One agent after the other, with running averages in a random order.

    Args:
      x: `[N, k, 3]`, of which the core is the same in all k.
      choices_of: losses `[N, k]` -> choices.
      graphs: neighbours of each agent, in every round.
      head_only: whether only the last coordinate has versions.
    """
    rng = np.random.default_rng(5)
    for neighbors in graphs:
        all_losses = np.stack([losses(x[:, c]) for c in range(x.shape[1])], 1)
        choice = choices_of(all_losses)
        own = x[np.arange(SIZE), choice]
        own = own - ETA * gradients(own)
        x[np.arange(SIZE), choice] = own
        if head_only:
            x[:, :, :2] = own[:, None, :2]
        new = x.copy()
        for i in range(SIZE):
            count = np.ones((x.shape[1], 3))
            for j in rng.permutation(neighbors[i]):
                for c in range(x.shape[1]):
                    takes = np.full(3, c == choice[j])
                    if head_only:
                        takes[:2] = True
                    r = count[c]
                    mean = (r * new[i, c] + own[j]) / (r + 1)
                    new[i, c] = np.where(takes, mean, new[i, c])
                    count[c] += takes
        x = new
    return x


@pytest.mark.parametrize("head_only", [False, True])
def test_running_averages_in_any_order_on_graphs_that_change(head_only):
    def draw(rng):
        return pj.graphs.erdos_renyi(SIZE, 0.6, seed=rng)

    rng = np.random.default_rng(2)
    graphs = varying(draw, 6, seed=rng)
    neighbors = [
        [np.asarray(n)[np.asarray(m)] for n, m in zip(*one, strict=True)]
        for one in zip(graphs.neighbor, graphs.mask, strict=True)
    ]
    start = rng.normal(size=(3, 3))
    if head_only:
        start[:, :2] = start[0, :2]
    make, core, versions = dfca, None, start
    if head_only:
        make, core, versions = facade, start[0, :2], start[:, 2:]
    with in_64_bits():
        method = make(graph=graphs, rewire_every=1, num_clusters=3)
        state = run(method, core, versions, 6)[-1][0]
        models = [
            np.concatenate(
                [v.get("params/x0", state.variables.params["x0"]), v["params/x1"]], 1
            )
            for v in state.versions
        ]
    x = np.tile(start, (SIZE, 1, 1))
    x = reference(x, lambda all_losses: all_losses.argmin(1), neighbors, head_only)
    close(np.stack(models, 1), x)


def test_one_cluster_is_dpsgd():
    weight = np.eye(SIZE)
    for i, j in EDGES:
        weight[i, j] = weight[j, i] = 1
    weight /= weight.sum(1, keepdims=True)
    start = np.array([[1.0, -1, 0.5]])
    x = np.tile(start, (SIZE, 1))
    for _ in range(4):
        x = weight @ (x - ETA * gradients(x))
    for method, core, version in (
        (dfca(num_clusters=1), None, start),
        (facade(num_clusters=1), start[0, :2], start[:, 2:]),
    ):
        with in_64_bits():
            found = run(method, core, version, 4)[-1][2]
        close(np.concatenate([found.params["x0"], found.params["x1"]], 1), x)


def test_starts():
    """The same for all agents or each its own; clusters differ."""
    task = pj.classification(pj.nn.MLP((3, 2)), (2,))
    data = quadratics.world()
    for same in (True, False):
        method = pj.dfca(
            task, optax.sgd(0.1), GRAPH, batch_size=1, num_clusters=2, same_start=same
        )
        first, second = method.init(jax.random.key(0), data).versions
        for name in first:
            if name.endswith("kernel"):
                assert (np.ptp(first[name], 0).max() == 0) == same
                assert np.abs(first[name] - second[name]).max() > 0
    core = pj.facade(
        task, optax.sgd(0.1), GRAPH, batch_size=1, head=["params/layer_2/.*"]
    ).init(jax.random.key(0), data)
    assert all("layer_2" in path for path in core.versions[1])
    assert core.variables.params["layer_2"]["kernel"] is None


def test_random_heads_at_first():
    method = facade(num_clusters=4, num_random_rounds=30)
    with in_64_bits():
        found = run(method, [1.0, -1], np.arange(4.0)[:, None], 34)
        late = [state.choice.tolist() for state, _, _ in found[30:]]
        drawn = np.stack([state.choice for state, _, _ in found[:30]])
    assert (np.bincount(drawn.ravel(), minlength=4) > 20).all()  # of 150
    assert all(choice == late[0] for choice in late)


def test_lost_messages_do_not_count():
    """Of nothing that arrives each agent keeps its own."""
    start = np.array([[1.0, -1, 0.5], [-1, 1, 0]])
    with in_64_bits():
        method = dfca(channel=pj.channel.drop(1 - 1e-9))
        state, info, _ = run(method, None, start, 3)[-1]
        assert info.received.sum() == 0 and info.sent.sum() == 12
        x = np.tile(start, (SIZE, 1, 1))
        x = reference(x, lambda found: found.argmin(1), [[[]] * SIZE] * 3, False)
        models = [np.concatenate(list(v.values()), 1) for v in state.versions]
    close(np.stack(models, 1), x)


def test_what_stays_at_home_is_not_mixed():
    start = np.array([[1.0, -1, 0.5], [-1, 1, 0]])
    with in_64_bits():
        method = dfca(local_patterns=("params/x0",))
        state, info, _ = run(method, None, start, 1)[-1]
        x = np.tile(start, (SIZE, 1, 1))
        alone = reference(x.copy(), lambda a: a.argmin(1), [[[]] * SIZE], False)
        for c, version in enumerate(state.versions):
            close(version["params/x0"], alone[:, c, :2])
        assert info.payload.tolist() == [3, 2, 3, 2, 2]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: dfca(num_clusters=0), "one cluster or more for DFCA, got 0"),
        (lambda: facade(num_random_rounds=-1), "0 random rounds or more for FACADE"),
        (lambda: facade(head=("params/y",)), "leaves of FACADE's clusters among"),
        (
            lambda: dfca(channel=pj.channel.top_k(0.1)),
            "whole models for DFCA, got top_k",
        ),
        (lambda: facade(channel=pj.channel.delay(1.0)), "FACADE has no clock"),
        (lambda: dfca(rewire_every=1), "a sequence of graphs"),
        (
            lambda: dfca(graph=pj.graphs.weights(np.full((5, 5), 0.2))),
            "without weights",
        ),
    ],
)
def test_refused(make, message):
    with pytest.raises(pj.InputError, match=message):
        make()


def test_a_loss_is_needed():
    task = TASK._replace(evaluate=lambda variables, batch: {})
    with pytest.raises(pj.InputError, match="whose evaluation has a loss"):
        run(dfca(task), None, np.zeros((2, 3)), 1)
