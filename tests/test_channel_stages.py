"""Stages of a channel: their order, what methods take, and losses in patterns."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_protocols import jit

import p2pjax as pj
from p2pjax.exchange.channel import (
    PERFECT,
    Channel,
    arrivals,
    chain,
    check_channel,
    clip,
    delay,
    drop,
    error_feedback,
    noise,
    qsgd,
    quantize,
    random_k,
    sign,
    stale,
    top_k,
)
from p2pjax.exchange.channel_checks import FORMATS, MODELS, SPARSE
from p2pjax.exchange.losses import loss_memory
from p2pjax.graphs import generators, mixing_matrices
from p2pjax.types import InputError

KEY = jax.random.key(0)
RING = mixing_matrices.metropolis_hastings(generators.ring(30))
SENT = np.asarray(RING.ids) != np.arange(30)[:, None]


class TestOrder:
    def test_all_stages_in_their_order(self):
        whole = chain(
            clip(2.0), noise(0.1), error_feedback(), top_k(0.1), drop(0.5), stale()
        )
        assert (whole.clip_norm, whole.noise_stddev) == (2.0, 0.1)
        assert whole.has_error_feedback and whole.is_stale
        assert whole.format.name == "top_k"
        assert whole.loss_probability == 0.5
        assert len(whole.stages) == 6
        assert chain(sign(), delay(2.0)).mean_delay == 2.0

    def test_a_perfect_channel_has_none_of_it(self):
        assert PERFECT.clip_norm is None and PERFECT.format is None
        assert PERFECT.noise_stddev == 0 and PERFECT.drops == ()
        assert not PERFECT.has_error_feedback and not PERFECT.is_stale
        assert noise(0.0) == drop(0, per_edge=True, burst=9) == PERFECT

    def test_drop_and_delay_may_alternate(self):
        both = chain(drop(0.5), delay(1.0), drop(0.5, burst=3), delay(0.5))
        assert both.loss_probability == 0.75 and both.mean_delay == 1.5

    @pytest.mark.parametrize(
        "build, message",
        [
            (lambda: chain(drop(0.1), top_k(0.1)), "got the format after drop"),
            (lambda: chain(sign(), noise(1.0)), "got noise after the format"),
            (lambda: chain(noise(1.0), clip(1.0)), "got clip after noise"),
            (lambda: chain(sign(), error_feedback()), "error_feedback after the form"),
            (lambda: chain(stale(), drop(0.1)), "got drop after stale"),
            (lambda: chain(top_k(0.1), sign()), "at most one format.*got two"),
            (lambda: chain(clip(1.0), clip(2.0)), "at most one clip.*got two"),
            (lambda: chain(stale(), stale()), "at most one stale.*got two"),
            (lambda: chain(delay(1.0), stale()), "delay, .* or stale, .*got both"),
            (lambda: chain(stale(), delay(1.0)), "delay, .* or stale, .*got both"),
            (lambda: chain(clip(1.0), error_feedback()), "a format behind error_feed"),
            (lambda: clip(0.0), "norm above 0 for clip, got 0"),
            (lambda: clip(float("inf")), "norm above 0 for clip, got inf"),
            (lambda: noise(-1.0), "0 or more for noise, got -1"),
            (lambda: noise(float("nan")), "0 or more for noise, got nan"),
            (lambda: drop(0.1, burst=0), "1 or more exchanges, got 0"),
            (lambda: drop(0.1, burst=1.5), "1 or more exchanges, got 1.5"),
            (lambda: drop(1.0, burst=3), "from 0 to below 1, got 1.0"),
            (lambda: quantize(3), r"got 3: .*qsgd\(levels\) or sign"),
        ],
    )
    def test_refuses(self, build, message):
        with pytest.raises(InputError, match=message):
            build()


class TestMethods:
    @pytest.mark.parametrize(
        "channel, options, message",
        [
            (stale(), {}, "^It cannot take messages of the exchange before"),
            (noise(1.0), {}, "^It cannot take noisy messages"),
            (clip(1.0), {"noise": True}, "updates for clip, got the models of It"),
            (
                chain(error_feedback(), top_k(0.1)),
                {"formats": FORMATS},
                "updates for error feedback, got the models of It: use choco_sgd",
            ),
            (Channel(error_feedback().stages), {"updates": True}, "a format behind"),
            (drop(0.1, per_edge=True), {}, "cannot be lost per edge or in bursts"),
            (drop(0.1, burst=2), {}, "cannot be lost per edge or in bursts"),
            (quantize(8), {}, "^It needs exact messages, got uniform8"),
            (
                top_k(0.1),
                {"formats": MODELS},
                r"carries whole models for It, got top_k: use one of quantize\(16\), "
                r"quantize\(8\), qsgd\(15\), or choco_sgd",
            ),
            (quantize(8), {"formats": ("half",)}, r"of quantize\(16\), or choco_sgd"),
            (sign(), {"formats": MODELS + SPARSE}, "got sign: use one of"),
            (qsgd(14), {"formats": MODELS}, "got qsgd as it is for updates"),
            (qsgd(20, biased=True), {"formats": MODELS}, "without options that shrink"),
            (random_k(0.1, unbiased=True), {"formats": SPARSE}, "for updates"),
        ],
    )
    def test_refuses(self, channel, options, message):
        with pytest.raises(InputError, match=message):
            check_channel(channel, "It", **options)

    def test_takes_what_fits(self):
        takes = partial(check_channel, method="It")
        takes(stale(), stale=True)
        takes(noise(1.0), noise=True)
        takes(drop(0.1, per_edge=True, burst=3), edges=True)
        for channel in (quantize(8), quantize(16), qsgd(15)):
            takes(channel, formats=MODELS)
        for channel in (top_k(0.1), random_k(0.1)):
            takes(channel, formats=SPARSE)
        whole = chain(clip(1.0), noise(1.0), error_feedback(), sign())
        takes(whole, noise=True, updates=True, formats=FORMATS)
        takes(random_k(0.1, unbiased=True), updates=True, formats=FORMATS)

    @pytest.mark.parametrize(
        "channel, message",
        [
            (stale(), "messages of the exchange before"),
            (drop(0.5, burst=2), "per edge or in bursts"),
            (drop(0.5, per_edge=True), "per edge or in bursts"),
        ],
    )
    def test_a_server_has_no_exchanges_along_edges(self, channel, message):
        task = pj.classification(pj.nn.MLP((2,)), (3,))
        with pytest.raises(InputError, match=message):
            pj.fedavg(task, None, batch_size=2, channel=channel)


def lost_in(channel, peers, sent, num_exchanges):
    """Whether messages are lost, `[exchanges, N, K]`, as rounds of a run lose them."""
    memory = loss_memory(channel, KEY)

    @jit
    def all_of_them(memory):
        def one(number):
            key = jax.random.fold_in(KEY, 100 + number)
            return arrivals(
                channel,
                key,
                jnp.asarray(sent),
                senders=peers.ids,
                number=number,
                memory=memory,
            )

        return jax.lax.map(one, jnp.arange(num_exchanges))

    arrived = np.asarray(all_of_them(memory))
    assert not (arrived & ~sent).any()
    return sent & ~arrived


def run_lengths(lost):
    """Of all that is lost in a row, by messages `[exchanges, M]`; not of the ends."""
    lengths = []
    for column in lost.T:
        edges = np.flatnonzero(np.diff(column.astype(int)))
        pieces = np.split(column, edges + 1)[1:-1]
        lengths += [len(piece) for piece in pieces if piece[0]]
    return np.array(lengths)


class TestLosses:
    def test_without_patterns_as_ever(self):
        """The draws of channels that users have are the same."""
        sent = jnp.ones((7, 3), bool)
        expected = ~jax.random.bernoulli(KEY, 0.75, sent.shape)
        found = arrivals(chain(drop(0.5), drop(0.5)), KEY, sent)
        np.testing.assert_array_equal(found, expected)
        assert loss_memory(drop(0.5), KEY) == ()
        assert loss_memory(drop(0.5, per_edge=True), KEY) == ()

    @pytest.mark.parametrize("burst", [1, 4])
    def test_both_directions_together(self, burst):
        channel = drop(0.3, per_edge=True, burst=burst)
        lost = lost_in(channel, RING, SENT, 400)
        ids = np.asarray(RING.ids)
        dense = np.zeros((400, 30, 30), bool)
        for slot in (1, 2):
            dense[:, np.arange(30), ids[:, slot]] = lost[:, :, slot]
        np.testing.assert_array_equal(dense, dense.transpose(0, 2, 1))
        assert lost[:, SENT].mean() == pytest.approx(0.3, abs=0.03)
        # Edges are independent of each other, and so are exchanges without bursts.
        each = dense[:, np.arange(30), (np.arange(30) + 1) % 30].astype(float)
        other = np.corrcoef(each.T) - np.eye(30)
        assert np.abs(other).max() < 0.35 and abs(other.mean()) < 0.02
        after = np.corrcoef(each[:-1].ravel(), each[1:].ravel())[0, 1]
        assert after == pytest.approx(1 - 1 / burst, abs=0.05)

    def test_bursts(self):
        lost = lost_in(drop(0.2, burst=5), RING, SENT, 600)
        assert lost[:, SENT].mean() == pytest.approx(0.2, abs=0.02)
        lengths = run_lengths(lost[:, SENT])
        assert (lengths % 5 == 0).all() and len(lengths) > 500
        # Windows follow each other independently.
        assert (lengths == 5).mean() == pytest.approx(0.8, abs=0.05)
        # Both directions are on their own.
        ids = np.asarray(RING.ids)
        back = np.argmax(ids[ids[:, 1]] == np.arange(30)[:, None], axis=1)
        one, other = lost[:, :, 1], lost[:, ids[:, 1], back]
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1
        # Not all bursts begin in the same exchange.
        begins = np.flatnonzero((~lost[:-1] & lost[1:]).any((1, 2)))
        assert set(begins % 5) == set(range(5))

    def test_stages_add_up(self):
        channel = chain(drop(0.2), drop(0.25, burst=3), drop(0.1, per_edge=True))
        assert channel.loss_probability == pytest.approx(0.46)
        lost = lost_in(channel, RING, SENT, 300)
        assert lost[:, SENT].mean() == pytest.approx(0.46, abs=0.02)

    def test_bursts_are_those_of_the_run(self):
        """Keys of rounds change nothing, that of the run does."""
        channel = drop(0.5, burst=4)
        ask = jit(
            lambda key, memory: arrivals(
                channel, key, SENT, senders=RING.ids, number=3, memory=memory
            )
        )
        memory = loss_memory(channel, KEY)
        first = ask(jax.random.key(1), memory)
        again = ask(jax.random.key(2), memory)
        np.testing.assert_array_equal(first, again)
        other = ask(KEY, loss_memory(channel, jax.random.key(3)))
        assert (first != other).any()

    def test_refuses_patterns_of_unknown_messages(self):
        sent = jnp.ones((4, 2), bool)
        with pytest.raises(InputError, match="Need the senders"):
            arrivals(drop(0.5, per_edge=True), KEY, sent)
        with pytest.raises(InputError, match="number of the exchange and the memory"):
            arrivals(drop(0.5, burst=2), KEY, sent, senders=jnp.zeros((4, 2), int))
