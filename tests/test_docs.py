"""Runs every Python block of the documentation, page by page, and compares its output."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# This page registers ops, which the tests of the registry should not meet.
APART = ("add_an_op.md",)


def blocks(page: Path, language: str = "python") -> Iterator[tuple[int, str]]:
    """The blocks of a page in a language, each with the number of lines before it."""
    text = page.read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, match.start(1)), match.group(1)


def run(page: Path) -> None:
    """Runs the blocks of a page in order, in one namespace; blocks that begin with ``>>>`` are doctests.

    Raises:
        AssertionError: if a doctest prints something else than the page says.
    """
    namespace: dict[str, Any] = {"__name__": page.stem}
    for line, source in blocks(page):
        if not source.startswith(">>>"):
            exec(compile("\n" * line + source, str(page), "exec", dont_inherit=True), namespace)
            continue
        test = doctest.DocTestParser().get_doctest(source, {}, page.name, str(page), line)
        test.globs = namespace
        report: list[str] = []
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append, clear_globs=False)
        assert not report, "".join(report)


def pages() -> list[Path]:
    return [page for page in sorted(DOCS.rglob("*.md")) if any(blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(p, id=p.stem) for p in pages() if p.name not in APART])
def test_page(page: Path):
    run(page)


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
def test_page_in_a_process_of_its_own(name: str):
    process = subprocess.run([sys.executable, __file__, DOCS / name], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_links_lead_to_files():
    broken = []
    for page in sorted(DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(DOCS)}: {target}")
    assert not broken


if __name__ == "__main__":
    run(Path(sys.argv[1]))
