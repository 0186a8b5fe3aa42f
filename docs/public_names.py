"""The public names of the package, as users find them, and the API's pages of them.

Public is what the front door offers: names in `p2pjax.__all__`, and the public names of
the modules among them (their `__all__` or, where a module has none, what it defines
without an underscore), and so on for modules among those.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import p2pjax as pj

RUN = (
    "simulate",
    "sweep",
    "repeat_rounds",
    "History",
    "Snapshot",
    "SweepRun",
    "Used",
    "save_state",
    "load_state",
    "before_and_after",
    "on_test_sets",
)
LEARN = (
    "Task",
    "Network",
    "classification",
    "variational_classification",
    "next_token",
    "masked_token",
    "tagging",
    "associative",
    "lora",
    "lora_merged",
    "lora_residual",
    "Learner",
    "gradient_descent",
    "per_sample",
    "associative_rule",
    "LocalUpdates",
    "steps",
    "epochs",
    "LocalStopping",
    "GlobalStopping",
)
EXTEND = ("gossip", "pull", "global_merge")
TITLES = {
    "methods": "Methods",
    "tasks": "Tasks, networks and learners",
    "running": "Running",
    "making": "Making methods",
    "types": "Types and constants",
}


def names_of(module: types.ModuleType) -> list[str]:
    """What a module offers to users."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and getattr(thing, "__module__", None) == module.__name__
    ]


def _walk(module: types.ModuleType, prefix: str) -> Iterator[tuple[str, Callable]]:
    for name in names_of(module):
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            yield from _walk(thing, f"{prefix}.{name}")
        elif inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"{prefix}.{name}", thing


def public_names() -> dict[str, Callable]:
    """Functions and classes, each under one name, the shortest: `pj.split.iid`."""
    found = sorted(_walk(pj, "pj"), key=lambda pair: (pair[0].count("."), pair[0]))
    first: dict[int, str] = {}
    for name, thing in found:
        first.setdefault(id(thing), name)
    return {first[id(thing)]: thing for _, thing in found}


def pages() -> dict[str, list[str]]:
    """Pages of the API with the names on them, without `pj.`; none is left out."""
    names = [name.removeprefix("pj.") for name in public_names()]
    on_top = [name for name in names if "." not in name]
    made: dict[str, list[str]] = {
        "methods": sorted(name for name in on_top if name in pj.METHODS),
        "tasks": [name for name in LEARN if name in on_top],
        "running": [name for name in RUN if name in on_top],
        "making": [name for name in EXTEND if name in on_top],
    }
    listed = set().union(*made.values())
    made["types"] = sorted(name for name in on_top if name not in listed)
    for name in sorted(name for name in names if "." in name):
        made.setdefault(name.rsplit(".", 1)[0], []).append(name)
    return made


def write_pages(folder: Path) -> None:
    """A page per room with a table of its names, and a page per name.

    Args:
      folder: of the site, for generated files only.
    """
    folder.mkdir(exist_ok=True)
    things = public_names()
    wanted = {"index": _index(list(pages()))}
    for page, names in pages().items():
        wanted[page] = _room(page, names, things)
        wanted |= {name: _entry(name, things[f"pj.{name}"]) for name in names}
    for old in folder.glob("*.rst"):
        if old.stem not in wanted:
            old.unlink()
    for name, text in wanted.items():
        _write(folder / f"{name}.rst", text)


def _index(rooms: list[str]) -> str:
    lines = ["API reference", "=============", ""]
    lines += ["Made from docstrings. ``pj`` is ``p2pjax``.", "", ".. toctree::", ""]
    return "\n".join([*lines, *(f"   {room}" for room in rooms), ""])


def _room(page: str, names: list[str], things: dict[str, Callable]) -> str:
    title, about = TITLES.get(page, f"pj.{page}"), ""
    if page not in TITLES:
        room = pj
        for part in page.split("."):
            room = getattr(room, part)
        about = inspect.cleandoc(room.__doc__ or "")
    lines = [title, "=" * len(title), "", about, "", ".. list-table::"]
    lines += ["   :widths: 35 65", ""]
    for name in names:
        first = inspect.cleandoc(things[f"pj.{name}"].__doc__ or "").split("\n\n")[0]
        lines.append(f"   * - :doc:`pj.{name} <{name}>`")
        lines.append(f"     - {' '.join(first.split())}")
    lines += ["", ".. toctree::", "   :hidden:", ""]
    return "\n".join([*lines, *(f"   {name}" for name in names), ""])


def _entry(name: str, thing: Callable) -> str:
    title = f"pj.{name}"
    kind = "autoclass" if inspect.isclass(thing) else "autofunction"
    lines = [title, "=" * len(title), "", f".. {kind}:: p2pjax.{name}"]
    if kind == "autoclass" and not dataclasses.is_dataclass(thing):  # fields are none
        lines += ["   :members:"]
    return "\n".join([*lines, ""])


def _write(path: Path, text: str) -> None:
    """Leaves files that are the same alone, so that Sphinx need not read them again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
