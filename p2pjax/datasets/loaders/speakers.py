"""Made-up texts by any number of speakers, for next-word prediction without files.

A small grammar writes English sentences about a few topics. All speakers share what a
network can learn from others: the sentences' patterns, and which adjectives, verbs,
objects and places usually go with a word. A speaker has a main topic, things it likes
to talk about, patterns it likes, turns of phrase it opens and closes with, and friends
whose names no other speaker knows. So many words follow from those before them, some
only for those who know the speaker, and speakers of one topic help each other most.

Everything follows from the seed. Speaker u's texts depend on the seed, on u, on
num_texts and on num_topics, never on num_speakers.
"""

from bisect import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from p2pjax.datasets.loaders.ner import Sentence
from p2pjax.datasets.loaders.text import Documents
from p2pjax.host_memory import check_room
from p2pjax.types import InputError


class Topic(NamedTuple):
    """The words of one topic."""

    things: tuple[str, ...]
    actions: tuple[str, ...]  # in the past tense, which fits every subject
    qualities: tuple[str, ...]
    places: tuple[str, ...]


class Habits(NamedTuple):
    """What usually goes together in one topic: ids, the most usual first."""

    quality: np.ndarray  # [things, 3]
    action: np.ndarray  # [things, 3]
    object: np.ndarray  # [actions, 3] things
    place: np.ndarray  # [actions, 3]


def _topic(things: str, actions: str, qualities: str, places: str) -> Topic:
    return Topic(*(tuple(w.split()) for w in (things, actions, qualities, places)))


TOPICS = (
    _topic(
        "keeper striker ball referee captain coach defender goal whistle post net fan",
        "kicked passed missed saved blocked praised watched carried",
        "fast tired lucky brave young famous careless strong",
        "stadium field bench tunnel stand",
    ),
    _topic(
        "cook soup bread onion butter knife pan cake pepper dough cheese guest",
        "baked stirred tasted burned served sliced salted warmed",
        "fresh sweet hot bitter crisp thin golden heavy",
        "kitchen oven table market cellar",
    ),
    _topic(
        "sailor boat anchor sail rope wave harbour wind mast storm compass gull",
        "steered pulled dropped crossed raised followed tied feared",
        "salty wild calm broken distant grey steep loose",
        "deck coast island pier bay",
    ),
    _topic(
        "gardener rose seed spade apple tree hedge bee weed tomato fence frog",
        "planted watered picked trimmed dug moved protected found",
        "green ripe tall thorny early dry tender wide",
        "greenhouse orchard meadow pond shed",
    ),
    _topic(
        "coder robot server bug keyboard test screen network compiler file code log",
        "wrote fixed deleted copied tested started stopped measured",
        "slow clever empty hidden broken simple large silent",
        "office lab basement cloud desk",
    ),
    _topic(
        "singer piano drum song violin choir melody concert trumpet rhythm stage band",
        "played sang tuned recorded practised heard wrote loved",
        "loud soft sad cheerful old slow bright gentle",
        "theatre studio square church hall",
    ),
)


PATTERNS = (
    "the QUALITY THING ACTION the OBJECT",
    "FRIEND and i ACTION the OBJECT at the PLACE",
    "we saw the QUALITY THING near the PLACE",
    "i think that the THING is QUALITY",
    "did you hear how the THING ACTION the OBJECT",
    "every DAY the THING ACTION the OBJECT at the PLACE",
    "there was no QUALITY THING at the PLACE",
    "FRIEND says that a THING should never be QUALITY",
    "on DAY we ACTION the OBJECT again",
    "nobody knows why FRIEND ACTION my OBJECT",
)


TAGS = {
    "THING": "B-THING",
    "OBJECT": "B-THING",
    "FRIEND": "B-PERSON",
    "PLACE": "B-PLACE",
}


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


OPENINGS = (
    "well",
    "you know",
    "to be honest",
    "listen",
    "as far as i know",
    "believe it or not",
    "in my opinion",
    "oh dear",
    "by the way",
    "guess what",
)


CLOSINGS = (
    "my friend",
    "as always",
    "if you ask me",
    "and that is that",
    "thank goodness",
    "more or less",
    "so they say",
    "for what it is worth",
)


_SYLLABLES = tuple(c + v for c in "bdfgklmnprstvz" for v in "aeiou")


_USUAL = (0.7, 0.9)  # below these the first, the second, else the third companion


_FAVOURITE = 0.7  # of the days a speaker names


_MAIN = 0.8  # of a speaker's sentences are about its main topic


_OPENS, _CLOSES = 0.5, 0.3  # shares of sentences


_BYTES = 170  # of a text as Python holds it, measured


class Speaker(NamedTuple):
    """What stays the same in all that one speaker says."""

    topics: list[float]  # below which number which topic is drawn; the last is open
    things: list[float]  # the same, for the things of every topic
    patterns: list[float]
    openings: tuple[str, ...]
    closing: str
    day: str  # its favourite
    friends: tuple[str, ...]


def speakers(
    num_speakers: int, num_texts: int = 30, *, seed: int = 0, num_topics: int = 4
) -> Documents:
    """Texts by speakers with habits of their own, written by the computer.

    Args:
        num_speakers: users; speaker u's main topic, and group, is u % num_topics.
        num_texts: texts of each, of one to three sentences, about 20 words.
        seed: any integer from 0; another seed is another population with other habits.
        num_topics: 1 to 6.

    Raises:
        InputError: if an argument is out of its range.
    """
    population = _population(num_speakers, num_texts, seed, num_topics)
    return Documents(
        users=[f"speaker_{number}" for number in range(num_speakers)],
        train=[
            [_text(_spoken(rng, speaker, habits)) for _ in range(num_texts)]
            for rng, speaker, habits in population
        ],
        group=(np.arange(num_speakers) % num_topics).astype(np.int32),
    )


def _population(
    num_speakers: int, num_texts: int, seed: int, num_topics: int
) -> list[tuple[np.random.Generator, Speaker, list[Habits]]]:
    """Every speaker, the source of what it says, and what is usual among all."""
    if num_speakers < 1 or num_texts < 1 or seed < 0:
        raise InputError(
            "Need at least one speaker, one text of each and a seed of 0 or more, got "
            f"{num_speakers} speakers, {num_texts} texts and seed {seed}."
        )
    if not 1 <= num_topics <= len(TOPICS):
        raise InputError(f"Need 1 to {len(TOPICS)} topics, got {num_topics}.")
    check_room(
        num_speakers * num_texts * _BYTES,
        f"{num_texts} texts of each of {num_speakers} speakers",
    )
    shared = np.random.default_rng([seed, 0])
    habits = [_habits(shared, topic) for topic in TOPICS]
    every = []
    for number in range(num_speakers):
        rng = np.random.default_rng([seed, 1, number])
        every.append((rng, _speaker(rng, number % num_topics, num_topics), habits))
    return every


def tagged_speakers(
    num_speakers: int, num_texts: int = 30, *, seed: int = 0, num_topics: int = 4
) -> list[list[Sentence]]:
    """The sentences of `speakers` with tags, of every speaker.

    Entities are things (B-THING, or B-THING I-THING with the quality before it),
    friends (B-PERSON) and places (B-PLACE).
    """
    found: list[list[Sentence]] = []
    for rng, speaker, habits in _population(num_speakers, num_texts, seed, num_topics):
        texts = [_spoken(rng, speaker, habits) for _ in range(num_texts)]
        found.append([_tagged(sentence) for text in texts for sentence in text])
    return found


def _habits(rng: np.random.Generator, topic: Topic) -> Habits:
    def usual(count: int, choices: int) -> np.ndarray:  # [count, 3], no repetition
        return rng.permuted(np.tile(np.arange(choices), (count, 1)), axis=1)[:, :3]

    things, actions, qualities, places = (len(words) for words in topic)
    return Habits(
        quality=usual(things, qualities),
        action=usual(things, actions),
        object=usual(actions, things),
        place=usual(actions, places),
    )


def _speaker(rng: np.random.Generator, main: int, num_topics: int) -> Speaker:
    topics = np.full(num_topics, (1 - _MAIN) / num_topics)
    topics[main] += _MAIN
    return Speaker(
        topics=_limits(topics),
        things=_limits(rng.dirichlet(np.full(len(TOPICS[0].things), 1.0))),
        patterns=_limits(rng.dirichlet(np.full(len(PATTERNS), 1.5))),
        openings=tuple(rng.choice(OPENINGS, 2, replace=False).tolist()),
        closing=str(rng.choice(CLOSINGS)),
        day=str(rng.choice(DAYS)),
        friends=tuple("".join(rng.choice(_SYLLABLES, 3)) for _ in range(2)),
    )


def _limits(shares: np.ndarray) -> list[float]:
    """For `bisect` with a number in 0..1: where each choice but the last ends."""
    return np.cumsum(shares)[:-1].tolist()


class Said(NamedTuple):
    """A sentence: words of a pattern, each with its slot, and what is around them."""

    opening: str
    words: list[tuple[str, str]]
    closing: str


def _text(sentences: list[Said]) -> str:
    return " ".join(_written(sentence).capitalize() + "." for sentence in sentences)


def _written(sentence: Said) -> str:
    middle = " ".join(word for word, _ in sentence.words)
    parts = [sentence.opening, middle, sentence.closing]
    return ", ".join(part for part in parts if part)


def _tagged(sentence: Said) -> Sentence:
    words, tags = sentence.opening.split(), ["O"] * len(sentence.opening.split())
    slots = [slot for _, slot in sentence.words] + [""]
    for place, (word, slot) in enumerate(sentence.words):
        words.append(word)
        if slot == "QUALITY" and slots[place + 1] == "THING":
            tags.append("B-THING")
        elif slot == "THING" and place and slots[place - 1] == "QUALITY":
            tags.append("I-THING")
        else:
            tags.append(TAGS.get(slot, "O"))
    closing = sentence.closing.split()
    return Sentence(words + closing, tags + ["O"] * len(closing))


def _spoken(
    rng: np.random.Generator, speaker: Speaker, habits: list[Habits]
) -> list[Said]:
    """One text."""
    topic = bisect(speaker.topics, rng.random())
    return [
        _sentence(rng, speaker, TOPICS[topic], habits[topic])
        for _ in range(rng.integers(1, 4))
    ]


def _sentence(
    rng: np.random.Generator, speaker: Speaker, topic: Topic, habits: Habits
) -> Said:
    chances = iter(rng.random(13).tolist())

    def usual(companions: np.ndarray) -> int:
        return companions[bisect(_USUAL, next(chances))]

    def any_of(choices: Sequence[str]) -> str:
        return choices[int(next(chances) * len(choices))]

    thing = bisect(speaker.things, next(chances))
    action = usual(habits.action[thing])
    words = {
        "THING": topic.things[thing],
        "ACTION": topic.actions[action],
        "QUALITY": topic.qualities[usual(habits.quality[thing])],
        "OBJECT": topic.things[usual(habits.object[action])],
        "PLACE": topic.places[usual(habits.place[action])],
        "DAY": speaker.day if next(chances) < _FAVOURITE else any_of(DAYS),
        "FRIEND": any_of(speaker.friends),
    }
    pattern = PATTERNS[bisect(speaker.patterns, next(chances))]
    return Said(
        opening=any_of(speaker.openings) if next(chances) < _OPENS else "",
        words=[(words.get(slot, slot), slot) for slot in pattern.split()],
        closing=speaker.closing if next(chances) < _CLOSES else "",
    )
