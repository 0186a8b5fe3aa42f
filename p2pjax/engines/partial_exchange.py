"""One averaging of partial models: what it does to parameters, and what it costs.

An averaging is one exchange or, where every model has a gossip of its own, many.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.engines.adverse_partial import adverse_average, arrivals, bytes_of
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import Exchange, Memory, send
from p2pjax.partial.averaging import (
    Averaging,
    InputsOf,
    any_link,
    messages_and_payload,
    model_traffic,
)
from p2pjax.partial.drift import Threshold, requests, updated
from p2pjax.types import Array, Key, ModelTraffic, PyTree


class Carried(NamedTuple):
    """What an averaging changes."""

    params: PyTree  # as `partial.views` has them, and so the next two
    reference: PyTree
    before: PyTree
    memory: Memory | tuple[()]


class Cost(NamedTuple):
    """Of an averaging, `[N]` each."""

    sent: Array
    received: Array
    payload: Array
    bytes: Array | None = None  # None: 4 for each parameter of the payload
    models: ModelTraffic | None = None


class PartialExchange(NamedTuple):
    """How an averaging goes; inputs are those of the round."""

    average: Callable[[Key, Array, PyTree, Carried], Carried]
    cost: Callable[[Key, Array, PyTree, Carried], Cost]


def partial_exchange(
    exchange: Exchange,
    averaging: Averaging,
    plan: MixPlan,
    drift_threshold: Threshold | None,
    keeps_before: bool,
) -> PartialExchange:
    """How members average and what that costs.

    Args:
      exchange: of the method.
      averaging: how members average.
      plan: owner classes.
      drift_threshold: of dynamic averaging, `thresholds_of`; None: all agents and
        models, always.
      keeps_before: whether an attack needs the parameters after the last averaging.
    """
    format = exchange.channel.format
    arriving = partial(arrivals, exchange, averaging)

    def restricted(carried: Carried) -> Callable[[PyTree], InputsOf]:
        """Inputs -> owner vector of a class -> the exchanges of it that take place."""
        if drift_threshold is None:
            return lambda inputs: lambda owner: inputs
        asking = requests(carried.params, carried.reference, plan, drift_threshold)
        restrict = averaging.restrict_to_requests
        return lambda inputs: lambda owner: restrict(inputs, asking(owner))

    def settled(
        key: Key, t: Array, inputs: PyTree, carried: Carried
    ) -> tuple[PyTree, Callable[[PyTree], InputsOf], Array | None]:
        """Inputs, what is done of them, and what arrives."""
        of = restricted(carried)
        arrived = arriving(key, t, inputs, of(inputs), plan)
        if averaging.settle is not None:
            inputs = averaging.settle(inputs, carried.params, plan, arrived)
            if arrived is not None:
                arrived = arrived & any_link(averaging, of(inputs), plan)
        return inputs, of, arrived

    def average(key: Key, t: Array, inputs: PyTree, carried: Carried) -> Carried:
        inputs, of, arrived = settled(key, t, inputs, carried)
        params, reference, before, memory = carried
        used = of(inputs)
        if averaging.disturb is not None:
            params = averaging.disturb(key, inputs, params, plan, arrived)
        if exchange.manner is None:
            params = exchange.combine(
                send(exchange, key, t, params),
                params,
                lambda owner: averaging.combine(used(owner), owner, arrived),
                arrived,
            )
        elif averaging.waves is None:
            params, memory = adverse_average(
                exchange, averaging, key, t, used, arrived, params, before, memory
            )
        else:
            number_of_waves, wave = averaging.waves(inputs, arrived)

            def one_wave(number: Array, now: tuple) -> tuple:
                key_wave = jax.random.fold_in(key, number)
                return adverse_average(
                    exchange,
                    averaging,
                    key_wave,
                    t,
                    of(wave(number)),
                    None,  # what is lost is in no wave
                    now[0],
                    before,
                    now[1],
                )

            params, memory = jax.lax.fori_loop(
                0, number_of_waves, one_wave, (params, memory)
            )
        if drift_threshold is not None:
            reference = updated(
                reference,
                params,
                plan,
                lambda owner: jnp.any(averaging.links(used(owner), owner), axis=1),
            )
        return Carried(params, reference, params if keeps_before else (), memory)

    def cost(key: Key, t: Array, inputs: PyTree, carried: Carried) -> Cost:
        inputs, of, arrived = settled(key, t, inputs, carried)
        used = of(inputs)
        sent, payload = messages_and_payload(averaging, used, plan)
        received = sent  # every exchange goes both ways
        if arrived is not None:
            received = arrived.sum(1).astype(jnp.float32)
        found = Cost(sent, received, payload)
        if format is not None:
            size = bytes_of(averaging, used, plan, carried.params, format)
            found = found._replace(bytes=size)
        if averaging.waves is not None or isinstance(drift_threshold, tuple):
            found = found._replace(models=model_traffic(averaging, used, plan))
        return found

    return PartialExchange(average, cost)


def no_cost(like: Callable[[], Cost]) -> Cost:
    """What a round without an averaging costs, in the shape of `like`.

    Args:
      like: whose shapes it has; nothing of it is computed.
    """
    shapes = jax.eval_shape(like)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
