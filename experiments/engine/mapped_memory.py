"""Compiled programs that are forgotten before there is no room for another.

Every program maps memory, and a process of Linux may have 65530 maps
(`vm.max_map_count`); beyond, XLA ends the process without a word that helps. Studies of
a hundred programs and more get there.
"""

import gc
from pathlib import Path

import jax
from absl import logging

MOST_MAPS = 40_000  # one program needs far less than is left to the limit
_MAPS = Path("/proc/self/maps")


def make_room(most_maps: int = MOST_MAPS) -> bool:
    """Forgets all compiled programs if they take too many maps of memory.

    What is needed again is compiled again, or found in the cache on the disk.

    Args:
      most_maps: that may stay.

    Returns:
      Whether it has.
    """
    if not _MAPS.exists():  # other systems have no such limit
        return False
    with _MAPS.open("rb") as file:
        num_maps = sum(1 for _ in file)
    if num_maps <= most_maps:
        return False
    logging.info("Forgetting compiled programs: they take %d maps.", num_maps)
    jax.clear_caches()
    gc.collect()
    return True
