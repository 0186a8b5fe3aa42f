"""Partial averaging by servers that combine messages by a robust rule.

Each partial model has a server in each owner class. What it last computed is the centre
of rules that have one; at the start that is the mean of what its members start with.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.aggregation import Extra
from p2pjax.exchange.central import combine_members
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import RULE, Exchange, Memory
from p2pjax.exchange.rejections import with_rejected
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.server_models import first_models, handed_out
from p2pjax.partial.averaging import Averaging, InputsOf
from p2pjax.types import LOCAL, Array, InputError, Key, PyTree


def check_members(rule: Rule | None, plan: MixPlan) -> None:
    """Refuses a rule for which some model never has enough members.

    Args:
      rule: of the servers.
      plan: owner classes.
    """
    if rule is None:
        return
    for owner_class in plan.classes:
        owner = owner_class.owner
        models, sizes = np.unique(owner[owner != LOCAL], return_counts=True)
        if not len(models):
            continue
        least = int(np.argmin(sizes))
        if sizes[least] < rule.min_members:
            raise InputError(
                f"Need {rule.min_members} members or more of each partial model for "
                f"{rule.name}, got {sizes[least]} of model {models[least]}: lower "
                "max_byzantine, or share it among more agents."
            )
        members = np.full(len(owner), len(owner))  # of each agent's model
        for model, size in zip(models, sizes, strict=True):
            members[owner == model] = size
        doubt = None if rule.doubt is None else rule.doubt(members, None)
        if doubt is not None:
            warnings.warn(doubt, stacklevel=2)


def begin_servers(
    exchange: Exchange, averaging: Averaging, memory: Memory | tuple[()], params: PyTree
) -> Memory | tuple[()]:
    """What an exchange keeps at the start, with the models of servers that need them.

    Args:
      exchange: of the method.
      averaging: how members average.
      memory: `pipeline.begin`.
      params: of all agents at the start, leaves `[N, ...]`.
    """
    manner = exchange.manner
    if averaging.peers is not None or manner is None or manner.rule is None:
        return memory
    memory = memory if isinstance(memory, Memory) else Memory()
    return memory._replace(servers=first_models(manner.plan, params))


def members_in(
    averaging: Averaging, inputs_of: InputsOf, arrived: Array | None, owner: np.ndarray
) -> Array:
    """`[N]`: agents whose message reaches the server of a class, and its answer them.

    Args:
      averaging: by servers.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      arrived: `[N, 1]` of the links; None: all of it.
      owner: `[N]` of the class.
    """
    linked = averaging.links(inputs_of(owner), owner)
    linked = linked if arrived is None else linked & arrived
    return linked[:, 0]


def served(
    exchange: Exchange,
    averaging: Averaging,
    key: Key,
    t: Array,
    inputs_of: InputsOf,
    arrived: Array | None,
    rows: PyTree,
    params: PyTree,
    memory: Memory | tuple[()],
) -> tuple[PyTree, Memory | tuple[()]]:
    """Parameters after an averaging by servers with a rule, and what is kept.

    Agents keep what they have if their message is lost or too few others arrive.

    Args:
      exchange: of the method, with a rule.
      averaging: by servers.
      key: of the round.
      t: its number.
      inputs_of: owner vector `[N]` of a class -> inputs of its exchanges.
      arrived: `[N, 1]` of the links; None: all of it.
      rows: messages of all agents, those of attackers among them, leaves `[N, ...]`.
      params: of all agents, leaves `[N, ...]`.
      memory: of the exchange.
    """
    manner = exchange.manner
    assert manner is not None and isinstance(memory, Memory)
    weight = averaging.weight
    counts = jnp.ones(averaging.num_agents) if weight is None else jnp.asarray(weight)

    def weight_of(owner: np.ndarray) -> Array:
        return jnp.where(members_in(averaging, inputs_of, arrived, owner), counts, 0)

    extra = Extra(jax.random.fold_in(key, RULE), t)
    models, is_enough, rejected = combine_members(
        manner, rows, memory.servers, weight_of, extra
    )
    takes = [
        enough & (weight_of(owner_class.owner) > 0)
        for owner_class, enough in zip(manner.plan.classes, is_enough, strict=True)
    ]
    params = handed_out(manner.plan, models, params, takes)
    memory = memory._replace(servers=models)
    return params, with_rejected(memory, rejected)
