"""Draws which room of the package imports which: `python docs/draw_imports.py`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]

# From the ground up; rooms of one line do not know each other.
FLOORS = (
    ("types", "_version"),
    ("paths", "sharding", "host_memory"),
    ("graphs", "datasets", "nn"),
    ("tasks",),
    ("training",),
    ("exchange",),
    ("partial", "selection", "asynchronous"),
    ("evaluation",),
    ("engines",),
    ("algorithms",),
    ("protocols", "simulation", "checkpoint", "export"),
    ("memory_estimate",),
    ("__init__",),
)
HIDDEN = {"_version", "__init__", "types"}  # everything imports types
WIDTH, HEIGHT, ROOM = 760, 62, (132, 34)


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "p2pjax":
                found |= {f"p2pjax.{alias.name}" for alias in node.names}
    found.discard("p2pjax")
    return {name for name in found if name.split(".")[0] == "p2pjax"}


def room_of(module: str) -> str:
    """The room that a module is in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def edges() -> set[tuple[str, str, str]]:
    """(room, room that it imports, file)."""
    found = set()
    for path in sorted((ROOT / "p2pjax").rglob("*.py")):
        relative = path.relative_to(ROOT)
        here = room_of(".".join(relative.with_suffix("").parts))
        for module in imports_of(path):
            there = room_of(module)
            if there != here:
                found.add((here, there, str(relative)))
    return found


def drawn() -> str:
    """The figure, as SVG; the ground floor is below."""
    floors = [[room for room in rooms if room not in HIDDEN] for rooms in FLOORS]
    floors = [rooms for rooms in floors if rooms]
    place = {}
    for number, rooms in enumerate(floors):
        for at, room in enumerate(rooms):
            x = WIDTH * (at + 1) / (len(rooms) + 1)
            place[room] = (x, HEIGHT * (len(floors) - number) - HEIGHT / 2)
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
        f'font-size="14" viewBox="0 0 {WIDTH} {HEIGHT * len(floors)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT * len(floors)}" fill="white"/>',
    ]
    for here, there in sorted({edge[:2] for edge in edges()}):
        if here in place and there in place:
            (x1, y1), (x2, y2) = place[here], place[there]
            bend = 0 if abs(y2 - y1) <= HEIGHT else 26 * (1 if x1 <= x2 else -1)
            middle = f"{(x1 + x2) / 2 + bend:.0f} {(y1 + y2) / 2:.0f}"
            lines.append(
                f'<path d="M {x1:.0f} {y1 + 17:.0f} Q {middle} {x2:.0f} {y2 - 17:.0f}" '
                'fill="none" stroke="#9ab" stroke-width="1"/>'
            )
    for room, (x, y) in place.items():
        left, top = x - ROOM[0] / 2, y - ROOM[1] / 2
        lines.append(
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{ROOM[0]}" height="{ROOM[1]}" '
            'rx="6" fill="#eef3f8" stroke="#456"/>'
        )
        lines.append(
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    (ROOT / "docs" / "imports.svg").write_text(drawn())
