"""Statistics beside scipy, statsmodels, scikit-learn and seqeval."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.claims import rule
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.quadratics import vectors
from p2pjax.datasets import label_sets
from p2pjax.evaluation import statistics
from p2pjax.exchange import mixing
from p2pjax.partial import grouping
from p2pjax.selection import gaussian_mixture
from p2pjax.tasks import ner_metrics

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def _rng() -> np.random.Generator:
    return np.random.default_rng(11)


def _holm() -> tuple[Any, Any]:
    """Who is significant, of 200 families of 6 tests, and the level of the first."""
    from statsmodels.stats.multitest import multipletests

    families = _rng().beta(0.3, 3, size=(200, 6))
    ours = [rule.holm(list(p))[0] for p in families]
    theirs = [multipletests(p, rule.ALPHA, method="holm")[0] for p in families]
    return np.array(ours), np.array(theirs)


def _paired() -> tuple[Any, Any]:
    """Two-sided p of a part of a claim, and its interval."""
    from scipy import stats

    ours, theirs = [], []
    for values in _rng().normal(0.3, 1, size=(20, 8)):
        found = rule.find(values, "greater", 0.01)
        test = stats.ttest_1samp(values, 0)
        interval = test.confidence_interval(1 - rule.ALPHA)
        ours.append([min(found.p_for, found.p_against), *rule.interval(found)])
        theirs.append([test.pvalue, interval.low, interval.high])
    return np.array(ours), np.array(theirs)


def _equivalence() -> tuple[Any, Any]:
    """Two one-sided tests inside a margin; ours is the two-sided level of both."""
    from statsmodels.stats.weightstats import DescrStatsW

    ours, theirs = [], []
    for values in _rng().normal(0, 0.05, size=(20, 8)):
        ours.append(rule.find(values, "equal", 0.1).p_for)
        theirs.append(min(1, 2 * DescrStatsW(values).ttost_mean(-0.1, 0.1)[0]))
    return np.array(ours), np.array(theirs)


def _t_tests() -> tuple[Any, Any]:
    from statsmodels.stats.weightstats import DescrStatsW, ttest_ind

    ours, theirs = [], []
    for a, b in _rng().normal(size=(20, 2, 7)):
        ours.append([*statistics.t_test(a, b), *statistics.paired_t_test(a, b)])
        alone = DescrStatsW(a - b).ttest_mean(0)
        theirs.append([*ttest_ind(a, b), *alone])
    return np.array(ours), np.array(theirs)


def _mean_interval() -> tuple[Any, Any]:
    from statsmodels.stats.weightstats import DescrStatsW

    ours, theirs = [], []
    for values in _rng().normal(size=(20, 6)):
        ours.append(statistics.mean_interval(values))
        low, high = DescrStatsW(values).tconfint_mean(0.05)
        theirs.append((high - low) / 2)
    return np.array(ours), np.array(theirs)


def _jsd() -> tuple[Any, Any]:
    from scipy.spatial import distance

    counts = _rng().integers(0, 20, size=(12, 10)) + np.eye(12, 10)
    ours, theirs = [], []
    for i in range(12):
        for j in range(i):
            ours.append(statistics.jsd(counts[i], counts[j]))
            theirs.append(distance.jensenshannon(counts[i], counts[j], base=2) ** 2)
    pairs = distance.pdist(counts, lambda p, q: distance.jensenshannon(p, q, 2) ** 2)
    return [np.array(ours), statistics.mean_jsd(counts)], [
        np.array(theirs),
        pairs.mean(),
    ]


def _gini() -> tuple[Any, Any]:
    """The area between the line of equality and the Lorenz curve, by trapezoids."""
    from sklearn.metrics import auc

    counts = _rng().integers(0, 30, size=(10, 9)).astype(float)
    theirs = []
    for row in counts:
        curve = np.concatenate([[0], np.cumsum(np.sort(row)) / row.sum()])
        theirs.append(1 - 2 * auc(np.linspace(0, 1, len(curve)), curve))
    return statistics.gini(counts), np.array(theirs)


def _accuracies() -> tuple[Any, Any]:
    from sklearn.metrics import accuracy_score

    rng = _rng()
    actual, predicted = rng.integers(0, 4, size=(2, 7, 25))
    right = (actual == predicted).sum(1)
    ours = statistics.ua(statistics.accuracy(right, np.full(7, 25))).value
    scores = [accuracy_score(a, p) for a, p in zip(actual, predicted, strict=True)]
    return ours, np.mean(scores)


def _over_runs() -> tuple[Any, Any]:
    from scipy import stats

    values = _rng().normal(size=9)
    found = statistics.over_runs(values)
    names = ("median", "p20", "p40", "p60", "p80", "mean", "std")
    known = stats.describe(values)
    quantiles = stats.mstats.mquantiles(
        values, [0.5, 0.2, 0.4, 0.6, 0.8], alphap=1, betap=1
    )
    theirs = [*quantiles, known.mean, np.sqrt(known.variance)]
    return [found[name] for name in names], [float(one) for one in theirs]


def _pareto() -> tuple[Any, Any]:
    known = vectors("peer_to_peer")["pareto"]
    points = np.array(list(known["points"].values()), float)
    ours = statistics.pareto_front(points[:, 0], points[:, 1])
    return ours, np.isin(list(known["points"]), known["front"])


def _top() -> tuple[Any, Any]:
    known = vectors("peer_to_peer")["topUA"]
    ours = (
        statistics.top_ua_mean_of_max(known["runs"]),
        statistics.top_ua_max_of_mean(known["runs"]),
    )
    return ours, (known["mean_of_max"], known["max_of_mean"])


def _mixture() -> tuple[Any, Any]:
    """From the same division, with the same limits."""
    from sklearn.mixture import GaussianMixture

    rng, ours, theirs = _rng(), [], []
    for _ in range(20):
        number = rng.integers(5, 13)
        values = rng.normal(size=number) + 2 * (rng.random(number) < 0.5)
        is_one = np.arange(number) >= rng.integers(1, number)
        groups = [values[~is_one], values[is_one]]
        other = GaussianMixture(
            2,
            weights_init=[len(group) / number for group in groups],
            means_init=[[group.mean()] for group in groups],
            precisions_init=[[[1 / (group.var() + 1e-6)]] for group in groups],
        ).fit(values[:, None])
        found = gaussian_mixture.fit(
            jnp.asarray(values), jnp.asarray(is_one), jnp.ones(number, bool)
        )
        ours.append(
            [found.mixture.mean, found.mixture.variance, found.label.astype(float)]
        )
        labels = (other.predict(values[:, None]) == 1).astype(float)
        theirs.append([other.means_[:, 0], other.covariances_[:, 0, 0], labels])
    return ours, theirs


def _cosines() -> tuple[Any, Any]:
    from sklearn.metrics.pairwise import cosine_similarity

    x = _rng().normal(size=(6, 20))
    ids = np.array([[j for j in range(6) if j != n] for n in range(6)])
    start = jnp.zeros((1, 20))
    ours = mixing.cosines(mixing.Change({"x": jnp.asarray(x)}, {"x": start}), ids)
    return ours, np.take_along_axis(cosine_similarity(x), ids, 1)


def _groups() -> tuple[Any, Any]:
    """The best of all cuts by the silhouette, with scikit-learn's tree and score."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import adjusted_rand_score, silhouette_score

    ours, theirs = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = np.eye(3, 8)[rng.integers(0, 3, 12)] + 0.2 * rng.normal(size=(12, 8))
        similar = np.corrcoef(x)
        apart = np.maximum(1 - similar, 0)
        np.fill_diagonal(apart, 0)
        best, labels = -1.0, np.zeros(12)
        for number in range(2, 12):
            cut = AgglomerativeClustering(
                number, metric="precomputed", linkage="average"
            ).fit_predict(apart)
            score = silhouette_score(apart, cut, metric="precomputed")
            if score > best:
                best, labels = score, cut
        found = grouping.find_groups(np.asarray(similar), min_similarity=-1.0)
        ours.append(adjusted_rand_score(labels, found))
        theirs.append(1.0)
    return np.array(ours), np.array(theirs)


def _entities() -> tuple[Any, Any]:
    from seqeval import metrics

    known = label_sets.label_set(TAGS)
    number = {name: index for index, name in enumerate(known.names)}
    rng, ours, theirs = _rng(), [], []
    for _ in range(30):
        actual, predicted = rng.choice(TAGS, size=(2, 4, 9)).tolist()
        guess, truth = (
            jnp.array([[number[tag] for tag in row] for row in rows])
            for rows in (predicted, actual)
        )
        ratio = ner_metrics.macro_f1(ner_metrics.found(guess, truth, known))
        ours.append(ratio.total / ratio.weight)
        theirs.append(
            metrics.f1_score(actual, predicted, average="macro", zero_division=0)
        )
    return np.array(ours), np.array(theirs)


def _row(
    subject: str,
    other: str,
    package: str,
    problem: str,
    run: Callable[[], tuple[Any, Any]],
    convention: str = "",
    tolerance: float = 1e-12,
) -> Comparison:
    return Comparison(
        subject, "statistics", other, package, problem, run, tolerance, convention
    )


COMPARISONS = [
    _row(
        "claims.rule.holm",
        "multitest.multipletests, holm",
        "statsmodels",
        "who is significant, 200 families of 6 tests",
        _holm,
    ),
    _row(
        "claims.rule.find, interval",
        "stats.ttest_1samp",
        "scipy",
        "p and 95% interval of 20 samples of 8 runs",
        _paired,
    ),
    _row(
        "claims.rule.find (equal)",
        "weightstats.DescrStatsW.ttost_mean",
        "statsmodels",
        "p of equivalence of 20 samples of 8 runs",
        _equivalence,
        "two one-sided tests; p2pjax tells the two-sided level, twice the larger p",
    ),
    _row(
        "statistics.t_test, paired_t_test",
        "weightstats.ttest_ind, ttest_mean",
        "statsmodels",
        "t, p and degrees of freedom of 20 pairs of samples of 7",
        _t_tests,
        "equal variances",
    ),
    _row(
        "statistics.mean_interval",
        "weightstats.DescrStatsW.tconfint_mean",
        "statsmodels",
        "20 samples of 6",
        _mean_interval,
    ),
    _row(
        "statistics.jsd, mean_jsd",
        "spatial.distance.jensenshannon",
        "scipy",
        "66 pairs of histograms of 10 bins",
        _jsd,
        "scipy's is the square root; base 2 in both",
    ),
    _row(
        "statistics.gini",
        "metrics.auc of the Lorenz curve",
        "scikit-learn",
        "10 rows of 9 counts",
        _gini,
    ),
    _row(
        "statistics.accuracy, ua",
        "metrics.accuracy_score",
        "scikit-learn",
        "7 agents, 25 predictions each",
        _accuracies,
    ),
    _row(
        "statistics.over_runs",
        "stats.describe, mstats.mquantiles",
        "scipy",
        "9 values",
        _over_runs,
        "linear quantiles (alphap = betap = 1), divisor n - 1",
    ),
    _row(
        "statistics.pareto_front",
        "Sajina (2025)",
        VECTORS,
        "5 points",
        _pareto,
    ),
    _row(
        "statistics.top_ua",
        "Sajina (2025)",
        VECTORS,
        "2 runs of 3 evaluations",
        _top,
    ),
    _row(
        "selection.gaussian_mixture.fit",
        "mixture.GaussianMixture",
        "scikit-learn",
        "20 sets of 5 to 12 numbers, 2 components",
        _mixture,
        "p2pjax adds 1e-6 to the weights of components, scikit-learn 10 eps",
        1e-4,
    ),
    _row(
        "exchange.mixing.cosines (update_cosine)",
        "metrics.pairwise.cosine_similarity",
        "scikit-learn",
        "6 vectors of 20 numbers",
        _cosines,
    ),
    _row(
        "partial.find_groups",
        "cluster.AgglomerativeClustering, metrics.silhouette_score",
        "scikit-learn",
        "10 times 12 agents in 3 groups: adjusted Rand index",
        _groups,
    ),
    _row(
        "tasks.ner_metrics.macro_f1",
        "metrics.f1_score, macro",
        "seqeval",
        "30 times 4 sentences of 9 tags of 2 types",
        _entities,
        "p2pjax counts in float32",
        1e-6,
    ),
]
