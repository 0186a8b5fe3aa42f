"""Each public name explains itself: what it is, what it takes, an example that runs.

Public is what `docs/public_names.py` finds from the front door on. The rule:

- a function has a docstring, a section `Args:` that names every argument if it has more
  than one, and an example, which `pytest --doctest-modules` runs;
- a class has a docstring of its own, not that which Python writes for a NamedTuple, and
  so have its public methods and properties; one that users construct has an example;
- exceptions are listed below, each with its reason, and may not outlive it.
"""

import doctest
import inspect
import re
import types
from collections.abc import Callable, Iterator

import pytest

import p2pjax as pj
from docs.public_names import public_names

# Classes that users read, or get from a function with an example of its own.
NOT_CONSTRUCTED = {
    "pj.Algorithm",
    "pj.Info",
    "pj.InputError",
    "pj.LocalUpdates",
    "pj.Models",
    "pj.Snapshot",
    "pj.Split",
    "pj.SweepRun",
    "pj.Used",
    "pj.Variables",
    "pj.channel.Channel",
    "pj.channel.Clip",
    "pj.channel.Compress",
    "pj.channel.Delay",
    "pj.channel.Drop",
    "pj.channel.ErrorFeedback",
    "pj.channel.Noise",
    "pj.channel.Stale",
    "pj.nn.SlowConvolutionWarning",
    "pj.partial.NetworkCells",
    "pj.protocols.LocalStep",
    "pj.selection.Fetched",
    "pj.selection.PeerView",
    "pj.types.ModelTraffic",
    "pj.split.Request",
    "pj.types.Links",
}
# Data sets whose files have to be there first; their docstrings show the call.
FROM_FILES = {
    "pj.datasets.cifar10",
    "pj.datasets.idx",
    "pj.datasets.leaf",
    "pj.datasets.tff",
    "pj.datasets.femnist",
    "pj.datasets.har",
    "pj.datasets.mnist",
    "pj.datasets.tfds",
    "pj.datasets.vsn",
}
# Parts of the engines, for the inside of a program that is spread over devices.
INSIDE_PROGRAMS = {
    "pj.sharding.broadcast_from_owner",
    "pj.sharding.check_single_device",
    "pj.sharding.constrain_sharding",
    "pj.sharding.first_agent",
    "pj.sharding.gather_shards",
    "pj.sharding.jit_sharded",
    "pj.sharding.placed",
    "pj.sharding.rotate_shards",
}


PUBLIC = public_names()
FUNCTIONS = {n: thing for n, thing in PUBLIC.items() if inspect.isfunction(thing)}
CLASSES = {n: thing for n, thing in PUBLIC.items() if inspect.isclass(thing)}


def _docstring(thing: object) -> str:
    """Its own, cleaned; empty where Python wrote it, or a base class."""
    text = inspect.cleandoc(thing.__doc__ or "")
    written_by_python = rf"{getattr(thing, '__name__', '')}\("
    return "" if re.match(written_by_python, text) else text


def _unnamed_arguments(function: Callable) -> list[str]:
    """Those of more than one that the section `Args:` does not name."""
    arguments = list(inspect.signature(function).parameters)
    if len(arguments) < 2:
        return []
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", _docstring(function), re.M)
    named = re.findall(r"^  \*{0,2}(\w+):", section[1], re.M) if section else []
    return [name for name in arguments if name not in named]


def _has_example(thing: object) -> bool:
    return bool(doctest.DocTestParser().get_examples(_docstring(thing)))


def _members(cls: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties that a class defines itself."""
    for name, member in vars(cls).items():
        if (
            not name.startswith("_")
            and name not in inspect.get_annotations(cls)  # a field that is a function
            and isinstance(
                member, types.FunctionType | property | classmethod | staticmethod
            )
        ):
            yield name, member


def test_the_walk_finds_what_a_user_finds():
    assert len(PUBLIC) > 200
    for name, thing in {
        "pj.dpsgd": pj.dpsgd,
        "pj.graphs.ring": pj.graphs.ring,
        "pj.split.iid": pj.split.iid,  # not pj.datasets.split.iid
        "pj.tasks.losses.predicted": pj.tasks.losses.predicted,
        "pj.channel.drop": pj.channel.drop,
        "pj.nn.MLP": pj.nn.MLP,
    }.items():
        assert PUBLIC[name] is thing
    assert {f"pj.{name}" for name in pj.METHODS} <= set(FUNCTIONS)


def test_everything_has_a_docstring():
    missing = [name for name, thing in PUBLIC.items() if not _docstring(thing)]
    missing += [
        f"{name}.{member}"
        for name, cls in CLASSES.items()
        for member, thing in _members(cls)
        if not _docstring(thing)
    ]
    assert not missing


def test_every_argument_is_explained():
    missing = {
        name: unnamed
        for name, function in FUNCTIONS.items()
        if (unnamed := _unnamed_arguments(function))
    }
    assert not missing


def test_what_users_call_or_construct_has_an_example():
    exempt = NOT_CONSTRUCTED | FROM_FILES | INSIDE_PROGRAMS
    missing = [
        name
        for name, thing in PUBLIC.items()
        if name not in exempt and not _has_example(thing)
    ]
    assert not missing


@pytest.mark.parametrize("name", sorted(FROM_FILES))
def test_data_sets_from_files_show_the_call(name):
    assert f"{name}(" in _docstring(PUBLIC[name])


def test_no_exception_outlives_its_reason():
    assert set(CLASSES) >= NOT_CONSTRUCTED
    assert set(FUNCTIONS) >= FROM_FILES | INSIDE_PROGRAMS
    lists = FROM_FILES | INSIDE_PROGRAMS
    assert not [name for name in lists if _has_example(PUBLIC[name])]


def test_gaps_are_seen():
    def undocumented(a, b):
        pass

    def partly(a, b):
        pass

    partly.__doc__ = "Does something.\n\n    Args:\n      a: one.\n    "

    class Pair(pj.Variables):
        pass

    assert not _docstring(undocumented)
    assert not _has_example(partly)
    assert _unnamed_arguments(undocumented) == ["a", "b"]
    assert _unnamed_arguments(partly) == ["b"]
    assert not _docstring(types.SimpleNamespace(__doc__="Pair(a, b)", __name__="Pair"))
    assert not _docstring(Pair)
