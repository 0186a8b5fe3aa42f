"""The notebooks: clean files, a first cell that finds or clones the project, runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_file(path):
    """Nothing that depends on who ran it last; nothing hidden that steers it."""
    notebook = json.loads(path.read_text())
    assert notebook["metadata"] == {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    text = path.read_text()
    assert f"/blob/main/colab/{path.name}" in text
    assert "environ" not in text
    assert "getenv" not in text
    assert not re.search(r"from p2pjax\S*\._|import _", text)  # private modules


def test_all_begin_alike():
    assert len(NOTEBOOKS) == 5
    assert len({code_cells(path)[0] for path in NOTEBOOKS}) == 1


@pytest.fixture
def begin(tmp_path):
    """Runs the first cell in a folder, as a fresh kernel would, and returns its output.

    The project is a small repository that git finds instead of the public one, and pip
    says what it was asked for.
    """
    source = tmp_path / "source"
    for name in ("p2pjax", "experiments"):
        (source / name).mkdir(parents=True)
        (source / name / "__init__.py").touch()
    (source / "p2pjax" / "types.py").touch()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], cwd=source, check=True)
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    (fakes / "pip.py").write_text("import sys; print('pip', *sys.argv[1:], flush=True)")
    (fakes / "libtpu.py").touch()
    where = "import p2pjax, experiments; print(p2pjax.__file__, experiments.__file__)"

    def run(folder):
        return subprocess.run(
            [sys.executable, "-c", f"{code_cells(NOTEBOOKS[0])[0]}\n{where}"],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(fakes),
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": f"url.{source.as_uri()}.insteadOf",
                "GIT_CONFIG_VALUE_0": "https://github.com/p2pjax/p2pjax",
            },
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()

    return run


def test_clones_where_there_is_no_checkout(begin, tmp_path):
    elsewhere = tmp_path / "content"
    elsewhere.mkdir()
    clone = elsewhere / "p2pjax"
    files = " ".join(str(clone / n / "__init__.py") for n in ("p2pjax", "experiments"))
    assert begin(elsewhere) == [f"pip install --quiet -e {clone} jax[tpu]", files]
    # A second kernel finds what the first one has cloned.
    assert begin(elsewhere) == begin(clone) == begin(clone / "p2pjax") == [files]


def test_uses_the_checkout_it_is_in(begin):
    files = [str(ROOT / n / "__init__.py") for n in ("p2pjax", "experiments")]
    for folder in (ROOT, ROOT / "colab"):
        assert begin(folder) == [" ".join(files)]


def execute(name):
    """What a notebook prints, and its number of figures."""
    nbclient = pytest.importorskip(
        "nbclient", reason="notebooks need nbclient (extra colab)"
    )
    pytest.importorskip("ipykernel", reason="notebooks need ipykernel (extra colab)")
    import nbformat

    notebook = nbformat.read(ROOT / "colab" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=900,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "colab")}},
    ).execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    return printed, sum("image/png" in o.get("data", {}) for o in outputs)


def numbers(pattern, text):
    (found,) = re.findall(pattern, text)
    return [float(part) for part in ([found] if isinstance(found, str) else found)]


@pytest.mark.slow
def test_quickstart():
    printed, num_figures = execute("quickstart")
    assert num_figures == 2
    (alone,) = numbers(r"alone +mean (\d\.\d+)", printed)
    (random,) = numbers(r"random peers +mean (\d\.\d+)", printed)
    (alike,) = numbers(r"own group +mean (\d\.\d+)", printed)
    (found,) = numbers(r"PANM +mean (\d\.\d+)", printed)
    assert random < alone < alike  # what the text says
    assert found > (alone + alike) / 2
    steps = re.findall(r"(\d+) steps", printed)
    assert len(steps) == 4 and len(set(steps)) == 1  # comparable
    messages = [int(number) for number in re.findall(r"(\d+) messages", printed)]
    assert messages[0] == 0 < messages[1] == messages[2] < messages[3]


@pytest.mark.slow
def test_add_a_method():
    printed, num_figures = execute("add_a_method")
    assert num_figures == 1
    assert "keeps the mean" in printed
    (difference,) = numbers(r"it is D-PSGD: parameters differ by .* (\S+)\n", printed)
    assert difference < 1e-5
    exact, exact_cost = numbers(r"32 bits +accuracy (\d\.\d+), ([\d]+) kB", printed)
    coarse, cost = numbers(r" 4 bits +accuracy (\d\.\d+), ([\d]+) kB", printed)
    assert cost == pytest.approx(exact_cost / 8, rel=0.01)
    assert coarse > exact - 0.1
    (share,) = numbers(r"round 20: own group (\d\.\d+)", printed)
    assert share > 0.7  # at random 5 / 11


@pytest.mark.slow
def test_custom_research_loop():
    printed, num_figures = execute("custom_research_loop")
    assert num_figures == 2
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+), acc", printed)]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
    assert "same bits: True" in printed
    before, after = numbers(r"consensus (\d\.\d+), then (\d\.\d+)", printed)
    assert after < before
    within, between = numbers(r"within groups (\S+), between them (\S+)", printed)
    assert within > 0 > between
    slope, quotient = numbers(r"derivative (\S+), difference quotient (\S+)", printed)
    assert slope == pytest.approx(quotient, rel=0.1)


@pytest.mark.slow
def test_reproduce_partial_averaging():
    printed, num_figures = execute("reproduce_partial_averaging")
    assert num_figures == 1
    _, smallest = numbers(r"level 80 - level 0: mean (\S+), from (\S+) to", printed)
    assert smallest > 0  # what the text says
    (nothing,) = numbers(r"level 0 +accuracy \S+, (\d+) MB", printed)
    (part,) = numbers(r"level 80 +accuracy \S+, (\d+) MB", printed)
    (everything,) = numbers(r"level 100 +accuracy \S+, (\d+) MB", printed)
    assert nothing == 0 < part < everything
    assert "Report is in" in printed
    assert "femnist.level_d.flags" in printed


@pytest.mark.slow
def test_benchmark():
    printed, num_figures = execute("benchmark")
    assert num_figures == 0
    assert "measured on" in printed
    for name in ("dpsgd", "fedavg", "pens"):
        assert len(numbers(rf"\| {name} \|.*\| (\S+) \|\n", printed)) == 1
