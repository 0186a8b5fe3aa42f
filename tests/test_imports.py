"""Imports point one way: each room knows only the rooms below it."""

import ast
import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "p2pjax"

_spec = importlib.util.spec_from_file_location(
    "draw_imports", ROOT / "docs" / "draw_imports.py"
)
drawing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(drawing)
edges, imports_of = drawing.edges, drawing.imports_of
FLOOR = {room: floor for floor, rooms in enumerate(drawing.FLOORS) for room in rooms}


def test_every_room_has_its_floor():
    rooms = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}
    assert rooms - {"__pycache__", "py"} == set(FLOOR)


def test_imports_point_down():
    upward = [
        f"{file}: {here} imports {there}"
        for here, there, file in sorted(edges())
        if FLOOR[there] >= FLOOR[here]
    ]
    assert not upward


def test_the_figure_is_of_this_tree():
    """`python docs/draw_imports.py` draws it anew."""
    assert (ROOT / "docs" / "imports.svg").read_text() == drawing.drawn()


def test_no_method_imports_from_another():
    methods = sorted((PACKAGE / "algorithms").glob("_[!_]*.py"))
    assert len(methods) > 20
    for path in methods:
        others = {m for m in imports_of(path) if m.startswith("p2pjax.algorithms")}
        assert not others, f"{path.name} imports {others}"


def test_only_networks_know_the_kernels():
    for folder in ("p2pjax", "experiments"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if PACKAGE / "nn" not in path.parents:
                assert not any(
                    module.startswith("p2pjax.nn.kernels")
                    for module in imports_of(path)
                ), path


def test_the_package_knows_no_experiments_flags_or_plots():
    at_top = {"absl", "matplotlib", "tqdm", "experiments", "chex", "pandas"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] not in at_top, f"{path}: {name}"


def test_modules_are_short():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert len(path.read_text().splitlines()) <= 400, path


def test_what_a_plain_import_does_not_load():
    """Nor does it start a backend."""
    slow = ("networkx", "scipy", "sklearn", "orbax", "flax.nnx", "pandas", "matplotlib")
    code = (
        "import jax, flax.linen, optax, sys\n"
        "before = set(sys.modules)\n"
        "import p2pjax\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a backend has started'\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "p2pjax.simulation._simulate" in loaded
    found = [
        name
        for name, other in itertools.product(slow, loaded)
        if other == name or other.startswith(f"{name}.")
    ]
    assert not found
