"""The prose of the project uses plain technical English: words that do not belong there are rejected.

`WORDS` maps each word to what to write instead. `PAGES` are checked as Markdown. To check the docstrings, comments and
log texts of a package, add its folder to `PACKAGES`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

#: Word or phrase -> what to write instead.
WORDS = {
    "nobody": "no worker, no client, no one",
    "somebody": "a worker, a client, a user",
    "anybody": "any worker, any client, anyone",
    "everybody": "all workers, all clients, everyone",
    "whoever": "the worker, client or caller that",
    "so many": "n, up to n, at most n",
    "so much": "n bytes, the same amount",
    "so long as": "as long as",
    "anew": "again",
    "of late": "recently",
    "by now": "already, or nothing",
    "is no more": "is gone, was removed",
    "is told": "receives",
    "are told": "receive",
    "in words": "with an error, as text",
    "at hand": "current, available",
    "of old": "earlier",
    "hears of": "receives, is notified of",
    "heard of": "known, received",
    "one's own": "a custom",
    "lets go of": "releases",
    "let go": "released",
    "the house": "the project",
    "sees to": "ensures",
    "asks": "requests, expects, requires",
}
#: Pages that are checked.
PAGES = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("CODE_OF_CONDUCT.md", "examples/README.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)
#: Pages generated from docstrings that are not checked yet.
NOT_YET: set[str] = set()
#: Folders whose Python files are checked: docstrings, comments, and the texts of log lines and errors.
PACKAGES: tuple[str, ...] = (
    "benchmarks",
    "docs/reference",
    "examples",
    "protocol",
    "scheduler",
    "testing",
    "tests",
    "transfer",
    "workers_compat",
)

_PATTERN = re.compile(
    r"\b(" + "|".join(word.replace(" ", r"\s+") for word in WORDS) + r")\b", re.IGNORECASE
)
_CODE = re.compile(r"```.*?```|``[^`]+``|`[^`\n]+`|\]\([^)]*\)", re.DOTALL)
#: Functions and classes whose string arguments are read by people.
_SPEAKING_CALLS = re.compile(
    r"(?:^|\.)(debug|info|warning|error|exception|log|print|\w+Error|\w*Exception)$"
)


def misplaced(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, word) for each listed word in `text`, outside code and link targets."""
    prose = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in _PATTERN.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, " ".join(match[0].lower().split())


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the docstrings, comments, and log and error texts in a Python file."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False):
                expression = node.body[0]
                assert isinstance(expression, ast.Expr)
                yield expression.lineno, expression.value.value  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call) and _SPEAKING_CALLS.search(ast.unparse(node.func)):
            for part in (inner for argument in node.args for inner in ast.walk(argument)):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def report(name: str, line: int, word: str) -> str:
    return f"{name}:{line}: {word!r}: write {WORDS[word]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_YET])
def test_words_of_pages(page: str) -> None:
    found = [report(page, line, word) for line, word in misplaced((ROOT / page).read_text())]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_words_of_packages(package: str) -> None:
    found = []
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths, f"no Python file in {package}"
    for path in paths:
        for first, text in prose_of(path.read_text()):
            for line, word in misplaced(text):
                found.append(report(str(path.relative_to(ROOT)), first + line - 1, word))
    assert found == []


def test_the_check_finds_words(tmp_path: Path) -> None:
    """The check finds words across lines, and ignores code and link targets."""
    text = "Sent to nobody.\n`nobody` and [a page](nobody.md)\n```\nnobody\n```\nso\nmany rows"
    assert list(misplaced(text)) == [(1, "nobody"), (6, "so many")]
    source = '"""Nobody."""\nimport logging\nX = "nobody"  # anew\nlogging.info(f"by now {X}")\n'
    words = [word for _, text in prose_of(source) for _, word in misplaced(text)]
    assert sorted(words) == ["anew", "by now", "nobody"]
