"""What a comparison is, how it is run, and what is kept of it."""

import importlib.util
import platform
from collections.abc import Callable
from datetime import date
from importlib import metadata
from typing import Any, NamedTuple

import jax
import numpy as np

KINDS = ("methods", "rules", "attacks", "messages", "graphs", "statistics", "networks")
VECTORS = "published numbers"  # iterates in tests/vectors, no package
APART = 1e-4  # what is known to differ differs by more

# How a package is imported, and how it is installed beside p2pjax.
PACKAGES = {
    "byzfl": ("byzfl", "pip install --no-deps byzfl==0.0.11"),
    "decent-bench": ("decent_bench", "pip install decent-bench (Python 3.13)"),
    "gossipy-dfl": ("gossipy", "pip install --no-deps gossipy-dfl==0.0.1"),
    "networkx": ("networkx", "pip install networkx"),
    "numpy": ("numpy", "pip install numpy"),
    "scikit-learn": ("sklearn", "pip install scikit-learn"),
    "scipy": ("scipy", "pip install scipy"),
    "seqeval": ("seqeval", "pip install --no-deps seqeval"),
    "statsmodels": ("statsmodels", "pip install statsmodels"),
    "torch": ("torch", "pip install torch==2.13.0"),
}


class Comparison(NamedTuple):
    """A subject of this package beside what others wrote."""

    subject: str  # its name here, with the options that matter in brackets
    kind: str  # one of KINDS
    other: str  # its name there
    package: str  # a key of PACKAGES, or VECTORS
    problem: str  # what both compute, and its size
    run: Callable[[], tuple[Any, Any]]  # ours and theirs: the same tree of arrays
    tolerance: float = 1e-9
    convention: str = ""  # in what both differ, and how they are made to agree
    differs: str = ""  # why the numbers are not equal: then they must not be
    is_slow: bool = False  # compiles something, seconds each

    @property
    def name(self) -> str:
        """Unique among all comparisons."""
        return f"{self.subject} | {self.other} | {self.package}"


class Row(NamedTuple):
    """What was measured, as it is kept."""

    subject: str
    kind: str
    other: str
    package: str
    problem: str
    convention: str
    differs: str
    tolerance: float
    difference: float  # the largest, absolute
    version: str  # of the package
    jax: str
    python: str
    date: str

    @property
    def name(self) -> str:
        """That of its comparison."""
        return f"{self.subject} | {self.other} | {self.package}"

    @property
    def holds(self) -> bool:
        """Whether the numbers are as far apart as they should be."""
        if self.differs:
            return self.difference > APART
        return self.difference <= self.tolerance


def missing(package: str) -> str:
    """Why comparisons with a package cannot run here; empty if they can.

    Args:
      package: a key of `PACKAGES`, or `VECTORS`.

    Example:
      >>> missing(VECTORS)
      ''
    """
    if package == VECTORS:
        return ""
    module, command = PACKAGES[package]
    if importlib.util.find_spec(module) is None:
        return f"{package} is not installed: {command}"
    return ""


def compared(comparison: Comparison) -> Row:
    """Runs both in float64 and keeps the largest absolute difference.

    Args:
      comparison: whose package is installed.

    Example:
      >>> def run():
      ...     return np.ones(2), np.array([1.0, 1.5])
      >>> one = Comparison("a", "methods", "b", VECTORS, "two numbers", run)
      >>> compared(one).difference
      0.5
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        ours, theirs = comparison.run()
        difference = largest_difference(ours, theirs)
    is_package = comparison.package != VECTORS
    return Row(
        comparison.subject,
        comparison.kind,
        comparison.other,
        comparison.package,
        comparison.problem,
        comparison.convention,
        comparison.differs,
        comparison.tolerance,
        difference,
        metadata.version(comparison.package) if is_package else "",
        jax.__version__,
        platform.python_version(),
        date.today().isoformat(),
    )


def largest_difference(ours: Any, theirs: Any) -> float:
    """Of two trees of arrays with the same structure and shapes.

    Args:
      ours: numbers or arrays in dictionaries, lists and tuples.
      theirs: likewise.

    Example:
      >>> largest_difference({"a": [1.0, 2.0]}, {"a": [1.0, 2.25]})
      0.25
    """
    mine, others = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    shapes: list[Any] = [jax.tree.structure(ours), jax.tree.structure(theirs)]
    if shapes[0] != shapes[1] or not mine:
        raise ValueError("Need the same tree of arrays from both, with one or more.")
    most = 0.0
    for one, other in zip(mine, others, strict=True):
        a, b = np.asarray(one, float), np.asarray(other, float)
        if a.shape != b.shape or not a.size:
            raise ValueError(f"Need equal shapes from both, got {a.shape}, {b.shape}.")
        apart = np.abs(a - b)
        if np.isnan(apart).any():
            raise ValueError("Need finite numbers from both, got NaN.")
        most = max(most, float(apart.max()))
    return most
