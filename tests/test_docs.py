"""Pages can be reached, and what they name exists: links, files, classes; lints of pre-commit."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

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


def _reachable(start: Path) -> set[Path]:
    """Return the pages of docs/ to which links lead from *start*, directly or by other pages."""
    found, pages = {start}, [start]
    while pages:
        page = pages.pop()
        for link in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text()):
            target = (page.parent / link).resolve()
            if target not in found and (ROOT / "docs") in target.parents and target.exists():
                found.add(target)
                pages.append(target)
    return found


def test_each_page_can_be_reached_from_the_user_guide() -> None:
    missing = {*(ROOT / "docs").rglob("*.md")} - _reachable(ROOT / "docs" / "README.md")
    assert sorted(path.name for path in missing) == []


def test_the_list_of_decisions_names_each() -> None:
    decisions = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", (decisions / "README.md").read_text())
    assert listed == sorted(path.name for path in decisions.glob("[0-9]*.md"))


def test_pre_commit_runs_the_lints_of_make_lint() -> None:
    target = (ROOT / "Makefile").read_text().partition("\nlint: venv\n")[2].partition("\n\n")[0]
    commands = re.findall(r"^\t@\$\(PY\) (.*)$", target, flags=re.MULTILINE)
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"].removeprefix(".venv/bin/python ") for hook in local["hooks"]]
    assert hooks == commands != []


def _named_paths(page: str) -> Iterator[str]:
    """Yield the paths in code spans; in a table row, a file name is in the directory before it."""
    for line in (ROOT / page).read_text().splitlines():
        directory = ""
        for span in re.findall(r"`([^`\s]+)`", line):
            if re.match(r"(platform|tests|manifests|docs)/", span):
                directory = span if span.endswith("/") else f"{span.rpartition('/')[0]}/"
                yield span
            elif directory and re.fullmatch(r"\w+\.py", span) and span != "metrics.py":
                yield directory + span


DECISIONS = [f"docs/decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("*.md")]


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "docs/critiques.md", "docs/debugging.md", *sorted(DECISIONS)]
)
def test_pages_for_developers_name_existing_files(page: str) -> None:
    assert [path for path in _named_paths(page) if not any(ROOT.glob(path.rstrip("/")))] == []


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
