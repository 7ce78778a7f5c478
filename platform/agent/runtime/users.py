"""As whom a container runs: as root, or as the user that its security context asks for.

Which user that is outside, `ids` says. A user that is not root is called `pod`, whatever the
machine calls that number, and has a home to write to: programs that look up who they are (ssh, MPI,
PyTorch) find an answer.
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
"""Runs what must not be root and names nobody: an image would say who."""


@dataclass(frozen=True, slots=True)
class User:
    """A user and group, as a container sees them."""

    uid: int = 0
    gid: int = 0
    is_requested: bool = False
    """It is what the container asked for, by its number."""

    @property
    def home(self) -> str:
        """The home folder."""
        return HOME if self.uid else ROOT_HOME


def user_of(pod: Pod, container: Container) -> User:
    """The user that *container* asks for; what it does not say is as the pod says.

    Raises:
        ConfigError: it must not be root, and asks for root.
    """
    own, shared = container.security_context, pod.spec.security_context
    uid = shared.run_as_user if own.run_as_user is None else own.run_as_user
    gid = shared.run_as_group if own.run_as_group is None else own.run_as_group
    never = shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
    if never and uid == 0:
        raise ContainerConfigError("container's runAsUser breaks non-root policy")
    return User((_DEFAULT_UID if never else 0) if uid is None else uid, gid or 0, uid is not None)


def volume_owner(pod: Pod) -> int:
    """Whose the files are that a pod gets from the API: its user's, if it has but one."""
    own = [container.security_context.run_as_user for container in pod.containers.values()]
    shared = pod.spec.security_context
    never = _DEFAULT_UID if shared.run_as_non_root else 0
    default = never if shared.run_as_user is None else shared.run_as_user
    found = {default if uid is None else uid for uid in own}
    return found.pop() if len(found) == 1 else 0


def container_user(user: User, ids: Ids) -> User:
    """The user as the container sees it, where it may see other numbers than it asked for."""
    if ids.base is None or ids.namespace:
        return user
    return replace(user, uid=ids.base + user.uid, gid=ids.base + user.gid)


def passwd_mounts(user: User, directory: Path, ids: Ids) -> list[Mount]:
    """What shows *user* to the container; made in *folder*, which is the run's own."""
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
    """A file without passwords for the container's root: without one sshd takes root for locked."""
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
    """The lines of the passwd file: the machine's, with *user* in place of its namesakes."""
    yield f"{NAME}:x:{user.uid}:{user.gid}::{HOME}:{SHELL}\n"
    for line in host_passwd.splitlines():
        name, _, rest = line.partition(":")
        if name != NAME and rest.split(":")[1:2] != [str(user.uid)]:
            yield f"{line}\n"
