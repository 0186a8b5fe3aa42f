r"""Runs every algorithm and keeps what came out, in a process of its own.

    python tests/run_every_algorithm.py TABLE OUT NUM_DEVICES AGENT_LOOP \
        [NUM_PROCESSES NUMBER PORT]

`TABLE` is a module such as `every_algorithm`; `NUM_DEVICES` are those of this process.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

NUM_ROUNDS = 4


def main() -> None:
    """Runs them all on the same seed."""
    table_name, out, num_devices, agent_loop, *others = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", int(num_devices))
    if others:
        num_processes, number, port = map(int, others)
        jax.distributed.initialize(f"localhost:{port}", num_processes, number)

    table = importlib.import_module(table_name)  # which uses JAX
    found = {}
    for name in table.EVERY:
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            result(table, name, int(agent_loop))
        ):
            found[f"{name}: {jax.tree_util.keystr(path)}"] = leaf
    if jax.process_index() == 0:
        np.savez(out, **found)


def result(table: ModuleType, name: str, agent_loop: int) -> tuple:
    """Models, infos, scores and costs of one of them."""
    from p2pjax import sharding
    from p2pjax.simulation._simulate import simulate
    from p2pjax.training.agent_loop import VMAP

    if name in ("multi_task", "choosing by l2c_bilevel"):
        agent_loop = VMAP  # these are not taken in place here
    method, world = table.build(name, agent_loop)
    mesh = sharding.agents_mesh(table.SIZE)
    assert mesh.size == jax.device_count()
    with jax.set_mesh(mesh):
        *_, last = simulate(
            jax.random.key(0),
            method,
            world,
            NUM_ROUNDS,
            eval_every=NUM_ROUNDS // 2,
            evaluate=getattr(table, "evaluate", None),
        )
        models = sharding.on_host(method.models(last.state))
        return models, last.info, last.metrics, last.used


if __name__ == "__main__":
    main()
