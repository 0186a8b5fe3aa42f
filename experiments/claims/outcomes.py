"""Outcomes of the tests that show or refute claims: run here, kept in results/.

`results/tests.json` has what pytest said of every test that the ledger names.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from experiments.engine import untrusted_files
from p2pjax.types import InputError

NAME = "tests.json"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def load(results: Path) -> dict[str, str]:
    """The outcomes that are kept, by test; none if no test was run."""
    path = results / NAME
    if not path.exists():
        return {}
    found = untrusted_files.document_of(path, "outcomes of tests")
    known = {PASSED, FAILED, SKIPPED}
    if not isinstance(found, dict) or not known.issuperset(map(str, found.values())):
        raise InputError(f"Need outcomes passed, failed or skipped in {path}.")
    return found


def run(tests: Iterable[str], root: Path) -> dict[str, str]:
    """Runs tests, each in a process of its own.

    Args:
      tests: as pytest names them, file::name.
      root: of the checkout that has them.
    """
    return {test: _outcome(test, root) for test in sorted(set(tests))}


def _outcome(test: str, root: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ("-q", "-n", "0", "-m", "slow or not slow", f"--junitxml={report}")
        command = [sys.executable, "-m", "pytest", *options, test]
        status = subprocess.run(
            command, cwd=root, check=False, stdout=subprocess.DEVNULL
        ).returncode
        if status or not report.exists():
            return FAILED
        cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    return SKIPPED if skipped or not cases else PASSED


def save(results: Path, found: Mapping[str, str]) -> None:
    """Keeps the outcomes."""
    (results / NAME).write_text(
        json.dumps(dict(sorted(found.items())), indent=1) + "\n"
    )
