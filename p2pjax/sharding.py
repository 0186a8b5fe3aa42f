"""The agents axis over several devices.

    with jax.set_mesh(sharding.agents_mesh(num_agents)):
        for snapshot in simulate(...): ...

Under such a mesh every loop over agents runs on all devices at once, each with its own
agents; mixing gathers column blocks. The numbers are those of one device.
"""

from collections.abc import Callable

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from p2pjax.types import InputError, PyTree

AXIS = "agents"


def use_cpu_devices(num_devices: int) -> None:
    """Splits the CPU into virtual devices; call it before anything runs in JAX.

    XLA keeps one core busy per device, so as many devices as cores are fastest.
    """
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError as error:
        raise InputError(
            f"Need to ask for {num_devices} CPU devices before JAX has started: call "
            "use_cpu_devices first."
        ) from error


def agents_mesh(num_agents: int, num_devices: int | None = None) -> Mesh:
    """A mesh of as many devices, at most `num_devices`, as divide the agents evenly."""
    most = min(num_devices or jax.device_count(), jax.device_count())
    num_devices = max(n for n in range(1, most + 1) if num_agents % n == 0)
    return jax.make_mesh(
        (num_devices,),
        (AXIS,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[:num_devices],
    )


def over_devices(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Lets every device apply `fn` to its own agents; `fn` itself without a mesh.

    All leaves of arguments and results have the agents as their leading axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if AXIS not in mesh.axis_names or mesh.shape[AXIS] == 1:
        return fn
    spec = PartitionSpec(AXIS)
    return jax.shard_map(fn, in_specs=spec, out_specs=spec, check_vma=False)


def place(tree: PyTree) -> PyTree:
    """Puts arrays that have a leading agents axis where their agents live."""
    mesh = jax.sharding.get_mesh()
    if AXIS not in mesh.axis_names:
        return jax.tree.map(jax.numpy.asarray, tree)
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(AXIS)))
