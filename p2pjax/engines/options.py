"""Keyword arguments that methods of a family have in common, documented once."""

from typing import TypedDict

from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import Channel
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import Local
from p2pjax.graphs.schedule import RewireEvery
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.training.local_updates import LocalUpdates


class CommonOptions(TypedDict, total=False):
    """Of all methods that exchange models.

    Attributes:
      local_updates: what each agent does between two exchanges: `steps(k)` mini-batch
        steps or `epochs(e)` passes over its own data.
      local_patterns: leaves that are not sent: regular expressions of whole paths such
        as `params/Dense_0/.*`, or `SILO_BN` or `FED_BN`.
      channel: what happens to messages on their way, such as `channel.drop(0.3)`.
      agent_loop: how many agents train side by side, see `agent_loop.map_agents`; by
        default a value chosen for the model and the hardware.
    """

    local_updates: LocalUpdates
    local_patterns: Local
    channel: Channel
    agent_loop: int


class AdverseOptions(CommonOptions, total=False):
    """Of methods that can be attacked.

    Attributes:
      attack: what Byzantine agents send or learn from, such as
        `attacks.alie(byzantine=(0, 5), scale=1.5)`. Metrics are NaN for them.
      aggregate: a robust rule in place of the mean, such as
        `robust.median(max_byzantine=2)`.
    """

    attack: Attack | None
    aggregate: Rule | None


class GossipOptions(AdverseOptions, total=False):
    """Of methods that communicate with neighbours in a graph.

    Attributes:
      rewire_every: rounds after which the next graph of a sequence comes, or
        `graphs.COMMUNICATION`; None keeps the first.
      scheme: partial models of all agents, of which alone agents send what they share,
        such as `partial.level(0.5)`; in place of `local_patterns`.
      score_before: also score models before the last exchange of a round, as
        `accuracy_before`. The exchange is then kept pending until the next round.
    """

    rewire_every: RewireEvery
    scheme: Scheme | SchemeFn | None
    score_before: bool


class PullOptions(AdverseOptions, total=False):
    """Of methods whose agents choose their peers.

    Attributes:
      rewire_every: rounds after which the next graph of a sequence comes; None keeps
        the first.
      equal_weights: whether models count the same in means, not by their data.
      scheme: partial models of all agents, of which alone agents fetch what they share,
        such as `partial.level(0.5)`; in place of `local_patterns`.
    """

    rewire_every: int | None
    equal_weights: bool
    scheme: Scheme | SchemeFn | None


class ServerOptions(AdverseOptions, total=False):
    """Of methods with a server.

    Attributes:
      num_clients: agents chosen in a round, uniformly and without replacement; None
        for all.
      score_before: also score the clients' models before they are averaged.
    """

    num_clients: int | None
    score_before: bool
