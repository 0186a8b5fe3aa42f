"""How much memory this machine has left for the process."""

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


_GROUP = Path("/sys/fs/cgroup")  # of containers and batch systems


def free_memory() -> int | None:
    """Bytes that the process can still have; None if unknown."""
    try:
        fields = dict(
            line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if line
        )
        available = int(fields["MemAvailable"].split()[0]) * 1024
        return min([available, *_free_in_group()])
    except (OSError, ValueError, KeyError):  # not Linux
        return _free_pages()


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
