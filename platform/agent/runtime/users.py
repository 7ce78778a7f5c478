"""User of a container: root, or the user of its security context.

`ids` maps it to a user of the host. A user that is not root has the name `pod` and a writable home,
because ssh, MPI and PyTorch look up the current user.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..state.core_types import Container, Pod
from ..state.environment import ContainerConfigError
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
        ContainerConfigError: runAsUser is 0 in spite of runAsNonRoot.
    """
    own, shared = container.security_context, pod.spec.security_context
    uid = shared.run_as_user if own.run_as_user is None else own.run_as_user
    gid = shared.run_as_group if own.run_as_group is None else own.run_as_group
    never = shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
    if never and uid == 0:
        raise ContainerConfigError("container's runAsUser breaks non-root policy")
    return User((_DEFAULT_UID if never else 0) if uid is None else uid, gid or 0, uid is not None)


def volume_owner(pod: Pod) -> int:
    """Return the owner of projected files: the pod's user if it is unique, else root."""
    own = [container.security_context.run_as_user for container in pod.containers.values()]
    shared = pod.spec.security_context
    never = _DEFAULT_UID if shared.run_as_non_root else 0
    default = never if shared.run_as_user is None else shared.run_as_user
    found = {default if uid is None else uid for uid in own}
    return found.pop() if len(found) == 1 else 0


def container_user(user: User, ids: Ids) -> User:
    """Return the ids that the container sees, which without a user namespace are the host's."""
    if ids.base is None or ids.namespace:
        return user
    return replace(user, uid=ids.base + user.uid, gid=ids.base + user.gid)


def passwd_mounts(user: User, directory: Path, ids: Ids) -> list[Mount]:
    """Return the mounts of passwd, shadow and home, created in *directory* of the run."""
    shown = container_user(user, ids)
    mounts = _shadow(directory, ids) if ids.base is not None and ids.namespace else []
    if not shown.uid:
        return mounts
    home, users = directory / "home", directory / "passwd"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    chown(home, ids.owner(user.uid))
    users.write_text("".join(_passwd(shown, Path(_USERS).read_text(errors="replace"))))
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
