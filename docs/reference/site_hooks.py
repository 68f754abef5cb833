"""MkDocs hooks: add pages to the site that live outside ``docs/``, and help it find the packages.

The README becomes the home page. The pages in `PAGES` and the source code of the examples become
pages of their own. Links between them are adjusted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: Path in the repository -> path in the site.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
}
#: Folders of the packages, and where links to them are put, in the layout of their import names.
PACKAGES = ("protocol", "scheduler", "testing", "transfer", "workers_compat")
LINKS = ROOT / "build" / "site" / "paceline"
_LINK = re.compile(r"\]\(([^()\s:#]+)(#[^()\s]*)?\)")


def on_startup(command: str, dirty: bool) -> None:
    """Create links to the packages: mkdocstrings does not read the mapping in `pyproject.toml`."""
    LINKS.mkdir(parents=True, exist_ok=True)
    targets = [ROOT / package for package in PACKAGES]
    for target in [*targets, *(ROOT / "paceline").glob("*.py")]:
        link = LINKS / target.name
        if not link.is_symlink():
            link.symlink_to(target)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages in `PAGES` to `files`."""
    for source, target in PAGES.items():
        text = with_site_links(ROOT / source)
        if target == "examples.md":
            text += sources_of_examples()
        files.append(File.generated(config, target, content=text))
    return files


def with_site_links(page: Path) -> str:
    """Return the text of `page` with its relative links changed to those of the site.

    Links to files that are not part of the site become plain text.
    """

    def replaced(match: re.Match[str]) -> str:
        anchor = match[2] or ""
        path = (page.parent / match[1]).resolve()
        name = str(path.relative_to(ROOT))
        if name in PAGES:
            return f"]({PAGES[name]}{anchor})"
        if name.startswith("docs/") and path.suffix == ".md":
            return f"]({name.removeprefix('docs/')}{anchor})"
        if path.parent == ROOT / "examples" and path.suffix == ".py":
            return f"](examples.md#{anchor_of(path)})"
        return "]()"

    text = _LINK.sub(replaced, page.read_text())
    return re.sub(r"\[([^\]]*)\]\(\)", r"\1", text)


def anchor_of(example: Path) -> str:
    """Return the anchor of the heading that shows `example`."""
    return example.name.replace(".", "")


def sources_of_examples() -> str:
    """Return the source code of every example, each below a heading with its name."""
    parts = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"\n## {path.name}\n\n```python\n{path.read_text()}```\n")
    return "".join(parts)
