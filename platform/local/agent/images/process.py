"""The process of a container that runs an image: command, user and environment; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..runtime.users import effective_context
from ..state.core_types import Container, Pod
from ..state.environment import SEARCH_PATH, ContainerConfigError, SecurityContextError
from .store import Account, StoredImage

_NUMBER_DIGITS = 10


@dataclass(frozen=True, slots=True)
class ImageUser:
    """User of a container."""

    uid: int
    gid: int
    home: str
    is_requested: bool
    """Whether the pod asks for it, and not the image."""


def image_user(pod: Pod, container: Container, image: StoredImage) -> ImageUser:
    """Return the user: that of the security context, or else the image's.

    Raises:
        ContainerConfigError: the image has no such user, or it is root in spite of runAsNonRoot.
    """
    context = effective_context(pod, container)
    name, _, group = (image.process.user or "").partition(":")
    uid, gid = context.run_as_user, context.run_as_group
    if context.run_as_non_root:
        _check_non_root(uid, name)
    requested = uid is not None
    if uid is None:
        uid = 0 if not name else _number(name, image.users, "user", "/etc/passwd")
    account = next((each for each in image.users if each.uid == uid), None)
    if not name.isdecimal() and not requested:  # several may have the same id
        account = next((each for each in image.users if each.name == name), account)
    if gid is None:
        gid = account.gid if account else 0
        if group and not requested:
            gid = _number(group, image.groups, "group", "/etc/group")
    return ImageUser(uid, gid, (account.home if account else "") or "/", requested)


def _check_non_root(uid: int | None, name: str) -> None:
    """Check runAsNonRoot; the messages are those of kubelet."""
    if uid is not None:
        if uid == 0:
            raise SecurityContextError("container's runAsUser breaks non-root policy")
    elif name and not name.isdecimal():
        raise SecurityContextError(
            f"container has runAsNonRoot and image has non-numeric user ({name[:100]!r}), cannot "
            "verify user is non-root"
        )
    elif not name or int(name[:_NUMBER_DIGITS]) == 0:
        raise SecurityContextError("container has runAsNonRoot and image will run as root")


def _number(text: str, known: Sequence[Account], what: str, file: str) -> int:
    if text.isascii() and text.isdecimal():
        if len(text) > _NUMBER_DIGITS:
            raise ContainerConfigError(f"the image's {what} {text[:100]!r} is too large a number")
        return int(text)
    for each in known:
        if each.name == text:
            return each.uid
    raise ContainerConfigError(f"the image's {what} {text[:100]!r} is not in its {file}")


def image_environment(image: StoredImage, home: str) -> dict[str, str]:
    """Return the image's variables."""
    pairs = (entry.partition("=") for entry in image.process.env or ())
    found = {name: value for name, _, value in pairs if name}
    return {"PATH": SEARCH_PATH, "HOME": home} | found


def command_line(image: StoredImage, command: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return what runs: a pod's command replaces the image's entry point and arguments.

    Raises:
        ContainerConfigError: neither has a command.
    """
    process = image.process
    argv = [*command, *args]
    if not command:
        argv = [*(process.entrypoint or ()), *(args or process.cmd or ())]
    if not argv:
        raise ContainerConfigError("no command specified: neither the pod nor its image has one")
    return argv
