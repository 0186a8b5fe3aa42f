"""How far a run is: a bar on a terminal, plain lines elsewhere, with the same facts.

`--verbosity=-1` hides both and leaves warnings.
"""

import sys
import time
from types import TracebackType

from absl import logging
from tqdm import tqdm


class Progress:
    """Rounds of all jobs; use it as a context."""

    def __init__(self, total_rounds: int, done_before: int = 0):
        self._total = total_rounds
        self._done = self._before = done_before
        self._first = self._last = time.monotonic()
        self._bar = tqdm(
            total=total_rounds,
            initial=done_before,
            disable=not (_on_terminal() and logging.level_info()),
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rounds{postfix}",
        )

    def __enter__(self) -> "Progress":
        """Does nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves the bar as it is."""
        self._bar.close()

    def say(self, text: str) -> None:
        """Says why nothing happens for a while."""
        self._bar.set_postfix_str(text)
        if not _on_terminal():
            logging.info("%s", text)

    def begin(self) -> None:
        """Starts the clock of the rate: what came before was no training."""
        self._last = time.monotonic()

    def advance(
        self,
        rounds: int,
        label: str,
        *,
        accuracy: float,
        messages: float,
        examples: float | None,
    ) -> None:
        """Reports that `rounds` more rounds are done.

        Args:
          rounds: since the last report, of all runs together.
          label: what is running.
          accuracy: mean over agents.
          messages: sent since the start of the run, mean over agents.
          examples: trained on since the last report; None if the method does not tell.
        """
        self._done += rounds
        now = time.monotonic()
        per_round = (now - self._first) / (self._done - self._before)
        seconds, self._last = max(now - self._last, 1e-6), now
        rate = f"{rounds / seconds:,.1f} rounds/s"
        if examples is not None:
            rate = f"{examples / seconds:,.0f} examples/s"
        # What matters least comes last: narrow terminals cut it off.
        text = (
            f"{duration(per_round * (self._total - self._done))} left, {label}: "
            f"accuracy {accuracy:.3f}, {messages:,.0f} messages, {rate}"
        )
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(rounds)
        self._bar.refresh()
        if not _on_terminal():
            logging.info("%d/%d rounds, %s", self._done, self._total, text)


def duration(seconds: float) -> str:
    """A time for a person.

    >>> duration(7.6), duration(200), duration(7500)
    ('8 s', '3 min 20 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _on_terminal() -> bool:
    return sys.stderr.isatty()
