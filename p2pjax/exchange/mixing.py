"""The only code that moves parameters between agents.

`mix` walks over the owner classes of a plan and over column blocks of each class, and
overwrites each block with a combination of agents' rows. Nothing of shape [N, K, P] is
ever built, and blocks keep the temporary memory at a few megabytes. Weights are taken
as they are; the constructors of `Peers` normalise.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.owner_classes import Block, MixPlan
from p2pjax.graphs.topology import Topology
from p2pjax.types import LOCAL, Array, Peers, PyTree

BLOCK_BYTES = 2 << 20  # of a column block over all agents: it stays in cache


# One matrix product with all agents is faster than gathers from about so many peers of
# N on, where there are more than a few agents. Milliseconds of two CPU cores (nothing
# else was measured), by agents and peers, gathers first: mixing 1M parameters 40, 20:
# 104, 134; 40, 30: 148, 130; 100, 33: 200, 231; 100, 50: 267, 255; 100, 75: 347, 228.
# Cosines of 500k parameters 40, 4: 35, 44; 40, 8: 53, 45; 100, 10: 152, 197; 100, 20:
# 367, 250.
MATRIX_FROM = 1 / 2


PRODUCTS_FROM = 1 / 5


FEW_AGENTS = 10


Combine = Callable[[Array], Array]  # a column block [N, ...] -> the mixed block


def mix(params: PyTree, plan: MixPlan, combine: Callable[..., Combine]) -> PyTree:
    """Mixes stacked parameters class by class, in place where they are donated.

    Args:
      params: leaves `[N, ...]`.
      plan: owner classes.
      combine: takes the owner vector `[N]` of a class (numpy) and returns how a column
        block of that class is mixed.
    """
    leaves, structure = jax.tree.flatten(params)
    for owner_class in plan.classes:
        if owner_class.is_shared:
            combine_block = combine(owner_class.owner)
            for block in owner_class.blocks:
                leaves[block.leaf] = _mix_block(
                    leaves[block.leaf], block, combine_block
                )
    return jax.tree.unflatten(structure, leaves)


def _mix_block(leaf: Array, block: Block, combine: Combine) -> Array:
    def advance(leaf: Array, at: tuple, sizes: tuple[int, ...]) -> Array:
        mixed = combine(jax.lax.dynamic_slice(leaf, at, sizes))
        leaf = jax.lax.dynamic_update_slice(leaf, mixed, at)
        # Without the barrier XLA:CPU (openxla/xla 49176) may return wrong numbers
        # where an in-place update of a leaf with an axis of size 1 is reshaped.
        return jax.lax.optimization_barrier(leaf)

    leaf = jnp.asarray(leaf)
    return walk_columns(leaf.shape, leaf.dtype.itemsize, block, advance, leaf)


def walk_columns(
    shape: tuple[int, ...],
    itemsize: int,
    block: Block,
    advance: Callable[[PyTree, tuple, tuple[int, ...]], PyTree],
    carry: PyTree,
    block_bytes: int = BLOCK_BYTES,
) -> PyTree:
    """Folds over the column blocks of a rectangle of one stacked leaf.

    Args:
      shape: of the leaf, `[N, ...]`.
      itemsize: bytes per number.
      block: the rectangle.
      advance: `(carry, at, sizes) -> carry`, one column block at a time, whose start
        may be traced and whose sizes are static.
      carry: what is folded.
      block_bytes: of a column block over all agents.
    """
    if block.size == 0:
        return carry
    start = (0, *block.start)
    sizes = (shape[0], *np.subtract(block.stop, block.start).tolist())
    if len(sizes) == 1:
        return advance(carry, start, sizes)
    axis = 1 + int(np.argmax(sizes[1:]))
    longest = block_bytes * sizes[axis] // (int(np.prod(sizes)) * itemsize)
    length = _even_length(sizes[axis], max(1, longest))

    def replaced(values: tuple, value: Array | int) -> tuple:
        return (*values[:axis], value, *values[axis + 1 :])

    def nth(i: Array | int, carry: PyTree, length_now: int) -> PyTree:
        at = replaced(start, start[axis] + i * length)
        return advance(carry, at, replaced(sizes, length_now))

    num_blocks, tail = divmod(sizes[axis], length)
    if num_blocks == 1:
        carry = nth(0, carry, length)
    else:
        carry = jax.lax.fori_loop(0, num_blocks, lambda i, c: nth(i, c, length), carry)
    return nth(num_blocks, carry, tail) if tail else carry


def _even_length(extent: int, longest: int) -> int:
    """A block length that leaves no tail if one near the longest does."""
    if longest >= extent:
        return extent
    dividing = [n for n in range(longest, longest // 2, -1) if extent % n == 0]
    return dividing[0] if dividing else longest


def by_peers(peers: Peers) -> Combine:
    """`out[n] = sum_k weight[n, k] * block[ids[n, k]]`."""

    def combine(block: Array) -> Array:
        return _sum_slots(block, peers.ids, peers.weight.astype(block.dtype))

    return combine


def _sum_slots(block: Array, ids: Array, weight: Array) -> Array:
    """`out[g] = sum_k weight[g, k] * block[ids[g, k]]`, slot by slot."""

    def add_slot(total: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
        ids, weight = slot
        return total + _per_agent(weight, block) * block[ids], None

    first = _per_agent(weight[:, 0], block) * block[ids[:, 0]]
    return jax.lax.scan(add_slot, first, (ids.T[1:], weight.T[1:]), unroll=4)[0]


def by_matrix(matrix: Array) -> Combine:
    """`out = matrix @ block`: for agents that hear half of the others or more.

    What diverged reaches those who give it a weight, and no other as 0 * inf.
    """

    def product(matrix: Array, block: Array) -> Array:
        return jnp.tensordot(
            matrix.astype(block.dtype), block, 1, precision=jax.lax.Precision.HIGHEST
        )

    return _guarded(product, matrix)


def _guarded(product: Callable[[Array, Array], Array], matrix: Array) -> Combine:
    """A product in which 0 times what is not finite is 0."""

    def careful(block: Array) -> Array:
        is_lost = ~jnp.isfinite(block)
        reached = product(matrix != 0, is_lost.astype(block.dtype)) > 0
        return jnp.where(
            reached, jnp.nan, product(matrix, jnp.where(is_lost, 0, block))
        )

    def combine(block: Array) -> Array:
        is_sound = jnp.isfinite(block).all()
        return jax.lax.cond(is_sound, lambda b: product(matrix, b), careful, block)

    return combine


def fastest_combine(peers: Peers, owner: np.ndarray) -> Combine:
    """Gathers or one matmul, whichever is faster; the shapes decide.

    A matmul multiplies every agent with every other, so it is for agents of one group
    only: what diverged in one group must not reach another as 0 * inf.
    """
    one_group = bool((owner == owner[0]).all())
    is_matrix = one_group and _is_wide(peers.ids, MATRIX_FROM)
    return by_matrix(dense(peers)) if is_matrix else by_peers(peers)


def _is_wide(ids: Array, share: float) -> bool:
    num_agents, num_slots = ids.shape
    return num_agents > FEW_AGENTS and num_slots >= share * num_agents


def dense(peers: Peers) -> Array:
    """The mixing matrix `[N, N]`, row = receiver."""
    num_agents = peers.ids.shape[0]
    rows = jnp.arange(num_agents)[:, None]
    zeros = jnp.zeros((num_agents, num_agents), peers.weight.dtype)
    return zeros.at[rows, peers.ids].add(peers.weight)


class Change(NamedTuple):
    """What became of parameters; the difference is formed block by block only."""

    after: PyTree  # leaves [N, ...]
    before: PyTree  # leaves [N, ...], or [1, ...] if it was the same for all


def dots(left: Change, right: Change, ids: Array) -> Array:
    """Inner products `<left[n], right[ids[n, c]]>` over all parameters, `[N, C]`."""
    as_matrix = _is_wide(ids, PRODUCTS_FROM)
    num_agents, num_columns = ids.shape
    total = jnp.zeros((num_agents, num_agents if as_matrix else num_columns))
    for leaves in zip(*map(jax.tree.leaves, (*left, *right)), strict=True):

        def advance(
            total: Array, at: tuple, sizes: tuple[int, ...], leaves: tuple = leaves
        ) -> Array:
            mine, theirs = (
                _columns(after, at, sizes) - _columns(before, at, sizes)
                for after, before in (leaves[:2], leaves[2:])
            )
            if as_matrix:
                products = jnp.matmul(mine, theirs.T, precision="highest")
            else:
                products = jax.lax.map(
                    lambda peer: (mine * theirs[peer]).sum(1), ids.T
                ).T
            return total + products.astype(total.dtype)

        shape = leaves[0].shape
        block = Block(0, (0,) * (len(shape) - 1), shape[1:])
        total = walk_columns(shape, leaves[0].dtype.itemsize, block, advance, total)
    return jnp.take_along_axis(total, ids, 1) if as_matrix else total


def cosines(change: Change, ids: Array) -> Array:
    """Cosines of the changes of agents `n` and `ids[n, c]`, `[N, C]`.

    0 where one of them did not change.
    """
    own = jnp.arange(ids.shape[0], dtype=ids.dtype)[:, None]
    products = dots(change, change, jnp.concatenate([own, ids], axis=1))
    square, products = products[:, 0], products[:, 1:]
    lengths = jnp.sqrt(square[:, None]) * jnp.sqrt(square[ids])
    has_moved = lengths > 0
    return jnp.where(has_moved, products / jnp.where(has_moved, lengths, 1), 0)


def _columns(leaf: Array, at: tuple, sizes: tuple[int, ...]) -> Array:
    """A column block `[N, columns]`; `[1, columns]` of what is the same for all."""
    leaf = jnp.asarray(leaf)
    columns = jax.lax.dynamic_slice(leaf, at, (leaf.shape[0], *sizes[1:]))
    return columns.reshape(leaf.shape[0], -1)


def by_group_mean(owner: np.ndarray, weight: Array | None = None) -> Combine:
    """Exact (weighted) mean within every group of equal owner; LOCAL keeps its own.

    Args:
      owner: `[N]`, static.
      weight: `[N]` positive, or None for equal weights.
    """
    tables, row_of_agent = group_tables(owner)
    weight = jnp.ones(len(owner)) if weight is None else jnp.asarray(weight)
    is_local = owner == LOCAL

    def combine(block: Array) -> Array:
        means = []
        for members in tables:  # [groups, size]
            shares = weight[members].astype(block.dtype)
            shares = shares / shares.sum(1, keepdims=True)
            # A dot, because XLA fuses other sums into their readers and then computes
            # the mean of a group once per member.
            rows = block[members].reshape(*members.shape, -1)
            means.append(jnp.einsum("gs,gsc->gc", shares, rows, precision="highest"))
        mixed = jnp.concatenate(means)[row_of_agent].reshape(block.shape)
        return jnp.where(_per_agent(is_local, block), block, mixed)

    return combine


def by_group_matrix(matrix: Array, owner: np.ndarray) -> Combine:
    """`out = matrix @ block` within every group of equal owner; LOCAL keeps its own.

    Groups never touch each other's numbers, and what diverged reaches those who give it
    a weight only.

    Args:
      matrix: `[N, N]`, row = receiver; what is between groups is not read.
      owner: `[N]`, static.
    """
    tables = group_tables(owner)[0]
    found = np.concatenate([members.ravel() for members in tables])
    place = np.zeros(len(owner), np.int32)
    place[found] = np.arange(len(found))
    is_local = owner == LOCAL

    def product(matrix: Array, block: Array) -> Array:
        mixed = []
        for members in tables:  # [groups, size]
            own = matrix[members[:, :, None], members[:, None, :]].astype(block.dtype)
            rows = block[members].reshape(*members.shape, -1)
            rows = jnp.matmul(own, rows, precision=jax.lax.Precision.HIGHEST)
            mixed.append(rows.reshape(members.size, *block.shape[1:]))
        return jnp.where(
            _per_agent(is_local, block), block, jnp.concatenate(mixed)[place]
        )

    return _guarded(product, matrix)


def by_factors(factor: Array) -> Combine:
    """Each agent gets `sum_n factor[n] * block[n]`; the factors need not add up to 1.

    For blocks that all agents share.
    """

    def combine(block: Array) -> Array:
        rows = block.reshape(block.shape[0], -1)
        # A dot, see `by_group_mean`.
        total = jnp.einsum(
            "n,nc->c", factor.astype(block.dtype), rows, precision="highest"
        )
        return jnp.broadcast_to(total.reshape(block.shape[1:]), block.shape)

    return combine


def sum_of_others(block: Array) -> Array:
    """Each agent gets the total without its own share: a `Combine`, as of a server."""
    return block.sum(0, keepdims=True) - block


def sum_of_neighbors(graph: Topology) -> Combine:
    """Each agent gets the total over its neighbours, itself not among them."""

    def combine(block: Array) -> Array:
        return _sum_slots(block, graph.neighbor, graph.mask.astype(block.dtype))

    return combine


def where_agents(mask: Array, combine: Combine) -> Combine:
    """Mixes the agents in `mask` `[N]` only; the others keep what they have."""
    return lambda block: jnp.where(_per_agent(mask, block), combine(block), block)


def group_has(mask: Array, owner: np.ndarray) -> Array:
    """`[N]`: whether any agent in the agent's group is in `mask`; false for LOCAL."""
    group = np.unique(owner, return_inverse=True)[1]  # [N] 0 .. groups - 1
    is_shared = owner != LOCAL
    found = jnp.zeros(len(owner), bool).at[group].max(mask & is_shared)
    return found[group] & is_shared


def group_tables(owner: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Members of every group, one table per group size, and each agent's group row.

    Tables without padding: a group never touches another one's numbers, and the work
    is one row per agent.
    """
    groups = [np.flatnonzero(owner == g) for g in np.unique(owner) if g != LOCAL]
    groups.sort(key=len)
    row_of_agent = np.zeros(len(owner), np.int32)
    by_size: dict[int, list[np.ndarray]] = {}
    for row, members in enumerate(groups):
        row_of_agent[members] = row
        by_size.setdefault(len(members), []).append(members)
    return [np.stack(same_size) for same_size in by_size.values()], row_of_agent


def _per_agent(values: Array, block: Array) -> Array:
    """`[N]` -> `[N, 1, ...]`, to multiply a block."""
    return values.reshape((-1,) + (1,) * (block.ndim - 1))


def is_peer(peers: Peers) -> Array:
    """`[N, K]`: slots that are other agents.

    Args:
      peers: `[N, K]`.

    Example:
      >>> from p2pjax.graphs import ring, uniform_receive
      >>> is_peer(uniform_receive(ring(4)))[0].tolist()  # slot 0 is the agent itself
      [False, True, True]
    """
    own = jnp.arange(peers.ids.shape[0], dtype=peers.ids.dtype)
    return peers.ids != own[:, None]
