"""Base-(k+1) graphs: a few sparse mixings, one after the other, reach the exact mean.

Takezawa, Sato, Bao, Niwa, Yamada (2023), "Beyond exponential graph: communication-
efficient topologies for decentralized learning via finite-time convergence",
https://arxiv.org/abs/2305.11420. All of it is computed in whole numbers and fractions:
powers from floating logarithms are wrong from 243 agents on.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations

import jax
import numpy as np

from p2pjax.graphs.topology import stack, weighted_edges
from p2pjax.types import InputError, Peers

# The weights of pairs of agents i < j, both ways; an agent keeps what is left of 1.
Pairs = dict[tuple[int, int], Fraction]


def base_k(num_agents: int, k: int = 1, *, simple: bool = False) -> Peers:
    """The Base-(k+1) graph: matchings or small groups whose product is the exact mean.

    After one pass through the sequence all agents have the mean, for any number of
    agents. It brings its weights, which are symmetric and doubly stochastic; others on
    the same links do not reach the mean. Give `rewire_every=graphs.COMMUNICATION` to a
    method, so that each exchange uses the next matrix: a pass that starts in the middle
    of the sequence is not exact, any 2 G - 1 matrices in a row are. Some agents have
    no agent to talk to in some exchanges. Takezawa et al. (2023),
    https://arxiv.org/abs/2305.11420.

    Args:
      num_agents: N, 2 or more.
      k: the most neighbours of an agent in an exchange, 1 to N - 1.
      simple: the paper's Simple Base-(k+1) graph, which is never shorter.

    Returns:
      `Peers` with ids and weights `[G, N, K]`.

    >>> graph = base_k(5, 1)  # five agents, in pairs
    >>> graph.ids.shape, graph.ids[2, 3].tolist()  # in the third, 3 meets 4
    ((5, 5, 2), [3, 4])
    >>> print(graph.weight[2, 3])
    [0.2 0.8]
    """
    return stack(
        [_peers(num_agents, pairs) for pairs in base_sequence(num_agents, k, simple)]
    )


def base_sequence(num_agents: int, k: int, simple: bool = False) -> list[Pairs]:
    """The matrices of `base_k` in fractions, in the order in which they are applied."""
    if not 1 <= k < num_agents:
        raise InputError(
            f"Need two agents or more, and 1 <= k < {num_agents} (the number of "
            f"agents) for the neighbours in a Base-(k+1) graph, got k={k}."
        )
    agents = range(num_agents)
    of_all = _simple(agents, k)
    if simple:
        return of_all
    size = _part_of_large_primes(num_agents, k)  # q of the paper
    groups = [agents[first : first + size] for first in range(0, num_agents, size)]
    inside = _side_by_side([_simple(group, k) for group in groups])
    between = _side_by_side([_cube(agents[place::size], k) for place in range(size)])
    found = inside + between
    return of_all if len(of_all) < len(found) else found


def _peers(num_agents: int, pairs: Pairs) -> Peers:
    """One matrix, as wide as it needs; fractions are rounded here and nowhere else."""
    own = [Fraction(1)] * num_agents
    for (i, j), weight in pairs.items():
        own[i] -= weight
        own[j] -= weight
    ends = np.array(list(pairs), np.int64).reshape(-1, 2)
    sender, receiver = np.append(ends[:, 1], ends[:, 0]), np.append(*ends.T)
    order = np.lexsort((sender, receiver))
    # As constants of a program would be: double only where JAX computes in double.
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    share = np.tile(np.array([float(one) for one in pairs.values()], dtype), 2)
    return weighted_edges(
        num_agents, sender[order], receiver[order], share[order], np.array(own, float)
    )


def _factors(size: int, k: int) -> list[int] | None:
    """Factors of at most k + 1, the largest first taken, ascending; None: impossible.

    >>> _factors(12, 3), _factors(12, 2), _factors(1, 2), _factors(10, 2)
    ([3, 4], [2, 2, 3], [], None)
    """
    found = []
    while size > 1:
        fitting = [f for f in range(min(k + 1, size), 1, -1) if size % f == 0]
        if not fitting:
            return None
        found.append(fitting[0])
        size //= fitting[0]
    return sorted(found)


def _part_of_large_primes(size: int, k: int) -> int:
    """What is left of a number without its prime factors up to k + 1."""
    for factor in range(2, k + 2):
        while size % factor == 0:
            size //= factor
    return size


def _cube(agents: Sequence[int], k: int) -> list[Pairs]:
    """Matrix l averages those whose places differ in digit l of a mixed radix only."""
    factors = _factors(len(agents), k)
    assert factors is not None
    found, stride = [], 1
    for factor in factors:
        groups = [
            [agents[first + stride * digit] for digit in range(factor)]
            for first in range(len(agents))
            if first // stride % factor == 0
        ]
        found.append(_averaging(groups))
        stride *= factor
    return found


def _averaging(groups: Iterable[Sequence[int]]) -> Pairs:
    """All agents of a group take its mean."""
    return {
        pair: Fraction(1, len(group))
        for group in groups
        for pair in combinations(group, 2)
    }


def _simple(agents: Sequence[int], k: int) -> list[Pairs]:
    """The Simple Base-(k+1) graph of these agents."""
    if _factors(len(agents), k) is not None:
        return _cube(agents, k)
    blocks, parts = _blocks(agents, k)
    cubes = [_cube(block, k) for block in blocks]
    # First each block reaches its own mean.
    found = [
        _union(cube[m % len(cube)] for cube in cubes if cube)
        for m in range(len(cubes[0]))
    ]
    # Then block after block meets those behind it, and spreads what it has met.
    spread = [
        [cube] if len(block) <= k else [_cube(part, k) for part in own]
        for block, cube, own in zip(blocks, cubes, parts, strict=True)
    ]
    last = len(blocks) - 1
    for m in range(len(spread[0][0]) + 1):
        now = [_meeting(blocks[m:], parts[m], k)] if m < last else []
        for number, own in enumerate(spread):
            turn = m - min(number + 1, last)
            if turn >= 0:
                now += [cube[turn % len(cube)] for cube in own if cube]
        found.append(_union(now))
    return found


def _blocks(
    agents: Sequence[int], k: int
) -> tuple[list[Sequence[int]], list[list[Sequence[int]]]]:
    """Blocks of a (k+1)^p agents by the digits a of their number; their a parts."""
    power = 1
    while power * (k + 1) <= len(agents):
        power *= k + 1
    blocks, parts, first = [], [], 0
    while power:
        digit = (len(agents) - first) // power
        if digit:
            last = first + digit * power
            blocks.append(agents[first:last])
            parts.append([agents[i : i + power] for i in range(first, last, power)])
            first = last
        power //= k + 1
    return blocks, parts


def _meeting(
    blocks: Sequence[Sequence[int]], parts: Sequence[Sequence[int]], k: int
) -> Pairs:
    """Each agent of later blocks meets one agent of each part of the first block.

    So the mean of each of these parts becomes that of all agents here, and so does the
    mean of each later block. Those of the first block that meet no other average in
    groups of k + 1.
    """
    num_left = sum(map(len, blocks))
    weight = Fraction(len(blocks[0]), num_left) / len(parts)
    free = [list(part) for part in parts]
    found = {
        (part.pop(), agent): weight
        for block in reversed(blocks[1:])
        for agent in block
        for part in free
    }
    idle = [agent for part in free for agent in part]
    groups = [idle[first : first + k + 1] for first in range(0, len(idle), k + 1)]
    return found | _averaging(groups)


def _union(matrices: Iterable[Pairs]) -> Pairs:
    """Of matrices of different agents."""
    found: Pairs = {}
    for pairs in matrices:
        found |= pairs
    return found


def _side_by_side(sequences: Sequence[list[Pairs]]) -> list[Pairs]:
    return [_union(matrices) for matrices in zip(*sequences, strict=True)]
