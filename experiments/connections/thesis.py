"""Accuracies in percent that Sajina (2025) printed for methods of connecting agents.

Tables 8 to 10 (CIFAR-10, 100 agents) and 11 (Reddit), as (small, large) local data:
about 100 and 400 training images, or 300-700 and 1000-5000 words, of every agent.
"""

from collections.abc import Mapping

_COLUMNS = (
    "rotation_2",
    "rotation_4",
    "swap_2",
    "swap_4",
    "vehicles_animals",
    "pathological",
    "practical",
    "text_2",
    "text_4",
)
_NAN = (float("nan"), float("nan"))  # not applicable
_PRINTED = {
    "oracle": (
        (43.80, 49.44),
        (41.52, 46.79),
        (43.98, 49.90),
        (40.72, 46.83),
        (55.18, 61.22),
        (83.73, 84.83),
        (40.83, 67.70),
        (6.48, 8.11),
        (6.40, 8.10),
    ),
    "sparse": (
        (40.94, 46.16),
        (36.41, 41.96),
        (45.51, 50.77),
        (42.10, 48.53),
        (49.70, 55.87),
        (76.68, 57.68),
        (48.21, 67.50),
        (6.72, 8.35),
        (6.76, 8.65),
    ),
    "aucccr": (
        (41.33, 49.22),
        (33.85, 42.61),
        (42.21, 49.83),
        (37.58, 45.21),
        (55.07, 61.45),
        (83.50, 83.82),
        (42.38, 67.48),
        _NAN,
        _NAN,
    ),
    "dac": (
        (40.61, 47.98),
        (36.32, 42.61),
        (44.82, 49.41),
        (42.02, 46.28),
        (52.11, 56.84),
        (79.10, 75.54),
        (47.74, 64.80),
        (7.20, 8.94),
        (7.33, 9.20),
    ),
    "d_cliques": (
        (33.69, 27.16),
        (28.97, 16.77),
        (36.59, 30.46),
        (32.36, 26.49),
        (49.79, 53.76),
        (34.29, 29.48),
        (42.31, 35.10),
        (5.60, 8.92),
        (8.58, 10.70),
    ),
    "diple": (
        (39.51, 49.35),
        (35.50, 44.80),
        (44.73, 54.92),
        (40.57, 51.86),
        (52.74, 61.18),
        (77.14, 54.13),
        (48.22, 71.09),
        (7.37, 9.98),
        (7.65, 10.50),
    ),
    "l2c": (
        (33.05, 42.83),
        (29.11, 42.12),
        (36.29, 43.68),
        (33.20, 43.13),
        (46.59, 55.36),
        (77.70, 76.28),
        (38.70, 70.65),
        (6.12, 7.64),
        (6.85, 10.50),
    ),
    "panm_grad": (
        (41.12, 49.62),
        (36.56, 45.48),
        (45.34, 52.10),
        (42.40, 49.77),
        (55.85, 62.43),
        (79.70, 78.49),
        (48.98, 69.37),
        (7.10, 8.56),
        (7.22, 8.82),
    ),
    "panm_loss": (
        (41.11, 49.67),
        (36.51, 46.17),
        (45.47, 49.92),
        (42.17, 46.32),
        (55.27, 61.89),
        (83.68, 86.84),
        (48.93, 68.95),
        (5.86, 7.13),
        (6.02, 7.39),
    ),
    "pens": (
        (41.29, 48.06),
        (36.46, 42.74),
        (45.52, 52.17),
        (42.35, 48.52),
        (52.25, 58.84),
        (77.81, 72.33),
        (48.72, 68.94),
        (7.14, 8.52),
        (7.31, 8.82),
    ),
}


_SMALL_IMAGES, _SMALL_TEXTS = 200, 1000  # at most so many for an agent's training


def column_of(settings: Mapping[str, str]) -> tuple[str, bool] | None:
    """Which printed numbers can stand beside a run: (column, local data is small).

    Args:
      settings: flags of `experiments.connections`, name to value.
    """
    name = settings["study"]
    if f"{name}_{settings.get('num_clusters')}" in _COLUMNS:
        name = f"{name}_{settings.get('num_clusters')}"
    if name not in _COLUMNS:
        return None
    if settings.get("dataset") == "cifar10":
        return name, float(settings.get("train_size", "inf")) <= _SMALL_IMAGES
    if settings.get("dataset") == "reddit":
        return name, float(settings.get("max_train", "inf")) <= _SMALL_TEXTS
    return None


def printed(method: str, column: str, is_small: bool) -> float | None:
    """What the thesis has for a method; None where it has nothing."""
    values = _PRINTED.get(method)
    if values is None:
        return None
    value = values[_COLUMNS.index(column)][0 if is_small else 1]
    return None if value != value else value
