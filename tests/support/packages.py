"""Packages that are installed for the length of a test: a directory as pip installs it."""

import sys
from collections.abc import Mapping
from pathlib import Path


def install(
    directory: Path,
    name: str,
    *,
    modules: Mapping[str, str],
    entry_points: Mapping[str, str],
    group: str,
) -> None:
    """Put version 1.0 of package *name* into *directory*, with entry points of *group*."""
    for module, code in modules.items():
        (directory / f"{module}.py").write_text(code)
    info = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{point} = {target}" for point, target in entry_points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path_importer_cache.pop(str(directory), None)
