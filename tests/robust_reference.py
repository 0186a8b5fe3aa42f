"""Robust rules as plain numpy loops over models, from the words of their papers.

Every function takes the members that are there, the own model first, in float64. They
share no code with the package: distances are those of models, never of coefficients.
"""

import numpy as np


def distance(a, b):
    return float(np.sqrt(((a - b) ** 2).sum()))


def ordered(values):
    """Indices, the smallest first; ties go to the lowest index."""
    return sorted(range(len(values)), key=lambda j: (values[j], j))


def median(members, b):
    out = []
    for column in members.T:
        column = sorted(column)
        n = len(column)
        middle = n // 2
        out.append(
            column[middle] if n % 2 else (column[middle - 1] + column[middle]) / 2
        )
    return np.array(out)


def trimmed_mean(members, b):
    out = []
    for column in members.T:
        kept = sorted(column)[b : len(column) - b]
        out.append(sum(kept) / len(kept))
    return np.array(out)


def trimmed_mean_keep_self(members, b):
    out = []
    for column in members.T:
        kept = sorted(column[1:])[b : len(column) - 1 - b]
        out.append((sum(kept) + column[0]) / (len(kept) + 1))
    return np.array(out)


def krum_scores(members, b, less=2):
    n = len(members)
    scores = []
    for j in range(n):
        squares = sorted(
            distance(members[j], members[k]) ** 2 for k in range(n) if k != j
        )
        scores.append(sum(squares[: max(n - b - less, 1)]))
    return scores


def multi_krum(members, b, num_selected=None, less=2):
    n = len(members)
    count = n - b if num_selected is None else min(num_selected, n)
    chosen = ordered(krum_scores(members, b, less))[:count]
    return members[chosen].mean(0)


def krum(members, b, less=2):
    return multi_krum(members, b, 1, less)


def geometric_median(members, start, weight=None, smoothing=0.1, num_iterations=8):
    n = len(members)
    weight = np.ones(n) if weight is None else weight
    z = np.array(start, float)
    for _ in range(num_iterations):
        beta = [weight[j] / max(smoothing, distance(members[j], z)) for j in range(n)]
        z = sum(beta[j] * members[j] for j in range(n)) / sum(beta)
    return z


def clip(difference, radius):
    length = np.sqrt((difference**2).sum())
    return difference if length <= radius else difference * radius / length


def centered_clipping(members, centre, radius, num_iterations=1):
    v = np.array(centre, float)
    for _ in range(num_iterations):
        v = v + sum(clip(m - v, radius) for m in members) / len(members)
    return v


def mixed(members, coefficients, step_size=1.0):
    """`x + eta sum_j c_j (m_j - x)`, where `coefficients` leave out the own model."""
    x = members[0]
    return x + step_size * sum(
        (c * (m - x) for c, m in zip(coefficients, members[1:], strict=True)),
        np.zeros_like(x),
    )


def clipped_to(members, weight, radius, step_size=1.0):
    x = members[0]
    return x + step_size * sum(
        (w * clip(m - x, radius) for w, m in zip(weight[1:], members[1:], strict=True)),
        np.zeros_like(x),
    )


def tolerated(weight, count):
    return sum(sorted(weight[1:], reverse=True)[:count])


def far_first(members):
    """Neighbours by distance from the own model, the farthest first."""
    apart = [distance(m, members[0]) for m in members[1:]]
    return [j + 1 for j in reversed(ordered(apart))]


def clipped_gossip(members, weight, count, step_size=1.0):
    if count == 0 or len(members) == 1:
        return clipped_to(members, weight, np.inf, step_size)
    b = tolerated(weight, count)
    outside, total = set(), 0.0
    for j in far_first(members):
        if total >= b - 1e-9:
            break
        outside.add(j)
        total += weight[j]
    near = [j for j in range(1, len(members)) if j not in outside]
    squares = sum(weight[j] * distance(members[j], members[0]) ** 2 for j in near)
    return clipped_to(members, weight, np.sqrt(squares / b), step_size)


def cs_plus(members, weight, count, step_size=1.0):
    b = tolerated(weight, count)
    total, radius = 0.0, 0.0
    for j in far_first(members):
        if total >= 2 * b - 1e-9:
            radius = distance(members[j], members[0])
            break
        total += weight[j]
    return clipped_to(members, weight, radius, step_size)


def gts(members, weight, count, step_size=1.0):
    left = tolerated(weight, count)
    coefficients = np.array(weight[1:], float)
    for j in far_first(members):
        dropped = min(left, coefficients[j - 1])
        coefficients[j - 1] -= dropped
        left -= dropped
    return mixed(members, coefficients, step_size)


def nna(members, count):
    near = [0, *reversed(far_first(members))]
    return members[near[: max(len(members) - count, 1)]].mean(0)


def ios(members, weight, count):
    trusted = list(range(len(members)))
    for _ in range(count):
        mean = np.average(members[trusted], axis=0, weights=weight[trusted])
        others = [j for j in trusted if j > 0]
        if others:
            apart = [distance(members[j], mean) for j in others]
            trusted.remove(others[int(np.argmax(apart))])
    return np.average(members[trusted], axis=0, weights=weight[trusted])


def accepted(members, indices, alpha):
    if not indices:
        return members[0]
    return alpha * members[0] + (1 - alpha) * members[indices].mean(0)


def balance(members, progress, gamma=0.3, kappa=1.0, alpha=0.5):
    limit = gamma * np.exp(-kappa * progress) * np.sqrt((members[0] ** 2).sum())
    near = [
        j for j in range(1, len(members)) if distance(members[j], members[0]) <= limit
    ]
    return accepted(members, near, alpha)


def ubar(members, loss, honest_share, alpha=0.5):
    if len(members) == 1:
        return members[0]
    count = max(int(np.floor(honest_share * (len(members) - 1) + 1e-9)), 1)
    near = sorted(list(reversed(far_first(members)))[:count])
    good = [j for j in near if loss[j] <= loss[0]]
    return accepted(members, good or [min(near, key=lambda j: loss[j])], alpha)


def nnm(members, count):
    rows = []
    for j in range(len(members)):
        apart = [distance(m, members[j]) for m in members]
        apart[j] = -1.0
        near = ordered(apart)[: max(len(members) - count, 1)]
        rows.append(members[near].mean(0))
    return np.array(rows)


def bucketing(members, weight, order, size):
    """Means of consecutive groups of `order`, and what the members of a group weigh.

    `order` lists `(member, copy)`; the group of `(0, 0)` changes places with the first.
    """
    groups = [order[at : at + size] for at in range(0, len(order), size)]
    own = next(g for g, group in enumerate(groups) if (0, 0) in group)
    groups[0], groups[own] = groups[own], groups[0]
    copies = 1 + max(copy for _, copy in order)
    rows = np.array([members[[j for j, _ in group]].mean(0) for group in groups])
    weights = [sum(weight[j] / copies for j, _ in group) for group in groups]
    return rows, np.array(weights)
