"""User ids of pods on the host.

If the agent runs as root, each pod gets an unused range of ids; the pod's root is the first of
them. All pods with claims or host paths have the same range, so that later pods own the files that
earlier ones leave there.

If the agent does not run as root, pods have its user id.
"""

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from ..state.core_types import Pod
from .mounting import ID_RANGE_SIZE

SHARED = 0x70000000
"""First id of the common range. No distribution assigns the ids from here on."""

_LAST = 0x7FFE0000
"""First id beyond the ranges, where systemd's container ranges begin."""

_RANGE_COUNT = (_LAST - SHARED) // ID_RANGE_SIZE - 2

IMAGES = _LAST - ID_RANGE_SIZE
"""First id of the owners of unpacked images; no pod has one of them."""


class IdMode(StrEnum):
    """How user ids of pods map to the host's."""

    RANGE = "range"
    """A range of ids, mapped to 0 and up by a user namespace."""

    SWITCHED = "switched"
    """A range of ids without a user namespace; no pod can run as root."""

    OWN = "own"
    """The agent's own id, mapped to the requested one."""


@dataclass(frozen=True, slots=True)
class Ids:
    """User ids of one pod."""

    base: int | None = None
    """Host id of the pod's id 0; ``None`` if all its ids are the agent's own."""

    namespace: bool = True
    """Whether the pod's ids are mapped to start at 0."""

    def owner(self, user: int = 0) -> int | None:
        """Return the host id of the pod's *user*; ``None`` if it is the agent's own."""
        return None if self.base is None else self.base + user


def allocate_range(pod: Pod, taken: Collection[int]) -> int:
    """Return the first id of the pod's range, always the same one unless it is in *taken*."""
    if any(pod.claim_of(volume) or volume.host_path for volume in pod.spec.volumes):
        return SHARED
    digest = hashlib.blake2b(pod.metadata.uid.encode(), digest_size=8).digest()
    start = int.from_bytes(digest, "big")
    for step in range(_RANGE_COUNT):
        base = SHARED + (1 + (start + step) % _RANGE_COUNT) * ID_RANGE_SIZE
        if base not in taken:
            return base
    return SHARED


def chown(path: str | os.PathLike[str], owner: int | None) -> None:
    """Change user and group of a file or directory to *owner*, unless it is ``None``."""
    if owner is not None:
        os.chown(path, owner, owner, follow_symlinks=False)


def chown_tree(directory: str | os.PathLike[str], base: int | None) -> None:
    """Shift the owners of all files in *directory* by *base*, if an agent without ranges set them.

    Safe to repeat after an interruption.
    """
    if base is None or os.lstat(directory).st_uid >= SHARED:
        return
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        waiting = [""]  # not recursive: earlier pods may have nested directories to any depth
        while waiting:
            waiting += _shift_owners(base, top, waiting.pop())
    finally:
        os.close(top)
    _shift_owner(base, directory, None)  # last, because it marks that all are shifted


def _shift_owners(base: int, top: int, path: str) -> list[str]:
    """Shift the owners of what is in the directory *path* of *top*; return its directories."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(path or ".", flags, dir_fd=top)
    try:
        with os.scandir(opened) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, _ in found:
            _shift_owner(base, name, opened)
    finally:
        os.close(opened)
    return [os.path.join(path, name) for name, is_dir in found if is_dir]


def _shift_owner(base: int, path: str | os.PathLike[str], dir_fd: int | None) -> None:
    found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    uid, gid = (one + base if one < ID_RANGE_SIZE else one for one in (found.st_uid, found.st_gid))
    if (uid, gid) != (found.st_uid, found.st_gid):
        os.chown(path, uid, gid, dir_fd=dir_fd, follow_symlinks=False)
