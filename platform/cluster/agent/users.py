"""As whom a container runs: as root, or as the user that its security context asks for.

A sandbox has one user id. Inside it is the one asked for, outside always the agent's own. A user
that is not root is called `pod`, whatever the machine calls that number, and has a home to write
to: programs that look up who they are (ssh, MPI, PyTorch) find an answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .environment import ConfigError
from .layout import ROOT_HOME, Mount
from .objects import Container, Pod

NAME, HOME, SHELL = "pod", "/home/pod", "/bin/sh"
_USERS = "/etc/passwd"
_SOMEBODY = 1000
"""Runs what must not be root and names nobody: an image would say who."""


@dataclass(frozen=True, slots=True)
class User:
    """A user and group, as a container sees them."""

    uid: int = 0
    gid: int = 0

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
        raise ConfigError("container's runAsUser breaks non-root policy")
    return User((_SOMEBODY if never else 0) if uid is None else uid, gid or 0)


def mounts_for(user: User, folder: Path) -> list[Mount]:
    """What shows *user* to the container; made in *folder*, which is the run's own."""
    if not user.uid:
        return []
    home, users = folder / "home", folder / "passwd"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    users.write_text("".join(_passwd(user, Path(_USERS).read_text(errors="replace"))))
    return [Mount(str(users), _USERS, read_only=True), Mount(str(home), HOME)]


def _passwd(user: User, machine: str) -> Iterator[str]:
    """The lines of the passwd file: the machine's, with *user* in place of its namesakes."""
    yield f"{NAME}:x:{user.uid}:{user.gid}::{HOME}:{SHELL}\n"
    for line in machine.splitlines():
        name, _, rest = line.partition(":")
        if name != NAME and rest.split(":")[1:2] != [str(user.uid)]:
            yield f"{line}\n"
