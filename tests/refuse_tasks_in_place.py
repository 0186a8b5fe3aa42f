"""Asks one of two processes for what takes one device, and prints what it says.

The arguments are a port and the number of the process.
"""

import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    """Agents of different tasks, one after the other: all other methods can be run."""
    port, number = map(int, sys.argv[1:])
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(f"localhost:{port}", 2, number)

    import test_multi_task  # which uses JAX

    import p2pjax as pj

    _, world, _, method = test_multi_task.linear_case()
    with jax.set_mesh(pj.sharding.agents_mesh(len(world.cluster))):
        try:
            list(pj.simulate(jax.random.key(0), method, world, 1))
        except pj.InputError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
