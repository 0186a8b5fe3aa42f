"""Makes the cases of an experiment in one of two processes and looks what it keeps.

The arguments are a port and the number of the process.
"""

import sys
import weakref

import jax
import numpy as np


def main() -> None:
    """Fails if arrays with all agents' images outlive the making of the cases."""
    port, number = map(int, sys.argv[1:])
    jax.distributed.initialize(f"localhost:{port}", 2, number)

    from experiments.engine import command, config  # which use JAX
    from experiments.mnist import study
    from p2pjax.datasets import partition
    from p2pjax.datasets.stacking import Examples

    args = ["--num_runs=2", "--train_size=4", "--test_size=5"]
    settled = command.settle(config.parse(study.Config, args))
    made = []
    iid_blocks = partition.iid_blocks

    def watched(*args, **options):
        data = iid_blocks(*args, **options)
        for split in (data.train, data.test):
            made.append(weakref.ref(split.examples["x"]))
        return data

    partition.iid_blocks = watched
    y = np.tile(np.arange(10, dtype=np.int32), 40)
    x = np.zeros((400, 8, 8), np.uint8)
    made.append(weakref.ref(x))
    cases = study.make_cases(settled, Examples(x, y, np.zeros_like(y), 10))
    del x
    images = [case.make_data(1).train.examples["x"] for case in cases]
    assert all(x is images[0] for x in images)
    shapes = [shard.data.shape for shard in images[0].addressable_shards]
    assert shapes == [(8, 4, 8, 8)]  # of 16 agents
    assert all(found() is None for found in made), "all images are kept"
    print(len(made), "arrays freed", flush=True)


if __name__ == "__main__":
    main()
