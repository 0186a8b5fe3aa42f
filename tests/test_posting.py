"""Messages reach the mailboxes of all devices in the order of their events."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from p2pjax import sharding
from p2pjax.asynchronous import posting

N, E, P = 8, 13, 3  # agents, places for events, parameters
MESSAGE_BYTES = 4 * P


def deliver_all(num_devices, width, agent, receiver, messages):
    """Mailboxes `[N, P]` after all deliveries, none of which commutes with another."""

    def own(width, agent, receiver, mailbox, rows):
        num_own = len(rows)
        first = sharding.first_agent(num_own)

        def message_of(i):
            return rows[agent[i] - first] + i

        def deliver(i, message, mailbox):
            at = receiver[i] - first
            is_mine = (at >= 0) & (at < num_own)
            box = mailbox[at]
            return mailbox.at[at].set(jnp.where(is_mine, 3 * box + message, box))

        device = agent // num_own
        return posting.post_all(width, device, message_of, deliver, mailbox)

    with jax.set_mesh(sharding.agents_mesh(N, num_devices)):
        spread = jax.jit(sharding.over_devices(own, num_common=3))
        boxes = np.ones((N, P), np.int32)
        return np.asarray(spread(width, agent, receiver, boxes, messages))


def one_by_one(width, agent, receiver, messages):
    """The same in numpy."""
    boxes = np.ones((N, P), np.int32)
    for i in range(width):
        boxes[receiver[i]] = 3 * boxes[receiver[i]] + messages[agent[i]] + i
    return boxes


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 2, 5, 100, None])
def test_in_the_order_of_events(monkeypatch, num_devices, size):
    """Blocks of any size, and none: then messages travel alone, with a warning."""
    if size is None:
        monkeypatch.setattr(posting, "LARGE_BYTES", MESSAGE_BYTES - 1)
    else:
        monkeypatch.setattr(posting, "BLOCK_BYTES", size * MESSAGE_BYTES)
    rng = np.random.default_rng(0)
    messages = rng.integers(0, 9, (N, P)).astype(np.int32)
    for width in (0, 1, 7, E):
        agent, receiver = rng.integers(0, N, (2, E)).astype(np.int32)
        if width == 7:
            agent %= 2  # all on the first device
        args = np.int32(width), agent, receiver, messages
        if size is None and num_devices > 1:
            with pytest.warns(UserWarning, match="one device is faster"):
                found = deliver_all(num_devices, *args)
        else:
            found = deliver_all(num_devices, *args)
        np.testing.assert_array_equal(found, one_by_one(*args))
