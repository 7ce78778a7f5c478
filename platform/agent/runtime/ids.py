"""The user ids that pods have on the machine.

Where the agent is root, a pod gets a range of ids that are nobody's: its root is the first of
them. The range is the pod's own, save that all pods with claims or folders of the machine share
one: what they leave there belongs to it, and has to be theirs for every pod that comes later.

An agent that is not root has one id to give, its own.
"""

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from ..state.core_types import Pod
from .mounting import ID_RANGE_SIZE

SHARED = 0x70000000
"""The first id of the range that is shared. No distribution gives out what follows it."""

_LAST = 0x7FFE0000
"""Here others begin."""

_RANGE_COUNT = (_LAST - SHARED) // ID_RANGE_SIZE - 1


class IdMode(StrEnum):
    """Who pods are on the machine."""

    RANGE = "range"
    """Ids of a range, seen as 0 and so on: by a user namespace."""

    SWITCHED = "switched"
    """Ids of a range, seen as they are: there is no user namespace, and no root in a pod."""

    OWN = "own"
    """The agent's own id, seen as the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of one pod."""

    base: int | None = None
    """What the pod's 0 is on the machine; ``None`` where all its ids are the agent's own."""

    namespace: bool = True
    """The pod sees its ids counted from 0."""

    def owner(self, user: int = 0) -> int | None:
        """What the pod's *user* is on the machine, if there is a choice."""
        return None if self.base is None else self.base + user


def allocate_range(pod: Pod, taken: Collection[int]) -> int:
    """The first id of the pod's range, the same one each time if it is not taken."""
    if any(volume.persistent_volume_claim or volume.host_path for volume in pod.spec.volumes):
        return SHARED
    digest = hashlib.blake2b(pod.metadata.uid.encode(), digest_size=8).digest()
    start = int.from_bytes(digest, "big")
    for step in range(_RANGE_COUNT):
        base = SHARED + (1 + (start + step) % _RANGE_COUNT) * ID_RANGE_SIZE
        if base not in taken:
            return base
    return SHARED


def chown(path: str | os.PathLike[str], owner: int | None) -> None:
    """Give a file or folder to *owner*, who has a group of the same number, if that is anybody."""
    if owner is not None:
        os.chown(path, owner, owner, follow_symlinks=False)


def chown_tree(directory: str | os.PathLike[str], base: int | None) -> None:
    """Count the owners of all that lies in *folder* from *base*, if they were counted from 0.

    So it is what an agent without ranges left. May be interrupted, and done again.
    """
    if base is None or os.lstat(directory).st_uid >= SHARED:
        return
    for _, folders, files, here in os.fwalk(directory, topdown=False):
        for name in (*folders, *files):
            _shift_owner(base, name, here)
    _shift_owner(base, directory, None)


def _shift_owner(base: int, path: str | os.PathLike[str], here: int | None) -> None:
    found = os.stat(path, dir_fd=here, follow_symlinks=False)
    uid, gid = (one + base if one < ID_RANGE_SIZE else one for one in (found.st_uid, found.st_gid))
    if (uid, gid) != (found.st_uid, found.st_gid):
        os.chown(path, uid, gid, dir_fd=here, follow_symlinks=False)
