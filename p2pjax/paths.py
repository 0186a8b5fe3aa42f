"""Paths of the leaves of a tree, such as `layer_1/kernel`, and choices among them."""

import re
from collections.abc import Collection, Sequence

import jax

from p2pjax.types import InputError, PyTree


def leaves_with_paths(tree: PyTree) -> list[tuple[str, PyTree]]:
    """Leaves in order, each with its path.

    >>> leaves_with_paths({"layer_1": {"bias": 0, "kernel": 1}})
    [('layer_1/bias', 0), ('layer_1/kernel', 1)]
    """
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def is_inside(path: str, modules: Collection[str]) -> bool:
    """Whether a leaf belongs to one of the modules with these paths.

    >>> is_inside("block/norm/scale", {"block/norm"})
    True
    """
    parts = path.split("/")
    return any("/".join(parts[:end]) in modules for end in range(len(parts) + 1))


def check_patterns(patterns: Sequence[str], paths: Sequence[str], what: str) -> None:
    """Refuses regular expressions of whole paths that match no leaf.

    Args:
      patterns: such as `params/layer_2/.*`.
      paths: of all leaves.
      what: the patterns choose, for the message.
    """
    for pattern in patterns:
        if not any(re.fullmatch(pattern, path) for path in paths):
            raise InputError(
                f"Need {what} among {', '.join(paths)}, got '{pattern}', which matches "
                "none."
            )
