"""Ways of choosing peers by name, ready to run with the settings of Sajina (2025)."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from experiments.connections.found_groups import found_groups, make_probe
from experiments.connections.options import Options
from experiments.connections.subject import Run, Subject
from experiments.engine.config import agent_loop
from experiments.engine.jobs import data_rng
from p2pjax.algorithms._d_cliques import d_cliques
from p2pjax.algorithms._diple import diple
from p2pjax.algorithms._local_only import local_only
from p2pjax.datasets import stacking
from p2pjax.engines.pulling import pull
from p2pjax.graphs import clusters, generators
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.selection import aucccr, tables
from p2pjax.selection.base import Selection
from p2pjax.selection.d_cliques import cliques
from p2pjax.selection.dac import dac
from p2pjax.selection.diple import line_search
from p2pjax.selection.l2c import l2c
from p2pjax.selection.panm import panm
from p2pjax.selection.peer_sampling import partial_view
from p2pjax.selection.pens import pens
from p2pjax.selection.request_limits import limit_requests
from p2pjax.selection.similarity import agreement, update_cosine
from p2pjax.selection.sparse import sparse
from p2pjax.types import Algorithm, FederatedData, InputError


def _part_of_rounds(
    config: Options, given: int | None, parts: int, least: int = 1
) -> int:
    """What the config says, or a share of all rounds."""
    return given or max(least, config.num_rounds // parts)


def _pulling(
    selection: Selection, subject: Subject, run: Run, graph: Graphs | None = None
) -> Algorithm:
    """A selection among all agents, or those of a graph."""
    config = subject.config
    return pull(
        subject.task,
        subject.optimizer,
        _capped(subject, selection, sees_all=graph is None),
        graph,
        batch_size=config.batch_size,
        probe=make_probe(subject, run.data),
        agent_loop=agent_loop(config, subject.task),
    )


def _capped(subject: Subject, selection: Selection, sees_all: bool) -> Selection:
    """Under the limits of the study; a graph says whom agents know."""
    max_requests, size = subject.limits
    least, most = subject.config.num_peers + 1, len(subject.cluster) - 1
    if size and sees_all:
        if not least <= size <= most:
            raise InputError(
                f"Need --view_size above the {least - 1} peers averaged with, which "
                f"stay known, and up to all {most} others, got {size}: 0 is all."
            )
        selection = partial_view(selection, size)
    return limit_requests(selection, max_requests) if max_requests else selection


def _sparse(subject: Subject, run: Run) -> Algorithm:
    size, degree = len(subject.cluster), subject.config.num_peers
    return _pulling(
        sparse(),
        subject,
        run,
        lambda rng: generators.directed_regular(size, degree, seed=rng),
    )


def _oracle(subject: Subject, run: Run) -> Algorithm:
    cluster, degree = subject.cluster, subject.config.num_peers
    return _pulling(
        sparse(), subject, run, lambda rng: clusters.oracle(cluster, degree, seed=rng)
    )


def _pens(subject: Subject, run: Run) -> Algorithm:
    config = subject.config
    chosen = pens(
        num_peers=config.num_peers,
        num_candidates=config.num_candidates,
        second_stage=_part_of_rounds(config, config.second_stage, 5),
    )
    return _pulling(chosen, subject, run)


def _dac(by_probe: bool, subject: Subject, run: Run) -> Algorithm:
    config = subject.config
    chosen = dac(
        num_peers=config.num_peers,
        sharpness=config.sharpness,
        anneal=config.rising,
        similarity=agreement() if by_probe else None,
    )
    return _pulling(chosen, subject, run)


def _panm(compared_by: str, subject: Subject, run: Run) -> Algorithm:
    config, similarity = subject.config, None
    if compared_by == "updates":
        similarity = update_cosine(config.update_share)
    elif compared_by == "probe":
        similarity = agreement()
    chosen = panm(
        similarity=similarity,
        num_peers=config.num_peers,
        num_candidates=config.num_candidates,
        second_stage=_part_of_rounds(config, config.second_stage, 5, least=2),
        matching_every=_part_of_rounds(config, config.matching_every, 50),
        counts_all=config.counts_all,
    )
    return _pulling(chosen, subject, run)


def _l2c(subject: Subject, run: Run) -> Algorithm:
    config = subject.config
    chosen = l2c(
        bilevel=config.bilevel,
        num_kept=config.num_kept,
        num_rounds_all=_part_of_rounds(config, config.rounds_with_all, 50),
    )
    return _pulling(chosen, subject, run)


def _diple(subject: Subject, run: Run) -> Algorithm:
    del run
    config = subject.config
    search = line_search(
        num_peers=config.num_peers,
        on_valid=config.search_on_valid,
        return_probability=config.return_probability,
    )
    chosen = _capped(subject, search, sees_all=True)
    return diple(
        subject.task,
        subject.optimizer,
        batch_size=config.batch_size,
        selection=chosen,
        from_start=config.search_from_start,
        num_iterations=config.iterations,
        agent_loop=agent_loop(config, subject.task),
    )


def _aucccr(subject: Subject, run: Run) -> Algorithm:
    """Groups are found when a run is prepared; their messages are not counted."""
    if subject.is_text:
        raise InputError(
            f"Need fewer classes for aucccr, whose profiles have {subject.num_classes} "
            "x as many numbers: leave it out of --methods."
        )
    size, degree = len(subject.cluster), subject.config.num_peers
    like_it = generators.directed_regular(size, degree, seed=0)
    base = _pulling(sparse(), subject, run, like_it)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> Topology:
        group = found_groups(subject, rng, data)
        graph = tables.padded(aucccr.group_graph(rng, group, degree), degree)
        return Topology(
            *(np.repeat(np.asarray(leaf)[None], num_rounds, 0) for leaf in graph)
        )

    return base._replace(plan=plan_fn)


def _d_cliques(subject: Subject, run: Run) -> Algorithm:
    config = subject.config
    histograms = stacking.label_histograms(run.data.train, subject.num_classes)
    clique = cliques(
        data_rng(config, run.number),
        np.asarray(histograms),
        max_size=config.clique_size,
    )
    return d_cliques(
        subject.task,
        subject.optimizer,
        clique,
        batch_size=config.batch_size,
        score_before=config.score_before,
        agent_loop=agent_loop(config, subject.task),
    )


def _local(subject: Subject, run: Run) -> Algorithm:
    del run
    config = subject.config
    return local_only(
        subject.task,
        subject.optimizer,
        batch_size=config.batch_size,
        agent_loop=agent_loop(config, subject.task),
    )


METHODS: Mapping[str, Callable[[Subject, Run], Algorithm]] = {
    "sparse": _sparse,
    "oracle": _oracle,
    "pens": _pens,
    "dac": partial(_dac, False),
    "panm_loss": partial(_panm, "loss"),
    "panm_grad": partial(_panm, "updates"),
    "l2c": _l2c,
    "aucccr": _aucccr,
    "d_cliques": _d_cliques,
    "local": _local,
    "diple": _diple,  # last: a round costs ten times as much
    "dac_probe": partial(_dac, True),
    "panm_probe": partial(_panm, "probe"),
}
NOT_DEFAULT = ("dac_probe", "panm_probe")
OF_A_RUN = ("d_cliques", "dac_probe", "panm_probe")  # whose program has a run's data
