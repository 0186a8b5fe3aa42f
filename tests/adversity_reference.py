"""One exchange as a plain loop over receivers in numpy, float64.

It shares no code with the package. Robust rules are those of `robust_reference`, which
are given whole members. What an agent sends is `form`ed by its protocol before.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

LOCAL = -1
TINY = 1e-10  # statistics are so small beside parameters that no distance changes


class World(NamedTuple):
    """Who hears whom and what there is, of one owner class."""

    own: np.ndarray  # [N, P] models, as their agents have them
    before: np.ndarray  # [N, P] models before training
    statistics: np.ndarray  # [N, S]
    parts: list[slice]  # columns that a format takes together
    slots: np.ndarray  # [N, K] whom each receiver hears; slot 0 and padding: itself
    weight: np.ndarray  # [N, K]
    owner: np.ndarray  # [N]
    is_byzantine: np.ndarray  # [N]
    arrived: np.ndarray  # [N, K]
    num_attached: int = 0  # last slots


def exact(row, parts):
    return row.copy()


def half(row, parts):
    with np.errstate(over="ignore"):
        return row.astype(np.float16).astype(float)


def uniform8(row, parts):
    out = np.zeros_like(row)
    for part in parts:
        largest = np.abs(row[part]).max()
        if largest > 0:
            out[part] = np.round(row[part] / (largest / 127)) * (largest / 127)
    return out


ENCODE = {"exact": exact, "half": half, "uniform8": uniform8}


def exchanged(
    world: World,
    encode: Callable = exact,
    attack: Callable | None = None,
    rule: Callable | None = None,
    masks: np.ndarray | None = None,
):
    """Models `[N, P]` and statistics `[N, S]` after an exchange.

    Args:
      world: what there is.
      encode: (row, parts) -> what a receiver decodes.
      attack: (world, decoded rows, receiver, sender) -> what a Byzantine sender sends.
      rule: (receiver, members, weights, slots) -> what it makes of them, where members
        have parameters first, then statistics; None: linear mixing.
      masks: which numbers of each agent are sent; None: all.
    """
    models, statistics = world.own.copy(), world.statistics.copy()
    decoded = np.array([encode(row, world.parts) for row in world.own])
    for i in range(len(world.own)):
        if world.owner[i] == LOCAL or not np.isfinite(world.own[i]).all():
            continue  # what becomes of diverged agents is not told
        heard = messages(world, decoded, encode, attack, i)
        if rule is None:
            models[i], statistics[i] = mixed(world, decoded, masks, encode, i, heard)
        else:
            models[i], statistics[i] = ruled(world, rule, i, heard)
    return models, statistics


def sent_slots(world, i):
    """Slots of receiver i in which another agent, or an attached attacker, sends."""
    num_slots = world.slots.shape[1]
    is_attached = np.arange(num_slots) >= num_slots - world.num_attached
    others = (world.slots[i] != i) & (world.weight[i] > 0)
    return np.flatnonzero(others | is_attached), is_attached


def messages(world, decoded, encode, attack, i):
    """What arrives at i: (slot, parameters, statistics)."""
    found = []
    slots, is_attached = sent_slots(world, i)
    for k in slots:
        j = world.slots[i, k]
        if not (is_attached[k] or world.arrived[i, k]):
            continue
        message = decoded[j]
        if attack is not None and (is_attached[k] or world.is_byzantine[j]):
            message = encode(attack(world, decoded, i, j), world.parts)
        found.append((k, message, world.statistics[j]))
    return found


def mixed(world, decoded, masks, encode, i, heard):
    x, s = world.own[i].copy(), world.statistics[i].copy()
    for k, message, statistics in heard:
        w = world.weight[i, k]
        if masks is not None:
            there = masks[world.slots[i, k]]
            x[there] += w * (message[there] - world.own[i][there])
        elif encode is exact:
            x += w * (message - world.own[i])
        else:
            x += w * (message - decoded[i])
        s += w * (statistics - world.statistics[i])
    return x, s


def ruled(world, rule, i, heard):
    """The last column is what others count together, which may be more than 1.

    Statistics then go only so far that others count 1.
    """
    size = world.own.shape[1]
    members = [np.concatenate([world.own[i], TINY * world.statistics[i], [0.0]])]
    slots = [0]
    for k, message, statistics in heard:
        row = np.concatenate([message, TINY * statistics, [TINY]])
        if np.isfinite(row).all():
            members.append(row)
            slots.append(k)
    out = rule(i, np.array(members), world.weight[i, slots], slots)
    statistics, others = out[size:-1] / TINY, out[-1] / TINY
    if others > 1:
        gap = statistics - world.statistics[i]
        statistics = world.statistics[i] + gap / others
    return out[:size], statistics


def honest(world, i, *, local=False):
    """Agents that attackers of receiver i know, of its group of owners."""
    known = [
        j
        for j in range(len(world.own))
        if world.owner[j] == world.owner[i] and not world.is_byzantine[j]
    ]
    if not local:
        return known
    heard = {world.slots[i, k] for k in sent_slots(world, i)[0]} | {i}
    return [j for j in known if j in heard]


def alie(world, rows, i, j, *, scale, local=False):
    known = rows[honest(world, i, local=local)]
    deviation = known.std(0, ddof=1) if len(known) > 1 else 0 * known[0]
    return known.mean(0) + scale * deviation


def foe(world, rows, i, j, *, scale):
    return -scale * rows[honest(world, i)].mean(0)


def sign_flip(world, rows, i, j, *, scale):
    return world.before[j] - scale * (rows[j] - world.before[j])


def dissensus(world, rows, i, j, *, scale):
    slots, is_attached = sent_slots(world, i)
    pull, total = np.zeros_like(rows[i]), 0.0
    for k in slots:
        sender = world.slots[i, k]
        if is_attached[k] or world.is_byzantine[sender]:
            total += world.weight[i, k]
        else:
            pull += world.weight[i, k] * (rows[sender] - rows[i])
    return rows[i] - scale * pull / total
