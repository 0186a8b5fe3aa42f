"""L2C: learn whose models to mix, from validation losses.

Li et al. (2022), "Learning to collaborate in decentralized learning of personalized
models". Each agent mixes with all agents at first, learns their weights by gradient
steps on logits, and after a few rounds keeps the best few only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from p2pjax.exchange import mixing
from p2pjax.graphs.topology import Topology
from p2pjax.selection import pair_values, tables
from p2pjax.selection.base import Fetched, PeerView, Selection, fetch_cost
from p2pjax.selection.pair_values import PairValues
from p2pjax.selection.request_limits import apply_request_limit
from p2pjax.training.learner import initial_opt_state
from p2pjax.types import Array, InputError, Key, Peers, PyTree

TEMPERATURE = 2.0  # of losses


RATE, DECAY = 0.1, 0.01  # of the logits: 0.1 / (1 + 0.01 t)


LEAST_SCORE = -1e30  # of an agent's own model, should all losses be infinite


class L2CState(NamedTuple):
    """What agents think of each other."""

    logits: PairValues  # [N, N]; [N, 1 + V] where agents know V others
    opt_state: PyTree  # of these values
    kept: Topology  # [N, keep]


def l2c(
    *,
    bilevel: bool = False,
    num_kept: int = 3,
    num_rounds_all: int = 10,
    optimizer: optax.GradientTransformation | None = None,
) -> Selection:
    """Learning to collaborate.

    By default the logits follow a softmax of the validation losses of all models, and
    models count by both, as in the code of Sajina (2025). In the `bilevel` form of the
    paper the logits follow the gradient of the validation loss of the mixed model, and
    agents mix what peers learned in the round instead of their models.

    Args:
      bilevel: which of the two.
      num_kept: peers left after the first rounds. The thesis drops 96: N - 97 are left.
      num_rounds_all: rounds in which all agents are peers of each other.
      optimizer: of the logits; Adam with a decaying rate if None.
    """
    if num_kept < 1 or num_rounds_all < 1:
        raise InputError(
            "Need one peer or more to keep and one round or more with all, got "
            f"num_kept={num_kept} and num_rounds_all={num_rounds_all}."
        )
    if optimizer is None:
        optimizer = optax.adam(learning_rate, eps=1e-7)

    def init_fn(key: Key, view: PeerView) -> L2CState:
        del key
        if next(iter(view.valid.examples.values())).shape[1] == 0:
            raise InputError(
                "Need validation examples for L2C, got none: hold some out."
            )
        logits = pair_values.blank(known(view), jnp.float32, forgets=view.forgets)
        opt_state = initial_opt_state(optimizer, pair_values.values(logits))
        return L2CState(logits, opt_state, tables.empty(view.num_agents, num_kept))

    def select_fn(
        key: Key, t: Array, state: L2CState, view: PeerView
    ) -> tuple[Peers, Fetched, L2CState]:
        num_slots = max(num_kept, view.permitted.mask.shape[1])

        def weigh(wanted: Topology, state: L2CState) -> tuple[Peers, Fetched, L2CState]:
            asked = apply_request_limit(key, view, wanted)
            own = tables.self_only(view.num_agents)
            table = tables.joined(own, view.heard(asked))
            all_logits, opt_state = followed(state, view)
            logits = pair_values.recalled(all_logits, table)
            if bilevel:
                gradient = validation_slope(view, table, logits)
            else:
                losses = view.cross_loss(table, view.valid)
                gradient = softmax(logits, table) - softmax(score(losses), table)
            values = pair_values.values(all_logits)
            nowhere = pair_values.with_values(all_logits, jnp.zeros_like(values))
            with jax.numpy_dtype_promotion("standard"):
                updates, opt_state = optimizer.update(
                    pair_values.values(pair_values.noted(nowhere, table, gradient)),
                    opt_state,
                    values,
                )
            stepped = optax.apply_updates(values, updates)
            all_logits = pair_values.with_values(all_logits, stepped)
            state = state._replace(logits=all_logits, opt_state=opt_state)
            if bilevel:
                weight = softmax(pair_values.recalled(all_logits, table), table)
                worth = weight
            else:
                weight = softmax(score(losses) + logits, table)
                worth = -losses
            kept = tables.top_k(asked, worth[:, 1:], num_kept)
            peers = Peers(
                tables.padded(tables.where(weight > 0, table), 1 + num_slots).neighbor,
                jnp.pad(weight, ((0, 0), (0, 1 + num_slots - weight.shape[1]))),
            )
            return peers, fetch_cost(asked, num_slots), state._replace(kept=kept)

        def with_all(state: L2CState) -> tuple[Peers, Fetched, L2CState]:
            return weigh(view.permitted, state)

        def with_kept(state: L2CState) -> tuple[Peers, Fetched, L2CState]:
            is_permitted = tables.contains(view.permitted, state.kept)
            kept = tables.where(is_permitted, state.kept)
            peers, pulled, new = weigh(kept, state)
            return peers, pulled, new._replace(kept=state.kept)

        return jax.lax.cond(t < num_rounds_all, with_all, with_kept, state)

    return Selection(init_fn, select_fn, merges_updates=bilevel)


def known(view: PeerView) -> Topology:
    """Whom each agent has a logit of: itself and its view, `[N, 1 + V]`."""
    return tables.joined(tables.self_only(view.num_agents), view.permitted)


def followed(state: L2CState, view: PeerView) -> tuple[PairValues, PyTree]:
    """Logits and their optimizer's state after views have changed."""

    def moved(leaf: Array) -> Array:
        if jnp.shape(leaf) != pair_values.values(state.logits).shape:
            return leaf  # one number for all, such as Adam's count
        pairs = pair_values.with_values(state.logits, leaf)
        return pair_values.values(pair_values.followed(pairs, known(view)))

    logits = pair_values.followed(state.logits, known(view))
    return logits, jax.tree.map(moved, state.opt_state)


def learning_rate(step: Array) -> Array:
    """Of the logits."""
    return RATE / (1 + DECAY * jnp.asarray(step, jnp.float32))


def score(losses: Array) -> Array:
    """Of which a softmax makes weights."""
    return -losses / TEMPERATURE


def validation_slope(view: PeerView, table: Topology, logits: Array) -> Array:
    """Derivative of the mixed model's validation loss by the logits, `[N, C]`."""
    weight = softmax(logits, table)
    peers = Peers(table.neighbor, weight)
    mixed = jax.tree.map(
        lambda own, after, before: own + (after - before),
        view.before,
        view.mix(view.params, peers),
        view.mix(view.before, peers),
    )
    gradient = view.sent(view.gradient(mixed, view.valid))
    origin = [jnp.zeros_like(leaf[:1]) for leaf in gradient]
    slopes = mixing.dots(
        mixing.Change(gradient, origin),
        view.learned(view.before),
        jnp.asarray(table.neighbor),
    )
    return through_softmax(weight, slopes)


def through_softmax(weight: Array, slopes: Array) -> Array:
    """Derivative by the logits from that by the weights `[N, C]`."""
    return weight * (slopes - (weight * slopes).sum(1, keepdims=True))


def softmax(scores: Array, table: Topology) -> Array:
    """Of the slots in use, `[N, C]`; slot 0 always is."""
    scores = jnp.asarray(scores).at[:, 0].max(LEAST_SCORE)
    return jax.nn.softmax(jnp.where(table.mask, scores, -jnp.inf), axis=1)
