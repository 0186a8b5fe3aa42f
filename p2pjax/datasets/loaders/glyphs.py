"""Procedural handwriting: 28x28 digits and letters by any number of writers.

A stand-in for FEMNIST that needs no download. The 62 characters are pen strokes
(`glyph_strokes.py`). A writer has a style (slant, width, size, pen, angularity,
height of the small letters, a smooth warp of the page), chooses once how to draw each
character where several forms are usual, and displaces the points of each character a
little, always the same way. A sample adds a fresh jitter of points, strokes,
rotation, position, size and pen. So writers agree on what a character is, and each
differs from the others more than from itself.

Everything follows from `seed`. User u's examples depend on the seed, on u, on
samples_per_user and on num_classes, never on num_users: a larger num_users extends
the set and leaves the first users as they were. The hand of user u (style and forms)
depends on the seed and u alone.
"""

from typing import NamedTuple

import numpy as np

from p2pjax.datasets.loaders.glyph_strokes import ALPHABET, DESCENDER, FORMS, X_HEIGHT
from p2pjax.datasets.stacking import Examples
from p2pjax.host_memory import check_room
from p2pjax.types import InputError

# Axis letters of this module: F forms, A characters (62), T control points (padded),
# P pieces of the pen's path, S samples, H = W = 28 pixels.
_SIDE = 28


SHAPE = (_SIDE, _SIDE)  # of an image


_PIECES = 112


_LARGEST = 24.0  # pixels that the path of the pen may span


_DARKNESS = 3.0  # ink in the middle of a line: 1 - exp(-3)


_HALF_WIDTH = float(np.sqrt(2 * np.log(_DARKNESS / np.log(2))))  # in sigmas, ink 1/2


_BLOCK = 128  # images rendered at once


class Forms(NamedTuple):
    """All forms of all characters; the path is linear in the control points."""

    points: np.ndarray  # [F, T, 2], capitals are 1 high
    stroke: np.ndarray  # [F, T] which stroke a point belongs to
    smooth: np.ndarray  # [F, P + P, T] to where the pieces of the path begin and end
    angular: np.ndarray  # [F, P + P, T] the same with straight lines
    character: np.ndarray  # [F]


class Hand(NamedTuple):
    """What stays the same in all that one writer writes."""

    points: np.ndarray  # [A, T, 2]
    stroke: np.ndarray  # [A, T]
    path: np.ndarray  # [A, P + P, T]
    frame: np.ndarray  # [2, 2] width, slant, size: to pixels
    pen: np.ndarray  # [2] width of a vertical and of a horizontal line in pixels
    wobble: np.ndarray  # [A, 1, 1] factor of the jitter of points and strokes
    sloppiness: float  # factor of every other jitter


def glyphs(
    num_users: int, samples_per_user: int, *, seed: int = 0, num_classes: int = 62
) -> Examples:
    """Handwritten characters by many writers, drawn by the computer.

    Args:
        num_users: writers; user u's examples do not depend on it.
        samples_per_user: images per writer, classes balanced as far as that permits.
        seed: any integer from 0; another seed is another population of writers.
        num_classes: 62 for 0-9, A-Z, a-z in this order, or 10 for the digits.

    Returns:
        Examples with x uint8 [E, 28, 28] (ink 255 on 0), user by user, each user's
        classes in random order.

    Raises:
        InputError: if an argument is out of its range.
    """
    _check(num_users, samples_per_user, seed, num_classes)
    check_room(
        num_users * samples_per_user * _SIDE**2,
        f"{samples_per_user} images of each of {num_users} writers",
    )
    forms = _all_forms()
    x = np.empty((num_users, samples_per_user, _SIDE, _SIDE), np.uint8)
    y = np.empty((num_users, samples_per_user), np.int32)
    for user in range(num_users):
        habit, day = (
            np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(user, part)))
            for part in range(2)
        )
        hand = _draw_hand(habit, forms)
        y[user] = _balanced_labels(day, samples_per_user, num_classes)
        for start in range(0, samples_per_user, _BLOCK):
            block = slice(start, start + _BLOCK)
            x[user, block] = _render(*_write(day, hand, y[user, block]))
    return Examples(
        x=x.reshape(-1, _SIDE, _SIDE),
        y=y.reshape(-1),
        user=np.repeat(np.arange(num_users, dtype=np.int32), samples_per_user),
        num_classes=num_classes,
    )


def _check(num_users: int, samples_per_user: int, seed: int, num_classes: int) -> None:
    if num_users < 1:
        raise InputError(
            f"glyphs needs at least one writer, but num_users is {num_users}: "
            "set num_users to 1 or more."
        )
    if samples_per_user < 1:
        raise InputError(
            "glyphs needs at least one image per writer, but samples_per_user is "
            f"{samples_per_user}: set samples_per_user to 1 or more."
        )
    if seed < 0:
        raise InputError(
            f"glyphs needs a seed from 0 upwards, but seed is {seed}: "
            "set seed to 0 or a positive integer."
        )
    if num_classes not in (10, len(ALPHABET)):
        raise InputError(
            "glyphs draws 10 classes (digits) or 62 (digits, A-Z, a-z), but "
            f"num_classes is {num_classes}: set num_classes to 10 or 62."
        )


def _balanced_labels(
    rng: np.random.Generator, samples: int, num_classes: int
) -> np.ndarray:  # [S]
    """Repeats all classes; which of them come once more is drawn, then the order."""
    repeated = np.resize(rng.permutation(num_classes), samples)
    return rng.permutation(repeated)


def _all_forms() -> Forms:
    parsed = [_parse(form) for char in ALPHABET for form in FORMS[char]]
    width = max(len(points) for points, _, _ in parsed)
    count = len(parsed)
    forms = Forms(
        points=np.zeros((count, width, 2), np.float32),
        stroke=np.zeros((count, width), np.int64),
        smooth=np.zeros((count, 2 * _PIECES, width), np.float32),
        angular=np.zeros((count, 2 * _PIECES, width), np.float32),
        character=np.repeat(
            np.arange(len(ALPHABET)), [len(FORMS[char]) for char in ALPHABET]
        ),
    )
    for f, (points, stroke, spans) in enumerate(parsed):
        used = len(points)
        forms.points[f, :used] = points / 100
        forms.stroke[f, :used] = stroke
        forms.smooth[f, :, :used], forms.angular[f, :, :used] = _matrices(points, spans)
    return forms


def _parse(form: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Points [T, 2], strokes [T], and the points of each span between corners."""
    points: list[list[float]] = []
    stroke: list[int] = []
    spans: list[np.ndarray] = []
    for number, text in enumerate(form.split("/")):
        span: list[int] = []
        for token in text.split():
            span.append(len(points))
            stroke.append(number)
            points.append([float(part) for part in token.rstrip("!").split(",")])
            if token.endswith("!"):
                spans.append(np.array(span))
                span = span[-1:]
        spans.append(np.array(span))
    return np.array(points), np.array(stroke), [s for s in spans if len(s) > 1]


def _matrices(
    points: np.ndarray, spans: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:  # twice [P + P, T]
    """Matrices from control points to the two ends of P equally long pieces."""
    finely = 64  # parameter values per span to measure lengths at
    traces, lengths = [], []
    for span in spans:
        smooth, angular = _interpolators(points[span], finely)  # [finely, span]
        trace = np.zeros((2, finely, len(points)))
        trace[:, :, span] = smooth, angular
        steps = np.linalg.norm(np.diff(trace[0] @ points, axis=0), axis=1)
        traces.append(trace)
        lengths.append(np.concatenate([[0], np.cumsum(steps)]))
    total = np.array([length[-1] for length in lengths])
    last = np.rint(np.cumsum(total) / total.sum() * _PIECES).astype(int)
    pieces = np.diff(last, prepend=0)
    begins, ends = [], []
    for trace, length, count in zip(traces, lengths, pieces, strict=True):
        # Rows at which each of the count + 1 borders between pieces falls.
        row = np.interp(np.linspace(0, length[-1], count + 1), length, range(finely))
        below = np.minimum(row.astype(int), finely - 2)
        part = (row - below)[None, :, None]
        border = (1 - part) * trace[:, below] + part * trace[:, below + 1]
        begins.append(border[:, :-1])
        ends.append(border[:, 1:])
    smooth, angular = np.concatenate(begins + ends, axis=1)
    return smooth, angular


def _interpolators(
    points: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:  # twice [count, T]
    """A cubic spline and a polyline through the points of one span, as matrices."""
    from scipy.interpolate import CubicSpline

    chords = np.linalg.norm(np.diff(points, axis=0), axis=1)
    knots = np.concatenate([[0], np.cumsum(chords)])
    times = np.linspace(0, knots[-1], count)
    basis = np.eye(len(points))
    angular = np.stack([np.interp(times, knots, column) for column in basis], axis=1)
    if len(points) == 2:
        return angular, angular
    if not np.array_equal(points[0], points[-1]):
        return CubicSpline(knots, basis, bc_type="natural")(times), angular
    # Closed: smooth where the ends meet; when they are moved apart the gap opens.
    basis[-1] = basis[0]
    smooth = CubicSpline(knots, basis, bc_type="periodic")(times)
    opening = (times / knots[-1]) ** 2
    smooth[:, 0] -= opening
    smooth[:, -1] += opening
    return smooth, angular


def _draw_hand(rng: np.random.Generator, forms: Forms) -> Hand:
    slant = np.clip(rng.normal(0.1, 0.17), -0.3, 0.5)
    width = rng.uniform(0.78, 1.18)
    size = rng.uniform(14.5, 19.5)  # pixels of a capital's height
    pen = size * rng.uniform(0.095, 0.165)
    nib = np.exp(rng.normal(0, 0.1) * np.array([1, -1]))
    angularity = rng.beta(1, 3) * 0.8
    sloppiness = rng.uniform(0.6, 1.4)
    x_height = rng.uniform(0.46, 0.66)
    ascender = rng.uniform(0.9, 1.12)
    descender = rng.uniform(-0.5, -0.28)

    favour = rng.gumbel(size=len(forms.character))
    first = np.searchsorted(forms.character, np.arange(len(ALPHABET)))
    favour[first] += 0.3  # the usual form wins a little more often
    chosen = np.array(
        [
            start + favour[start:stop].argmax()
            for start, stop in zip(
                first, [*first[1:], len(forms.character)], strict=True
            )
        ]
    )
    points = forms.points[chosen].copy()  # [A, T, 2]
    small = np.array([char.islower() for char in ALPHABET])
    points[small, :, 1] = np.interp(
        points[small, :, 1],
        [2 * DESCENDER / 100, 0, X_HEIGHT / 100, 1],
        [2 * descender, 0, x_height, ascender],
    )
    points += _warp(rng, points)
    freedom = np.where(small, 0.75, 1.0)[:, None, None]  # small letters, small moves
    points += freedom * rng.normal(0, 0.032, points.shape)
    path = (1 - angularity) * forms.smooth[chosen] + angularity * forms.angular[chosen]
    return Hand(
        points=points,
        stroke=forms.stroke[chosen],
        path=path.astype(np.float32),
        frame=size * np.array([[width, slant], [0, 1]]),
        pen=pen * nib,
        wobble=sloppiness * freedom,
        sloppiness=sloppiness,
    )


def _warp(rng: np.random.Generator, points: np.ndarray) -> np.ndarray:  # [A, T, 2]
    """A smooth field of displacements, the same for all characters of a writer."""
    waves = 3
    frequency = rng.normal(0, 3.0, (2, waves))
    phase = rng.uniform(0, 2 * np.pi, waves)
    amplitude = rng.normal(0, 0.03, (waves, 2))
    return np.sin(points @ frequency + phase) @ amplitude


def _write(
    rng: np.random.Generator, hand: Hand, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ends [S, 2, P, 2] of the pen's pieces in pixels, and its width [S, 2]."""
    count = len(labels)
    sloppiness = hand.sloppiness
    points = hand.points[labels]  # [S, T, 2]
    wobble = hand.wobble[labels]
    points = points + wobble * rng.normal(0, 0.02, points.shape)
    strokes = hand.stroke.max() + 1
    moved = wobble * rng.normal(0, 0.022, (count, strokes, 2))
    points += moved[np.arange(count)[:, None], hand.stroke[labels]]

    ends = hand.path[labels] @ points.astype(np.float32)  # [S, P + P, 2]
    turn = sloppiness * rng.normal(0, 0.06, count)
    cosine, sine = np.cos(turn), np.sin(turn)
    rotation = np.stack([cosine, -sine, sine, cosine], axis=-1).reshape(-1, 2, 2)
    scale = np.exp(sloppiness * rng.normal(0, 0.05, (count, 2, 1)))
    frame = rotation @ (scale * hand.frame)  # [S, 2, 2]
    ends = ends @ frame.swapaxes(1, 2).astype(np.float32)

    low, high = ends.min(axis=1, keepdims=True), ends.max(axis=1, keepdims=True)
    fit = np.minimum(1, _LARGEST / (high - low).max(axis=2, keepdims=True))
    shift = np.clip(sloppiness * rng.normal(0, 0.7, (count, 1, 2)), -2, 2)
    ends = (ends - (low + high) / 2) * fit + shift  # the middle is 0
    pen = hand.pen * np.exp(sloppiness * rng.normal(0, 0.08, (count, 1)))
    return ends.reshape(count, 2, _PIECES, 2).astype(np.float32), pen


def _render(ends: np.ndarray, pen: np.ndarray) -> np.ndarray:  # uint8 [S, H, W]
    """Draws pieces [S, 2, P, 2] with pens [S, 2].

    Each piece is a Gaussian blot weighted by its length, a product of a factor in x
    and one in y, so an image is one matrix product; the exponential saturates.
    """
    sigma = (pen / 2 / _HALF_WIDTH).astype(np.float32)  # [S, 2]
    middle = ends.mean(axis=1)  # [S, P, 2]
    length = np.linalg.norm(ends[:, 1] - ends[:, 0], axis=2)  # [S, P]
    # A long straight line of blots adds up to sqrt(2 pi) sigma in its middle.
    weight = length * (_DARKNESS / np.sqrt(2 * np.pi * sigma.prod(axis=1)))[:, None]
    pixel = np.arange(_SIDE, dtype=np.float32) - (_SIDE - 1) / 2
    factors = []
    for axis, places in ((0, pixel), (1, -pixel)):  # the rows go down, y goes up
        away = places[:, None] - middle[:, None, :, axis]  # [S, 28, P]
        away /= sigma[:, axis, None, None]
        np.multiply(away, away, out=away)
        away *= -0.5
        factors.append(np.exp(away, out=away))
    across, down = factors
    down *= weight[:, None, :]
    ink = 1 - np.exp(-(down @ across.swapaxes(1, 2)))
    return np.rint(255 * ink).astype(np.uint8)
