"""Each method has a page in docs/methods, in the same order of sections, with an index.

The examples are doctests in Markdown, and take about as long each as a small program:
`pytest -m slow tests/test_docs.py`, or `pytest --doctest-glob='*.md' docs/methods`.
"""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import p2pjax as pj
from docs import public_names

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "methods"
NAMES = (*pj.METHODS, "gossip", "pull", "global_merge")
SECTIONS = [
    "The rule",
    "Example",
    "When it helps, and when not",
    "Measured",
    "Pitfalls",
]
MEASURED = re.compile(
    r"<!-- claims of schemes: \w+[\w., ]* -->\n(?:.*\n)*?<!-- end of claims -->"
)


def page(name: str) -> str:
    """Text of a method's page."""
    return (PAGES / f"{name}.md").read_text()


def section(name: str, title: str) -> str:
    """What a page says under a heading of the second level."""
    return re.split(r"^## ", page(name), flags=re.M)[1 + SECTIONS.index(title)]


def test_there_is_a_page_for_each_method_and_no_other():
    found = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert found == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_page_follows_the_template(name):
    text = page(name)
    assert text.startswith(f"# `{name}`: ")
    assert f"{{py:func}}`p2pjax.{name}`" in text.split("\n## ")[0]
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert all(
        section(name, title).split("\n", 1)[1].strip() not in ("", "-")
        for title in SECTIONS
    )
    assert MEASURED.search(section(name, "Measured"))


@pytest.mark.parametrize("name", NAMES)
def test_example_uses_the_method(name):
    blocks = re.findall(r"^```python\n(.*?)^```$", page(name), re.M | re.S)
    examples = doctest.DocTestParser().get_examples("".join(blocks))
    calls = "".join(example.source for example in examples)
    assert f"pj.{name}(" in calls
    assert any(example.want for example in examples), "it shows nothing"
    # A fence right below an output would be taken for a part of it.
    assert not any("```" in example.want for example in examples)


@pytest.mark.parametrize("name", NAMES)
def test_method_is_in_one_row_of_the_index(name):
    index = (PAGES / "index.md").read_text()
    rows = re.findall(rf"^\| \[`{name}`\]\({name}\.md\).*\|$", index, re.M)
    assert len(rows) == 1
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert len(cells) == 4
    assert cells[2] and cells[3], "what it sends and what it needs"
    (tree,) = re.findall(r"```{toctree}\n(.*?)```", index, re.S)
    assert tree.splitlines().count(name) == 1


@pytest.mark.parametrize("name", [*NAMES, "index"])
def test_links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page(name))
    missing = [
        link
        for link in links
        if not link.startswith("https://") and not (PAGES / link).exists()
    ]
    assert not missing


@pytest.mark.slow
def test_examples_run():
    """In a process of its own, for all pages: one Python compiles for all of them."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*command, "--doctest-glob=*.md", str(PAGES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert f"{len(NAMES)} passed" in run.stdout


def test_each_public_name_has_a_page_of_the_api(tmp_path):
    public_names.write_pages(tmp_path)
    names = {name.removeprefix("pj.") for name in public_names.public_names()}
    rooms = set(public_names.pages())
    assert {path.stem for path in tmp_path.iterdir()} == names | rooms | {"index"}
    assert (
        ".. autofunction:: p2pjax.split.iid" in (tmp_path / "split.iid.rst").read_text()
    )
    assert "pj.dpsgd <dpsgd>" in (tmp_path / "methods.rst").read_text()
    (tmp_path / "gone.rst").write_text("Of a name that is no more.")
    public_names.write_pages(tmp_path)
    assert not (tmp_path / "gone.rst").exists()
