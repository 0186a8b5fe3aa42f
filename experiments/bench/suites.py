"""All suites by name; each is a function of its sizes."""

from collections.abc import Callable

from experiments.bench import (
    first_result_suite,
    limit_suites,
    mixing_suites,
    peer_suites,
    protocol_suites,
    training_suites,
)
from experiments.bench.harness import Suite

SUITES: dict[str, Callable[..., Suite]] = {
    "headline": training_suites.headline,
    "small": training_suites.small,
    "per_sample": training_suites.per_sample,
    "cnn": training_suites.cnn,
    "own_networks": training_suites.own_networks,
    "gru": training_suites.gru,
    "encoder": training_suites.encoder,
    "mixing": mixing_suites.mixing,
    "slices": mixing_suites.slices,
    "selection": protocol_suites.selection,
    "events": protocol_suites.events,
    "peers": peer_suites.peers,
    "adversity": protocol_suites.adversity,
    "scale": limit_suites.scale,
    "views": limit_suites.views,
    "million": limit_suites.million,
    "memory": limit_suites.memory,
    "compile": limit_suites.compilation,
    "first_result": first_result_suite.first_result,
}
