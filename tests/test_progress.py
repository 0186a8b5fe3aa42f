"""What a run says about itself while it goes on."""

import doctest
import io

import pytest
from absl import logging

from experiments.engine import progress, writers
from experiments.engine.progress import Progress


def test_examples_in_the_documentation():
    for module in (progress, writers):
        assert doctest.testmod(module).attempted
        assert not doctest.testmod(module).failed


@pytest.fixture
def clock(monkeypatch):
    """A time that only goes on when it is told to."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def verbosity():
    before = logging.get_verbosity()
    yield logging.set_verbosity
    logging.set_verbosity(before)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def four_reports(clock):
    with Progress(total_rounds=1100, done_before=100) as said:
        said.say("dpsgd: compiling")
        clock[0] += 30
        said.begin()
        for examples in (5000, 80_000):
            clock[0] += 4
            said.advance(
                100, "dpsgd, run 0", accuracy=0.91234, messages=1234, examples=examples
            )
        clock[0] += 2
        said.advance(1, "pens, run 0", accuracy=float("nan"), messages=0, examples=None)


LINES = [
    "dpsgd: compiling",
    "200/1100 rounds, 5 min 6 s left, dpsgd, run 0: accuracy 0.912, 1,234 messages, "
    "1,250 examples/s",
    "300/1100 rounds, 2 min 32 s left, dpsgd, run 0: accuracy 0.912, 1,234 messages, "
    "20,000 examples/s",
    "301/1100 rounds, 2 min 39 s left, pens, run 0: accuracy nan, 0 messages, "
    "0.5 rounds/s",
]


def test_plain_lines_where_there_is_no_terminal(clock, verbosity, caplog):
    verbosity(logging.INFO)
    with caplog.at_level("INFO", "absl"):
        four_reports(clock)
    assert caplog.messages == LINES


def test_a_bar_with_the_same_facts_on_a_terminal(clock, verbosity, monkeypatch, caplog):
    verbosity(logging.INFO)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    four_reports(clock)
    shown = [state.rstrip() for state in terminal.getvalue().split("\r")]
    assert any(" 9%|" in state and LINES[0] in state for state in shown)
    for line in LINES[1:]:
        assert any(state.endswith(line) for state in shown)
    assert not caplog.messages


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_only_warnings_are_shown_at_verbosity_minus_1(
    clock, verbosity, monkeypatch, capsys, stream
):
    verbosity(logging.WARNING)
    monkeypatch.setattr("sys.stderr", stream())
    four_reports(clock)
    assert not progress.sys.stderr.getvalue()
