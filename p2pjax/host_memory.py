"""What this machine's memory still has room for: asked before large arrays are made."""

import contextlib
import ctypes
import os
from pathlib import Path

from p2pjax.types import InputError

_MEMINFO = Path("/proc/meminfo")


_GROUP = Path("/sys/fs/cgroup")  # of containers and batch systems


def check_room(num_bytes: int, what: str) -> None:
    """Refuses what this machine has no memory for, before any of it is made.

    Args:
      num_bytes: that it will take.
      what: it is, in the plural.

    Example:
      >>> check_room(10**18, "images")
      Traceback (most recent call last):
      p2pjax.types.InputError: Need 1000000.0 TB of memory for images, but ... free...
    """
    free = free_bytes()
    if free is not None and num_bytes > free:
        raise InputError(
            f"Need {size(num_bytes)} of memory for {what}, but {size(free)} are free: "
            "ask for fewer or smaller ones."
        )


def size(num_bytes: float) -> str:
    """For a person.

    >>> size(1400), size(25_300_000), size(1.5e10)
    ('1 kB', '25.3 MB', '15.0 GB')
    """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes / 1e3:.0f} kB"


def free_bytes() -> int | None:
    """What the system can still give to this process; None if it does not tell."""
    try:
        fields = dict(
            line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if line
        )
        available = int(fields["MemAvailable"].split()[0]) * 1024
        return min([available, *_free_in_group()])
    except (OSError, ValueError, KeyError):  # not Linux
        return _free_pages()


def give_back() -> None:
    """Returns to the system what was freed in small pieces, which the C library keeps.

    Writers of checkpoints free a copy of the state so, and the next one is made beside
    it: of a state of 1.8 GB, three checkpoints left 2.2 GB that nothing used.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _free_in_group() -> list[int]:
    """What a container or a batch system leaves to this process; nothing if all."""
    try:
        limit, used = ((_GROUP / f"memory.{n}").read_text() for n in ("max", "current"))
        stat = dict(
            line.split() for line in (_GROUP / "memory.stat").read_text().splitlines()
        )
        return [int(limit) - int(used) + int(stat["inactive_file"])]
    except (OSError, ValueError, KeyError):  # no limit, or no such groups
        return []


def _free_pages() -> int | None:
    """Free memory where the system tells it, all memory where it does not."""
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            continue
    return None
