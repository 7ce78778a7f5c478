"""One bearer token for each part of the embedded cluster, so that the server knows who writes."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..apiserver.http.auth import COMPONENTS_GROUP
from ..kube.private_files import read_private
from .files import write_private

USERS: Mapping[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "controllers": (COMPONENTS_GROUP,),
    "scheduler": (COMPONENTS_GROUP,),
    "agent": (COMPONENTS_GROUP, "system:nodes"),
    "api": (COMPONENTS_GROUP,),
}
"""Every user and the groups that it is in, beside ``system:authenticated``."""

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens by user."""

    by_user: Mapping[str, str]

    def __getitem__(self, user: str) -> str:
        return self.by_user[user]


def ensure(path: Path) -> Tokens:
    """Read the tokens in *path*; users that have none get one. The file has mode 0600.

    Raises:
        UnsafePathError: others may have written or read the file.
        OSError: the file cannot be read or written, or is damaged.
    """
    known = _read(path)
    missing = [user for user in USERS if user not in known]
    for user in missing:
        known[user] = secrets.token_urlsafe(TOKEN_BYTES)
    if missing:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(known, indent=2).encode())
    return Tokens({user: known[user] for user in USERS})


def _read(path: Path) -> dict[str, str]:
    try:
        read = json.loads(read_private(path))
    except FileNotFoundError:
        return {}
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise OSError(f"{path} is damaged; delete it, and new tokens are made")
    return {user: str(token) for user, token in read.items() if token}
