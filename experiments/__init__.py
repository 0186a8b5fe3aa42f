"""Experiments: one module each, run as `python -m experiments.<module>`."""

import os
import sys
from types import TracebackType


def _say_stopped(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Ctrl-C while modules are still being imported is no error."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    print("Stopped.", file=sys.stderr, flush=True)
    os._exit(130)


if sys.argv[:1] == ["-m"]:  # a program that has only begun, not a library
    sys.excepthook = _say_stopped
