"""All comparisons, and what has none, with the reason."""

from experiments.equality import (
    attack_rows,
    loss_rows,
    matrix_rows,
    messages,
    methods,
    named_graphs,
    network_rows,
    published,
    rules,
    small_methods,
    statistics_rows,
)
from experiments.equality.comparison import KINDS, Comparison

COMPARISONS: tuple[Comparison, ...] = tuple(
    sorted(
        (
            *methods.COMPARISONS,
            *published.COMPARISONS,
            *small_methods.COMPARISONS,
            *rules.COMPARISONS,
            *attack_rows.COMPARISONS,
            *messages.COMPARISONS,
            *named_graphs.COMPARISONS,
            *matrix_rows.COMPARISONS,
            *statistics_rows.COMPARISONS,
            *network_rows.COMPARISONS,
            *loss_rows.COMPARISONS,
        ),
        key=lambda one: KINDS.index(one.kind),
    )
)

NONE = "no code of others could be had; tested in"
# What has no comparison.
WITHOUT = {
    "aucccr": f"{NONE} tests/test_selection.py, with published utilities",
    "combination": f"{NONE} tests/test_federated.py, with the published table",
    "complete_training": f"{NONE} tests/test_federated.py",
    "dac": f"{NONE} tests/test_selection.py, with published probabilities",
    "diple": f"{NONE} tests/test_selection.py, with published weights",
    "ditto": f"{NONE} tests/test_federated.py",
    "fedcurv": f"{NONE} tests/test_federated.py; its curvatures are beside torch",
    "fedcurv_neighbors": f"{NONE} tests/test_federated.py",
    "fedper": f"{NONE} tests/test_federated.py; it is fedavg of some leaves",
    "l2c": f"{NONE} tests/test_selection.py, with published gradients",
    "multi_task": f"{NONE} tests/test_multi_task.py",
    "p2p_bn": f"{NONE} tests/test_events.py",
    "panm": f"{NONE} tests/test_selection.py; its mixture is beside scikit-learn",
    "partial_averaging": f"{NONE} tests/test_slices.py, with published vectors",
    "virtual": f"{NONE} tests/test_virtual.py, with conjugate cases",
    # Attacks.
    "backdoor": f"{NONE} tests/test_attacks.py; a stamp on images",
    "gaussian": "drawn by another generator; tested in tests/test_attacks.py",
    "label_flip": f"{NONE} tests/test_attacks.py",
    # Graphs and what is said of them.
    "clustered": f"{NONE} tests/test_graphs.py",
    "directed_regular": "drawn by a rule of its own; tested in tests/test_graphs.py",
    "equi_dyn": f"{NONE} tests/test_named_graphs.py, with a published contraction",
    "equi_static": f"{NONE} tests/test_named_graphs.py",
    "lazy": "(W + I) / 2, as in exact_diffusion beside ED; tests/test_weights.py",
    "moving_geometric": "geometric graphs of other places; tests/test_named_graphs.py",
    "one_peer_exponential": f"{NONE} tests/test_weights.py",
    "oracle graph": f"{NONE} tests/test_graphs.py",
    "pad_width": "adds slots that are not used; tested in tests/test_graphs.py",
    "random_views": "drawn by a rule of its own; tested in tests/test_graphs.py",
    "size_weighted": f"{NONE} tests/test_weights.py",
    "squared_error_ratio": f"{NONE} tests/test_named_graphs.py",
    "steps_to_consensus": f"{NONE} tests/test_named_graphs.py",
}


def base(subject: str) -> str:
    """The name without options: what a comparison counts for.

    Args:
      subject: of a comparison.

    Example:
      >>> base("dpsgd (momentum)")
      'dpsgd'
    """
    return subject.split(" (")[0]
