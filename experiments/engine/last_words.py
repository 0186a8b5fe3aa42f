"""Passes standard error on; where JAX ends a process, one sentence stands for a page.

    python last_words.py SENTENCE

JAX's runtime ends a process from a thread of its own when the coordinator has gone or
another process is silent: no exception and no handler in Python comes before that, and
nothing in the process can speak after it. So a process that is one of several writes
its standard error into this program. It says the sentence once, whether the process or
the runtime was faster.
"""

import re
import sys

_TROUBLE = re.compile(rb"[WEF]\d{4} .*(coordination_service|client\.h)")
_END = b"JAX distributed service detected fatal errors"
_CHATTER = b"[Gloo] Rank "


def main() -> None:
    """Reads until the process has ended."""
    sentence = sys.argv[1].encode() + b"\n"
    held: list[bytes] = []  # from the first sign of trouble on
    lines = iter(sys.stdin.buffer.readline, b"")
    for line in lines:
        if line == sentence or _END in line:
            _say(sentence)
            held = []
            break
        if held or _TROUBLE.match(line):
            held.append(line)
        elif not line.startswith(_CHATTER):
            _say(line)
    for _ in lines:  # of which all is about the same
        pass
    for line in held:
        _say(line)


def _say(line: bytes) -> None:
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()


if __name__ == "__main__":
    main()
