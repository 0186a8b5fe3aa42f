"""All experiments: what each is, its flagfiles, their size, time and results.

    python -m experiments [NAME...]

A flagfile says in its first comments what it is and in `# size: ...; time: ...`, a line
of its own, whether it is quick, scaled down or of the paper's sizes, and how long it
takes on two cores.
"""

import dataclasses
import importlib
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from experiments.engine import command, untrusted_files
from p2pjax.types import InputError

ROOT = Path(__file__).parents[1]
SIZES = ("quick", "scaled", "paper")


@dataclasses.dataclass(frozen=True)
class Options:
    """This command has no flags."""


class Flagfile(NamedTuple):
    """What a flagfile says about itself."""

    path: Path
    sentence: str
    size: str
    time: str

    @property
    def study(self) -> str:
        """As in `mnist.level`, which is also the name of its folder in results/."""
        return f"{self.path.parents[1].name}.{self.path.stem}"


def names() -> list[str]:
    """Of all experiments."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/study.py"))


def flagfiles(name: str) -> list[Flagfile]:
    """Of an experiment, quick ones first; bases of others are left out."""
    folder = Path(__file__).parent / name / "flags"
    found = [
        describe(path)
        for path in sorted(folder.glob("*.flags"))
        if not path.name.startswith("base")
    ]
    return sorted(found, key=lambda one: SIZES.index(one.size))


def describe(path: Path) -> Flagfile:
    """Reads the comments of a flagfile."""
    comments = []
    text = untrusted_files.text_of(path, "a flagfile", remedy="write it anew")
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.removeprefix("#").strip())
    facts = [re.fullmatch(r"size: (\w+); time: (.*)", line) for line in comments]
    found = next((one for one in facts if one is not None), None)
    if found is None or found[1] not in SIZES:
        raise InputError(
            f"Need a comment such as '# size: quick; time: about a minute on two "
            f"cores' at the top of {path}, got '{' '.join(comments)}'."
        )
    said = [line for line, fact in zip(comments, facts, strict=True) if fact is None]
    return Flagfile(path, " ".join(said), found[1], found[2])


def main(options: Options, arguments: list[str]) -> None:
    """Prints the experiments that are named, or all of them."""
    del options
    unknown = [name for name in arguments if name not in names()]
    if unknown:
        raise InputError(
            f"Need experiments among {', '.join(names())}, got '{unknown[0]}'."
        )
    for name in arguments or names():
        module = importlib.import_module(f"experiments.{name}")
        print(f"{name}: {module.__doc__}")
        print(f"  python -m experiments.{name} --flagfile=FILE; --help lists its flags")
        for flagfile in flagfiles(name):
            path = flagfile.path.relative_to(ROOT)
            kept = ROOT / "results" / flagfile.study
            result = kept.relative_to(ROOT) if kept.exists() else "none kept"
            print(f"\n  {path}  [{flagfile.size}; {flagfile.time}; results: {result}]")
            print(textwrap.indent(textwrap.fill(flagfile.sentence, 84), "    "))
        print()


if __name__ == "__main__":
    command.tool(Options, main)
