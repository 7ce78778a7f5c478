"""Fragments of the changelog, and their release."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
from tools.changelog import KINDS, ROOT, ReleaseError, release

TODAY = date(2026, 11, 27)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("# News fragments\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.1.0, 2026-01-01\n\n### Added\n\n* A.\n"
    )
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    return tmp_path


def add(project: Path, name: str, text: str) -> None:
    (project / "changelog.d" / name).write_text(text)


def test_a_release_moves_the_fragments_to_the_changelog_above_the_former_release(
    project: Path,
) -> None:
    add(project, "z.fixed.md", "Z is\nfixed.\n")
    add(project, "a.fixed.md", "A is fixed.\n")
    add(project, "b.breaking.md", "B.\n")
    assert release(project, TODAY) == "0.2.0"
    assert (project / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## 0.2.0, 2026-11-27\n\n### Breaking\n\n* B.\n\n"
        "### Fixed\n\n* A is fixed.\n* Z is\n  fixed.\n\n"
        "## 0.1.0, 2026-01-01\n\n### Added\n\n* A.\n"
    )
    assert [path.name for path in (project / "changelog.d").iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("name", "text", "version", "problem"),
    [
        ("a.added.md", "A.\n", "0.1.0", "0.1.0 is released"),
        ("a.news.md", "A.\n", "0.2.0", "a.news.md: the kind is none of"),
        ("a.added.md", "\n", "0.2.0", "a.added.md is empty"),
        ("README.md", "A.\n", "0.2.0", "there are no fragments"),
    ],
)
def test_what_cannot_be_released_changes_nothing(
    project: Path, name: str, text: str, version: str, problem: str
) -> None:
    add(project, name, text)
    (project / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    before = (project / "CHANGELOG.md").read_text()
    with pytest.raises(ReleaseError, match=problem):
        release(project, TODAY)
    assert (project / "CHANGELOG.md").read_text() == before
    assert (project / "changelog.d" / name).exists()


def test_each_fragment_has_a_kind() -> None:
    names = [path.name for path in (ROOT / "changelog.d").glob("*") if path.name != "README.md"]
    pattern = rf"[\w.-]+\.({'|'.join(KINDS)})\.md"
    assert [name for name in names if not re.fullmatch(pattern, name)] == []


def test_the_version_is_not_older_than_the_latest_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    latest = re.search(r"^## ([\d.]+), ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert latest is not None
    numbers = [[int(number) for number in each.split(".")] for each in (version, latest[1])]
    assert numbers[0] >= numbers[1]
