"""Low-rank adapters: a task whose frozen network is shared and only adapters learn.

Hu et al. (2022), "LoRA: low-rank adaptation of large language models",
https://arxiv.org/abs/2106.09685. Parameters of the task are the adapters, so any method
trains and sends them and nothing else. Methods average leaf by leaf, A and B apart
(Dec-LoRA): what comes out is the product of means, not the mean of products, and
`lora_residual` tells how far apart these are. With A frozen they are the same.
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.paths import check_patterns, is_inside, leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Ratio, Variables

ALL_KERNELS = ("params/(.*/)?kernel",)
FROZEN = "lora"  # the collection of matrices A that stay as they are; never sent


def lora(
    task: Task,
    base: Variables,
    *,
    rank: int,
    kernels: Sequence[str] = ALL_KERNELS,
    trained: Sequence[str] = (),
    scale: float = 1.0,
    freeze_a: bool = False,
    seed: int = 0,
) -> Task:
    """The task with kernels W + scale * A B, of which A and B are learned.

    A kernel from i inputs to o outputs has A `[i, rank]`, random at first, and B
    `[rank, o]`, zero at first, in the place of the kernel: `.../kernel/A` and
    `.../kernel/B`. Outputs are the axes of the bias beside a kernel, or its last axis.
    Batch statistics begin with those of the base and go on.

    Args:
      task: whose network is adapted.
      base: of ONE agent, such as `task.init(key)` or what was trained before; frozen.
      rank: of all adapters.
      kernels: regular expressions of whole paths of leaves that get adapters, such as
        `params/encoder/.*/(query|value)/kernel`.
      trained: regular expressions of leaves that are learned whole, such as
        `params/head/.*`.
      scale: of the adapters' product; alpha / rank in the paper.
      freeze_a: whether A stays as it is at first, the same for all agents. Then means
        of B are means of products, and messages have half the size.
      seed: of frozen A; others are drawn with the key of a run.

    Example:
      >>> import jax, optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> small = pj.lora(task, task.init(jax.random.key(0)), rank=2)
      >>> shapes = jax.eval_shape(small.init, jax.random.key(1)).params
      >>> {name: leaf.shape for name, leaf in shapes["layer_1"]["kernel"].items()}
      {'A': (64, 2), 'B': (2, 16)}
      >>> pj.dpsgd(small, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32).round_is
      'a network epoch: ...'
    """
    leaves = _checked_leaves(task, base)
    adapted = _matching(kernels, leaves, "kernels that get adapters")
    whole = _matching(trained, leaves, "leaves that are trained whole")
    both = sorted(set(adapted) & set(whole))
    if both:
        raise InputError(
            f"Need leaves that have an adapter or are trained whole, got {both[0]} as "
            "both: change kernels or trained."
        )
    if not adapted:
        raise InputError("Need patterns of kernels that get adapters, got none.")
    if not np.isfinite(scale) or scale == 0:
        raise InputError(f"Need a finite scale other than 0 of adapters, got {scale}.")
    sizes = {path: _sizes(path, leaves) for path in adapted}
    _check_rank(rank, sizes)
    shapes = dict(leaves_with_paths(shapes_of(task).params))

    def matrix_a(key: Key, path: str) -> Array:
        inputs, _ = sizes[path]
        drawn = jax.random.normal(key, (inputs, rank)) / np.sqrt(inputs)
        return drawn.astype(shapes[path].dtype)

    def init_fn(key: Key) -> Variables:
        keys = jax.random.split(jax.random.key(seed) if freeze_a else key, len(adapted))
        params: dict[str, Any] = {}
        frozen: dict[str, Any] = {}
        for path, own in zip(adapted, keys, strict=True):
            b = jnp.zeros((rank, sizes[path][1]), shapes[path].dtype)
            _put(frozen if freeze_a else params, f"{path}/A", matrix_a(own, path))
            _put(params, f"{path}/B", b)
        for path in whole:
            _put(params, path, jnp.array(leaves[path]))
        stats = jax.tree.map(jnp.array, base.stats)
        return Variables(params, stats | {FROZEN: frozen} if freeze_a else stats)

    def merge(variables: Variables) -> Variables:
        return lora_merged(base, variables, scale=scale)

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        loss, stats = task.loss(merge(variables), batch, key)
        if freeze_a:
            stats = {**stats, FROZEN: variables.stats[FROZEN]}
        return loss, stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        return task.evaluate(merge(variables), batch)

    predict = task.predict
    return task._replace(
        init=init_fn,
        loss=loss_fn,
        evaluate=evaluate_fn,
        predict=None
        if predict is None
        else lambda variables, batch: predict(merge(variables), batch),
        norm=frozenset(
            norm for norm in task.norm if any(is_inside(path, {norm}) for path in whole)
        ),
        wiring=None,
        network=None,
    )


def lora_merged(
    base: Variables, variables: Variables, *, scale: float = 1.0
) -> Variables:
    """The whole network of ONE agent: the base with its adapters' products added.

    Args:
      base: that the adapters belong to.
      variables: of a task that `lora` made.
      scale: as given to `lora`.

    Example:
      >>> import jax
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((4, 2)), (3,))
      >>> base = task.init(jax.random.key(0))
      >>> start = pj.lora(task, base, rank=1).init(jax.random.key(1))
      >>> merged = pj.lora_merged(base, start)
      >>> jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), merged, base))
      True
    """
    known = dict(leaves_with_paths(variables.params))
    frozen = dict(leaves_with_paths(variables.stats.get(FROZEN, {})))
    found = []
    for path, leaf in leaves_with_paths(base.params):
        leaf = known.get(path, jnp.asarray(leaf))
        if f"{path}/B" in known:
            a = known.get(f"{path}/A", frozen.get(f"{path}/A"))
            leaf = leaf + (scale * (a @ known[f"{path}/B"])).reshape(leaf.shape)
        found.append(leaf)
    params = jax.tree.unflatten(jax.tree.structure(base.params), found)
    stats = {name: s for name, s in variables.stats.items() if name != FROZEN}
    return Variables(params, stats)


def lora_residual(variables: Variables, weight: Array | None = None) -> Array:
    """How far the mean of products is from the product of means, relative to it.

    The norm of `sum_j w_j (A_j - mean A) (B_j - mean B)` of all kernels together over
    that of `mean A mean B`: 0 where agents agree, or where A is the same for all.

    Args:
      variables: of all agents, of a task that `lora` made; leaves `[N, ...]`.
      weight: w, `[N]`, with sum 1; None: the same for all.

    Example:
      >>> import p2pjax as pj
      >>> a, b = jnp.array([[[1.0]], [[3.0]]]), jnp.array([[[0.0]], [[2.0]]])
      >>> pj.lora_residual(pj.Variables({"kernel": {"A": a, "B": b}}, {})).item()
      0.5
    """
    known = dict(leaves_with_paths(variables.params))
    known |= dict(leaves_with_paths(variables.stats.get(FROZEN, {})))
    kernels = [path[:-2] for path in known if path.endswith("/A")]
    if not kernels:
        raise InputError("Need variables of a task that lora made, got no adapters.")
    apart, together = [], []
    for kernel in kernels:
        a, b = (jnp.asarray(known[f"{kernel}/{name}"]) for name in "AB")
        share = jnp.full(len(a), 1 / len(a)) if weight is None else jnp.asarray(weight)
        share = share.astype(a.dtype)
        mean_a, mean_b = (jnp.tensordot(share, leaf, 1) for leaf in (a, b))
        rest = jnp.einsum("n,nir,nro->io", share, a - mean_a[None], b - mean_b[None])
        apart.append(jnp.square(rest).sum())
        together.append(jnp.square(mean_a @ mean_b).sum())
    return jnp.sqrt(jnp.stack(apart).sum() / jnp.stack(together).sum())


def _checked_leaves(task: Task, base: Variables) -> dict[str, Array]:
    """Leaves of the base's parameters by their paths."""
    if not isinstance(base, Variables):
        raise InputError(
            "Need the frozen network as Variables, such as task.init(key), got "
            f"{type(base).__name__}: write Variables(params, {{}}) for params."
        )
    wanted = dict(leaves_with_paths(shapes_of(task)))
    found = dict(leaves_with_paths(base))
    for path in sorted({*wanted, *found}):
        shapes = [np.shape(t[path]) if path in t else None for t in (wanted, found)]
        if shapes[0] != shapes[1]:
            raise InputError(
                "Need a base as the task's network has it for ONE agent, with "
                f"{path} of shape {shapes[0]}, got {shapes[1]}: give one agent's row."
            )
    return dict(leaves_with_paths(base.params))


def _matching(
    patterns: Sequence[str], leaves: dict[str, Array], what: str
) -> list[str]:
    """Paths without `params/` of all leaves that match."""
    if isinstance(patterns, str):
        raise InputError(
            f"Need a sequence of patterns of {what}, got the string '{patterns}': "
            f"write ('{patterns}',)."
        )
    check_patterns(patterns, [f"params/{path}" for path in leaves], what)
    return [
        path
        for path in leaves
        if any(re.fullmatch(pattern, f"params/{path}") for pattern in patterns)
    ]


def _sizes(path: str, leaves: dict[str, Array]) -> tuple[int, int]:
    """Inputs and outputs of a kernel."""
    shape = np.shape(leaves[path])
    if len(shape) < 2:
        raise InputError(
            f"Need kernels of two axes or more for adapters, got {path} of shape "
            f"{shape}: choose others, or train it whole."
        )
    bias = leaves.get("/".join([*path.split("/")[:-1], "bias"]))
    outputs = () if bias is None else np.shape(bias)
    is_of_kernel = 0 < len(outputs) < len(shape) and shape[-len(outputs) :] == outputs
    split = len(shape) - (len(outputs) if is_of_kernel else 1)
    return int(np.prod(shape[:split])), int(np.prod(shape[split:]))


def _check_rank(rank: int, sizes: dict[str, tuple[int, int]]) -> None:
    if not isinstance(rank, int | np.integer) or rank < 1:
        raise InputError(f"Need a rank of adapters of 1 or more, got {rank}.")
    for path, (inputs, outputs) in sizes.items():
        if rank > min(inputs, outputs):
            raise InputError(
                f"Need a rank of at most {min(inputs, outputs)} for the adapter of "
                f"{path}, which has {inputs} inputs and {outputs} outputs, got {rank}: "
                "use a smaller one, or train this kernel whole."
            )


def _put(tree: dict[str, Any], path: str, leaf: Array) -> None:
    """Into dicts of dicts."""
    *parents, name = path.split("/")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[name] = leaf
