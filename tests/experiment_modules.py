"""All experiments by name."""

import importlib
from pathlib import Path

from experiments.engine import command, config

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/study.py"))
EXPERIMENTS = {
    name: importlib.import_module(f"experiments.{name}.study").EXPERIMENT
    for name in NAMES
}


def flagfiles(name="*"):
    """Of one experiment, or of all."""
    return sorted((ROOT / "experiments").glob(f"{name}/flags/*.flags"))


def experiment_of(flagfile):
    """Whose flagfile it is."""
    return EXPERIMENTS[flagfile.parents[1].name]


def run_tool(kind, main, *args):
    """Runs a program that trains nothing, inside this process."""
    args = [*map(str, args)]
    command.guarded(lambda: main(*config.read(kind, args)))
