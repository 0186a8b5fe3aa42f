"""The notebooks: clean files with outputs of their present code, and what they claim.

What they print and draw is compared by executing them: `pytest -m slow` or
`python colab/execute.py --check`.
"""

import copy
import json
import re
from pathlib import Path

import pytest

from colab import execute

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))
STORED = [path for path in NOTEBOOKS if path.stem not in execute.UNSTORED]
ROOMS = {"import p2pjax as pj", "from p2pjax.protocols import"}  # of users
ON_THE_MACHINE = re.compile(r"(?<![\w.])/(root|work|home|tmp|usr|opt)/|\bat 0x|http://")


def read(path):
    return json.loads(path.read_text())


def code(notebook):
    return ["".join(cell["source"]) for cell in execute.code_cells(notebook)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_file(path):
    """Nothing that depends on who ran it last; nothing hidden that steers it."""
    notebook = read(path)
    metadata = dict(notebook["metadata"])
    metadata.pop("p2pjax", None)
    assert metadata == {
        "accelerator": "TPU",
        "colab": {"gpuType": "V5E1", "provenance": []},
        "kernelspec": {"display_name": "Python 3", "name": "python3"},
        "language_info": {"name": "python"},
    }
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    text = path.read_text()
    badge = (
        "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    )
    colab = "https://colab.research.google.com/github/p2pjax/p2pjax/blob/main/colab/"
    assert f"{badge}({colab}{path.name})" in text
    assert "environ" not in text
    assert "getenv" not in text
    assert not ON_THE_MACHINE.search(text)
    used = re.findall(
        r"^(?:from p2pjax\S* import|import p2pjax.*)", text_of(notebook), re.M
    )
    assert set(used) <= ROOMS


def text_of(notebook):
    return "\n".join(code(notebook))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_outputs_are_of_the_present_code(path):
    notebook = read(path)
    again = f"run python colab/execute.py {path.stem}"
    assert notebook["metadata"]["p2pjax"]["executed_code"] == execute.code_hash(
        notebook
    ), again
    cells = execute.code_cells(notebook)
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1)), again
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert all(
        output["name"] == "stdout"
        for output in outputs
        if output["output_type"] == "stream"
    )
    drawn = [png for cell in cells for png in execute.figures(cell)]
    assert drawn and all(len(png) < 60_000 for png in drawn)


def test_the_benchmark_measures_its_reader():
    notebook = read(ROOT / "colab" / "benchmark.ipynb")
    for cell in execute.code_cells(notebook):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert "executed_code" not in json.dumps(notebook["metadata"])


def test_the_site_lists_them():
    page = (ROOT / "docs" / "notebooks.md").read_text()
    names = sorted(path.stem for path in NOTEBOOKS)
    assert sorted(re.findall(r"\[(\w+)\]\(\.\./colab/\1\.ipynb\)", page)) == names
    assert sorted(re.findall(r"^notebooks/(\w+)$", page, re.M)) == names


def test_all_install_alike():
    assert len(NOTEBOOKS) == 8
    (install,) = {code(read(path))[0] for path in NOTEBOOKS}
    assert len([line for line in install.splitlines() if line]) == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_installs_where_there_is_no_package(is_there, monkeypatch):
    shells = pytest.importorskip("IPython.core.interactiveshell")
    found = object() if is_there else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    asked = []
    shell = shells.InteractiveShell()
    shell.register_magic_function(asked.append, magic_name="pip")
    shell.run_cell(code(read(NOTEBOOKS[0]))[0]).raise_error()
    url = "git+https://github.com/p2pjax/p2pjax"
    expected = f'install -q "p2pjax[colab] @ {url}" "jax[tpu]"'
    assert asked == ([] if is_there else [expected])


def quickstart(printed):
    (alone,) = numbers(r"alone +mean (\d\.\d+)", printed)
    (random,) = numbers(r"random peers +mean (\d\.\d+)", printed)
    (alike,) = numbers(r"own group +mean (\d\.\d+)", printed)
    (found,) = numbers(r"PANM +mean (\d\.\d+)", printed)
    assert random < alone < alike
    assert found > (alone + alike) / 2
    steps = re.findall(r"(\d+) steps", printed)
    assert len(steps) == 4 and len(set(steps)) == 1  # comparable
    messages = [int(number) for number in re.findall(r"(\d+) messages", printed)]
    assert messages[0] == 0 < messages[1] == messages[2] < messages[3]


def choose_your_peers(printed):
    mean = dict(re.findall(r"^(\w+) +mean (\d\.\d+)", printed, re.M))
    mean = {name: float(value) for name, value in mean.items()}
    partly = mean["DAC"], mean["PENS"]
    assert mean["sparse"] < min(partly) <= max(partly) < mean["alone"] < mean["PANM"]
    assert mean["PANM"] == pytest.approx(mean["oracle"], abs=0.03)
    own = dict(re.findall(r"^(\w+) .* own group at the end (\d\.\d+)", printed, re.M))
    own = {name: float(share) for name, share in own.items()}
    assert own["sparse"] < 0.3 < own["PENS"] < 0.6 < own["DAC"] < 0.95
    assert own["PANM"] > 0.95 and own["oracle"] == 1
    sent = dict(re.findall(r"^(\w+) .*; (\d+) messages", printed, re.M))
    assert int(sent["PANM"]) > int(sent["oracle"]) == int(sent["sparse"])


def asynchrony(printed):
    trainings, waves = numbers(r"(\d+) trainings of 8 agents in (\d+) waves", printed)
    assert waves < 0.75 * trainings
    fast, fast_time = numbers(r"AD-PSGD +accuracy (\S+) at .* 0.8 at (\d+)", printed)
    slow, slow_time = numbers(r"\nD-PSGD +accuracy (\S+) at .* 0.8 at (\d+)", printed)
    assert fast_time < slow_time / 3
    assert fast == pytest.approx(slow, abs=0.04)


def attackers(printed):
    rows = re.findall(
        r"^(\w[\w -]*?) +(0\.\d+) +(0\.\d+) +(0\.\d+) +(0\.\d+)$", printed, re.M
    )
    found = {name: [float(value) for value in values] for name, *values in rows}
    assert len(found) == 3
    honest, *under_attack = found.pop("mean")
    assert max(under_attack) < honest - 0.25
    for without, *others in found.values():
        assert without > honest - 0.03
        assert min(others) > honest - 0.1


def add_a_method(printed):
    assert "keeps the mean" in printed
    (difference,) = numbers(r"it is D-PSGD: parameters differ by .* (\S+)\n", printed)
    assert difference < 1e-5
    exact, exact_cost = numbers(r"32 bits +accuracy (\d\.\d+), ([\d]+) kB", printed)
    coarse, cost = numbers(r" 4 bits +accuracy (\d\.\d+), ([\d]+) kB", printed)
    assert cost == pytest.approx(exact_cost / 8, rel=0.01)
    assert coarse > exact - 0.1
    (share,) = numbers(r"round 20: own group (\d\.\d+)", printed)
    assert share > 0.7  # at random 5 / 11


def custom_research_loop(printed):
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+), acc", printed)]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
    assert "same bits: True" in printed
    before, after = numbers(r"consensus (\d\.\d+), then (\d\.\d+)", printed)
    assert after < before
    within, between = numbers(r"within groups (\S+), between them (\S+)", printed)
    assert within > 0 > between
    slope, quotient = numbers(r"derivative (\S+), difference quotient (\S+)", printed)
    assert slope == pytest.approx(quotient, rel=0.1)


def reproduce_partial_averaging(printed):
    _, smallest = numbers(r"level 80 - level 0: mean (\S+), from (\S+) to", printed)
    assert smallest > 0
    (nothing,) = numbers(r"level 0 +accuracy \S+, (\d+) MB", printed)
    (part,) = numbers(r"level 80 +accuracy \S+, (\d+) MB", printed)
    (everything,) = numbers(r"level 100 +accuracy \S+, (\d+) MB", printed)
    assert nothing == 0 < part < everything
    (share,) = numbers(r"level 60 +sends (\d+) %", printed)
    assert share <= 60


def numbers(pattern, text):
    (found,) = re.findall(pattern, text)
    return [float(part) for part in ([found] if isinstance(found, str) else found)]


CLAIMS = {  # what the texts say of what is printed
    function.__name__: function
    for function in (
        quickstart,
        choose_your_peers,
        asynchrony,
        attackers,
        add_a_method,
        custom_research_loop,
        reproduce_partial_averaging,
    )
}


def printed_by(notebook):
    return "".join(map(execute.printed, execute.code_cells(notebook)))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_texts_say_what_is_stored(path):
    CLAIMS[path.stem](printed_by(read(path)))


def test_differences_are_found_and_rounding_is_not_one():
    stored = read(ROOT / "colab" / "quickstart.ipynb")
    assert execute.differences(stored, stored) == []
    cells = execute.code_cells(stored)
    (drawn, *_) = [cell for cell in cells if execute.figures(cell)]
    assert len(drawn["outputs"]) == 2  # a line and a figure
    text = "".join(drawn["outputs"][0]["text"])

    def with_text(new):
        fresh = copy.deepcopy(stored)
        execute.code_cells(fresh)[cells.index(drawn)]["outputs"][0]["text"] = new
        return execute.differences(stored, fresh)

    assert with_text(text.replace("45", "46")) == []
    assert "other numbers" in with_text(text.replace("45", "60"))[0]
    assert "says otherwise" in with_text(text.replace("images", "pictures"))[0]
    without = copy.deepcopy(stored)
    execute.code_cells(without)[cells.index(drawn)]["outputs"].pop()
    assert "number of figures" in execute.differences(stored, without)[0]
    other = copy.deepcopy(stored)
    last = [cell for cell in cells if execute.figures(cell)][-1]
    execute.code_cells(other)[cells.index(drawn)]["outputs"][1] = last["outputs"][-1]
    assert "draws something else" in execute.differences(stored, other)[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_execution_gives_what_is_stored(path):
    need_a_kernel()
    fresh = execute.execute(path.stem)
    CLAIMS[path.stem](printed_by(fresh))
    assert execute.differences(read(path), fresh) == []


@pytest.mark.slow
def test_benchmark():
    need_a_kernel()
    printed = printed_by(execute.execute("benchmark"))
    assert "measured on" in printed
    for name in ("dpsgd", "fedavg", "pens"):
        assert len(numbers(rf"\| {name} \|.*\| (\S+) \|\n", printed)) == 1


def need_a_kernel():
    pytest.importorskip("nbclient", reason="notebooks need nbclient (extra colab)")
    pytest.importorskip("ipykernel", reason="notebooks need ipykernel (extra colab)")
