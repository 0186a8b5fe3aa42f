"""Attacks, rules and the line search as plain loops in numpy, one receiver at a time.

Rules take the receiver's own model `x` [c], what it hears `m` [k, c], what each message
counts `w` [k] and how much of that may be hostile; they return the receiver's new
model. Self-centred ones take a step size.
"""

import numpy as np

TOLERANCE = 1e-9  # of sums of weights that count as equal


def plain(x, m, w, num_byzantine, step=1.0):
    return x - step * (w[:, None] * (x - m)).sum(0)


def _by_distance(x, m):
    distance = np.linalg.norm(m - x, axis=1)
    return distance, np.argsort(distance, kind="stable")


def _tolerated(w, num_byzantine):
    return np.sort(w)[::-1][:num_byzantine].sum()


def _clipped(x, m, w, distance, radius, step):
    out = x.copy()
    for message, weight, far in zip(m, w, distance, strict=True):
        if far > 0:
            out = out + step * weight * min(1, radius / far) * (message - x)
    return out


def cs_plus(x, m, w, num_byzantine, step=1.0):
    distance, order = _by_distance(x, m)
    collected, radius = 0.0, 0.0
    for j in order[::-1]:
        if collected >= 2 * _tolerated(w, num_byzantine) - TOLERANCE:
            radius = distance[j]
            break
        collected += w[j]
    return _clipped(x, m, w, distance, radius, step)


def clipped_gossip(x, m, w, num_byzantine, step=1.0):
    distance, order = _by_distance(x, m)
    tolerated = _tolerated(w, num_byzantine)
    inside, left = 0.0, w.sum()
    for j in order:
        left -= w[j]
        if left < tolerated - TOLERANCE:
            break
        inside += w[j] * distance[j] ** 2
    return _clipped(x, m, w, distance, np.sqrt(inside / tolerated), step)


def gts(x, m, w, num_byzantine, step=1.0):
    _, order = _by_distance(x, m)
    left, out = w.sum() - _tolerated(w, num_byzantine), x.copy()
    for j in order:
        counts = min(max(left, 0), w[j])
        out = out + step * counts * (m[j] - x)
        left -= w[j]
    return out


def ios(x, m, w, num_byzantine, step=None):
    trusted = list(range(len(m)))
    own = 1 - w.sum()

    def mean():
        total = own * x + sum(w[j] * m[j] for j in trusted)
        return total / (own + sum(w[j] for j in trusted))

    for _ in range(num_byzantine):
        center = mean()
        trusted.pop(int(np.argmax([np.linalg.norm(m[j] - center) for j in trusted])))
    return mean()


def median(x, m, w, num_byzantine, step=None):
    return np.median(np.concatenate([x[None], m]), axis=0)


RULES = {
    "plain": plain,
    "cs_plus": cs_plus,
    "gts": gts,
    "clipped_gossip": clipped_gossip,
    "ios": ios,
    "median": median,
}
AVERAGING = {"ios", "median"}


def target(name, x, m, w, own, step):
    """What a receiver would get from honest neighbours only; `own` is its weight."""
    if name in AVERAGING:
        return (own * x + w @ m) / (own + w.sum())
    return x - step * (w[:, None] * (x - m)).sum(0)


def line_search(objective, num_evaluations=16):
    """Of one function of one number."""
    best, value, step = 0.0, objective(0.0), 1.0
    left, last, is_growing = num_evaluations - 1, 0.0, True
    while left and is_growing:
        last = best + step
        now, left = objective(last), left - 1
        if now > value:
            best, value, step = last, now, 2 * step
        else:
            step, is_growing = 0.8 * step, False
    for _ in range(left):
        if last < best:
            last = last + step
        else:
            down = last - step
            while down < 0:
                down = (down + last) / 2
            last = down
        now = objective(last)
        if now > value:
            best, value = last, now
        step = 0.8 * step
    return best


def two_worlds():
    """Adjacency of 26 agents in two cliques of 13, each linked to 8 of the other."""
    linked = np.zeros((26, 26), int)
    linked[:13, :13] = linked[13:, 13:] = 1 - np.eye(13, dtype=int)
    for i in range(13):
        for q in range(8):
            other = 13 + (i + q) % 13
            linked[i, other] = linked[other, i] = 1
    return linked


class World:
    """What there is in a round, as matrices: row = receiver."""

    def __init__(self, rng, num_agents=9, num_columns=7, num_byzantine=3):
        self.rows = rng.normal(size=(num_agents, num_columns))
        self.before = rng.normal(size=(num_agents, num_columns))
        self.matrix = rng.uniform(0.1, 1, (num_agents, num_agents))
        self.matrix *= rng.random((num_agents, num_agents)) < 0.6
        np.fill_diagonal(self.matrix, 1)
        self.matrix /= self.matrix.sum(1, keepdims=True)
        chosen = rng.choice(num_agents, num_byzantine, replace=False)
        self.is_byzantine = np.isin(np.arange(num_agents), chosen)

    def heard(self, i):
        """Agents that i receives from."""
        return [j for j in np.flatnonzero(self.matrix[i]) if j != i]

    def honest_heard(self, i):
        return [j for j in self.heard(i) if not self.is_byzantine[j]]

    def known(self, i, local):
        """Agents over which attackers take statistics to attack receiver i."""
        if not local:
            return [j for j in range(len(self.rows)) if not self.is_byzantine[j]]
        return sorted(self.honest_heard(i) + [i] * (not self.is_byzantine[i]))

    def slots(self):
        """The matrix as ids and weights `[N, K]`, slot 0 the agent itself."""
        num_agents = len(self.matrix)
        ids = np.tile(np.arange(num_agents, dtype=np.int32)[:, None], (1, num_agents))
        weight = np.zeros((num_agents, num_agents))
        for i in range(num_agents):
            heard = self.heard(i)
            ids[i, 1 : 1 + len(heard)] = heard
            weight[i, 1 : 1 + len(heard)] = self.matrix[i, heard]
            weight[i, 0] = self.matrix[i, i]
        return ids, weight


def mean(world, i, local):
    return world.rows[world.known(i, local)].mean(0)


def deviation(world, i, local):
    known = world.rows[world.known(i, local)]
    return known.std(0, ddof=1) if len(known) > 1 else 0 * known[0]


def fiedler(world):
    honest = np.flatnonzero(~world.is_byzantine)
    linked = (world.matrix + world.matrix.T)[np.ix_(honest, honest)] > 0
    np.fill_diagonal(linked, False)
    vectors = np.linalg.eigh(np.diag(linked.sum(1)) - linked.astype(float))[1]
    u = np.zeros(len(world.rows))
    if len(honest) > 1:
        u[honest] = vectors[:, 1]
    return u


def dissensus(world, i, scale, unit=False):
    x, hostile = world.rows[i], set(world.heard(i)) - set(world.honest_heard(i))
    weight = np.ones_like(world.matrix) if unit else world.matrix
    total = sum(weight[i, j] for j in hostile)
    pull = sum(weight[i, k] * (world.rows[k] - x) for k in world.honest_heard(i))
    if scale is None:
        return x, -pull + 0 * x
    return x - scale * pull / total if hostile else x
