"""Choosing semi-local models without knowing who is alike, on MNIST.

Bouchra Pilet et al. 2021 give every group of agents with the same labels a semi-local
model and leave open how to find the groups. Here they are found in what the agents
learn in a few mini-batches of local training (`grouping`); the run itself then starts
anew, so that all schemes train equally long.
"""

from collections.abc import Callable

import numpy as np
from sklearn.metrics import adjusted_rand_score

from experiments import common, figures, jobs, runner
from experiments.averaging_schemes import level_layout, within_groups
from experiments.averaging_study import Case, perceptron_program
from experiments.mnist_studies import Setup, Study, all_orders, permuted_worlds
from p2pjax import sharding
from p2pjax.partial import grouping, schemes
from p2pjax.partial.schemes import Scheme
from p2pjax.simulation._simulate import initial_state, simulate
from p2pjax.types import Algorithm, Array, FederatedData, InputError, Models


def permuted_labels(setup: Setup, warm_ups: tuple[int, ...]) -> list[Case]:
    """The groups of P-M4: all permutations of the last three classes."""
    tables, _ = all_orders(setup)
    return _cases(setup, permuted_worlds(setup, tables), warm_ups)


def rotated_images(setup: Setup, warm_ups: tuple[int, ...]) -> list[Case]:
    """Four groups of agents, whose images are turned by 0, 90, 180 and 270 degrees."""
    if setup.num_agents % 4:
        raise InputError(
            f"Need a multiple of 4 agents, as many for every turn, got "
            f"{setup.num_agents}."
        )
    turns = np.arange(setup.num_agents) * 4 // setup.num_agents
    worlds = setup.blocks(setup.num_agents, setup.train_size, tuple(turns.tolist()))
    return _cases(setup, worlds, warm_ups)


def _cases(
    setup: Setup, worlds: Callable[[int], FederatedData], warm_ups: tuple[int, ...]
) -> list[Case]:
    """Nothing, everything, level 80, and models for the true and the found groups."""
    network, shared = setup.network, level_layout(setup.network, 80)
    truth = np.asarray(worlds(0).cluster)
    one_group = np.zeros_like(truth)
    known = {
        "none": Scheme((network,) * len(truth)),
        "full": within_groups(network, network, one_group),
        "level_80": within_groups(network, shared, one_group),
        "true_groups": schemes.auto(network, shared, truth),
    }
    cases = [Case(name, {}, scheme, worlds) for name, scheme in known.items()]
    alone = perceptron_program(cases[0], worlds(0))
    for warm_up in warm_ups:
        for run in range(common.NUM_RUNS.value):
            found = found_groups(alone.algorithm, worlds(run), run, warm_up)
            cases.append(
                Case(
                    f"found_groups_{warm_up}",
                    {"warm_up": warm_up},
                    schemes.auto(network, shared, found),
                    worlds,
                    runs=(run,),
                    facts={
                        "rand_index": float(adjusted_rand_score(truth, found)),
                        "num_groups": len(np.unique(found)),
                    },
                )
            )
    return cases


def found_groups(
    algorithm: Algorithm, world: FederatedData, run: int, warm_up: int
) -> np.ndarray:
    """Groups `[N]` after `warm_up` mini-batches of local training."""
    key = runner.run_key(run)
    with jobs.devices_of(world):
        start = algorithm.models(initial_state(key, algorithm, world)).reported.params
        (snapshot,) = simulate(
            key,
            algorithm,
            world,
            warm_up,
            eval_every=warm_up,
            evaluate=_nothing,
        )
        trained = algorithm.models(snapshot.state).reported.params
        start, trained = sharding.on_host((start, trained))
    return grouping.find_groups(grouping.update_similarity(start, trained))


def _nothing(models: Models, world: FederatedData) -> dict[str, Array]:
    del models, world
    return {}


STUDIES = {
    "auto": Study(permuted_labels, (10, 20), figures.accuracy_by_round),
    "auto_rotated": Study(rotated_images, (10, 20), figures.accuracy_by_round),
}
