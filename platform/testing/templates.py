"""Data directories to start an API server from, created once per process.

Most of the time of a first start is that of keys, tables and definitions.
"""

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..local.supervisor.apiserver import Settings, running

_COPIED = ("pki", "tokens.json", "cluster.db")
_templates: dict[bytes, Path] = {}


def create_temporary_dir() -> Path:
    """Create a temporary directory, in memory if the machine has such a file system."""
    memory = Path("/dev/shm")  # noqa: S108 - only a parent; mkdtemp creates a private directory
    parent = memory if memory.is_dir() and shutil.disk_usage(memory).free > 2**28 else None
    try:
        return Path(tempfile.mkdtemp(prefix="batholith-", dir=parent))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="batholith-"))


async def fill(data_dir: Path, crds: Sequence[dict[str, Any]]) -> bool:
    """Put what a new cluster with *crds* has into *data_dir*, unless it holds a cluster.

    Returns whether it did: the definitions are established then.
    """
    if (data_dir / "cluster.db").exists():
        return False
    key = msgspec.json.encode(crds)
    template = _templates.get(key)
    if template is None:
        template = create_temporary_dir()
        atexit.register(shutil.rmtree, template, ignore_errors=True)
        async with running(Settings(data_dir=template, port=0, crds=crds)):
            pass
        _templates[key] = template
    _copy(template, data_dir)
    return True


def _copy(template: Path, data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in _COPIED:
        source, target = template / name, data_dir / name
        if target.exists():
            continue
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
