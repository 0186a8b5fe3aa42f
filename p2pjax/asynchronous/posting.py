"""Messages of a wave on their way into mailboxes, in the order of their events.

On several devices every message is needed where its receivers are. A collective for
each message would let all devices wait for each other at every event, so small messages
travel in blocks: each device collects those of its own senders, all devices gather all
of them at once, and each then fills the mailboxes of its own agents. Large ones travel
one by one: copying them into blocks and out again takes longer than waiting.
"""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp

from p2pjax import sharding
from p2pjax.asynchronous.rows import put, take
from p2pjax.types import Array, PyTree

# Of one device's own messages in a block. Measured on two virtual CPU devices
# (experiments/bench/RESULTS.md, events): messages of 1.9 MB are 1.08 times as fast in
# blocks of 17 MB, 1.04 in those of 32 MB; messages of 8.3 MB .85 to .92.
BLOCK_BYTES = 16_000_000
LARGE_BYTES = BLOCK_BYTES // 4  # a message that travels alone


def post_all(
    width: Array,
    device: Array,
    message_of: Callable[[Array], PyTree],
    deliver: Callable[[Array, PyTree, PyTree], PyTree],
    mailbox: PyTree,
) -> PyTree:
    """Delivers the messages of one wave, first to last.

    Args:
      width: events of the wave, the first of E.
      device: `[E]`, the number of the device that holds the sender of each event.
      message_of: of an event; what it says of another device's events does not count.
      deliver: (event, its message, mailboxes) -> mailboxes of this device's agents.
      mailbox: of this device's agents.

    Returns:
      The mailboxes.
    """
    num_devices = sharding.num_shards()
    one = jax.eval_shape(message_of, jnp.int32(0))
    leaves = jax.tree.leaves(one)
    num_bytes = max(1, sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    if num_devices > 1 and num_bytes <= LARGE_BYTES:
        size = min(len(device), BLOCK_BYTES // num_bytes)
        return _in_blocks(width, device, one, size, message_of, deliver, mailbox)
    in_one_process = jax.process_count() == 1  # several cannot share one device
    if num_devices > 1 and in_one_process and jax.default_backend() == "cpu":
        warnings.warn(
            f"On {num_devices} devices of a CPU, messages of {num_bytes / 1e6:.1f} MB "
            "take longer to cross than what the devices gain: one device is faster "
            "(sharding.agents_mesh(num_agents, 1), or --num_devices=1).",
            stacklevel=2,
        )

    def one_event(i: Array, mailbox: PyTree) -> PyTree:
        is_mine = device[i] == sharding.first_agent(1)
        message = sharding.broadcast_from_owner(message_of(i), jnp.asarray(is_mine))
        return deliver(i, message, mailbox)

    return jax.lax.fori_loop(0, width, one_event, mailbox)


def _in_blocks(
    width: Array,
    device: Array,
    one: PyTree,
    size: int,
    message_of: Callable[[Array], PyTree],
    deliver: Callable[[Array, PyTree, PyTree], PyTree],
    mailbox: PyTree,
) -> PyTree:
    """Delivers on several devices.

    Args:
      width: events of the wave.
      device: `[E]`, where the sender of each event is.
      one: shapes of a message.
      size: messages of one device in a block.
      message_of: of an event of this device.
      deliver: (event, its message, mailboxes) -> mailboxes.
      mailbox: of this device's agents.
    """
    num_events = len(device)
    empty = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), one)
    # Events of each device before each event, [D, E + 1].
    is_of = device[None] == jnp.arange(sharding.num_shards())[:, None]
    before = jnp.cumsum(is_of, axis=1, dtype=jnp.int32)
    before = jnp.pad(before, ((0, 0), (1, 0)))
    me = sharding.first_agent(1)
    mine = jnp.argsort(~is_of[me])  # this device's events, in order

    def one_block(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        start, mailbox = carry
        so_far = before - before[:, start, None]  # [D, E + 1], since the block began
        fits = (so_far[:, 1:] <= size).all(0) & (jnp.arange(num_events) < width)
        end = fits.sum(dtype=jnp.int32)

        def collect(i: Array, own: PyTree) -> PyTree:
            message = message_of(mine[before[me, start] + i])
            return jax.tree.map(lambda leaf, new: put(leaf, new, i), own, message)

        own = jax.lax.fori_loop(0, so_far[me, end], collect, empty)
        gathered = sharding.gather_shards(own)  # leaves [D * size, ...]

        def delivered(i: Array, mailbox: PyTree) -> PyTree:
            place = device[i] * size + so_far[device[i], i]
            return deliver(i, take(place, gathered), mailbox)

        return end, jax.lax.fori_loop(start, end, delivered, mailbox)

    _, mailbox = jax.lax.while_loop(
        lambda carry: carry[0] < width, one_block, (jnp.int32(0), mailbox)
    )
    return mailbox
