"""Release the fragments of changelog.d in CHANGELOG.md: the target ``changelog`` of the Makefile.

They become the section of the version in pyproject.toml, grouped by kind, and are deleted. If the
version has a section already, raise it first.
"""

import re
import sys
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = {"breaking": "Breaking", "added": "Added", "changed": "Changed", "fixed": "Fixed"}


class ReleaseError(Exception):
    """The fragments cannot be released; the text states why."""


def section(version: str, released: date, fragments: dict[str, str]) -> str:
    """Return the section of *version*; *fragments* are texts by file name.

    Raises:
        ReleaseError: there are none, or a name or a text is invalid.
    """
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, text in sorted(fragments.items()):
        kind = name.removesuffix(".md").rpartition(".")[2]
        if kind not in by_kind:
            raise ReleaseError(f"{name}: the kind is none of {', '.join(KINDS)}")
        if not text.strip():
            raise ReleaseError(f"{name} is empty")
        by_kind[kind].append("* " + text.strip().replace("\n", "\n  "))
    groups = [
        f"### {KINDS[kind]}\n\n" + "\n".join(items) + "\n"
        for kind, items in by_kind.items()
        if items
    ]
    if not groups:
        raise ReleaseError("there are no fragments")
    return "\n".join([f"## {version}, {released:%Y-%m-%d}\n", *groups])


def release(root: Path, released: date) -> str:
    """Move the fragments below *root* to its CHANGELOG.md; return the version.

    Raises:
        ReleaseError: the version has a section already, or the fragments are invalid.
    """
    version: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    changelog = root / "CHANGELOG.md"
    title, _, former = changelog.read_text().partition("\n\n")
    if re.search(rf"^## {re.escape(version)},", former, flags=re.MULTILINE):
        raise ReleaseError(f"{version} is released; raise the version in pyproject.toml")
    files = [path for path in root.glob("changelog.d/*.md") if path.name != "README.md"]
    new = section(version, released, {path.name: path.read_text() for path in files})
    changelog.write_text("\n\n".join([title, new + (f"\n{former}" if former else "")]))
    for path in files:
        path.unlink()
    return version


if __name__ == "__main__":
    try:
        released_version = release(ROOT, datetime.now(UTC).date())
    except ReleaseError as error:
        sys.exit(f"changelog.d: {error}")
    sys.stdout.write(f"CHANGELOG.md has the section {released_version}; commit and tag it\n")
