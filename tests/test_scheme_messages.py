"""Methods whose agents send each other what a scheme shares, cut from leaves."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from every_algorithm import Normalised
from jax.flatten_util import ravel_pytree
from slow_cases import marked
from test_events import at_ends
from test_federated import network_task, network_world
from test_network_cells import OTHERS
from test_own_networks import bare_task
from test_protocols import run

import p2pjax as pj
from p2pjax.asynchronous import events
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.owner_classes import owner_arrays
from p2pjax.exchange.shared import cut, message_size
from p2pjax.graphs import generators, topology
from p2pjax.graphs.topology import Topology
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.slices import in_leaves, slices
from p2pjax.partial.views import restored, viewed
from p2pjax.tasks.task import shapes_of
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.types import InputError, Variables

TASK = network_task()  # two inputs, three hidden cells, two classes
RATE, SIZE = 0.5, 5
SGD = optax.sgd(RATE)
HALF = pj.partial.level(0.5)  # two of the hidden cells
OF_ONE = 2 * 2 + 2 + 2 * 2 + 2  # numbers of its slice
WORLD = network_world((6,) * SIZE)
RING = generators.ring(SIZE)


def is_sent():
    """Of all numbers of a network, flat."""
    leaves = [np.zeros(leaf.shape, bool) for leaf in jax.tree.leaves(shapes())]
    for owner_class in slices(TASK, HALF)(SIZE).classes:
        for block in owner_class.blocks:
            leaves[block.leaf][cut(block)] = owner_class.is_shared
    return np.concatenate([leaf.ravel() for leaf in leaves])


def shapes():
    return shapes_of(TASK).params


def flat(params):
    """Leaves `[..., N, ...]` of `SIZE` agents as `[..., N, P]`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    first = leaves[0].shape[: leaves[0].shape.index(SIZE) + 1]
    return np.concatenate([leaf.reshape(*first, -1) for leaf in leaves], -1)


@jax.jit
def loss_and_gradient(vector, x, y):
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes())
    network = ravel_pytree(blank)[1]
    batch = {"x": x, "y": y, "valid": jnp.ones(len(y), bool)}

    def loss(vector):
        return TASK.loss(Variables(network(vector), {}), batch, None)[0]

    return jax.value_and_grad(loss)(vector)


def on_all(agent, vector):
    """Loss of a model on all examples of an agent, and its gradient."""
    x, y = (WORLD.train.examples[name][agent] for name in "xy")
    loss, gradient = loss_and_gradient(np.asarray(vector, "f4"), x, y)
    return float(loss), np.asarray(gradient)


def stepped(agent, vector):
    return vector - RATE * on_all(agent, vector)[1]


def test_what_is_sent():
    assert is_sent().sum() == OF_ONE == message_size(slices(TASK, HALF)(SIZE))


@pytest.mark.parametrize("name", ["MNIST CNN", "NNX LSTM", "fused heads"])
def test_blocks_lie_where_those_of_views_do(name):
    """Behind a flatten and in gates the columns of a unit lie apart."""
    network, x, _ = OTHERS[name]
    found, task = pj.partial.cells_of(network, x), bare_task(network, x)
    assert found.views
    scheme = pj.partial.level(0.5)(found.layout, 3)
    sharing = pj.partial.compile_scheme(scheme, found, task)
    shapes = shapes_of(task).params
    of_pieces = owner_arrays(sharing.plan, viewed(shapes, found.views))
    expected = restored(of_pieces, shapes, found.views, is_stacked=True)
    plan = in_leaves(sharing.plan, found.views, task)
    jax.tree.map(np.testing.assert_array_equal, owner_arrays(plan, shapes), expected)
    assert message_size(plan) == message_size(sharing.plan) > 0


def test_dpsgd_is_partial_averaging_by_gossip():
    """Where each step sees all examples, so that their order does not matter."""
    gossip = pj.dpsgd(
        TASK,
        SGD,
        RING,
        batch_size=6,
        mixing_weights=pj.graphs.metropolis_hastings,
        scheme=HALF,
    )
    averaging = pj.partial_averaging(
        TASK,
        SGD,
        HALF,
        batch_size=6,
        averaging=partial(pj.partial.metropolis_gossip, graph=RING),
    )
    (one, sent), (other, expected) = (run(m, WORLD, 3) for m in (gossip, averaging))
    found, wanted = (flat(states.variables.params) for states in (one, other))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert np.ptp(found[-1], axis=0)[~is_sent()].min() > 0
    np.testing.assert_array_equal(sent.payload, expected.payload)
    assert (sent.payload == 2 * OF_ONE).all()


def test_pens_fetches_slices():
    """Agents try them in their own models; a plain loop over agents."""
    method = pj.pens(
        TASK, SGD, batch_size=6, num_peers=2, num_candidates=SIZE - 1, scheme=HALF
    )
    states, info = run(method, WORLD, 4)
    sent = is_sent()
    models = flat(jax.jit(method.init)(jax.random.key(0), WORLD).variables.params)
    chosen = [[n] for n in range(SIZE)]
    for t in range(4):
        averaged = [
            np.where(sent, np.mean([models[j] for j in chosen[n]], 0), models[n])
            for n in range(SIZE)
        ]
        models = [stepped(n, averaged[n]) for n in range(SIZE)]
        np.testing.assert_allclose(
            flat(states.variables.params)[t], models, rtol=1e-4, atol=1e-5
        )
        for n in range(SIZE):
            tried = {
                j: on_all(n, np.where(sent, models[j], models[n]))[0]
                for j in range(SIZE)
                if j != n
            }
            chosen[n] = [n, *sorted(tried, key=tried.get)[:2]]
    assert (info.payload == (SIZE - 1) * OF_ONE).all()
    assert len({tuple(some) for some in chosen}) > 1


@pytest.mark.parametrize("agent_loop", [VMAP, IN_PLACE])
def test_p2p_bn_merges_slices(agent_loop):
    """A global and a local slice, against the protocol as it is written."""
    method = pj.p2p_bn(
        TASK,
        SGD,
        RING,
        batch_size=6,
        fine_tuning=False,
        scheme=HALF,
        agent_loop=agent_loop,
    )
    num_rounds = 4
    inputs = method.plan(np.random.default_rng(5), WORLD, num_rounds)
    states, info = run(method, WORLD, num_rounds, inputs=inputs)
    to = Topology(*(np.stack([leaf] * num_rounds) for leaf in topology.receivers(RING)))
    schedule = events.draw(np.random.default_rng(5), to, np.full(SIZE, 6), num_rounds)
    start = jax.jit(method.init)(jax.random.key(0), WORLD)
    sent = is_sent()
    expected = at_ends(
        schedule,
        num_rounds,
        list(flat(start.agents.variables.params)),
        lambda number, agent, model: stepped(agent, model),
        lambda mine, theirs: np.where(sent, (mine + theirs) / 2, mine),
    )
    models = jax.vmap(method.models)(states)
    np.testing.assert_allclose(
        flat(models.averaged.params), expected, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(info.payload, info.sent * OF_ONE)
    assert sum(leaf.size for leaf in jax.tree.leaves(start.mailbox)) == SIZE * OF_ONE


GOSSIP = {
    "d2": {},
    "dfedavgm": {},
    "dfedsam": {},
    "dpsgd": {},
    "exact_diffusion": {},
    "extra": {},
    "gosgd": {},
    "gradient_tracking": {},
    "k_gt": {"communication_step": 0.9},
    "momentum_tracking": {},
    "qg_dsgdm": {},
    "relay_sgd": {},
    "sgp": {},
}
OTHER_METHODS = {
    "ad_psgd": (RING,),
    "epidemic": (),
    "pens": (),
    "panm": (),
    "dac": (),
    "l2c": (),
    "oracle": (np.zeros(SIZE, int),),
    "sparse": (RING,),
    "diple": (),
}
UP_TO_HIDDEN = Scheme(((2, 3, 2),) * SIZE, (PartialModel((2, 3, 0), (0, 1, 2, 3, 4)),))


def built(name, optimizer=SGD, **options):
    args = (RING,) if name in GOSSIP or name == "p2p_bn" else OTHER_METHODS[name]
    options = {**GOSSIP.get(name, {}), **options}
    if name == "p2p_bn":
        options["fine_tuning"] = False
    if name in ("epidemic", "pens", "panm", "dac"):
        options["num_peers"] = 2
    if name in ("pens", "panm"):
        options["num_candidates"] = 3
    return getattr(pj, name)(TASK, optimizer, *args, batch_size=3, **options)


def traced(method):
    """The program of a round, and what it starts from."""
    state = jax.eval_shape(method.init, jax.random.key(0), WORLD)
    inputs = method.plan(np.random.default_rng(0), WORLD, 1)
    now = jax.tree.map(lambda leaf: leaf[0], inputs)
    return str(
        jax.make_jaxpr(method.round)(jax.random.key(0), jnp.int32(0), now, state, WORLD)
    )


FEW = ("dpsgd", "d2", "gosgd", "relay_sgd", "ad_psgd", "pens")
ROWS = marked([*GOSSIP, *OTHER_METHODS], *({*GOSSIP, *OTHER_METHODS} - {*FEW}))


@pytest.mark.parametrize("name", ROWS)
def test_a_scheme_of_whole_leaves_is_as_patterns(name):
    """The same program, of each method that takes both."""
    by_scheme = traced(built(name, scheme=UP_TO_HIDDEN))
    assert by_scheme == traced(built(name, local_patterns=("params/layer_2/.*",)))
    assert by_scheme != traced(built(name))


@pytest.mark.parametrize("name", ["dpsgd", "pens", "p2p_bn"])
def test_slices_through_a_channel(name):
    """What stays is not quantised; bytes are those of the slice."""
    through = pj.channel.quantize(8)
    method = built(name, optimizer=optax.sgd(0.0), scheme=HALF, channel=through)
    start = jax.jit(method.init)(jax.random.key(0), WORLD)
    states, info = run(method, WORLD, 3)
    before, after = (
        flat((s.agents if name == "p2p_bn" else s).variables.params)
        for s in (start, states)
    )
    sent = is_sent()
    np.testing.assert_array_equal(after[-1][:, ~sent], before[:, ~sent])
    assert (after[-1][:, sent] != before[:, sent]).any()
    of_one = num_bytes(message_bits(through.format, slices(TASK, HALF)(SIZE), shapes()))
    np.testing.assert_allclose(info.bytes, info.payload / OF_ONE * of_one, rtol=1e-6)
    assert of_one < 4 * OF_ONE


def test_statistics_stay():
    task = pj.classification(Normalised(), (2,))
    method = pj.p2p_bn(
        task, SGD, RING, batch_size=3, fine_tuning=False, scheme=pj.partial.level(1.0)
    )
    state = jax.eval_shape(method.init, jax.random.key(0), WORLD)
    sent = sum(leaf.size for leaf in jax.tree.leaves(state.mailbox))
    params = state.agents.variables.params
    assert sent == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert jax.tree.leaves(state.agents.variables.stats)


SOME = Scheme(((2, 3, 2),) * SIZE, (PartialModel((2, 3, 2), (0, 1)),))
RATED = Scheme(
    ((2, 3, 2),) * SIZE, (PartialModel((2, 3, 2), tuple(range(SIZE)), rate=0.5),)
)
DRIFTS = RATED._replace(
    models=(RATED.models[0]._replace(rate=1.0, drift_threshold=0.5),)
)
NARROW = Scheme(
    (*((2, 3, 2),) * (SIZE - 1), (2, 2, 2)),
    (PartialModel((2, 2, 2), tuple(range(SIZE))),),
)


class TestRefusals:
    @pytest.mark.parametrize(
        "scheme, match",
        [
            (SOME, "got model 0 of 2 of 5: use partial_averaging"),
            (RATED, "got 0.5 of model 0: use partial_averaging"),
            (DRIFTS, "no drift_threshold .* 0.5 of model 0: use partial_averaging"),
            (NARROW, "the same cells in each agent"),
            (0.5, "such as partial.level\\(0.8\\), got float"),
        ],
    )
    def test_at_construction(self, scheme, match):
        for name in ("dpsgd", "pens", "p2p_bn", "ad_psgd", "diple", "relay_sgd"):
            with pytest.raises(InputError, match=match):
                built(name, scheme=scheme)

    def test_both(self):
        for name in ("dpsgd", "pens", "p2p_bn"):
            with pytest.raises(InputError, match="either local_patterns or a scheme"):
                built(name, scheme=HALF, local_patterns=("params/layer_2/.*",))

    @pytest.mark.parametrize("name", ["dpsgd", "pens", "p2p_bn"])
    def test_where_the_agents_are_known(self, name):
        key = jax.random.key(0)
        with pytest.raises(InputError, match="use local_only"):
            built(name, scheme=pj.partial.level(0.0)).init(key, WORLD)
        with pytest.raises(InputError, match="as many agents in the data .* 5 and 4"):
            other = HALF((2, 3, 2), 4)
            built(name, scheme=other).init(key, WORLD)

    def test_copies_of_leaves(self):
        with pytest.raises(InputError, match="Need whole leaves for CHOCO-SGD"):
            pj.choco_sgd(
                TASK,
                SGD,
                RING,
                batch_size=3,
                compression=pj.channel.sign(),
                scheme=HALF,
            )
