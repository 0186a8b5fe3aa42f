"""`python -m experiments`: every flagfile is listed with what it says of itself."""

import re
import subprocess
import sys

import experiment_modules
import pytest

from experiments import __main__ as overview
from p2pjax.types import InputError

ROOT = experiment_modules.ROOT


def test_lists_all_experiments_and_flagfiles():
    done = subprocess.run(
        [sys.executable, "-m", "experiments"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in experiment_modules.NAMES:
        assert f"\n{name}: " in f"\n{done.stdout}"
        for path in experiment_modules.flagfiles(name):
            is_listed = f"  {path.relative_to(ROOT)}  [" in done.stdout
            assert is_listed != path.name.startswith("base")


@pytest.mark.parametrize("name", experiment_modules.NAMES)
def test_every_flagfile_says_its_size_and_time(name):
    found = overview.flagfiles(name)
    assert found[0].size == "quick"
    for one in found:
        assert one.sentence.endswith("."), one.path
        assert one.size in ("quick", "scaled", "paper"), one.path
        assert re.search(r"\b(second|minute|hour|day|week|month)s?\b", one.time), (
            f"{one.path} needs a time, measured or estimated, got '{one.time}'"
        )
        if re.match("not run (whole )?here;", one.time):
            assert "estimated" in one.time, one.path


def test_what_stands_below_the_size_is_said_too(tmp_path):
    path = tmp_path / "x.flags"
    path.write_text("# One.\n# size: paper; time: 2 hours\n# Needs\n# all.\n--seed=1\n")
    found = overview.describe(path)
    assert (found.time, found.sentence) == ("2 hours", "One. Needs all.")


def test_every_published_figure_is_on_a_page():
    pages = [path.read_text() for path in ROOT.glob("experiments/*/RESULTS.md")]
    for figure in (ROOT / "experiments" / "images").iterdir():
        assert any(f"](../images/{figure.name})" in page for page in pages), figure


def test_refuses_what_is_no_experiment(tmp_path):
    with pytest.raises(InputError, match=r"Need experiments among .*, got 'mnits'"):
        overview.main(overview.Options(), ["mnits"])
    (tmp_path / "x.flags").write_text("# Only a sentence.\n--seed=1\n")
    with pytest.raises(InputError, match="Need a comment such as '# size: quick"):
        overview.describe(tmp_path / "x.flags")
