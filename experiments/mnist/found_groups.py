"""Choosing semi-local models without knowing who is alike, on MNIST.

Bouchra Pilet et al. 2021 give every group of agents with the same labels a semi-local
model and leave open how to find the groups. Here they are found in what the agents
learn in a few mini-batches of local training (`grouping`); the run itself then starts
anew, so that all schemes train equally long.
"""

import numpy as np
from sklearn.metrics import adjusted_rand_score

from experiments.averaging.cases import Case, MakeData, perceptron_program
from experiments.averaging.design import the_only
from experiments.averaging.schemes import level_layout, within_groups
from experiments.engine.jobs import devices_of, run_key
from experiments.mnist.config import Config
from experiments.mnist.data import Blocks, relabelled
from experiments.mnist.labels import all_orders
from p2pjax import sharding
from p2pjax.partial import grouping, schemes
from p2pjax.partial.schemes import Scheme
from p2pjax.simulation._simulate import initial_state, simulate
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    InputError,
    Layout,
    Models,
)


def permuted_labels(
    config: Config, network: Layout, blocks: Blocks, warm_ups: tuple[int, ...]
) -> list[Case]:
    """The groups of Figure 20: all permutations of the last three classes."""
    tables, _ = all_orders(network[-1], config.num_agents)
    data = relabelled(blocks(config.num_agents, config.train_size), tables)
    return _cases(config, network, data, warm_ups)


def rotated_images(
    config: Config, network: Layout, blocks: Blocks, warm_ups: tuple[int, ...]
) -> list[Case]:
    """Four groups of agents, whose images are turned by 0, 90, 180 and 270 degrees."""
    num_agents = config.num_agents
    if num_agents % 4:
        raise InputError(
            f"Need a multiple of 4 agents, as many for every turn, got {num_agents}."
        )
    turns = np.arange(num_agents) * 4 // num_agents
    data = blocks(num_agents, config.train_size, tuple(turns.tolist()))
    return _cases(config, network, data, warm_ups)


def _cases(
    config: Config, network: Layout, make_data: MakeData, warm_ups: tuple[int, ...]
) -> list[Case]:
    """Nothing, everything, level 80, and models for the true and the found groups."""
    shared, first = level_layout(network, 80), make_data(config.runs[0])
    truth = np.asarray(first.cluster)
    one_group = np.zeros_like(truth)
    known = {
        "none": Scheme((network,) * len(truth)),
        "full": within_groups(network, network, one_group),
        "level_80": within_groups(network, shared, one_group),
        "true_groups": schemes.auto(network, shared, truth),
    }
    cases = [Case(name, {}, scheme, make_data) for name, scheme in known.items()]
    choices = the_only(config, f"--study={config.study}, which finds groups first")
    alone = perceptron_program(config, choices, cases[0], first)
    for warm_up in warm_ups:
        for run in config.runs:
            found = found_groups(config, alone.algorithm, make_data(run), run, warm_up)
            cases.append(
                Case(
                    f"found_groups_{warm_up}",
                    {"warm_up": warm_up},
                    schemes.auto(network, shared, found),
                    make_data,
                    runs=(run,),
                    facts={
                        "rand_index": float(adjusted_rand_score(truth, found)),
                        "num_groups": len(np.unique(found)),
                    },
                )
            )
    return cases


def found_groups(
    config: Config, algorithm: Algorithm, data: FederatedData, run: int, warm_up: int
) -> np.ndarray:
    """Groups `[N]` after `warm_up` mini-batches of local training."""
    key = run_key(config, run)
    with devices_of(config, data):
        start = algorithm.models(initial_state(key, algorithm, data)).reported.params
        (snapshot,) = simulate(
            key, algorithm, data, warm_up, eval_every=warm_up, evaluate=_nothing
        )
        trained = algorithm.models(snapshot.state).reported.params
        start, trained = sharding.on_host((start, trained))
    return grouping.find_groups(grouping.update_similarity(start, trained))


def _nothing(models: Models, data: FederatedData) -> dict[str, Array]:
    del models, data
    return {}
