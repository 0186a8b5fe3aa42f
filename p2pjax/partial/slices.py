"""What agents of other methods send each other where partial models say it.

Methods that average whole models, such as D-PSGD, P2P-BN and PENS, average what a
scheme shares instead: rectangles cut from leaves, and nothing else is sent, fetched or
paid for. That is possible for models of all agents; models of some of them need
exchanges of their own, as partial averaging has. Batch-norm statistics stay with their
agents, as they do there.
"""

import functools

import numpy as np

from p2pjax.exchange import shared
from p2pjax.exchange.owner_classes import Block, MixPlan
from p2pjax.exchange.shared import Local, Sharing, SliceFn, message_size
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.partial.sharing import compile_scheme, known_cells, layout_of
from p2pjax.partial.views import Piece, Views
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.types import InputError


def what_is_sent(
    task: Task, local_patterns: Local, scheme: Scheme | SchemeFn | None
) -> Sharing:
    """Leaves that stay, or the slices that a scheme shares.

    Args:
      task: whose network it is.
      local_patterns: leaves that are not sent.
      scheme: partial models of all agents; None: whole leaves are sent.
    """
    if scheme is None:
        return shared.local_paths(task, local_patterns)
    if not isinstance(local_patterns, tuple) or local_patterns:
        raise InputError(
            "Need either local_patterns or a scheme, got both: a scheme says of all "
            "parameters whether they are sent, and statistics stay where it is given."
        )
    return slices(task, scheme)


def slices(task: Task, scheme: Scheme | SchemeFn) -> SliceFn:
    """What all agents share by a scheme, as rectangles of the leaves of parameters.

    Args:
      task: whose network it is; which cells it has is found when it is first needed.
      scheme: partial models of all agents, such as `partial.level(0.8)`.

    Example:
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((32, 10)), (64,))
      >>> plan = slices(task, pj.partial.level(0.5))(4)
      >>> message_size(plan)  # 64 * 16 + 16 + 16 * 10 + 10
      1210
    """
    if isinstance(scheme, Scheme):
        _check_scheme(scheme, len(scheme.networks))
    elif not callable(scheme):
        raise InputError(
            "Need a scheme, or a function that makes one such as partial.level(0.8), "
            f"got {type(scheme).__name__}."
        )
    cells = known_cells(task)

    @functools.cache
    def plan_of(num_agents: int) -> MixPlan:
        found = scheme
        if not isinstance(found, Scheme):
            found = found(layout_of(cells(), task), num_agents)
        _check_scheme(found, num_agents)
        sharing = compile_scheme(found, cells(), task)
        plan = sharing.plan
        if sharing.views:
            plan = in_leaves(plan, sharing.views, task)
        if not message_size(plan):
            raise InputError(
                "Need a scheme that shares something, got one in which all is local: "
                "use local_only for training without exchanges."
            )
        return plan

    return plan_of


def in_leaves(plan: MixPlan, views: Views, task: Task) -> MixPlan:
    """Owner classes of parameters as they are, of those of viewed parameters.

    Args:
      plan: of the leaves of `viewed` parameters.
      views: of them.
      task: whose parameters they are.
    """
    places: list[tuple[int, Piece | None]] = []  # of every viewed leaf
    for leaf, (path, _) in enumerate(leaves_with_paths(shapes_of(task).params)):
        places += [(leaf, piece) for piece in views.get(path, (None,))]
    classes = []
    for owner_class in plan.classes:
        blocks: list[Block] = []
        for block in owner_class.blocks:
            leaf, piece = places[block.leaf]
            if piece is None:
                blocks.append(block._replace(leaf=leaf))
            elif block.size:
                blocks += _rectangles(block, leaf, piece)
        classes.append(owner_class._replace(blocks=tuple(blocks)))
    return MixPlan(tuple(classes))


def _rectangles(block: Block, leaf: int, piece: Piece) -> list[Block]:
    """A block of a view: columns of one axis may lie apart in the leaf."""
    inside = np.zeros(piece.shape, bool)
    inside[shared.cut(block)] = True
    inside = inside.reshape(np.subtract(piece.stop, piece.start))
    found = [Block(leaf, (), ())]
    for axis, first in enumerate(piece.start):
        others = tuple(other for other in range(inside.ndim) if other != axis)
        edges = np.diff(inside.any(others).astype(int), prepend=0, append=0)
        spans = zip(
            (first + np.flatnonzero(edges > 0)).tolist(),
            (first + np.flatnonzero(edges < 0)).tolist(),
            strict=True,
        )
        found = [
            Block(leaf, (*one.start, start), (*one.stop, stop))
            for start, stop in spans
            for one in found
        ]
    assert sum(one.size for one in found) == block.size, "views only split axes"
    return found


def _check_scheme(scheme: Scheme, num_agents: int) -> None:
    """Refuses what does not go into one message for all who receive it."""
    if len(scheme.networks) != num_agents:
        raise InputError(
            f"Need as many agents in the data as in the scheme, got {num_agents} and "
            f"{len(scheme.networks)}."
        )
    for number, model in enumerate(scheme.models):
        if len(set(model.members)) != num_agents:
            raise InputError(
                "Need partial models of all agents where one message is for all who "
                f"receive it, got model {number} of {len(set(model.members))} of "
                f"{num_agents}: use partial_averaging for models of some agents."
            )
        if model.rate != 1:
            raise InputError(
                f"Need a rate of 1 of each partial model, got {model.rate} of model "
                f"{number}: use partial_averaging for rates of their own."
            )
        if model.drift_threshold is not None:
            raise InputError(
                f"Need no drift_threshold of partial models, got "
                f"{model.drift_threshold} of model {number}: use partial_averaging for "
                "dynamic averaging."
            )
    if len(set(scheme.networks)) > 1:
        raise InputError(
            "Need the same cells in each agent where agents hear each other's models, "
            "got networks that differ: use partial_averaging for those."
        )
