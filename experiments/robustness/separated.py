"""Rules under attack where each agent has a class of its own: the table of Wu et al.

Wu, Chen, Ling (2023), "Byzantine-resilient decentralized stochastic optimization with
robust aggregation rules", https://arxiv.org/abs/2206.04568. Softmax regression by ten
honest agents and two that attack; what honest agents hold differs so much that they
look like attackers to each other. Without an attack the attackers do not exist and
rules tolerate none. Different from the authors' code: rules tolerate the largest number
of attackers that an agent hears (there: its own number), the median of an even number
is the mean of the middle two, and all agents have the same factor of ALIE.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.engine import reading
from experiments.engine.jobs import Job, Program, jobs_of_runs, of_all_runs
from experiments.robustness import printed
from experiments.robustness.adversaries import (
    NONE,
    OF_WU,
    RULES,
    Threat,
    alie_factor,
    check_attacks,
)
from experiments.robustness.config import Config
from experiments.robustness.data import (
    apart,
    data_of_run,
    load_examples,
    with_attackers,
)
from experiments.robustness.networks import make_task
from experiments.robustness.training import facts_of, gossip, judged
from p2pjax.datasets.stacking import Examples, pad_to_same_size
from p2pjax.exchange import attacks, robust
from p2pjax.exchange.robust import Rule
from p2pjax.graphs.clusters import two_worlds
from p2pjax.graphs.generators import erdos_renyi
from p2pjax.graphs.topology import Topology, edges, from_edges
from p2pjax.host_memory import check_room
from p2pjax.training.samplers import with_replacement
from p2pjax.types import FederatedData, InputError

PROBABILITY = 0.7  # of an edge of the random graph
MAX_DRAWS = 1000  # of graphs and attackers
RADIUS = {"split": 0.3, "iid": 0.1}  # of self-centred clipping
DEFAULT_RULES = (
    "mean",
    "median",
    "geometric_median",
    "krum",
    "trimmed_mean",
    "self_centered_clipping",
    "ios",
)
# As the authors have them: (attackers, how classes are split) -> rule.
_RULES: Mapping[str, Callable[[int, str], Rule]] = {
    "geometric_median": lambda b, split: robust.geometric_median(
        b, smoothing=1e-3, num_iterations=16
    ),
    "trimmed_mean": lambda b, split: robust.trimmed_mean(b, keep_self=True),
    "self_centered_clipping": lambda b, split: robust.self_centered_clipping(
        RADIUS[split]
    ),
}
_NO_EDGES = np.zeros((2, 0), np.int64)

OfRuns = Mapping[int, FederatedData]


class Place(NamedTuple):
    """A graph whose last agents attack."""

    graph: Topology
    num_honest: int

    @property
    def byzantine(self) -> tuple[int, ...]:
        """Those that attack."""
        return tuple(range(self.num_honest, self.graph.mask.shape[0]))


def separated_jobs(config: Config) -> list[Job]:
    """All rules under all attacks, on all graphs, with both kinds of data."""
    check_attacks(config.study, config.attacks or (), OF_WU)
    examples = load_examples(config)
    task = make_task(config, examples)
    places = {
        (f, name): placed(config, name, f)
        for f in config.attackers
        for name in config.chosen_graphs
    }
    jobs = []
    for (f, graph), place in places.items():
        of_splits = _data(config, examples, place.num_honest)
        setting = {"graph": graph, "f": f}
        judge = judged(config, task, num_honest=place.num_honest)
        no_threat = Threat(
            from_edges(place.num_honest, *_NO_EDGES), None, place.num_honest
        )
        sampler = with_replacement(config.batch_size)
        local = Program(gossip(config, task, no_threat, None, sampler), judge)
        for split, honest in of_splits.items():
            own = setting | {"split": split, "attack": NONE}
            jobs += jobs_of_runs(config, "local_only", own, local, honest.__getitem__)
        for name in config.rules or DEFAULT_RULES:
            for attack in config.attacks or (NONE, *OF_WU):
                found = threat(place, attack)
                programs: dict[str, Program] = {}
                for split, honest in of_splits.items():
                    # One program for all splits, but of rules that depend on them.
                    key = split if name == "self_centered_clipping" else name
                    if key not in programs:
                        rule = rule_of(name, tolerated(found), split)
                        method = gossip(config, task, found, rule, sampler)
                        judge = judged(config, task, found, num_honest=place.num_honest)
                        programs[key] = Program(method, judge)

                    def data(
                        run: int, own: OfRuns = honest, size: int = found.num_agents
                    ) -> FederatedData:
                        return with_attackers(own[run], size)

                    jobs += jobs_of_runs(
                        config,
                        name,
                        setting | {"split": split, "attack": attack},
                        programs[key],
                        data,
                        facts=facts_of(found),
                    )
    return jobs


def _data(config: Config, examples: Examples, num_honest: int) -> dict[str, OfRuns]:
    """Of all runs, by split; of one shape, so that these share their programs."""
    found: dict[str, OfRuns] = {}
    for split in config.splits:
        deal = apart(num_honest, examples.num_classes, split)
        found[split] = of_all_runs(
            config,
            partial(data_of_run, config, examples, deal, num_agents=num_honest),
        )
    same = iter(pad_to_same_size([d for own in found.values() for d in own.values()]))
    return {split: {run: next(same) for run in own} for split, own in found.items()}


def placed(config: Config, name: str, num_byzantine: int) -> Place:
    """Draws a graph and attackers: each honest agent hears enough for all rules.

    Honest agents are connected and hear 2 f + 2 others or more. They come first.

    Args:
      config: of the experiment, with the seed.
      name: of the graph.
      num_byzantine: f.
    """
    size, needed = config.size, 2 * num_byzantine + 2
    check_room(4 * size**2 * size, f"distances between {size} messages of each agent")
    rng = np.random.default_rng(config.seed)
    for _ in range(MAX_DRAWS if needed < size else 0):
        if name == "erdos_renyi":
            graph = erdos_renyi(size, PROBABILITY, seed=rng)
        else:  # each agent but one of the other castle
            graph = two_worlds(size, size // 2 - 1)
        byzantine = attacks.uniform(size, num_byzantine, seed=rng)
        place = Place(_last(graph, byzantine), size - num_byzantine)
        heard = np.asarray(place.graph.mask).sum(1)[: place.num_honest]
        parts = attacks.report(place.graph, OF_WU["isolation"](place.byzantine, 1.0))
        if heard.min() >= needed and parts["honest_parts"] == 1:
            return place
    raise InputError(
        f"Need honest agents who are connected and hear {needed} others or more each, "
        f"2 x {num_byzantine} + 2, found none in {MAX_DRAWS} draws of {size} agents on "
        f"{name}: lower --num_byzantine or raise --num_agents."
    )


def _last(graph: Topology, chosen: tuple[int, ...]) -> Topology:
    """The same graph with other numbers: those of some agents are the last ones."""
    size = graph.mask.shape[0]
    order = np.append(np.setdiff1d(np.arange(size), chosen), chosen)
    number = np.argsort(order)
    sender, receiver = edges(graph)
    return from_edges(size, number[sender], number[receiver])


def threat(place: Place, name: str) -> Threat:
    """An attack; without one only honest agents are left.

    Args:
      place: the graph and who attacks.
      name: of the attack, or `NONE`.
    """
    if name != NONE:
        factor = alie_factor(place.graph, place.byzantine)
        attack = OF_WU[name](place.byzantine, factor)
        return Threat(place.graph, attack, place.graph.mask.shape[0])
    sender, receiver = edges(place.graph)
    is_kept = (sender < place.num_honest) & (receiver < place.num_honest)
    honest = from_edges(place.num_honest, sender[is_kept], receiver[is_kept])
    return Threat(honest, None, place.num_honest)


def tolerated(found: Threat) -> int:
    """The largest number of attackers that an honest agent hears.

    Args:
      found: the graph and who attacks.
    """
    if found.attack is None:
        return 0
    heard = attacks.byzantine_neighbors(found.graph, found.attack.byzantine)
    return int(heard.max())


def rule_of(name: str, num_tolerated: int, split: str) -> Rule | None:
    """A rule as the authors have it, any other as in the other studies.

    Args:
      name: of the rule.
      num_tolerated: attackers that an agent may hear.
      split: how classes are split.
    """
    if name in _RULES:
        return _RULES[name](num_tolerated, split)
    return RULES[name](num_tolerated, 1.0)


def print_table(config: Config, folder: Path) -> None:
    """Accuracies in percent, rules by attacks, beside those that the authors print.

    The latter only where they are comparable: on MNIST, with as many agents and the
    same network.

    Args:
      config: of the experiment.
      folder: of the run.
    """
    is_theirs = (
        config.dataset == "mnist"
        and config.size == printed.NUM_AGENTS
        and config.kind == "softmax"
    )
    rows = reading.summary_rows(folder, "accuracy", ("mean",))
    names = list(dict.fromkeys(row["setting"]["attack"] for row in rows))
    tables: dict[tuple[str, str, int], dict[str, dict[str, float]]] = {}
    for row in rows:
        graph, f, split, attack = (
            row["setting"][key] for key in ("graph", "f", "split", "attack")
        )
        table = tables.setdefault((graph, split, f), {})
        table.setdefault(row["scheme"], {})[attack] = row["mean"]
    for (graph, split, f), table in tables.items():
        theirs = is_theirs and f == printed.NUM_BYZANTINE
        print(
            f"{graph}, {split}, {f} attackers: accuracy of honest agents in percent"
            + (", in brackets that of Wu et al. after 50,000 steps" if theirs else "")
        )
        print(f"{'':<24}" + "".join(f"{name:<14}" for name in names).rstrip())
        for scheme, own in table.items():
            cells = []
            for name in names:
                cell = f"{100 * own[name]:.1f}" if name in own else ""
                other = printed.accuracy(graph, split, scheme, name)
                if theirs and cell and other is not None:
                    cell += f" ({other:.1f})"
                cells.append(f"{cell:<14}")
            print(f"{scheme:<24}" + "".join(cells).rstrip())
    print(f"Results are in {folder}")
