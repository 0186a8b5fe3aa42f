"""Peer sampling for partial models: views tell who implements what.

Jelasity, Voulgaris, Guerraoui, Kermarrec, van Steen (2007), "Gossip-based peer
sampling", https://doi.org/10.1145/1275517.1275520; Voulgaris, van Steen (2013),
"VICINITY: a pinch of randomness brings out the structure". Each agent knows a few
others by name, age and the models that they implement. Once in a round it tells one of
them what it knows, who answers with the same. Beside a view of any agents it keeps, of
each of its models, members that it has heard of, and tells others first about members
of theirs: so members of a rare model find each other.
"""

import numpy as np

from p2pjax.partial.overlays import Members, Overlay
from p2pjax.types import InputError


def peer_sampling(
    view_size: int = 8, *, num_contacts: int = 2, absent: float = 0.0
) -> Overlay:
    """Members are found by gossip of views, for `per_model`.

    Names and numbers of models travel beside the models; they are not counted.

    Args:
      view_size: agents that an agent knows, and members of each of its models.
      num_contacts: random agents whom each knows at the start, 2 or more, or again
        when it knows none that is there.
      absent: probability of each agent to be away in a round: it contacts no agent,
        and who contacts it in vain forgets it.

    Example:
      >>> members = {0: np.arange(20), 1: np.array([3, 17])}
      >>> overlay, rng = peer_sampling(6), np.random.default_rng(0)
      >>> contacts = overlay.contacts(rng, members, 20, 15, 1)
      >>> contacts[1][-1, 0].tolist()  # the two members of model 1 have met
      [17, 3]
    """
    if view_size < 2 or num_contacts < 2:
        raise InputError(
            "Need views of 2 agents or more and 2 contacts or more at the start, got "
            f"{view_size} and {num_contacts}: with fewer, agents fall into parts that "
            "never hear of each other."
        )
    if not 0 <= absent < 1:
        raise InputError(
            f"Need a probability to be absent from 0 to below 1, got {absent}."
        )

    def contacts_fn(
        rng: np.random.Generator, members: Members, size: int, rounds: int, cycles: int
    ) -> dict[int, np.ndarray]:
        views = _Views(rng, members, size, view_size, num_contacts)
        found = {
            model: np.tile(who, (rounds, cycles, 1)) for model, who in members.items()
        }
        for t in range(rounds):
            is_here = rng.random(size) >= absent
            views.exchange(is_here)
            for model, who in members.items():
                for slot, agent in enumerate(who.tolist()):
                    if is_here[agent]:
                        known = views.present_members(agent, model, is_here)
                        if known:
                            chosen = rng.integers(len(known), size=cycles)
                            found[model][t, :, slot] = np.asarray(known)[chosen]
        return found

    return Overlay(contacts_fn)


class _Views:
    """What each agent knows: agents with the age of the news about them."""

    def __init__(
        self,
        rng: np.random.Generator,
        members: Members,
        size: int,
        view_size: int,
        num_contacts: int,
    ) -> None:
        self._rng, self._size, self._view_size = rng, size, view_size
        self._num_contacts = min(num_contacts, size - 1)
        self._models: list[set[int]] = [set() for _ in range(size)]
        for model, who in members.items():
            for agent in who.tolist():
                self._models[agent].add(model)
        self._any: list[dict[int, int]] = [{} for _ in range(size)]
        self._of_model: list[dict[int, dict[int, int]]] = [
            {model: {} for model in models} for models in self._models
        ]

    def exchange(self, is_here: np.ndarray) -> None:
        """One round: each agent that is here asks one that it knows."""
        for views in (*self._any, *(v for of in self._of_model for v in of.values())):
            for other in views:
                views[other] += 1
        for agent in self._rng.permutation(np.flatnonzero(is_here)).tolist():
            partner = self._partner(agent, is_here)
            if partner is None:
                continue
            told, answer = self._news(agent, partner), self._news(partner, agent)
            self._hear(partner, told)
            self._hear(agent, answer)

    def present_members(self, agent: int, model: int, is_here: np.ndarray) -> list[int]:
        """Members that the agent knows; those that are away it forgets."""
        known = self._of_model[agent][model]
        for other in [other for other in known if not is_here[other]]:
            del known[other]
        return sorted(known)

    def _partner(self, agent: int, is_here: np.ndarray) -> int | None:
        """The one of which it has heard the least lately; who is away is forgotten."""
        view = self._any[agent]
        while view:
            oldest = max(view, key=lambda other: (view[other], self._rng.random()))
            if is_here[oldest]:
                return oldest
            del view[oldest]
        others = np.setdiff1d(np.flatnonzero(is_here), [agent])
        count = min(self._num_contacts, len(others))
        for other in self._rng.choice(others, count, replace=False).tolist():
            self._hear(agent, {other: 0})
        return next(iter(view), None)

    def _news(self, agent: int, to: int) -> dict[int, int]:
        """Itself, members of the other's models, and half of a view of others."""
        known = dict(self._any[agent])
        for of_model in self._of_model[agent].values():
            known |= of_model
        wanted = [o for o in known if self._models[o] & self._models[to] and o != to]
        # Of rare models first, or those of a common one would fill the message.
        wanted.sort(key=lambda other: (self._rarest(other, to), known[other]))
        others = self._rng.permutation([o for o in self._any[agent] if o != to])
        half = max(1, self._view_size // 2)
        chosen = [*wanted[: self._view_size], *others[:half].tolist()]
        return {agent: 0} | {int(other): known[int(other)] for other in chosen}

    def _rarest(self, other: int, to: int) -> int:
        shared = self._models[other] & self._models[to]
        return min(len(self._of_model[to][model]) for model in shared)

    def _hear(self, agent: int, news: dict[int, int]) -> None:
        for other, age in news.items():
            if other == agent:
                continue
            views = [self._of_model[agent][m] for m in self._shared(agent, other)]
            for view in (self._any[agent], *views):
                view[other] = min(age, view.get(other, age))
                if len(view) > self._view_size:  # the oldest news goes
                    del view[max(view, key=lambda o: (view[o], self._rng.random()))]

    def _shared(self, agent: int, other: int) -> set[int]:
        return self._models[agent] & self._models[other]
