"""Rounds lower for accelerators, though none is here to run them."""

import importlib
import inspect
import pkgutil
import typing

import every_algorithm
import jax
import pytest
import test_events
import test_multi_task
import test_selection_contract
import test_virtual
from lowering import assert_lowers

from p2pjax import algorithms, selection
from p2pjax.engines.stepwise import GossipProtocol
from p2pjax.selection.base import Selection
from p2pjax.training import agent_loop
from p2pjax.types import Algorithm


@pytest.mark.parametrize("name", every_algorithm.EVERY)
def test_vmapped_round_lowers(name):
    method, world = every_algorithm.build(name, agent_loop.VMAP)
    with jax.numpy_dtype_promotion("standard"):
        assert_lowers(method, world)


def test_every_algorithm_is_among_them():
    """All functions of the package that make one, or a part of one, by name."""
    made = set()
    for package in (algorithms, selection):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, fn in vars(importlib.import_module(module.name)).items():
                if inspect.isfunction(fn) and not name.startswith("_"):
                    kind = typing.get_type_hints(fn).get("return")
                    if kind in (Algorithm, GossipProtocol, Selection):
                        made.add(fn.__name__)
    assert {"pull", "dpsgd", "dac"} < made
    tables = (every_algorithm, test_selection_contract, test_events, test_virtual)
    used = {name for table in (*tables, test_multi_task) for name in vars(table)}
    shared = {"asynchronous"}  # of p2p_bn and multi_task
    assert made - shared <= used


def test_calls_to_the_host_are_found():
    """Or the tests above could not fail."""
    method, world = every_algorithm.build("local only", agent_loop.VMAP)

    def round_fn(*args):
        state, info = method.round(*args)
        jax.debug.print("{}", info.sent.sum())
        return state, info

    # Some jax refuses to lower them, jax 0.10 stumbles over them for two platforms.
    with pytest.raises((AssertionError, ValueError, TypeError)):
        assert_lowers(method._replace(round=round_fn), world)
