"""Every method that trains ordinary networks, on one with batch norm and dropout.

A table as `every_algorithm` is one, for `run_every_algorithm`.
"""

from test_front_door import DATA, ORDINARY, SIZE
from test_front_door import build as build_method

__all__ = ["EVERY", "SIZE", "build"]

EVERY = ORDINARY


def build(name: str, agent_loop: int) -> tuple:
    """The method of this name and its world."""
    options = {"agent_loop": agent_loop} if name != "central" else {}
    return build_method(name, **options), DATA
