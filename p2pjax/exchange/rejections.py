"""Messages that robust rules did not count since they were not finite, by round.

They are counted in what an exchange keeps, `Memory`, from the start of a round to its
end, and told in `Info.rejected`.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.aggregation import Combined
from p2pjax.exchange.pipeline import Memory
from p2pjax.types import Array


def kept_of(memory: Memory | tuple[()], found: Combined) -> Memory | tuple[()]:
    """What an exchange keeps after its messages are combined.

    Args:
      memory: `transmit`.
      found: `deliver`.
    """
    if isinstance(memory, Memory) and jax.tree.leaves(found.attack):
        memory = memory._replace(attack=found.attack)
    return with_rejected(memory, found.rejected)


def with_rejected(
    memory: Memory | tuple[()], rejected: Array | tuple[()]
) -> Memory | tuple[()]:
    """With more messages rejected in this round, if they are counted.

    Args:
      memory: of the exchange.
      rejected: `[N]` messages; () for none.
    """
    if isinstance(rejected, tuple) or not isinstance(memory, Memory):
        return memory
    if isinstance(memory.rejected, tuple):
        return memory
    return memory._replace(rejected=memory.rejected + rejected)


def none_rejected(memory: Memory | tuple[()]) -> Memory | tuple[()]:
    """At the start of a round: no message of it is rejected yet.

    Args:
      memory: of the exchange.

    Example:
      >>> none_rejected(Memory(rejected=jnp.ones(2))).rejected.tolist()
      [0.0, 0.0]
    """
    if not isinstance(memory, Memory) or isinstance(memory.rejected, tuple):
        return memory
    return memory._replace(rejected=jnp.zeros_like(memory.rejected))


def rejected_of(memory: Memory | tuple[()]) -> Array | None:
    """Messages that rules have rejected in this round, `[N]`; None without a rule.

    Args:
      memory: of the exchange.

    Example:
      >>> rejected_of(()) is rejected_of(Memory()) is None
      True
    """
    if not isinstance(memory, Memory) or isinstance(memory.rejected, tuple):
        return None
    return memory.rejected
