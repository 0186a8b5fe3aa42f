"""Rounds lower for accelerators, though none is here to run them."""

import importlib
import inspect
import pkgutil
import sys
import typing

import every_algorithm
import jax
import optax
import pytest
import test_selection_contract
from lowering import assert_lowers
from slow_cases import marked
from test_federated import network_task, network_world

import p2pjax as pj
from p2pjax import algorithms, engines, selection
from p2pjax.engines.assembly import assemble
from p2pjax.engines.protocol import GossipProtocol
from p2pjax.selection.base import Selection
from p2pjax.training import agent_loop
from p2pjax.types import Algorithm

LONG = (
    "choosing by d_cliques",
    "choosing by l2c_capped_with_views",
    "choosing by panm_capped",
    "choosing by pens_with_views",
    "d2 protocol",
    "dpsgd, scored before",
    "p2p_bn, next words",
    "p2p_bn, own rates",
    "choco protocol",
)


@pytest.mark.parametrize("name", marked(every_algorithm.EVERY, *LONG))
def test_vmapped_round_lowers(name):
    method, world = every_algorithm.build(name, agent_loop.VMAP)
    assert_lowers(method, world)


def makers(*kinds):
    """All functions of the package that make one, or a part of one."""
    found = set()
    for package in (algorithms, engines, selection):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, fn in vars(importlib.import_module(module.name)).items():
                if inspect.isfunction(fn) and not name.startswith("_"):
                    kind = typing.get_type_hints(fn).get("return")
                    found |= {fn} if kind in kinds else set()
    return found


def called_by(name):
    """Code of all functions that are called to make a method."""
    called = set()
    sys.setprofile(lambda frame, event, arg: called.add(frame.f_code))
    try:
        every_algorithm.build(name, agent_loop.VMAP)
    finally:
        sys.setprofile(None)
    return called


def test_every_algorithm_is_among_them():
    of_rows = {name: called_by(name) for name in every_algorithm.EVERY}
    for name in pj.METHODS:
        assert getattr(pj, name).__code__ in of_rows[name], name
    called = set().union(*of_rows.values())
    made = makers(Algorithm)
    assert {pj.pull, pj.gossip, pj.dpsgd} < made
    assert not [fn.__name__ for fn in made if fn.__code__ not in called]
    assert assemble.__code__ in called


def test_every_protocol_and_selection_is_among_them():
    """Those that methods are made of, and those that are given to engines."""
    given = {*vars(every_algorithm), *vars(test_selection_contract)}
    made = {fn.__name__ for fn in makers(GossipProtocol, Selection)}
    assert {"neighbor_averaging", "sgp_protocol", "dac", "limit_requests"} < made
    protocols = {
        getattr(pj.protocols, name).__name__
        for name in (
            "choco_sgd",
            "dpsgd",
            "d2",
            "exact_diffusion",
            "extra",
            "gosgd",
            "gradient_tracking",
            "k_gt",
            "qg_dsgdm",
            "relay_sgd",
            "sgp",
        )
    } | {"diffusion"}  # of which D2 and exact diffusion are made
    assert made <= given | protocols


def arrays(tree):
    """Where its arrays are in memory; those without entries are nowhere."""
    return [
        leaf.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, jax.Array)
        and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        and leaf.size
    ]


def assert_can_be_donated(method, world):
    """No array of a state is anywhere else, so that the next round may overwrite it."""
    world = jax.tree.map(jax.numpy.asarray, world)
    key = jax.random.key(0)
    state, again = (method.init(key, world) for _ in range(2))
    assert len(arrays(state)) > 0
    everywhere = arrays((state, again, world))
    assert len(everywhere) == len(set(everywhere)), method.round_is
    keys = [
        leaf
        for leaf in jax.tree.leaves((state, again))
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]
    assert len({id(leaf) for leaf in (*keys, key)}) == 1 + len(keys)


@pytest.mark.parametrize("name", marked(every_algorithm.EVERY, "virtual", *LONG))
def test_initial_states_can_be_donated(name):
    method, world = every_algorithm.build(name, agent_loop.VMAP)
    assert_can_be_donated(method, world)


def test_optimizers_that_keep_parameters_can_be_donated():
    """What an optimizer remembers may be the parameters themselves."""
    task, world = network_task(), network_world()
    anchored = optax.GradientTransformation(
        lambda params: params, lambda updates, state, params: (updates, state)
    )
    for method in (
        pj.dpsgd(task, anchored, pj.graphs.ring(3), batch_size=2),
        pj.fedavg(task, optax.sgd(0.1), batch_size=2, server_opt=anchored),
    ):
        assert_can_be_donated(method, world)


def test_calls_to_the_host_are_found():
    """Or the tests above could not fail."""
    method, world = every_algorithm.build("local_only", agent_loop.VMAP)

    def round_fn(*args):
        state, info = method.round(*args)
        jax.debug.print("{}", info.sent.sum())
        return state, info

    # Some jax refuses to lower them, jax 0.10 stumbles over them for two platforms.
    with pytest.raises((AssertionError, ValueError, TypeError)):
        assert_lowers(method._replace(round=round_fn), world)
