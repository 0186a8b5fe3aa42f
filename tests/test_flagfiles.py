"""Flags in files: where they stand, files within files, what is refused."""

import os

import pytest

from experiments.engine import flagfiles
from p2pjax.types import InputError


def test_lines_take_the_place_of_the_flag(tmp_path):
    base, study = tmp_path / "base.flags", tmp_path / "study.flags"
    base.write_text("# a comment\n// another\n\n--seed=1\n  --num_runs=2  \n")
    study.write_text(f"--flagfile={base}\n--seed=2\n--name=a=b c\n")
    lines = ["--seed=1", "--num_runs=2", "--seed=2", "--name=a=b c"]
    assert flagfiles.expanded(["--a", f"--flagfile={study}", "x"]) == [
        "--a",
        *lines,
        "x",
    ]
    assert flagfiles.expanded(["--flagfile", str(study)]) == lines
    assert flagfiles.expanded(["--", "--flagfile=none"]) == ["--", "--flagfile=none"]
    # Twice is no circle.
    twice = [f"--flagfile={base}"] * 2
    assert flagfiles.expanded(twice) == lines[:2] * 2


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "No such file"),
        ("folder", "a folder"),
        ("pipe", "a pipe"),
        ("binary", "it is no text"),
        ("long", "at most 1048576 bytes"),
        ("itself", "contain themselves"),
        ("itself by another name", "contain themselves"),
        ("nothing", "flagfile"),
    ],
)
def test_what_is_refused(tmp_path, what, said):
    path = tmp_path / "my.flags"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "binary":
        path.write_bytes(bytes(range(1, 256)))
    elif what == "long":
        path.write_text("#" * 2_000_000)
    elif what == "itself":
        path.write_text(f"--flagfile={path}\n")
    elif what == "itself by another name":
        path.write_text(f"--flagfile={tmp_path}/../{tmp_path.name}/my.flags\n")
    arguments = ["--flagfile"] if what == "nothing" else [f"--flagfile={path}"]
    with pytest.raises(InputError, match=said):
        flagfiles.expanded(arguments)
