"""The agents axis over several devices.

    with jax.set_mesh(sharding.agents_mesh(num_agents)):
        for snapshot in simulate(...): ...

Under such a mesh every loop over agents runs on all devices at once, each with its own
agents; mixing gathers column blocks. The numbers are those of one device.

`simulate` waits for every evaluation. Loops of your own have to wait for a result now
and then (`jax.block_until_ready`): on two devices of one CPU (jax 0.10.2), 40
unfinished rounds waited for each other's collectives forever, until XLA ended the
process with `Termination timeout` after a minute; 31 did not.

After `jax.distributed.initialize` the mesh spans all processes and the same lines run
in each of them; a process holds its own agents only.
"""

from collections import Counter
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from p2pjax.types import Array, InputError, PyTree

AXIS = "agents"


def use_cpu_devices(num_devices: int) -> None:
    """Splits the CPU into virtual devices; call it before anything runs in JAX.

    XLA keeps one core busy per device, so as many devices as cores are fastest.

    Args:
      num_devices: how many.

    Example:
      >>> _ = jax.devices()  # starts JAX, so now it is too late
      >>> use_cpu_devices(3)
      Traceback (most recent call last):
      p2pjax.types.InputError: Need to ask for 3 CPU devices before JAX has started...
    """
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError as error:
        raise InputError(
            f"Need to ask for {num_devices} CPU devices before JAX has started: call "
            "use_cpu_devices first."
        ) from error


def agents_mesh(num_agents: int, num_devices: int | None = None) -> Mesh:
    """A mesh of as many devices, at most `num_devices`, as divide the agents evenly.

    All processes take part, each with as many devices as the others.

    Args:
      num_agents: N.
      num_devices: how many at most; all of them if None.

    Example:
      >>> with jax.set_mesh(agents_mesh(num_agents=8, num_devices=1)):
      ...     num_shards()
      1
    """
    size = jax.process_count()
    of_process = Counter(device.process_index for device in jax.devices())
    held = size * min(of_process.values())
    most = min(num_devices or held, held)
    fitting = [n for n in range(size, most + 1, size) if num_agents % n == 0]
    if not fitting:
        raise InputError(
            f"Need agents and devices that {size} processes can share evenly, got "
            f"{num_agents} agents and {most} devices: change one of them."
        )
    devices = [
        device
        for process in range(size)
        for device in jax.local_devices(process)[: fitting[-1] // size]
    ]
    return jax.make_mesh(
        (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )


def over_devices(
    fn: Callable[..., PyTree], num_common: int = 0
) -> Callable[..., PyTree]:
    """Lets every device apply `fn` to its own agents; `fn` itself without a mesh.

    All leaves of arguments and results have the agents as their leading axis, except
    that the first `num_common` arguments are the same on every device.

    Args:
      fn: of arrays of any number of agents.
      num_common: leading arguments that are not per agent.

    Example:
      >>> over_devices(lambda scale, x: scale * x, num_common=1)(2, np.arange(4))
      array([0, 2, 4, 6])
    """
    if not _is_spread():
        return fn
    own, common = PartitionSpec(AXIS), PartitionSpec()

    def spread(*args: PyTree) -> PyTree:
        specs = (common,) * num_common + (own,) * (len(args) - num_common)
        return jax.shard_map(fn, in_specs=specs, out_specs=own, check_vma=False)(*args)

    return spread


def check_single_device(purpose: str, *, but_in_batches: bool = True) -> None:
    """Refuses a mesh of several devices for what can only be done on one.

    Args:
      purpose: what needs one device, after "to".
      but_in_batches: whether batches of agents can do it on several.
    """
    if _is_spread():
        other = ", or batches (--agent_loop=0)" if but_in_batches else ""
        raise InputError(
            f"Need one device to {purpose}, got {_num_devices()}: use a "
            f"mesh of one (--num_devices=1){other}."
        )


def first_agent(num_own: int) -> jax.Array | int:
    """Inside `over_devices`: the number of this device's first agent.

    Args:
      num_own: agents of each device.
    """
    return jax.lax.axis_index(AXIS) * num_own if _is_spread() else 0


def broadcast_from_owner(tree: PyTree, is_owner: jax.Array) -> PyTree:
    """Inside `over_devices`: what the one device that owns it has, on every device.

    Args:
      tree: arrays of any shapes, of which the owner's count.
      is_owner: `[]`, whether this device is the owner.
    """
    if not _is_spread():
        return tree
    return jax.tree.map(
        lambda leaf: jax.lax.psum(
            jax.numpy.where(is_owner, leaf, jax.numpy.zeros_like(leaf)), AXIS
        ),
        tree,
    )


def gather_shards(tree: PyTree) -> PyTree:
    """Inside `over_devices`: what all devices have, on every device, in their order.

    Args:
      tree: this device's own arrays, which have a leading axis.
    """
    if not _is_spread():
        return tree
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True), tree)


def num_shards() -> int:
    """Devices that the agents are spread over.

    Example:
      >>> num_shards()  # without a mesh
      1
    """
    return jax.sharding.get_abstract_mesh().shape[AXIS] if _is_spread() else 1


def rotate_shards(tree: PyTree) -> PyTree:
    """Inside `over_devices`: what the next device has; the last looks at the first.

    Applied again and again, every device sees what all have, one at a time.

    Args:
      tree: this device's own arrays.
    """
    size = num_shards()
    moves = [(device, (device - 1) % size) for device in range(size)]
    return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, AXIS, moves), tree)


def _is_spread() -> bool:
    return _num_devices() > 1


def _num_devices() -> int:
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[AXIS] if AXIS in mesh.axis_names else 1


def place(tree: PyTree, axis: int = 0) -> PyTree:
    """Puts arrays where their agents live, and on every device what is not per agent.

    The agents are the axis `axis` of what the mesh divides evenly.

    Args:
      tree: arrays of numpy or JAX, such as the data or a state.
      axis: of the agents.

    Example:
      >>> with jax.set_mesh(agents_mesh(num_agents=4, num_devices=1)):
      ...     place({"x": np.ones((4, 2))})["x"].sharding.spec[0]
      'agents'
    """
    shapes = placed(tree, axis)
    if AXIS not in jax.sharding.get_mesh().axis_names:
        return jax.tree.map(jax.numpy.asarray, tree)
    return jax.tree.map(lambda x, like: _put(x, like.sharding), tree, shapes)


def _put(leaf: Array, where: NamedSharding) -> jax.Array:
    if isinstance(leaf, jax.Array) or where.is_fully_addressable:
        return jax.device_put(leaf, where)
    # `device_put` would send all of it to all processes, to see whether it is the same.
    # A copy, which does not keep the others' examples.
    return jax.make_array_from_callback(leaf.shape, where, lambda at: leaf[at].copy())


def placed(tree: PyTree, axis: int = 0) -> PyTree:
    """Shapes, dtypes and places of what `place` returns; nothing is moved.

    Args:
      tree: arrays or shapes.
      axis: of the agents.
    """
    mesh = jax.sharding.get_mesh()
    shapes = jax.eval_shape(lambda x: x, tree)
    if AXIS not in mesh.axis_names:
        return shapes
    return jax.tree.map(
        lambda leaf: leaf.update(
            sharding=NamedSharding(mesh, _spec(leaf, axis, mesh.shape[AXIS]))
        ),
        shapes,
    )


def constrain_sharding(tree: PyTree, axis: int = 0) -> PyTree:
    """Inside jit: a result that comes as `place` would put it, nowhere whole.

    Args:
      tree: arrays inside jit.
      axis: of the agents.
    """
    if not _is_spread():
        return tree
    num_devices = jax.sharding.get_abstract_mesh().shape[AXIS]
    return jax.tree.map(
        lambda leaf: jax.lax.with_sharding_constraint(
            leaf, _spec(leaf, axis, num_devices)
        ),
        tree,
    )


def jit_sharded(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Jits a function whose results are made where their agents live, nowhere whole.

    Args:
      fn: whose results have the agents as their leading axis.
    """
    return jax.jit(lambda *args: constrain_sharding(fn(*args)))


def on_host(tree: PyTree) -> PyTree:
    """Whole arrays for numpy, in every process; one exchange for all of them.

    Args:
      tree: arrays of JAX, on any devices.

    Example:
      >>> on_host({"x": jax.numpy.arange(3)})
      {'x': array([0, 1, 2], dtype=int32)}
    """
    if not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(tree)):
        everywhere = NamedSharding(jax.sharding.get_mesh(), PartitionSpec())
        tree = jax.jit(_same, out_shardings=everywhere)(tree)
    return jax.tree.map(np.asarray, tree)


def _same(tree: PyTree) -> PyTree:
    return tree


def _spec(
    leaf: jax.Array | jax.ShapeDtypeStruct, axis: int, num_devices: int
) -> PartitionSpec:
    if leaf.ndim > axis and leaf.shape[axis] % num_devices == 0:
        return PartitionSpec(*[None] * axis, AXIS)
    return PartitionSpec()
