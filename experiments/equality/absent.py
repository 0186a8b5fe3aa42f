"""Stands in for a package that others import and that nothing compared here needs."""

import importlib.util
import sys
from unittest import mock


def without_torchvision() -> None:
    """Lets ByzFL and gossipy be imported, which want it for downloads only."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision"):
        return
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
        sys.modules[name] = mock.MagicMock()
