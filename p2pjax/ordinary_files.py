"""Ordinary files only: a device never ends, and a pipe keeps one waiting."""

import errno
import os
import stat
from pathlib import Path

# Opens a pipe without waiting for who writes to it; no system has both of these.
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def open_file(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of an ordinary file.

    Args:
      path: of the file; links are followed unless the flags forbid it.
      flags: of `os.open`.

    Raises:
      OSError: it cannot be opened, or is something else.
    """
    found = os.open(path, flags | _FLAGS, 0o666)
    mode = os.fstat(found).st_mode
    if not stat.S_ISREG(mode):
        os.close(found)
        reason = f"Not an ordinary file but {kind_of(mode)}"
        raise OSError(errno.EINVAL, reason, str(path))
    return found


def kind_of(mode: int) -> str:
    """What something with this `st_mode` is."""
    return _KINDS.get(stat.S_IFMT(mode), "a device")
