"""Functions of an agent and the model of a peer, such as its loss on the agent's data.

Who looks at whose model is a table, so the pairs differ from round to round. They are
sorted by model: one at a time, a model is taken once and applied for each agent that
asked for it; side by side, only as many pairs as `agent_loop` says have their models at
hand. Nothing of shape [N, C, P] exists, and slots that are not used cost nothing.
Under a mesh of agents every device keeps its agents' data, and the models go round.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax import sharding
from p2pjax.graphs.topology import Topology
from p2pjax.training.agent_loop import IN_PLACE, VMAP, map_agents, resolve_agent_loop
from p2pjax.types import Array, PyTree, Variables

ModelFn = Callable[[PyTree, PyTree], Array]  # (a peer's model, what an agent has) -> []


NO_AGENT = np.iinfo(np.int32).max  # sorts behind all agents


class Probe(NamedTuple):
    """A few examples that each agent has, to compare what models say about them.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> few = jax.tree.map(lambda leaf: leaf[0, :20], data.train.examples)
      >>> probe = Probe(task.predict, few)
      >>> model = jax.eval_shape(task.init, jax.random.key(0))
      >>> jax.eval_shape(probe.predict, model, probe.examples).shape
      (20, 10)
    """

    # (variables, examples) of one agent -> class probabilities [Q, k]
    predict: Callable[[Variables, Mapping[str, Array]], Array]
    examples: Mapping[str, Array]  # leaves [Q, ...]


class _Pairs(NamedTuple):
    """Pairs of agents and models, sorted by model; those not in use come last."""

    agent: Array  # [L]
    model: Array  # [L]
    place: Array  # [L] in the flattened table


def over_pairs(
    pair_fn: ModelFn, models: PyTree, own: PyTree, table: Topology, agent_loop: int
) -> Array:
    """`pair_fn(models[neighbor[n, c]], own[n])` of every slot in use, `[N, C]`, else 0.

    Args:
      pair_fn: of one model and one agent, a number.
      models: what can be asked for, leaves `[N, ...]`.
      own: what the agents apply it to, leaves `[N, ...]`.
      table: who asks for whose model.
      agent_loop: see `agent_loop.map_agents`; pairs take the place of agents.
    """

    def on_device(models: PyTree, own: PyTree, neighbor: Array, mask: Array) -> Array:
        num_own, num_slots = neighbor.shape
        side_by_side = resolve_agent_loop(agent_loop, models)
        wanted = jnp.where(mask, neighbor, NO_AGENT).ravel()
        place = jnp.argsort(wanted)
        pairs = _Pairs(place // num_slots, wanted[place], place)
        value = jax.eval_shape(lambda *both: pair_fn(*_row(both, 0)), models, own)
        values: Array = jnp.zeros(wanted.shape, value.dtype)
        first, num_shards = sharding.first_agent(num_own), sharding.num_shards()
        for shard in range(num_shards):
            here = pairs._replace(model=pairs.model - first)
            if side_by_side == IN_PLACE:
                values = _by_model(pair_fn, models, own, here, values)
            else:
                width = (
                    num_own if side_by_side == VMAP else min(side_by_side, len(place))
                )
                values = _side_by_side(pair_fn, models, own, here, values, width)
            if shard + 1 < num_shards:
                models = sharding.rotate_shards(models)
                first = (first + num_own) % (num_shards * num_own)
        values = jax.lax.optimization_barrier(values)  # see `mixing._mix_block`
        return values.reshape(num_own, num_slots)

    return sharding.over_devices(on_device)(models, own, table.neighbor, table.mask)


def _by_model(
    pair_fn: ModelFn, models: PyTree, own: PyTree, pairs: _Pairs, values: Array
) -> Array:
    numbers = jnp.arange(_length(models) + 1, dtype=pairs.model.dtype)
    starts = jnp.searchsorted(pairs.model, numbers)

    def one_model(number: Array, values: Array) -> Array:
        model = _row(models, number)

        def one_pair(i: Array, values: Array) -> Array:
            value = pair_fn(model, _row(own, pairs.agent[i]))
            return jnp.asarray(values).at[pairs.place[i]].set(value)

        return jax.lax.fori_loop(starts[number], starts[number + 1], one_pair, values)

    return jax.lax.fori_loop(0, _length(models), one_model, values)


def _side_by_side(
    pair_fn: ModelFn,
    models: PyTree,
    own: PyTree,
    pairs: _Pairs,
    values: Array,
    width: int,
) -> Array:
    last = _length(models) - 1
    bounds = jnp.asarray([0, last + 1], pairs.model.dtype)
    start, stop = jnp.searchsorted(pairs.model, bounds)

    def some_pairs(i: Array, values: Array) -> Array:
        numbers = start + i * width + jnp.arange(width, dtype=start.dtype)
        is_pair = numbers < stop
        some = _row(pairs, jnp.where(is_pair, numbers, start))
        asked = jnp.clip(some.model, 0, last)
        found = jax.vmap(pair_fn)(_row(models, asked), _row(own, some.agent))
        place = jnp.where(is_pair, some.place, len(values))
        return jnp.asarray(values).at[place].set(found, mode="drop")

    num_chunks = (stop - start + width - 1) // width
    return jax.lax.fori_loop(0, num_chunks, some_pairs, values)


def predictions(probe: Probe, models: Variables, agent_loop: int) -> Array:
    """What every model, leaves `[N, ...]`, makes of the same examples, `[N, Q, k]`.

    Args:
      probe: the examples.
      models: of all agents.
      agent_loop: see `agent_loop.map_agents`.
    """

    def one_agent(_: PyTree, variables: Variables) -> tuple[PyTree, Array]:
        return (), probe.predict(variables, probe.examples)

    return map_agents(one_agent, agent_loop)((), models)[1]


def _row(tree: PyTree, number: Array | int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], tree)


def _length(tree: PyTree) -> int:
    return jax.tree.leaves(tree)[0].shape[0]
