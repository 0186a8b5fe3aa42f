"""Counts of operations and bytes: equal to those by hand, and there for all methods."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import p2pjax as pj
from experiments.bench import accelerators, collectives, inputs
from experiments.bench.stablehlo_costs import cost_of
from experiments.bench.standard_problem import Size

ROOT = Path(__file__).parents[1]
PLATFORMS = ("tpu", "cuda")
TINY = Size(num_agents=8, widths=(20, 12, 8, 10), batch_size=4, num_examples=4)
FAST = ("dpsgd", "fedavg", "multi_task", "pens", "virtual")


def lowered(fn, *args, platform="tpu"):
    return jax.jit(fn).trace(*args).lower(lowering_platforms=(platform,))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_product(platform):
    x, w = jnp.ones((4, 8)), jnp.ones((8, 3))
    found = cost_of(lowered(jnp.matmul, x, w, platform=platform))
    assert found == (2 * 4 * 8 * 3, 0, 4 * (4 * 8 + 8 * 3 + 4 * 3), 0)


def test_a_batched_product_and_its_sum():
    x, w = jnp.ones((5, 4, 8)), jnp.ones((5, 8, 3))
    found = cost_of(lowered(lambda x, w: (x @ w + 1).sum(), x, w))
    assert found.product_flops == 5 * 2 * 4 * 8 * 3
    assert found.other_flops == 2 * 5 * 4 * 3  # add one, add up


def test_a_convolution():
    x, w = jnp.ones((2, 8, 8, 6)), jnp.ones((5, 5, 3, 4))

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )

    found = cost_of(lowered(convolve, x, w))
    assert found.product_flops == 2 * (2 * 8 * 8 * 4) * (5 * 5 * 3)


def test_loops_and_branches():
    x, w, n = jnp.ones((4, 8)), jnp.ones((8, 8)), jnp.int32(3)
    once = 2 * 4 * 8 * 8

    def scanned(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=5)[0]

    found = cost_of(lowered(scanned, x, w))
    assert (found.product_flops, found.open_loops) == (5 * once, 0)

    def until(x, w, n):
        return jax.lax.fori_loop(0, n, lambda i, c: c @ w, x)

    found = cost_of(lowered(until, x, w, n))
    assert (found.product_flops, found.open_loops) == (once, 1)

    def branched(x, w, n):
        return jax.lax.cond(n > 1, lambda: x @ w @ w, lambda: x)

    assert cost_of(lowered(branched, x, w, n)).product_flops == 2 * once


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_step_of_training_is_that_of_the_benchmark(platform):
    found = accelerators.counted("local_only", TINY, (platform,)).cost[platform]
    by_hand = TINY.num_agents * inputs.mlp_gigaflops(TINY.widths, TINY.batch_size)
    assert found.product_flops == pytest.approx(by_hand * 1e9, rel=1e-12)


@pytest.mark.filterwarnings("ignore:CHOCO-SGD uses the consensus_step")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in pj.METHODS
    ],
)
def test_every_method_is_counted(name):
    found = accelerators.counted(name, TINY, PLATFORMS)
    assert found.state_bytes > 0 and found.data_bytes > 0
    for platform in PLATFORMS:
        assert found.cost[platform].product_flops > 0
        assert found.cost[platform].moved_bytes > 0
    for chip in accelerators.CHIPS.values():
        low, high = accelerators.bounds(found, chip)
        assert 0 < low <= high


def test_the_table():
    titles, row = accelerators.lines(["dpsgd"], TINY, num_measured=1)
    assert titles.splitlines()[0].count("(estimate)") == len(accelerators.CHIPS)
    assert titles.splitlines()[0].count("|") == row.count("|")
    assert row.startswith("| dpsgd | ")


def test_the_page_has_every_method():
    page = (ROOT / "docs" / "accelerators.md").read_text()
    assert "estimate" in page
    assert re.findall(r"^\| (\w+) \| [\d.e+]+ \|", page, re.M) == list(pj.METHODS)


def test_received_bytes():
    """Of eight devices, in a loop of five turns."""
    text = """HloModule m
%body (p: (f32[8,4])) -> (f32[8,4]) {
  %g = f32[8,4]{1,0} all-gather(%x), dimensions={0}
  %r = f32[10]{0} all-reduce(%y), to_apply=%add
}
ENTRY %main (a: f32[1,4]) -> f32[8,4] {
  %w = (f32[8,4]) while(%t), condition=%c, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  %p = f32[3]{0} collective-permute(%z)
}
"""
    turn = 8 * 4 * 4 * 7 / 8 + 10 * 4 * 2 * 7 / 8
    assert collectives.received_bytes(text, 8) == 5 * turn + 3 * 4
