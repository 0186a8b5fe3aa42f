"""One agent's model as a file that other programs read.

for snapshot in simulate(...): ...
export.save_msgpack("agent3.msgpack", method.models(snapshot.state), agent=3)
"""

from pathlib import Path

import flax.serialization
import jax
import numpy as np

from p2pjax.paths import leaves_with_paths
from p2pjax.types import InputError, PyTree, Variables


def agent_model(models: Variables, agent: int) -> dict[str, PyTree]:
    """The collections of one agent, as `flax_module.apply` takes them."""
    num_agents = jax.tree.leaves(models.params)[0].shape[0]
    if not 0 <= agent < num_agents:
        raise InputError(f"Need an agent from 0 to {num_agents - 1}, got {agent}.")
    one = jax.tree.map(lambda leaf: np.asarray(leaf[agent]), models)
    return {"params": one.params, **one.stats}


def save_msgpack(path: str | Path, models: Variables, agent: int) -> None:
    """Flax's own format; read it with `flax.serialization.msgpack_restore`."""
    model = agent_model(models, agent)
    Path(path).write_bytes(flax.serialization.msgpack_serialize(model))


def save_npz(path: str | Path, models: Variables, agent: int) -> None:
    """Plain arrays, named `params/layer_1/kernel` and so on."""
    arrays = dict(leaves_with_paths(agent_model(models, agent)))
    with Path(path).open("wb") as file:
        np.savez(file, **arrays)
