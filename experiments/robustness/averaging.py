"""Averaging under attack: agents in two worlds look for the mean of their vectors.

The first task of Gaucher, Dieuleveut, Hendrikx (2025), "Unified breakdown analysis for
Byzantine robust gossip", https://arxiv.org/abs/2410.10418. Vectors go through the
exchange of all methods; nothing is learned.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.engine.jobs import Measurement
from experiments.robustness.adversaries import (
    ATTACKED,
    BESIDE,
    NONE,
    RULES,
    UNDER_ATTACK,
    Threat,
    longest_step,
    threat,
)
from experiments.robustness.config import Config
from experiments.robustness.scores import disagreement
from p2pjax.engines.adversity import plan_attack
from p2pjax.exchange.attacks.placement import attached_weights
from p2pjax.exchange.owner_classes import whole_model
from p2pjax.exchange.pipeline import begin, deliver, make_exchange, transmit
from p2pjax.exchange.robust import Rule
from p2pjax.graphs.clusters import two_worlds
from p2pjax.host_memory import check_room
from p2pjax.types import Array, InputError, Key

MOST = 1e3  # of errors: what is larger has diverged


def measurements(config: Config) -> list[Measurement]:
    """Errors of every rule under every attack, and of agents that do nothing."""
    check_sizes(config)
    given = config.attacks or ()
    by_agents = [name for name in given if name not in (NONE, *BESIDE)]
    rules = config.rules or UNDER_ATTACK
    if by_agents or not {"mean", "ubar"}.isdisjoint(rules):
        raise InputError(
            "Need attacks by attackers beside each agent, and rules that a line search "
            f"can be made for, in the study averaging, got {[*by_agents, *rules]}: "
            "leave out mean, ubar, label_flip, sign_flip, backdoor and the like."
        )
    cases = [("local_only", NONE, 0)] + [
        (rule, attack, f)
        for rule in rules
        for attack in config.attacks or ATTACKED
        for f in config.attackers
    ]
    of_all_runs = cache(partial(errors, config))
    return [
        Measurement(
            rule,
            {"attack": attack, "f": f},
            run,
            partial(_of_run, of_all_runs, config, (rule, attack, f), run),
        )
        for rule, attack, f in cases
        for run in config.runs
    ]


def check_sizes(config: Config) -> None:
    """Refuses agents and attackers whose distances cannot fit, before they exist."""
    slots = config.size + max(config.attackers)
    check_room(
        4 * config.size * slots**2, f"distances between {slots} messages of each agent"
    )
    if config.study == "averaging":
        vectors_of = config.num_runs * config.size * config.dimension
        check_room(8 * vectors_of, f"vectors of {config.dimension} numbers")
        two_worlds(config.size, config.links)


def _of_run(
    of_all_runs: Callable[..., np.ndarray],
    config: Config,
    case: tuple[str, str, int],
    run: int,
) -> Mapping[str, float]:
    error, apart = of_all_runs(*case)[run - config.first_run]
    return {"squared_error": float(error), "disagreement": float(apart)}


def errors(config: Config, rule: str, attack: str, f: int) -> np.ndarray:
    """Squared error and disagreement of each run in the end, `[runs, 2]`.

    The error is the mean squared distance from the first mean of all honest vectors.

    Args:
      config: of the experiment.
      rule: its name, or local_only.
      attack: its name.
      f: attackers beside each agent.
    """
    first = jnp.stack([vectors(config, run) for run in config.runs])
    last: Array = first
    if rule != "local_only":
        found = threat(two_worlds(config.size, config.links), attack, f, 2)
        made = RULES[rule](f, longest_step(found))
        assert made is not None
        keys = jax.random.split(jax.random.key(config.seed), len(first))
        last = averaged(found, made, keys, first, config.num_rounds)
    mean = first.mean(1, keepdims=True)
    size = config.size
    found_errors = [jnp.square(last - mean).sum(2).mean(1)]
    found_errors.append(jax.vmap(lambda x: disagreement(x, size))(last))
    values = np.asarray(jnp.stack(found_errors, 1), float)
    return np.minimum(np.nan_to_num(values, nan=MOST, posinf=MOST), MOST)


def vectors(config: Config, run: int) -> np.ndarray:
    """Of all agents at the start, `[N, dimension]`, of length 1 in the mean."""
    rng = np.random.default_rng(config.seed + run)
    drawn = rng.normal(size=(config.size, config.dimension))
    return (drawn / np.sqrt(config.dimension)).astype(np.float32)


def averaged(
    found: Threat, rule: Rule, keys: Key, first: Array, num_steps: int
) -> Array:
    """What is left of the vectors of all runs after some exchanges.

    Args:
      found: graph and attack.
      rule: of the receivers.
      keys: of the runs.
      first: `[runs, N, dimension]`.
      num_steps: exchanges.
    """
    attack, size = found.attack, found.num_agents
    num_attached = 0 if attack is None else attack.num_attached
    peers = attached_weights(jax.tree.map(jnp.asarray, found.graph), num_attached)
    plan = whole_model(size, {"x": first[0, 0]})
    exchange = make_exchange(plan, attack=attack, rule=rule)
    graphs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], found.graph)
    planned = plan_attack(attack, rule, graphs, size, 1)
    attackers = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], planned)

    def one_run(key: Key, x: Array) -> Array:
        memory = begin(exchange, key, {"x": x}, attackers)

        def step(t: Array, x: Array) -> Array:
            key_step, own = jax.random.fold_in(key, t), {"x": x}
            sent, _ = transmit(exchange, key_step, t, own, memory, own)
            found = deliver(
                exchange, key_step, t, sent, own, own, lambda owner: peers, None
            )
            return found.models["x"]

        return jax.lax.fori_loop(0, num_steps, step, x)

    return jax.jit(jax.vmap(one_run))(keys, first)
