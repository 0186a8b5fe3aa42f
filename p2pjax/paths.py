"""Paths of the leaves of a tree, such as `layer_1/kernel`."""

import jax

from p2pjax.types import PyTree


def leaves_with_paths(tree: PyTree) -> list[tuple[str, PyTree]]:
    """Leaves in order, each with a path such as `layer_1/kernel`."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
