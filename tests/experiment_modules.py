"""All experiments in one process, though they define flags of the same names."""

import contextlib
import importlib
from pathlib import Path

from absl import flags

NAMES = sorted(
    path.name.removesuffix(".quick.flags")
    for path in (Path(__file__).parents[1] / "experiments" / "flags").glob("*.quick.*")
)


def _import(name):
    """The module and its own flags, which are taken out of the common set again."""
    module = importlib.import_module(f"experiments.{name}")
    own = list(flags.FLAGS.flags_by_module_dict()[module.__name__])
    for flag in own:
        delattr(flags.FLAGS, flag.name)
    return module, own


_LOADED = {name: _import(name) for name in NAMES}
MODULES = {name: module for name, (module, _) in _LOADED.items()}


@contextlib.contextmanager
def flags_of(name):
    """Defines the flags of one experiment for a while."""
    module, own = _LOADED[name]
    for flag in own:
        flags.FLAGS[flag.name] = flag
        flags.FLAGS.register_flag_by_module(module.__name__, flag)
    try:
        yield
    finally:
        for flag in own:
            delattr(flags.FLAGS, flag.name)
