"""Links in pages lead to files and headings that exist, lines are wrapped, and the README is short."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

#: Lines of README.md.
README_LINES_MAX = 120
#: Columns of a line outside tables and code.
COLUMNS_MAX = 120
#: Pages that are generated, at least in part.
GENERATED = {
    *("docs/compatibility.md", "docs/configuration.md", "docs/performance.md"),
    *("docs/programs.md", "docs/protocol.md"),
}
#: Pages whose relative links are followed.
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
)
#: Parts of a page: their links are written for the page they become part of.
PARTS = ROOT / "docs" / "reference" / "narrative"

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')


@functools.lru_cache
def anchors(page: Path) -> frozenset[str]:
    """Return the names of the headings and explicit anchors of `page`."""
    text = page.read_text()
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text))
    return frozenset(
        (*(name.strip().replace(" ", "-") for name in headings), *_ANCHOR.findall(text))
    )


def broken(page: Path) -> list[str]:
    """Return the relative links of `page` that have no target."""
    found = []
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            found.append(link)
    return found


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if PARTS not in p.parents],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_have_targets(page: Path) -> None:
    assert broken(page) == []


@pytest.mark.parametrize(
    "page",
    sorted(
        {str(page.relative_to(ROOT)) for page in PAGES if PARTS not in page.parents} - GENERATED
    ),
)
def test_lines_are_wrapped(page: str) -> None:
    lines = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL).splitlines()
    prose = [line for line in lines if not line.startswith("|")]
    assert [line for line in prose if len(line) > COLUMNS_MAX] == []


def test_the_check_finds_broken_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading\n[a](#a-heading) [b](#other) [c](absent.md) [d](https://dask.org) `[e](x)`\n"
    )
    assert broken(page) == ["#other", "absent.md"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"])
def test_paths_exist(page: str) -> None:
    """Paths of files and folders in backticks exist."""
    paths = re.findall(r"`([a-z_]+/[\w/.]*)`", (ROOT / page).read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []
