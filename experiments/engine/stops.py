"""How a run is stopped from outside: by Ctrl-C, or by SIGTERM of a batch system."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


class TerminatedError(BaseException):
    """SIGTERM came; like KeyboardInterrupt, no error of anything."""


def status_of(stop: BaseException) -> int:
    """The exit status after a stop, as shells count it."""
    by = signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
    return 128 + by


class Notice:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.has_come = False


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it SIGTERM raises `TerminatedError`, so that what is open is closed."""
    with _handling(_raise):
        yield


@contextlib.contextmanager
def postponed() -> Iterator[Notice]:
    """Within it SIGTERM is noted; whoever is asked for a checkpoint has time for it.

    A second one does not wait. One that was noted and not heeded counts at the end.
    """
    notice = Notice()

    def note() -> None:
        if notice.has_come:
            _raise()
        notice.has_come = True

    with _handling(note):
        yield notice
    if notice.has_come:
        _raise()


def _raise() -> None:
    raise TerminatedError


@contextlib.contextmanager
def _handling(handle: Callable[[], None]) -> Iterator[None]:
    """Only the main thread has signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: handle())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
