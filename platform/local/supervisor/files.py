"""Atomic writes of files that only their owner may read."""

import os
from contextlib import suppress
from pathlib import Path

from ...kube.private_files import read_private


def write_private(path: Path, data: bytes) -> None:
    """Replace the content of *path* (mode 0600) atomically; needs no space if it is the same.

    Raises:
        UnsafePathError: other users may access the existing file.
        OSError: it cannot be written.
    """
    with suppress(FileNotFoundError):
        if read_private(path) == data:
            return
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
