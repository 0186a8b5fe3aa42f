"""Links that the build of the site does not check: it fails for pages and headings.

These are links to files of the repository, roles that name what there is not (Sphinx
shows them as text), and what the pages that are built point at.
"""

import functools
import html
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import p2pjax

ROOT = Path(__file__).parent.parent
SITE = Path(os.environ.get("P2PJAX_SITE") or ROOT / "docs" / "_build" / "html")
REPOSITORY = "https://github.com/p2pjax/p2pjax/"
PAGES = sorted(
    path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts
)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda one: one.stem)
def test_links_to_the_repository(page):
    """By address or by path: the file is there."""
    text = page.read_text()
    named = re.findall(rf"{REPOSITORY}(?:blob|tree)/main/([^)#\s>]+)", text)
    near = re.findall(r"\]\(((?:\.\./)+[^)#\s]+)", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    made = re.compile(r"\.\./(api|notebooks)/")  # by the build, which checks them
    missing += [
        name
        for name in near
        if not made.match(name) and not (page.parent / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.stem)
def test_roles_name_what_there_is(page):
    roles = re.findall(r"\{py:\w+\}`~?(?:[^`<]*<)?([\w.]+)>?`", page.read_text())
    for name in roles:
        assert name.startswith("p2pjax."), name
        functools.reduce(getattr, name.split(".")[1:], p2pjax)


def links_and_ids(text: str) -> tuple[set[str], set[str]]:
    """Where a page points, and what can be pointed at on it."""
    links = {
        html.unescape(link) for link in re.findall(r'(?:href|src)="([^"]*)"', text)
    }
    return links, {html.unescape(name) for name in re.findall(r'\bid="([^"]*)"', text)}


def test_links_inside_the_built_site():
    if not (SITE / "index.html").exists():
        pytest.skip("no built site in docs/_build/html or where P2PJAX_SITE says")
    files = {str(path.relative_to(SITE)): path for path in SITE.rglob("*")}
    pages = {
        name: links_and_ids(path.read_text())
        for name, path in files.items()
        if path.suffix == ".html"
    }
    assert len(pages) > 100
    broken = []
    for page, (links, _) in pages.items():
        if page.startswith("_modules/"):  # points at one page of a name that has two
            continue
        for link in links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            near = os.path.join(os.path.dirname(page), unquote(parts.path))
            there = os.path.normpath(near) if parts.path else page
            anchor = unquote(parts.fragment)
            missing = anchor and there in pages and anchor not in pages[there][1]
            if missing or there not in files:
                broken.append((page, link))
    assert not broken
