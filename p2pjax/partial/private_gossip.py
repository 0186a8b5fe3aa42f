"""Private gossip averaging: random values first, the truth in sum only.

Bouchra Pilet, Frey, Taiani (2019), "Robust privacy-preserving gossip averaging",
https://hal.science/hal-02373353. In its first p exchanges an agent sends random values
in place of its own: it draws r, adds `value - r` to its error, sends r, receives q and
goes on with `value = (r + q) / 2`. Then, once, it adds the error to its value, and
gossip goes on in the clear. Values and errors add up to the same sum at all times.

All of a phase of noise is `value + error = x + sum((q - r) / 2)`, over its exchanges:
what was random cancels in the sum of all agents, and nothing else has to be kept.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.partial.averaging import Averaging
from p2pjax.partial.exchanges import Exchanges, Layout, reached
from p2pjax.partial.overlays import random_members
from p2pjax.partial.per_model import (
    Cast,
    PerModel,
    Situation,
    cast_of,
    gossip,
    layout_of,
    plain_exchanges,
)
from p2pjax.types import Array, InputError, Key, PyTree

CYCLE_FACTOR = 1 / (2 * math.sqrt(math.e))  # of the variance, Jelasity et al. (2005)
_RARE = 1e-3  # share of agents that lost messages may leave without protection


class PrivacyBounds(NamedTuple):
    """What attackers can do against one agent's value in one averaging."""

    direct: float  # at most: all its random values and the answers are known
    first_order: float  # at most: also from the values of its neighbours
    survival: float  # at least: no attack by any detour finds the value
    escape: float  # at least: likewise where edges are eavesdropped


def private_gossip(
    level: int = 3,
    *,
    cycles: int = 10,
    spread: float = 2.0,
    bound: float = 1.0,
    every_averaging: bool = True,
) -> PerModel:
    """Private averaging of every model among its members (Bouchra Pilet et al. 2019).

    An averaging is a phase of noise in which each member has `level` exchanges or more
    with random members, then cycles of push-pull gossip as in `per_model`. All
    exchanges are counted. The mean stays what it was, up to rounding; members differ
    more after few cycles, see `expected_error`. It is no differential privacy: what it
    promises is in `privacy_bounds`, against attackers among the members.

    Exchanges are lost as a whole. Where messages are lost, the phase of noise has more
    exchanges, for those that need them; who still had fewer than `level` sits out the
    cycles that follow, so that nothing of it is sent in the clear.

    Args:
      level: p, exchanges with random values.
      cycles: of gossip after it.
      spread: random values are uniform on an interval as many times as wide as that of
        the true ones.
      bound: largest magnitude of parameters that is expected, which all know.
      every_averaging: False: random values in the first averaging of a run only; what
        is learned later is protected by mixing alone.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.partial_averaging(
      ...     task, optax.sgd(0.1), pj.partial.level(1.0), batch_size=32,
      ...     averaging=pj.partial.private_gossip(level=2, cycles=8))
      >>> method.round_is
      'one mini-batch of each agent, and one averaging after 1 local step'
    """
    if level < 1 or cycles < 1:
        raise InputError(
            "Need a privacy level and cycles of 1 or more for private gossip, got "
            f"level={level} and cycles={cycles}."
        )
    for name, value in (("spread", spread), ("bound", bound)):
        if not 0 < value < math.inf:
            raise InputError(f"Need a {name} above 0 for private gossip, got {value}.")

    def among_fn(situation: Situation) -> Averaging:
        cast = cast_of(situation.plan)
        needed = {m: _waves(level, len(who)) for m, who in cast.members.items()}
        num_waves = max(needed.values(), default=0)
        lost = situation.loss_probability
        if lost and not every_averaging:
            raise InputError(
                "Need random values in every averaging where messages are lost, got "
                "every_averaging=False: who lost its own would go on in the clear."
            )
        if lost:
            num_waves += _spare_waves(level, lost)
        noise = _noise_layout(cast, num_waves)
        plain = layout_of(cast, cycles)
        layout = Layout(
            cast.num_agents,
            *(np.concatenate(both) for both in zip(noise[1:], plain[1:], strict=True)),
        )
        last_round = None if every_averaging else situation.average_every

        def plan_fn(rng: np.random.Generator, num_rounds: int) -> Exchanges:
            first, second = _noise_exchanges(rng, cast, num_waves, num_rounds)
            if not lost:
                always = np.array([needed[m] for m in noise.model.tolist()], int)
                is_spare = noise.wave >= always
                second = np.where(is_spare, first, second)
            if last_round is not None:
                second[last_round:] = first[last_round:]
            clear = plain_exchanges(rng, random_members(), cast, cycles, num_rounds)
            return Exchanges(
                np.concatenate([first, clear.first], 1),
                np.concatenate([second, clear.second], 1),
            )

        def disturb_fn(
            key: Key,
            inputs: Exchanges,
            params: PyTree,
            plan: MixPlan,
            arrived: Array | None,
        ) -> PyTree:
            if arrived is not None:
                inputs = inputs.only(reached(inputs, arrived))

            def one_wave(wave: Array, params: PyTree) -> PyTree:
                now = inputs.only(jnp.asarray(layout.wave) == wave)
                fake = _random_values(
                    jax.random.fold_in(key, wave), params, spread * bound
                )
                return corrected(params, fake, plan, averaging, now)

            has_noise = (inputs.first != inputs.second)[: len(noise.model)].any()
            return jax.lax.cond(
                has_noise,
                lambda params: jax.lax.fori_loop(0, num_waves, one_wave, params),
                lambda params: params,
                params,
            )

        def settle_fn(
            inputs: Exchanges, params: PyTree, plan: MixPlan, arrived: Array | None
        ) -> Exchanges:
            del params, plan
            return protected(inputs, layout, level, num_waves, needed, arrived)

        averaging = gossip(layout, plan_fn)
        settle = settle_fn if lost else None
        return averaging._replace(disturb=disturb_fn, settle=settle)

    return PerModel(among_fn)


def privacy_bounds(
    corrupt: float, level: int, eavesdropped: float = 0.0
) -> PrivacyBounds:
    """What private gossip promises, where contacts are random and messages encrypted.

    Args:
      corrupt: share of the members that work together, below 1.
      level: p, exchanges with random values.
      eavesdropped: share of the edges whose messages are read.

    Returns:
      Probabilities, NaN for `survival` where half of the members or more are corrupt.

    Example:
      >>> bounds = privacy_bounds(0.1, 3, eavesdropped=0.5)
      >>> print(f"{bounds.direct:.3f} {bounds.survival:.4f} {bounds.escape:.3f}")
      0.001 0.9877 0.818
    """
    if not (0 <= corrupt < 1 and 0 <= eavesdropped <= 1 and level >= 1):
        raise InputError(
            "Need a share of corrupt members from 0 to below 1, of eavesdropped edges "
            f"from 0 to 1 and a level of 1 or more, got {corrupt}, {eavesdropped} and "
            f"{level}."
        )
    t = corrupt
    survival = math.nan
    if t < 0.5:
        both = t * (1 - t)
        survival = 1 - (1 - 2 * both - math.sqrt(1 - 4 * both)) / (2 * (1 - t) ** 2)
    return PrivacyBounds(
        t**level,
        (t + t**2 - t**3) ** level,
        survival,
        1 - t / (1 - eavesdropped * (1 - t)) if eavesdropped < 1 or t else 1.0,
    )


def expected_error(
    level: int, cycles: int, spread: float, bound: float, variance: float = 0.0
) -> float:
    """Mean squared distance of a parameter from the members' mean, after an averaging.

    A phase of noise adds `level * (spread * bound)**2 / 6` to the variance among many
    members, and each cycle divides it by 2 sqrt(e). The mean itself has no error.

    Args:
      level: p of `private_gossip`.
      cycles: of it.
      spread: of it.
      bound: of it.
      variance: among the members before the averaging.

    Example:
      >>> print(f"{expected_error(level=3, cycles=10, spread=2.0, bound=1.0):.1e}")
      1.3e-05
    """
    noise = level * (spread * bound) ** 2 / 6
    return (variance + noise) * CYCLE_FACTOR**cycles


def corrected(
    params: PyTree,
    fake: PyTree,
    plan: MixPlan,
    averaging: Averaging,
    inputs: Exchanges,
) -> PyTree:
    """Values with their errors after one exchange of random values.

    Args:
      params: values with their errors before it, leaves `[N, ...]`.
      fake: what each agent sends in place of its value.
      plan: owner classes.
      averaging: whose `peers` are those of the exchange.
      inputs: the exchanges, no agent in two of a class.
    """
    assert averaging.peers is not None
    peers = averaging.peers
    mean = mixing.mix(  # who has no exchange, or has lost it, keeps its own
        fake, plan, lambda owner: mixing.by_peers(peers(inputs, owner, None))
    )
    return jax.tree.map(lambda x, after, r: x + (after - r), params, mean, fake)


def protected(
    inputs: Exchanges,
    layout: Layout,
    level: int,
    num_waves: int,
    needed: dict[int, int],
    arrived: Array | None,
) -> Exchanges:
    """Spare exchanges of those who need them; no clear ones of unprotected agents.

    Args:
      inputs: all exchanges.
      layout: what each is about.
      level: p.
      num_waves: of the phase of noise.
      needed: of each model, waves that take place in any case.
      arrived: `[N, F]`; None: all.
    """
    models, model = np.unique(layout.model, return_inverse=True)
    always = np.array([needed[int(m)] for m in models], int)[model]
    is_certain = jnp.asarray(layout.wave < always)
    arrives: Array = jnp.ones(len(model), bool)
    if arrived is not None:
        arrives = reached(inputs, arrived)
    first, second = jnp.asarray(inputs.first), jnp.asarray(inputs.second)
    is_pair = first != second

    def one_wave(wave: Array, carry: tuple) -> tuple:
        had, happens = carry
        is_short = (had[model, first] < level) | (had[model, second] < level)
        now = (jnp.asarray(layout.wave) == wave) & is_pair & (is_certain | is_short)
        took = (now & arrives).astype(had.dtype)
        had = had.at[model, first].add(took).at[model, second].add(took)
        return had, happens | now

    had = jnp.zeros((len(models), layout.num_agents), jnp.int32)
    none = jnp.zeros(len(model), bool)
    had, happens = jax.lax.fori_loop(0, num_waves, one_wave, (had, none))
    is_safe = (had[model, first] >= level) & (had[model, second] >= level)
    return inputs.only(happens | (jnp.asarray(layout.wave < 0) & is_safe))


def _waves(level: int, size: int) -> int:
    """Matchings in which each of `size` members has `level` exchanges or more."""
    return level if size % 2 == 0 else level + -(-level // (size - 1))


def _spare_waves(level: int, lost: float) -> int:
    """More exchanges, until hardly any agent has had less than `level` of them."""

    def chance(waves: int) -> float:
        return sum(
            math.comb(waves, k) * (1 - lost) ** k * lost ** (waves - k)
            for k in range(level)
        )

    waves = level
    while chance(waves) > _RARE:
        waves += 1
    return waves - level


def _noise_layout(cast: Cast, num_waves: int) -> Layout:
    one = [np.full(len(who) // 2, model) for model, who in cast.members.items()]
    model = np.tile(np.concatenate([*one, np.zeros(0, int)]), num_waves).astype(int)
    wave = np.repeat(np.arange(num_waves), len(model) // max(num_waves, 1))
    return Layout(cast.num_agents, model, np.full(len(model), -1), wave)


def _noise_exchanges(
    rng: np.random.Generator, cast: Cast, num_waves: int, num_rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random matchings; of an odd number of members each rests in turn, `[R, F]`."""
    first, second = [], []
    for who in cast.members.values():
        size = len(who)
        rests = np.tile(np.arange(size), (num_rounds, 1))
        rests = rng.permuted(rests, axis=1)[:, np.arange(num_waves) % size]  # [R, W]
        order = np.tile(np.arange(size), (num_rounds, num_waves, 1))
        order = rng.permuted(order, axis=2)
        if size % 2:  # who rests is behind all others
            is_last = order == rests[..., None]
            order = np.take_along_axis(order, np.argsort(is_last, 2, kind="stable"), 2)
        pairs = order[..., : size // 2 * 2].reshape(num_rounds, num_waves, -1, 2)
        first.append(who[pairs[..., 0]])
        second.append(who[pairs[..., 1]])
    none = np.zeros((num_rounds, num_waves, 0), int)

    def flat(parts: list[np.ndarray]) -> np.ndarray:
        joined = np.concatenate([*parts, none], axis=2)
        return joined.reshape(num_rounds, -1).astype(np.int32)

    return flat(first), flat(second)


def _random_values(key: Key, params: PyTree, largest: float) -> PyTree:
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure,
        [
            jax.random.uniform(key, leaf.shape, leaf.dtype, -largest, largest)
            for key, leaf in zip(keys, leaves, strict=True)
        ],
    )
