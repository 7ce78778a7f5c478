"""Bearer tokens of the embedded cluster: one per component, so that each has its own user name."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...kube.private_files import read_private, write_private
from ...model import bootstrap_tokens
from ...model.bootstrap_tokens import BootstrapToken
from ...model.node_identity import NODES_GROUP, USER_PREFIX
from ..apiserver.http.auth import COMPONENTS_GROUP, User

USERS: Mapping[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "controllers": (COMPONENTS_GROUP,),
    "scheduler": (COMPONENTS_GROUP,),
    "agent": (COMPONENTS_GROUP,),
    "node-extensions": (COMPONENTS_GROUP,),
    "api": (COMPONENTS_GROUP,),
    "workloads": (COMPONENTS_GROUP,),
    "proxy": (COMPONENTS_GROUP,),
}
"""Groups of each user, in addition to ``system:authenticated``."""


def user_of(account: str, *, node: str = "") -> User:
    """Return the user of a token; that of the agent of one *node* is a kubelet."""
    if account == "agent" and node:
        name = f"{USER_PREFIX}{node}"
        return User(name=name, uid=name, groups=(NODES_GROUP, COMPONENTS_GROUP))
    return User(name=account, uid=account, groups=USERS[account])


TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens by user."""

    by_user: Mapping[str, str]

    def __getitem__(self, user: str) -> str:
        return self.by_user[user]


def ensure(path: Path) -> Tokens:
    """Read the tokens in *path* (mode 0600), and add one for each user that has none.

    Raises:
        UnsafePathError: other users may have read or written the file.
        OSError: the file cannot be read or written, or is malformed.
    """
    known = _read(path)
    missing = [user for user in USERS if user not in known]
    for user in missing:
        known[user] = secrets.token_urlsafe(TOKEN_BYTES)
    if missing:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(known, indent=2).encode())
    return Tokens({user: known[user] for user in USERS})


def write_first(path: Path, token: BootstrapToken) -> None:
    """Write a bootstrap token that the API server creates at its start."""
    write_private(path, json.dumps(token.to_secret()).encode())


def read_first(path: Path) -> BootstrapToken | None:
    """Return the token that :func:`write_first` has written; ``None`` if there is none."""
    try:
        return bootstrap_tokens.from_secret(json.loads(read_private(path)))
    except FileNotFoundError:
        return None


def _read(path: Path) -> dict[str, str]:
    try:
        read = json.loads(read_private(path))
    except FileNotFoundError:
        return {}
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise OSError(f"{path} is malformed; delete it to create new tokens")
    return {user: str(token) for user, token in read.items() if token}
