"""Links between pages, files that CONTRIBUTING.md names and classes of the glossary exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("bench/*.md"),
    *ROOT.glob("manifests/*.md"),
]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def _broken_links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", target):
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert [*_broken_links(page)] == []


def _named_paths() -> Iterator[str]:
    """Yield the paths in code spans; in a table row, a file name is in the directory before it."""
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        directory = ""
        for span in re.findall(r"`([^`\s]+)`", line):
            if re.match(r"(platform|tests|manifests|docs)/", span):
                directory = span if span.endswith("/") else f"{span.rpartition('/')[0]}/"
                yield span
            elif directory and re.fullmatch(r"\w+\.py", span) and span != "metrics.py":
                yield directory + span


def test_contributing_names_existing_files() -> None:
    assert [path for path in _named_paths() if not any(ROOT.glob(path.rstrip("/")))] == []


def test_glossary_names_existing_classes() -> None:
    terms = (ROOT / "docs" / "glossary.md").read_text().partition("## Terms")[2].partition("##")[0]
    here = [row.split("|")[2] for row in terms.splitlines() if row.startswith("| ")]
    named = {name for cell in here for name in re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", cell)}
    defined = {
        name
        for path in (ROOT / "platform").rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), flags=re.MULTILINE)
    }
    assert sorted(named - defined) == []
