"""User of a container: root, or the user of its security context.

`ids` maps it to a user of the host. A user that is not root has the name `pod` and a writable home,
because ssh, MPI and PyTorch look up the current user.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ..state.core_types import Container, Pod, SecurityContext
from ..state.environment import SecurityContextError
from .ids import Ids, chown
from .rootfs import ROOT_HOME, Mount

NAME, HOME, SHELL = "pod", "/home/pod", "/bin/sh"
_USERS, _PASSWORDS = "/etc/passwd", "/etc/shadow"
_DEFAULT_UID = 1000
"""User of a container with runAsNonRoot but without runAsUser, which an image would define."""


@dataclass(frozen=True, slots=True)
class User:
    """User and group inside a container."""

    uid: int = 0
    gid: int = 0
    is_requested: bool = False
    """Whether the security context has a runAsUser."""

    @property
    def home(self) -> str:
        """Home directory."""
        return HOME if self.uid else ROOT_HOME


def user_of(pod: Pod, container: Container) -> User:
    """Return the user of *container*; its security context overrides the pod's.

    Raises:
        SecurityContextError: runAsUser is 0 in spite of runAsNonRoot.
    """
    context = effective_context(pod, container)
    if context.run_as_non_root and context.run_as_user == 0:
        raise SecurityContextError("container's runAsUser breaks non-root policy")
    return _user(context)


def effective_context(pod: Pod, container: Container) -> SecurityContext:
    """Return the security context of *container*, with the pod's as default."""
    own, default = container.security_context, pod.spec.security_context
    return msgspec.structs.replace(
        own,
        run_as_user=default.run_as_user if own.run_as_user is None else own.run_as_user,
        run_as_group=default.run_as_group if own.run_as_group is None else own.run_as_group,
        run_as_non_root=(
            default.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
        ),
    )


def _user(context: SecurityContext) -> User:
    uid, is_requested = context.run_as_user, context.run_as_user is not None
    if uid is None:
        uid = _DEFAULT_UID if context.run_as_non_root else 0
    return User(uid, context.run_as_group or 0, is_requested)


def volume_owner(pod: Pod) -> int:
    """Return the owner of projected files: the pod's user if it is unique, else root."""
    uids = {_user(effective_context(pod, each)).uid for each in pod.containers.values()}
    return uids.pop() if len(uids) == 1 else 0


def container_user(user: User, ids: Ids) -> User:
    """Return the ids that the container sees, which without a user namespace are the host's."""
    if ids.base is None or ids.namespace:
        return user
    return replace(user, uid=ids.base + user.uid, gid=ids.base + user.gid)


def passwd_mounts(user: User, directory: Path, ids: Ids) -> list[Mount]:
    """Return the mounts of passwd, shadow and home, created in *directory* of the run."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    inner = container_user(user, ids)
    mounts = _shadow(directory, ids) if ids.base is not None and ids.namespace else []
    if not inner.uid:
        return mounts
    home, users = directory / "home", directory / "passwd"
    home.mkdir(exist_ok=True, mode=0o700)
    chown(home, ids.owner(user.uid))
    users.write_text("".join(_passwd(inner, Path(_USERS).read_text(errors="replace"))))
    return [*mounts, Mount(str(users), _USERS, read_only=True), Mount(str(home), HOME)]


def _shadow(directory: Path, ids: Ids) -> list[Mount]:
    """Return a mount of a shadow file without passwords; without it, sshd treats root as locked."""
    if not os.path.exists(_PASSWORDS):
        return []
    file = directory / "shadow"
    known = Path(_USERS).read_text(errors="replace").splitlines()
    names = [NAME, *(line.partition(":")[0] for line in known)]
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}:*:1::::::\n" for name in names))
    chown(file, ids.owner())
    return [Mount(str(file), _PASSWORDS, read_only=True)]


def _passwd(user: User, host_passwd: str) -> Iterator[str]:
    """Yield the lines of the passwd file: *user*, and the host's with other names and uids."""
    yield f"{NAME}:x:{user.uid}:{user.gid}::{HOME}:{SHELL}\n"
    for line in host_passwd.splitlines():
        name, _, rest = line.partition(":")
        if name != NAME and rest.split(":")[1:2] != [str(user.uid)]:
            yield f"{line}\n"
