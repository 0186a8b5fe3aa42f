"""What Wu, Chen, Ling (2023) print, https://arxiv.org/abs/2206.04568.

Accuracies in percent after 50,000 steps, as the tables in the authors' repository have
them (https://github.com/Zhaoxian-Wu/IOS). Ten honest agents and two that attack;
without an attack these two do not exist.
"""

from collections.abc import Mapping

ATTACKS = ("none", "gaussian", "sign_flip", "isolation", "duplicate", "alie")
NUM_AGENTS, NUM_BYZANTINE = 12, 2

Table = Mapping[str, tuple[float, ...]]  # of each rule, in the order of the attacks

# By graph, and by how classes are split among agents.
ACCURACIES: Mapping[tuple[str, str], Table] = {
    ("erdos_renyi", "split"): {
        "local_only": (10.00,),
        "mean": (91.70, 13.63, 20.89, 10.00, 91.53, 91.21),
        "median": (75.49, 77.92, 66.38, 41.56, 78.74, 82.46),
        "geometric_median": (88.00, 88.63, 23.35, 73.01, 88.68, 89.14),
        "krum": (19.71, 19.76, 19.16, 19.76, 29.20, 63.79),
        "trimmed_mean": (91.61, 90.40, 70.97, 54.47, 87.54, 82.56),
        "self_centered_clipping": (91.70, 91.57, 20.89, 83.80, 91.52, 91.21),
        "ios": (91.70, 91.60, 91.61, 91.55, 88.22, 86.61),
    },
    ("erdos_renyi", "iid"): {
        "local_only": (90.24,),
        "mean": (91.70, 13.78, 30.93, 90.18, 91.63, 91.67),
        "median": (91.58, 91.56, 87.00, 91.52, 91.46, 91.52),
        "geometric_median": (91.70, 91.68, 87.10, 91.29, 91.70, 91.69),
        "krum": (90.83, 90.83, 91.23, 90.89, 90.91, 91.45),
        "trimmed_mean": (91.73, 91.61, 86.34, 91.57, 91.61, 91.62),
        "self_centered_clipping": (91.72, 91.74, 32.56, 91.59, 91.71, 91.70),
        "ios": (91.68, 91.68, 91.66, 91.66, 91.70, 91.68),
    },
    ("two_castles", "split"): {
        "local_only": (10.00,),
        "mean": (91.73, 15.79, 48.99, 10.00, 91.66, 91.11),
        "median": (77.60, 80.23, 74.55, 33.39, 81.03, 82.03),
        "geometric_median": (89.29, 89.66, 8.36, 10.00, 89.90, 88.63),
        "krum": (17.45, 19.74, 10.10, 19.74, 29.17, 82.62),
        "trimmed_mean": (91.72, 90.08, 72.02, 58.53, 87.21, 77.85),
        "self_centered_clipping": (91.73, 91.55, 48.99, 86.12, 91.65, 91.11),
        "ios": (91.73, 91.68, 91.66, 91.64, 88.84, 82.78),
    },
    ("two_castles", "iid"): {
        "local_only": (90.24,),
        "mean": (91.71, 16.09, 29.23, 90.33, 91.71, 91.67),
        "median": (91.49, 91.53, 87.04, 91.40, 91.56, 91.38),
        "geometric_median": (91.67, 91.68, 87.05, 90.16, 91.68, 91.58),
        "krum": (90.72, 90.77, 91.13, 90.72, 91.04, 91.43),
        "trimmed_mean": (91.70, 91.61, 86.10, 91.61, 91.65, 91.59),
        "self_centered_clipping": (91.70, 91.68, 35.69, 91.62, 91.66, 91.67),
        "ios": (91.69, 91.68, 91.65, 91.67, 91.67, 91.61),
    },
}


def accuracy(graph: str, split: str, rule: str, attack: str) -> float | None:
    """The printed accuracy in percent; None where there is none.

    Args:
      graph: its name.
      split: "split" or "iid".
      rule: its name, or local_only.
      attack: its name.
    """
    row = ACCURACIES.get((graph, split), {}).get(rule, ())
    place = ATTACKS.index(attack) if attack in ATTACKS else len(row)
    return row[place] if place < len(row) else None
