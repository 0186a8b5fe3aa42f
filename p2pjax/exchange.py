"""What agents send each other: parameters and batch-norm statistics, or a part of them.

Optimizer states, learning rates and momenta never leave an agent. Sajina (2025)
compares three rules for networks with batch norm; each is a list of leaves that stay.
"""

from p2pjax.types import PyTree, Variables

# Regular expressions for `owners.whole_model`, of paths such as params/dense/kernel.
FULL: tuple[str, ...] = ()
SILO_BN = ("batch_stats/.*",)  # Andreux et al. 2020: statistics stay
FED_BN = (*SILO_BN, "params/.*norm[^/]*/.*")  # Li et al. 2021: so do scale and bias


def message_of(variables: Variables) -> PyTree:
    """The leaves that travel."""
    statistics = variables.stats.get("batch_stats")
    message = {"params": variables.params}
    return message if statistics is None else message | {"batch_stats": statistics}


def received(variables: Variables, message: PyTree) -> Variables:
    """Variables with the leaves that travelled replaced."""
    statistics = {k: v for k, v in message.items() if k == "batch_stats"}
    return Variables(message["params"], {**variables.stats, **statistics})
