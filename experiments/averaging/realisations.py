"""How the members of a partial model average: by a server, or by gossip."""

from experiments.averaging.config import AveragingConfig
from experiments.averaging.design import Choices
from p2pjax.graphs import generators
from p2pjax.partial import averaging
from p2pjax.partial.averaging import Averaging
from p2pjax.partial.peer_sampling import peer_sampling
from p2pjax.partial.per_model import PerModel, per_model
from p2pjax.partial.private_gossip import (
    expected_error,
    privacy_bounds,
    private_gossip,
)

SPREAD, BOUND = 2.0, 1.0  # of random values, see `private_gossip`


def realisation(
    config: AveragingConfig, choices: Choices, num_agents: int
) -> Averaging | PerModel:
    """The averaging of a combination.

    Args:
      config: of the experiment.
      choices: the combination.
      num_agents: N.
    """
    if choices.averaging == "private":
        return private_gossip(
            choices.privacy_level, cycles=choices.cycles, spread=SPREAD, bound=BOUND
        )
    if choices.averaging == "per_model":
        views = None if config.view_size is None else peer_sampling(config.view_size)
        return per_model(views, cycles=choices.cycles, tolerance=config.tolerance)
    if choices.averaging == "server":
        return averaging.server(num_agents)
    if choices.averaging == "pairs":
        return averaging.random_pairs(num_agents)
    degree = config.degree or 4
    generators.random_regular(num_agents, degree, seed=0)  # refuses what is impossible
    return averaging.metropolis_gossip(
        num_agents,
        lambda rng: generators.random_regular(num_agents, degree, seed=rng),
        rewire_every=config.rewire_every,
    )


def facts_of(config: AveragingConfig, choices: Choices) -> dict[str, float]:
    """What rows report of a private averaging: its error, and what it promises.

    `expected_error` is what noise adds to the mean squared distance of a parameter from
    the mean of its members; the bounds are those of `privacy_bounds`.

    Args:
      config: of the experiment.
      choices: the combination.
    """
    if choices.averaging != "private":
        return {}
    level = choices.privacy_level
    bounds = privacy_bounds(config.corrupt, level)
    return {
        "expected_error": expected_error(level, choices.cycles, SPREAD, BOUND),
        "privacy_direct": bounds.direct,
        "privacy_first_order": bounds.first_order,
        "privacy_survival": bounds.survival,
    }
