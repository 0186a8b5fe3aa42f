"""The recipes of CONTRIBUTING.md, followed to the letter."""

import importlib
import re
import sys

import experiment_modules
import pytest

import experiments
from experiments.engine import command, config, reading

TEXT = (experiment_modules.ROOT / "CONTRIBUTING.md").read_text()
SECTION = TEXT.split("## Add an experiment")[1].split("\n## ")[0]


@pytest.fixture
def rates(tmp_path, monkeypatch):
    """The experiment of the recipe, in a folder that `experiments` also looks into."""
    package = tmp_path / "rates"
    package.mkdir()
    blocks = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    for name, code in zip(("config", "study", "__main__"), blocks, strict=True):
        (package / f"{name}.py").write_text(code)
    (package / "__init__.py").write_text('"""Learning rates."""\n')
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    yield package
    for name in [name for name in sys.modules if name.startswith("experiments.rates")]:
        del sys.modules[name]


def test_an_experiment_takes_fewer_than_80_lines(rates, tmp_path, compiled_quickly):
    lines = sum(len(path.read_text().splitlines()) for path in rates.glob("*.py"))
    assert lines < 80
    experiment = importlib.import_module("experiments.rates.study").EXPERIMENT
    args = ["--num_agents=4", "--num_rounds=2", "--eval_every=1", "--num_runs=2"]
    settings = config.parse(experiment.config, [*args, f"--workdir={tmp_path / 'run'}"])
    folder = command.run(experiment, command.settle(settings))
    rows = reading.rows(folder)
    assert {row["scheme"] for row in rows} == {"rate_0.03", "rate_0.1"}
    assert len(rows) == 2 * 2 * 2
    assert (folder / "accuracy_by_round.png").exists()
    importlib.import_module("experiments.rates.__main__")  # starts nothing
