"""Makes the cases of an experiment in one of two processes and looks what it keeps.

The arguments are a port and the number of the process.
"""

import sys
import weakref

import jax
import numpy as np
from absl import flags


def main() -> None:
    """Fails if arrays with everybody's images outlive the making of the cases."""
    port, number = map(int, sys.argv[1:])
    jax.distributed.initialize(f"localhost:{port}", 2, number)

    from experiments import mnist  # which uses JAX
    from p2pjax.datasets import partition
    from p2pjax.datasets.stacking import Examples

    flags.FLAGS(["mnist", "--num_runs=2", "--train_size=4", "--test_size=5"])
    made = []
    iid_blocks = partition.iid_blocks

    def watched(*args, **options):
        world = iid_blocks(*args, **options)
        for split in (world.train, world.test):
            made.append(weakref.ref(split.examples["x"]))
        return world

    partition.iid_blocks = watched
    y = np.tile(np.arange(10, dtype=np.int32), 40)
    x = np.zeros((400, 8, 8), np.uint8)
    made.append(weakref.ref(x))
    cases = mnist.make_cases(Examples(x, y, np.zeros_like(y), 10))
    del x
    images = [case.make_world(1).train.examples["x"] for case in cases]
    assert all(x is images[0] for x in images)
    shapes = [shard.data.shape for shard in images[0].addressable_shards]
    assert shapes == [(8, 4, 8, 8)]  # of 16 agents
    assert all(found() is None for found in made), "all images are kept"
    print(len(made), "arrays freed", flush=True)


if __name__ == "__main__":
    main()
