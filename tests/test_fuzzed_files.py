"""Damaged and hostile files: every reader ends with sound data or with one sentence.

Hypothesis damages small sound files (`file_readers`). A reader must then return data
that the package's own checks accept or raise InputError, in bounded time and memory.
"""

import contextlib
import faulthandler
import importlib
import inspect
import pkgutil
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_readers import READERS, Parts, parts_of, put
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from p2pjax.datasets import loaders
from p2pjax.datasets.checking import check_data
from p2pjax.datasets.loaders import cifar10, embedding, files, ner, pieces, text
from p2pjax.datasets.loaders.senteval import Texts
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples, stack_agents
from p2pjax.graphs import Topology
from p2pjax.types import FederatedData, InputError

MOST_MEMORY = 2**29  # bytes that reading a file of kilobytes may touch


MOST_ADDRESSES = 2**33  # bytes beyond which even untouched memory is not given


MOST_SECONDS = 20  # of computation


MOST_WAITING = 400  # seconds; other programs may use the machine


LONGEST_SENTENCE = 1500  # characters


SLOW_SECONDS = 20  # of each reader, in the slow suite


# What numbers, texts and brackets can become.
TOKENS = (
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"1e300",
        b"-1",
        b"0",
        b"0.5",
        b"1e5",
        b"null",
        b"true",
    ),
    *(b"2147483647", b"2147483648", b"9223372036854775808", b"18446744073709551616"),
    *(b"9" * 400, b"9" * 5000, b"[" * 70, b"[" * 100_000, b'{"a":' * 990, b"]", b"}"),
    *(b'"\\ud800"', b'"' + b"long " * 2000 + b'"', b'""', b"[]", b"{}", b"[[]]"),
    *(b"\x00", b"\xff\xfe", b"\r", b"\n\n", b"\x1c", b"\xe2\x80\xa8", b",", b'"'),
    *(b"\xd9\xa3", b"#", b"--flagfile=own.flags\n", b"I-", b"[PAD]\n"),
)


SIZES = (1, 2, 4, 8)


class TooSlow(BaseException):
    """Not an Exception, which readers may take for the fault of a file."""


@st.composite
def damaged(draw: Any, sound: Parts) -> Parts:
    parts = dict(sound)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(parts)))
        raw = parts[name]
        at = draw(st.integers(0, len(raw)))
        kind = draw(st.sampled_from(DAMAGES))
        changed = kind(draw, raw, at)
        if changed is None:
            other = draw(st.sampled_from(sorted(parts)))
            parts[name], parts[other] = parts[other], raw
        else:
            parts[name] = changed
    return parts


def _flip(draw, raw, at):
    return (
        raw[:at]
        + bytes(b ^ draw(st.integers(1, 255)) for b in raw[at:][:1])
        + (raw[at + 1 :])
    )


def _cut(draw, raw, at):
    return raw[:at] + raw[at + draw(st.integers(1, 5000)) :]


def _cut_off(draw, raw, at):
    del draw
    return raw[:at]


def _insert(draw, raw, at):
    return raw[:at] + draw(st.binary(min_size=1, max_size=20)) + raw[at:]


def _insert_token(draw, raw, at):
    return raw[:at] + draw(st.sampled_from(TOKENS)) + raw[at:]


def _repeat(draw, raw, at):
    piece = raw[at : at + draw(st.integers(1, 300))]
    return raw[:at] + piece * draw(st.sampled_from((2, 3, 100))) + raw[at:]


def _extreme(draw, raw, at):
    """A header's integer, of any width and order of bytes."""
    size = draw(st.sampled_from(SIZES))
    bits = 8 * size
    values = (0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1, 2 ** (bits // 2))
    value = draw(st.sampled_from(values))
    order = draw(st.sampled_from(("little", "big")))
    return raw[:at] + value.to_bytes(size, order) + raw[at + size :]


def _other_number(draw, raw, at):
    """A number that is spelled out, or a text, becomes something else."""
    del at
    found = list(re.finditer(rb'-?[0-9][0-9.e+-]*|"[^"]*"', raw))[:400]
    if not found:
        return raw
    place = draw(st.sampled_from(found))
    return raw[: place.start()] + draw(st.sampled_from(TOKENS)) + raw[place.end() :]


def _swap(draw, raw, at):
    del draw, raw, at


DAMAGES = (
    *(_flip, _cut, _cut_off, _insert, _insert_token, _repeat),
    *(_extreme, _extreme, _other_number, _other_number, _swap),
)


def read_damaged(name: str, parts: Parts) -> Any:
    """What the reader returns, checked; None if it refuses in a sentence."""
    folder = Path(tempfile.mkdtemp(prefix="p2pjax-fuzzed-"))
    try:
        put(folder, parts)
        with warnings.catch_warnings(), bounded():
            # A package may warn of what it then reads; only wrong data is a fault.
            warnings.simplefilter("ignore")
            try:
                found = READERS[name].read(folder)
            except InputError as error:
                check_sentence(str(error))
                return None
            check_sound(found)
            return found
    finally:
        shutil.rmtree(folder)


def check_sentence(message: str) -> None:
    """One readable line."""
    assert len(message) <= LONGEST_SENTENCE
    assert not re.search(r"[\x00-\x1f\ud800-\udfff]", message)


def check_sound(found: Any) -> None:
    """What is returned can be used, or is refused in a sentence where it is used."""
    if isinstance(found, Examples):
        check_examples(found)
    elif isinstance(found, Documents):
        parts = [p for p in (found.train, found.valid, found.test) if p is not None]
        assert all(len(part) == len(found.users) for part in parts)
        assert all(isinstance(user, str) for user in found.users)
        assert len(set(found.users)) == len(found.users) > 0
        with contextlib.suppress(InputError):
            text.encode(found)
    elif isinstance(found, ner.Tagged):
        with contextlib.suppress(InputError):
            ner.label_set(found)
        assert all(len(s.words) == len(s.tags) > 0 for part in found for s in part)
    elif isinstance(found, list):
        for task in found:
            assert isinstance(task, Texts)
            assert embedding.count_ngrams(task.texts).shape[0] == len(task.y)
    elif isinstance(found, Topology):
        assert found.neighbor.shape == found.mask.shape
        assert 0 <= found.neighbor.min() <= found.neighbor.max() < len(found.mask)
    else:
        assert found is not None


def check_examples(found: Examples) -> None:
    x, y, user, num_classes, is_test = found
    assert len(x) == len(y) == len(user) > 0
    assert x.size > 0
    assert x.dtype in (np.uint8, np.int32, np.float32)
    assert (y.dtype, user.dtype) == (np.int32, np.int32)
    assert 0 <= y.min() <= y.max() < num_classes < 2**31
    assert user.min() >= 0
    assert is_test is None or (is_test.dtype, is_test.shape) == (np.bool_, y.shape)
    split = stack_agents([{"x": x, "y": y}])
    check_data(FederatedData(split, split, split, np.zeros(1, np.int32)))


@contextlib.contextmanager
def bounded():
    """Neither much time nor much memory, while the context lasts."""

    def stop(signum, frame):
        del signum, frame
        raise TooSlow(f"more than {MOST_SECONDS} seconds of computation")

    # A library that never comes back to Python cannot be stopped but with the process.
    faulthandler.dump_traceback_later(MOST_WAITING, exit=True)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    Path("/proc/self/clear_refs").write_text("5")  # forget the most so far
    held = _memory("VmRSS")
    most = _memory("VmSize") + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, before)
    touched = _memory("VmHWM") - held
    assert touched < MOST_MEMORY, f"{touched} bytes of memory for a small file"


def _memory(field: str) -> int:
    """Bytes of this process."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024


def fuzz(name: str, num_examples: int, number: int = 0) -> None:
    """Tries so many damaged files; another number tries others."""

    @seed(number)
    @settings(
        max_examples=num_examples,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(parts_of(name)))
    def try_one(parts):
        read_damaged(name, parts)

    try_one()


@pytest.mark.parametrize("name", READERS)
def test_sound_files_are_read(name):
    assert read_damaged(name, parts_of(name)) is not None


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name):
    fuzz(name, 25 if READERS[name].is_quick else 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files(name):
    end = time.monotonic() + SLOW_SECONDS
    number = 0
    while time.monotonic() < end:
        number += 1
        fuzz(name, 100, number)


def test_faults_are_found(monkeypatch):
    """A reader that is not as careful as it should be."""

    def careless(folder):
        return (folder / "own.npz").read_bytes()[800]  # IndexError where it is cut

    monkeypatch.setitem(READERS, "npz", READERS["npz"]._replace(read=careless))
    with pytest.raises(IndexError):
        fuzz("npz", 50)


def test_memory_and_time_are_bounded(monkeypatch):
    with pytest.raises(AssertionError, match="bytes of memory"), bounded():
        np.ones(2 * MOST_MEMORY, np.uint8)
    with pytest.raises(MemoryError), bounded():
        np.empty(2 * MOST_ADDRESSES, np.uint8)
    monkeypatch.setattr(sys.modules[__name__], "MOST_SECONDS", 0.2)
    with pytest.raises(TooSlow), bounded():
        while True:
            pass


# They take a path, but read nothing, or what another one reads.
NO_READERS = {pieces.write, files.unreadable, files.not_found, cifar10.load_tfds}


def test_every_function_that_takes_a_path_is_fuzzed():
    """A new loader without a row in `file_readers` fails here."""
    wanted = set()
    for info in pkgutil.iter_modules(loaders.__path__, f"{loaders.__name__}."):
        module = importlib.import_module(info.name)
        for key, function in vars(module).items():
            if (
                inspect.isfunction(function)
                and function.__module__ == info.name
                and not key.startswith("_")
                and any("Path" in str(a) for a in function.__annotations__.values())
            ):
                wanted.add(inspect.unwrap(function))
    called = set()

    def note(frame, event, argument):
        del event, argument
        called.add(frame.f_code)

    for name in READERS:
        parts = parts_of(name)
        sys.setprofile(note)
        try:
            read_damaged(name, parts)
        finally:
            sys.setprofile(None)
    missing = [f for f in wanted - NO_READERS if f.__code__ not in called]
    assert not [f"{f.__module__}.{f.__qualname__}" for f in missing]
    assert len(wanted) > 30
