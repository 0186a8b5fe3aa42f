"""Run folders with any bytes or values changed are read, or refused in one sentence."""

import contextlib
import io
import json
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from run_folders import OF_RUNS, OF_TREES, TASKS, place_of, write_good, write_tree

from experiments import overview
from experiments.claims import figure

PROGRAMS = OF_RUNS | OF_TREES
FILES = [(program, name) for program, found in PROGRAMS.items() for name in found.reads]
BOUND = 20  # seconds for a file in the long test

# Bytes in the place of some others: a digit or a bracket does more harm than most.
PIECES = st.one_of(
    st.binary(max_size=4), st.sampled_from([*b'0123456789-.eE+"[]{},:\n\\ntu='])
)
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES), min_size=1, max_size=6
)
# Values in the place of others, such as no run writes or writes elsewhere.
NUMBERS = st.one_of(
    st.integers(-3, 30), st.sampled_from([2**62, 10**30, -1e99, 1e-300, 0.5, 1e308])
)
LEAVES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=3), st.just("part")
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner)
    ),
    max_leaves=6,
)
CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.lists(st.floats(0, 1), max_size=4), VALUES),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    trees = write_tree(folder / "trees")
    return dict.fromkeys(OF_TREES, trees) | {
        name: write_good(folder / name, TASKS if name == "task_scores" else {})
        for name in OF_RUNS
    }


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take most of the time of what is read."""
    monkeypatch.setattr(overview, "draw", lambda found, output: None)
    monkeypatch.setattr(figure, "draw", lambda every, folder: None)


def edited(content, edits):
    """The bytes with some replaced, from shares of the way through them on."""
    for share, length, piece in edits:
        start = int(share * len(content))
        piece = piece if isinstance(piece, bytes) else bytes([piece])
        content = content[:start] + piece + content[start + length :]
    return content


def changed(content, changes):
    """JSON lines, or one value, with some values in it replaced."""
    text = content.decode()
    if not text.startswith("{"):
        return content
    is_lines = not text.startswith("{\n")
    found = [json.loads(one) for one in (text.splitlines() if is_lines else [text])]
    for share, path, value in changes:
        number = min(int(share * len(found)), len(found) - 1)
        found[number] = _with_value(found[number], path, value)
    return "".join(json.dumps(one) + "\n" for one in found).encode()


def _with_value(inside, path, value):
    """What a way into it, of shares of each size, leads to is replaced."""
    if not path or not inside or not isinstance(inside, (list, dict)):
        return value
    keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
    key = keys[min(int(path[0] * len(keys)), len(keys) - 1)]
    inside[key] = _with_value(inside[key], path[1:], value)
    return inside


def check(good, tmp_path, file, damage):
    """Damages a file of a good folder: the program works, or ends with a sentence."""
    program, name = file
    folder, output = tmp_path / "folder", tmp_path / "output"
    for left in (folder, output):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(good[program], folder)
    output.mkdir()
    path = place_of(folder, name)
    path.write_bytes(damage(path.read_bytes()))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            PROGRAMS[program].run(folder, output)
        except SystemExit as ended:
            assert ended.code == 2
            assert err.getvalue().endswith(".\n")
            assert err.getvalue()[:-1].isprintable()
            assert not any(Path(output).iterdir())
        else:
            assert err.getvalue() == ""
            assert all(line.isprintable() for line in out.getvalue().split("\n"))


QUICK = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
)
LONG = settings(QUICK, max_examples=400)


@QUICK
@given(file=st.sampled_from(FILES), edits=EDITS)
def test_item_13_any_bytes(good, undrawn, tmp_path, file, edits):
    check(good, tmp_path, file, lambda content: edited(content, edits))


@QUICK
@given(file=st.sampled_from(FILES), changes=CHANGES)
def test_item_13_any_values(good, undrawn, tmp_path, file, changes):
    check(good, tmp_path, file, lambda content: changed(content, changes))


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids="-".join)
def test_item_13_many_bytes_and_values(good, undrawn, tmp_path, file):
    end = time.monotonic() + BOUND

    @LONG
    @given(edits=EDITS, changes=CHANGES, of_bytes=st.booleans())
    def run(edits, changes, of_bytes):
        if time.monotonic() < end:  # else all examples that are left pass at once
            damage = (edited, edits) if of_bytes else (changed, changes)
            check(good, tmp_path, file, lambda content: damage[0](content, damage[1]))

    run()
