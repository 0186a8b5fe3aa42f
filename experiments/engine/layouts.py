"""The network that a config names."""

from typing import Any

from experiments.engine.fields import MOST, checked_text
from p2pjax.partial.schemes import network_layout


def network_field(default: str | None, help_text: str) -> Any:
    """A field for the cells of every layer, as in 784=300=100=62.

    All agents have this network, so no layer of it may be empty.

    Args:
      default: None where the data decide.
      help_text: a sentence.
    """

    def check(value: str) -> None:
        if not all(0 < cells <= MOST for cells in network_layout(value)):
            raise ValueError(
                f"need 1 to {MOST} cells in every layer, got '{value[:80]}'"
            )

    return checked_text(default, help_text, check)
