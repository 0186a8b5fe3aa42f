"""JAX's cache of compiled programs on the disk, on by default for experiments.

Most of a small run is compilation, and the next run of the same shapes finds its
programs there. What is compiled for one kind of CPU may not run on another and other
versions cannot read it, so each kind and version has a folder of its own.
"""

import hashlib
import os
import platform
from pathlib import Path

import jax
import jaxlib
from absl import logging

MOST_BYTES = 2**30  # of one folder
MIN_SECONDS = 0.1  # what compiles faster is not worth a file
_CPUINFO = Path("/proc/cpuinfo")


def turn_on() -> Path | None:
    """Lets JAX keep what it compiles; call it before anything is compiled.

    Returns:
      The folder; None if the user has set one, or if it cannot be written.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return None
    folder = default_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        bound(folder, MOST_BYTES)
    except OSError as error:
        logging.info("No compilation cache in %s (%s).", folder, error.strerror)
        return None
    if not os.access(folder, os.W_OK) or folder.stat().st_uid != os.getuid():
        logging.info("No compilation cache: %s belongs to someone else.", folder)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    return folder


def default_folder() -> Path:
    """Below the user's folder for caches, by version of JAX and kind of CPU."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    # The standard for it wants paths that are not absolute to be left out.
    above = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"
    name = f"jax-{jax.__version__}-{jaxlib.__version__}-{_cpu()}"
    return above / "p2pjax" / name


def _cpu() -> str:
    """A digest of what code for this CPU may use."""
    told = [platform.machine(), platform.processor()]
    if _CPUINFO.exists():
        lines = _CPUINFO.read_text().splitlines()
        told += sorted({line for line in lines if line.startswith(("flags", "model"))})
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def bound(folder: Path, most_bytes: int) -> None:
    """Removes what was not used for longest, until the rest is small enough.

    Args:
      folder: of the cache.
      most_bytes: that may stay.
    """
    found = []
    for path in folder.iterdir():
        try:
            status = path.stat(follow_symlinks=False)
        except FileNotFoundError:  # another run has removed it
            continue
        found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size
