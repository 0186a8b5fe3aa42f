"""SCAFFOLD: FedAvg whose clients correct their gradients by what others' were.

Karimireddy et al. (2020), "SCAFFOLD: stochastic controlled averaging for federated
learning", https://arxiv.org/abs/1910.06378.
"""

from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from p2pjax.engines.options import ServerOptions
from p2pjax.engines.server import ServerState, first_row, server_rounds
from p2pjax.exchange import shared
from p2pjax.exchange.channel import PERFECT, check_channel
from p2pjax.exchange.shared import sharing_plan, where_shared
from p2pjax.tasks.task import Task
from p2pjax.training.gradient_learners import (
    mean_gradient,
    with_correction,
    with_new_correction,
)
from p2pjax.training.learner import Learner, as_learner
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
)


class ScaffoldState(NamedTuple):
    """FedAvg's state, whose learners hold `c - c_i`, and the server's control variate.

    A client's own control variate c_i is the server's c less its correction.
    """

    shared: ServerState
    control: PyTree  # of the parameters, leaves [1, ...]: the mean of the clients'


def scaffold(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    server_opt: optax.GradientTransformation | None = None,
    **options: Unpack[ServerOptions],
) -> Algorithm:
    """Stochastic controlled averaging (Karimireddy et al. 2020).

    https://arxiv.org/abs/1910.06378. Clients step along `g - c_i + c`; then c_i is the
    mean of the gradients g of these steps (the paper's option II), and c the mean of
    all c_i, where clients count as much as they have examples, as in FedAvg. All
    control variates are 0 at first. Both ways a message is two models.

    Args:
      task: what each agent learns.
      optimizer: of optax, SGD in the paper; each client keeps its own state of it.
      batch_size: B.
      server_opt: see `fedavg`; `optax.sgd(eta)` is the paper's global step size.
      **options: see `ServerOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.scaffold(task, optax.sgd(0.1), batch_size=32, num_clients=2)
      >>> method.round_is
      "1 local epoch of each chosen client, then the server's mean"
    """
    check_channel(options.get("channel", PERFECT), "SCAFFOLD", loses=False)
    attack = options.get("attack")
    is_hostile = attack is not None and attack.hostile is not None
    if is_hostile or options.get("aggregate") is not None:
        raise InputError(
            f"Need FedAvg for {'an attack on messages' if is_hostile else 'a robust '}"
            f"{'' if is_hostile else 'rule'}, got SCAFFOLD: control variates are a "
            "second message that no rule protects."
        )
    local = shared.local_paths(task, options.get("local_patterns", shared.FULL))
    server = server_rounds(
        task,
        with_correction(as_learner(task, optimizer)),
        batch_size=batch_size,
        server_opt=server_opt,
        name="SCAFFOLD",
        **options,
    )

    def init_fn(key: Key, data: FederatedData) -> ScaffoldState:
        state = server.init(key, data)
        model = first_row(state.variables.params)
        return ScaffoldState(state, jax.tree.map(jnp.zeros_like, model))

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: ScaffoldState, data: FederatedData
    ) -> tuple[ScaffoldState, Info]:
        after, info = server.round(key, t, inputs, state.shared, data)
        learners = after.opt_state
        has_trained = learners.num_steps > 0  # [N]
        size = jnp.asarray(data.train.size)
        share = size / size.sum()

        def updated(c: Array, correction: Array, mean: Array) -> tuple[Array, Array]:
            """The server's control variate, and the clients' own."""
            own = c - correction  # [N, ...]
            trains = has_trained.reshape((-1,) + (1,) * (own.ndim - 1))
            new = jnp.where(trains, mean - correction, own)
            learned = jnp.tensordot(share.astype(c.dtype), new - own, 1)
            return c + learned[None], new

        both = jax.tree.map(
            updated, state.control, learners.correction, mean_gradient(learners)
        )
        control, own = jax.tree.transpose(
            jax.tree.structure(state.control), jax.tree.structure((0, 0)), both
        )
        correction = {"params": jax.tree.map(jnp.subtract, control, own)}
        plan = sharing_plan(after.variables._replace(stats={}), local)
        none = jax.tree.map(jnp.zeros_like, correction)  # of leaves that stay
        correction = where_shared(plan, correction, none)["params"]
        after = after._replace(opt_state=with_new_correction(learners, correction))
        assert info.delivered is not None
        info = info._replace(payload=2 * info.payload, delivered=2 * info.delivered)
        return ScaffoldState(after, control), info

    def models_fn(state: ScaffoldState) -> Models:
        return server.models(state.shared)

    return server._replace(init=init_fn, round=round_fn, models=models_fn)
