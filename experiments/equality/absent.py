"""Stands in for a package that others import and that nothing compared here needs."""

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from unittest import mock


class _Empty(types.ModuleType):
    """A module that has whatever is asked for, but for what makes it a module."""

    def __getattr__(self, name: str) -> mock.MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


def without_torchvision() -> None:
    """Lets ByzFL and gossipy be imported, which want it for downloads only."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision"):
        return
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
        module = _Empty(name)
        module.__spec__ = ModuleSpec(name, None)
        sys.modules[name] = module
