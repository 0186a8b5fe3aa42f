"""Models cut into fragments, each of which is a message of its own.

A random permutation, the same for all agents and rounds, cuts every leaf into F parts,
so that a fragment has about 1/F of each leaf.
"""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.types import Array, InputError, PyTree

Columns = list[list[np.ndarray]]  # of each fragment, of each leaf: positions in it


def fragment_columns(tree: PyTree, num_fragments: int, seed: int = 0) -> Columns:
    """Which numbers of each leaf are in which fragment.

    Where a leaf has fewer numbers than there are fragments, some have none of it; which
    ones they are goes round from leaf to leaf, so that fragments are of about one size.

    Args:
      tree: ONE agent's leaves, or their shapes.
      num_fragments: F.
      seed: of the permutation.

    Example:
      >>> of_fragments = fragment_columns({"x": np.zeros(5)}, 2)
      >>> [leaves[0].size for leaves in of_fragments]
      [3, 2]
      >>> sorted(np.concatenate([leaves[0] for leaves in of_fragments]).tolist())
      [0, 1, 2, 3, 4]
    """
    if not isinstance(num_fragments, int | np.integer) or num_fragments < 1:
        raise InputError(f"Need one fragment or more, got {num_fragments}.")
    rng = np.random.default_rng(seed)
    found: Columns = [[] for _ in range(num_fragments)]
    dealt = 0
    for leaf in jax.tree.leaves(tree):
        size = int(np.prod(leaf.shape))
        order = rng.permutation(size).astype(np.int32)
        place = (dealt + np.arange(size)) % num_fragments
        for number in range(num_fragments):
            found[number].append(np.sort(order[place == number]))
        dealt += size
    return found


def cut(tree: PyTree, columns: list[np.ndarray]) -> list[Array]:
    """One fragment of stacked models, a matrix `[N, n]` of each leaf with n of it.

    Args:
      tree: leaves `[N, ...]`.
      columns: of the fragment.
    """
    return [
        jnp.asarray(leaf).reshape(leaf.shape[0], -1)[:, at]
        for leaf, at in zip(jax.tree.leaves(tree), columns, strict=True)
    ]


def put_together(
    tree: PyTree, fragments: list[list[Array]], of_fragments: Columns
) -> PyTree:
    """Stacked models of all their fragments.

    Args:
      tree: leaves `[N, ...]`, for their shapes.
      fragments: `cut` of each.
      of_fragments: `fragment_columns`.

    Example:
      >>> tree = {"w": jnp.arange(12.0).reshape(2, 3, 2), "b": jnp.ones((2, 1))}
      >>> one = jax.tree.map(lambda leaf: leaf[0], tree)
      >>> of_fragments = fragment_columns(one, 4)
      >>> parts = [cut(tree, at) for at in of_fragments]
      >>> bool((put_together(tree, parts, of_fragments)["w"] == tree["w"]).all())
      True
    """
    leaves, structure = jax.tree.flatten(tree)
    new = []
    for number, leaf in enumerate(leaves):
        order = np.concatenate([columns[number] for columns in of_fragments])
        parts = jnp.concatenate([parts[number] for parts in fragments], axis=1)
        back = np.argsort(order)
        new.append(parts[:, back].reshape(leaf.shape))
    return jax.tree.unflatten(structure, new)
