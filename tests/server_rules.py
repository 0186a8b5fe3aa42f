"""Rules of a server in numpy, from its model s and the rows m that arrived."""

import numpy as np
from robust_reference import krum as krum_of
from robust_reference import multi_krum as multi_krum_of

from p2pjax.exchange import robust


def distances(rows):
    """Euclidean, between rows."""
    return np.linalg.norm(rows[:, None] - rows[None], axis=2)


def median_of(s, m):
    return np.median(m, axis=0)


def trimmed_of(s, m):
    return np.sort(m, axis=0)[1:-1].mean(0)


def clipped_of(s, m):
    for _ in range(2):
        gap = m - s
        length = np.linalg.norm(gap, axis=1, keepdims=True)
        s = s + (gap * np.minimum(1, 0.5 / length)).mean(0)
    return s


def geometric_of(s, m):
    for _ in range(8):
        w = 1 / np.maximum(np.linalg.norm(m - s, axis=1), 0.1)
        s = (w[:, None] * m).sum(0) / w.sum()
    return s


def nearest_of(s, m):
    order = np.argsort(np.linalg.norm(m - s, axis=1), kind="stable")
    return m[order[: max(len(m) - 1, 1)]].mean(0)


def nearest_means(m):
    order = np.argsort(distances(m), axis=1, kind="stable")
    return m[order[:, : max(len(m) - 1, 1)]].mean(1)


RULES = {
    "median": (robust.median(1), median_of),
    "trimmed": (robust.trimmed_mean(1), trimmed_of),
    "krum": (robust.krum(1), lambda s, m: krum_of(m, 1)),
    "multi_krum": (robust.multi_krum(1), lambda s, m: multi_krum_of(m, 1)),
    "clipping": (robust.centered_clipping(0.5, num_iterations=2), clipped_of),
    "geometric": (robust.geometric_median(1), geometric_of),
    "nna": (robust.nna(1), nearest_of),
    "nnm": (robust.nnm(robust.median(1)), lambda s, m: median_of(s, nearest_means(m))),
    "nnm_nna": (
        robust.nnm(robust.nna(1)),
        lambda s, m: nearest_of(s, nearest_means(m)),
    ),
    "buckets": (robust.bucketing(robust.trimmed_mean(1), 1), trimmed_of),
    "bucket_krum": (robust.bucketing(robust.krum(1), 1), lambda s, m: krum_of(m, 1)),
}
