"""Who received from whom, as a drawing of the graph and as a heat map; inline SVG.

Agents have the colour of their true cluster. A drawing is for graphs that a reader can
follow; where agents heard many others it keeps those that each heard most, and the heat
map, sorted by cluster, shows the rest.
"""

import math
from typing import NamedTuple

import networkx as nx
import numpy as np

from experiments.report.reading import Exchanges
from experiments.report.svg import NUM_COLORS, WIDTH, dot, entry, svg

MAX_SENDERS = 6  # mean number of senders up to which all links are drawn
NUM_STRONGEST = 3  # senders that are kept of an agent that has more
MAX_NODES = 200  # agents up to which there is a drawing
MAX_CELLS = 128  # cells of a side of the heat map
NUM_SHADES = 5
_MAX_NAMED = 12  # clusters that have their number at the heat map
_SIZE = (WIDTH, 380)  # of the drawing
_EDGE = 24  # around it
_WEAK_PULL = 0.02  # of the strongest

_Place = tuple[float, float]


class Link(NamedTuple):
    """Messages that one agent received from another."""

    receiver: int
    sender: int
    messages: float


def is_sparse(found: Exchanges) -> bool:
    """Whether a reader can follow all links."""
    return len(found.messages) <= MAX_SENDERS * len(found.cluster)


def drawn_links(found: Exchanges) -> list[Link]:
    """All links of a sparse graph, else the strongest that an agent received by.

    None if there are too many agents, or if no sender of a dense graph stands out.
    """
    links = [
        Link(*one)
        for one in zip(
            found.receiver.tolist(),
            found.sender.tolist(),
            found.messages.tolist(),
            strict=True,
        )
    ]
    if len(found.cluster) > MAX_NODES:
        return []
    if is_sparse(found):
        return links
    if len(set(found.messages.tolist())) == 1:
        return []
    strongest: dict[int, list[Link]] = {}
    for link in sorted(links, key=lambda one: -one.messages):
        heard = strongest.setdefault(link.receiver, [])
        if len(heard) < NUM_STRONGEST:
            heard.append(link)
    return [link for heard in strongest.values() for link in heard]


def network(title: str, found: Exchanges) -> str:
    """Agents and links; an arrow shows the way of links that go one way only."""
    links = drawn_links(found)
    if not links:
        return ""
    places = _layout(found)
    radius = 7.0 if len(places) <= 50 else 4.5
    two_way = {(link.sender, link.receiver) for link in links}
    most = max(link.messages for link in links)
    paths: dict[str, list[str]] = {}
    for link in links:
        back = (link.receiver, link.sender) in two_way
        if back and link.receiver < link.sender:
            continue  # drawn the other way round
        ends = places[link.sender], places[link.receiver]
        same = found.cluster[link.sender] == found.cluster[link.receiver]
        color = f"s{found.cluster[link.receiver] % NUM_COLORS}" if same else "between"
        kind = f"link {color} w{_shade(link.messages, most)}"
        path = paths.setdefault(kind, [])
        path.append(_segment(*ends) if back else _arrow(*ends, radius))
    body = "".join(
        f'<path class="{kind}" d="{"".join(parts)}"/>'
        for kind, parts in sorted(paths.items())
    )
    for agent, place in enumerate(places):
        kind = f"node s{found.cluster[agent] % NUM_COLORS}"
        body += dot(kind, place, radius, _about(agent, found))
    return svg(title, _SIZE[1], body)


def _layout(found: Exchanges) -> list[_Place]:
    """Springs between all who exchanged, from a circle of all agents.

    Parts that nothing connects are pulled together a little, else they fly apart.
    """
    num_agents = len(found.cluster)
    pull = np.zeros((num_agents, num_agents))
    np.add.at(
        pull, (found.receiver, found.sender), found.messages / found.messages.max()
    )
    graph = nx.from_numpy_array(pull + pull.T)
    if not nx.is_connected(graph):
        graph = nx.from_numpy_array(
            pull + pull.T + _WEAK_PULL * (1 - np.eye(num_agents))
        )
    start = nx.circular_layout(graph)
    places = nx.spring_layout(
        graph, k=2 / math.sqrt(num_agents), pos=start, iterations=200, seed=0
    )
    table = np.array([places[agent] for agent in range(num_agents)])  # [N, 2]
    low, extent = table.min(0), np.maximum(np.ptp(table, axis=0), 1e-9)
    scaled = _EDGE + (table - low) / extent * (np.array(_SIZE) - 2 * _EDGE)
    return [(round(x, 1), round(y, 1)) for x, y in scaled.tolist()]


def _segment(start: _Place, end: _Place) -> str:
    return f"M{start[0]:g} {start[1]:g}L{end[0]:g} {end[1]:g}"


def _arrow(start: _Place, end: _Place, radius: float) -> str:
    """A line from sender to receiver with a head where it meets the receiver."""
    x, y = end[0] - start[0], end[1] - start[1]
    length = math.hypot(x, y) or 1.0
    x, y = x / length, y / length
    tip = end[0] - x * radius, end[1] - y * radius
    wings = [(tip[0] - 6 * x + side * y, tip[1] - 6 * y - side * x) for side in (3, -3)]
    head = f"M{wings[0][0]:.1f} {wings[0][1]:.1f}L{tip[0]:.1f} {tip[1]:.1f}"
    return _segment(start, tip) + head + f"L{wings[1][0]:.1f} {wings[1][1]:.1f}"


def _about(agent: int, found: Exchanges) -> str:
    heard, reached = found.receiver == agent, found.sender == agent
    return (
        f"agent {agent}, cluster {found.cluster[agent]}: received "
        f"{found.messages[heard].sum():,.10g} messages from {heard.sum()} agents, sent "
        f"{found.messages[reached].sum():,.10g} to {reached.sum()}"
    )


def cluster_legend(found: Exchanges) -> str:
    """Colours of the clusters; nothing where all agents are alike."""
    clusters, sizes = np.unique(found.cluster, return_counts=True)
    if len(clusters) < 2:
        return ""
    entries = "".join(
        entry(
            f"s{cluster % NUM_COLORS}",
            '<circle class="dot" cx="13" cy="5" r="4"/>',
            f"cluster {cluster}, {size} agents",
        )
        for cluster, size in zip(clusters.tolist(), sizes.tolist(), strict=True)
    )
    return f'<ul class="legend">{entries}</ul>'


def in_cluster_share(found: Exchanges) -> float:
    """Of all messages, those from an agent of the receiver's cluster."""
    same = found.cluster[found.receiver] == found.cluster[found.sender]
    return float(found.messages[same].sum() / found.messages.sum())


def messages_by_pair(found: Exchanges) -> np.ndarray:
    """Mean number of messages `[cells, cells]` of a receiver (row) from a sender.

    Agents are sorted by cluster; a cell is a pair of agents or, where these are too
    many, of groups of neighbours in that order.
    """
    rank, width = _ranks(found)
    num_agents = len(rank)
    cells = -(-num_agents // width)
    total = np.zeros((cells, cells))
    np.add.at(
        total,
        (rank[found.receiver] // width, rank[found.sender] // width),
        found.messages,
    )
    size = np.bincount(np.arange(num_agents) // width)  # the last may be smaller
    pairs = np.outer(size, size) - np.diag(size)  # no agent hears itself
    return total / np.maximum(pairs, 1)


def _ranks(found: Exchanges) -> tuple[np.ndarray, int]:
    """`[N]` places in the order of clusters, and agents per cell."""
    order = np.argsort(found.cluster, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank, -(-len(order) // MAX_CELLS)


def heat_map(title: str, found: Exchanges) -> str:
    """Receivers from top to bottom, senders from left to right; darker is more."""
    table = messages_by_pair(found)
    left, top, side = 60.0, 10.0, WIDTH - 60 - 16.0
    cell = side / len(table)
    most = float(table.max())
    paths: dict[int, list[str]] = {}
    for row, values in enumerate(table.tolist()):
        shades = [_shade(value, most) for value in values]
        first = 0
        for column in range(1, len(shades) + 1):
            if column < len(shades) and shades[column] == shades[first]:
                continue
            if shades[first]:
                part = f"M{first} {row}.5h{column - first}"
                paths.setdefault(shades[first], []).append(part)
            first = column
    cells = "".join(
        f'<path class="h{shade}" d="{"".join(parts)}"/>'
        for shade, parts in sorted(paths.items())
    )
    body = (
        f'<rect class="plate" x="{left:g}" y="{top:g}" width="{side:g}" '
        f'height="{side:g}"/><g class="heat" transform="translate({left:g} {top:g}) '
        f'scale({cell:.6g})">{cells}</g>'
    )
    body += _borders(found, left, top, side)
    middle = left + side / 2
    body += (
        f'<text class="name" x="{middle:g}" y="{top + side + 36:g}" '
        'text-anchor="middle">sender</text>'
        f'<text class="name" text-anchor="middle" transform="translate(16 '
        f'{top + side / 2:g}) rotate(-90)">receiver</text>'
    )
    return svg(title, top + side + 44, body)


def _borders(found: Exchanges, left: float, top: float, side: float) -> str:
    """Lines between clusters, their numbers, and what each pair of clusters had."""
    clusters, sizes = np.unique(found.cluster, return_counts=True)
    ends = np.cumsum(sizes) / sizes.sum() * side  # where each cluster stops
    starts = ends - sizes / sizes.sum() * side
    if len(clusters) < 2:
        return ""
    drawn = ""
    for end in ends[:-1].tolist():
        drawn += (
            f'<path class="border" d="M{left + end:.1f} {top:g}v{side:g}M{left:g} '
            f'{top + end:.1f}h{side:g}"/>'
        )
    if len(clusters) > _MAX_NAMED:
        return drawn
    spans = list(zip(clusters.tolist(), starts.tolist(), ends.tolist(), strict=True))
    for cluster, start, end in spans:
        middle = (start + end) / 2
        drawn += (
            f'<text x="{left + middle:.1f}" y="{top + side + 17:g}" '
            f'text-anchor="middle">{cluster}</text><text x="{left - 8:g}" '
            f'y="{top + middle + 4:.1f}" text-anchor="end">{cluster}</text>'
        )
    for receiver, y, y_end in spans:
        for sender, x, x_end in spans:
            own = found.cluster[found.receiver] == receiver
            own &= found.cluster[found.sender] == sender
            count = found.messages[own].sum()
            drawn += (
                f'<rect class="cell" x="{left + x:.1f}" y="{top + y:.1f}" '
                f'width="{x_end - x:.1f}" height="{y_end - y:.1f}"><title>cluster '
                f"{receiver} received {count:,.10g} messages from cluster {sender}"
                "</title></rect>"
            )
    return drawn


def shade_legend(found: Exchanges) -> str:
    """How many messages a shade stands for."""
    most = float(messages_by_pair(found).max())
    entries = "".join(
        entry(
            "",
            f'<rect class="h{shade}" x="4" y="0" width="18" height="10"/>',
            f"up to {most * shade / NUM_SHADES:,.3g}",
        )
        for shade in range(1, NUM_SHADES + 1)
    )
    return f'<ul class="legend heat">{entries}</ul>'


def _shade(value: float, most: float) -> int:
    """0 for nothing, NUM_SHADES for the most."""
    return max(1, math.ceil(round(NUM_SHADES * value / most, 9))) if value else 0
