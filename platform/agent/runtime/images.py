"""How a local process stands in for an image, since there is no image here to take it from.

An image brings three things that matter to us: what runs when the pod gives no command, what its
own entry point makes of arguments, and programs that this machine may lack.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..state.core_types import Container

FOR_EVER = ("tail", "-f", "/dev/null")
"""Stands in for a server: runs until it is told to end."""

AT_ONCE = ("true",)
"""Stands in for a shell without a terminal: ends at once, well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known about a family of images."""

    pattern: str
    """Matched against the image's last path component, without tag and digest."""

    alone: tuple[str, ...] = FOR_EVER
    """Runs when the pod names neither command nor arguments."""

    runs_args: bool = False
    """The image has no entry point, so that the pod's arguments are a command of their own."""

    servers: tuple[str, ...] = ()
    """Programs of the image that serve until stopped; stood in for where the machine lacks them."""


_SHELL_IMAGES = (
    "busybox", "alpine", "ubuntu", "debian", "centos", "fedora", "rockylinux", "bash",
    "python", "golang", "node", "perl", "ruby", "openjdk", "hello-world",
)  # fmt: skip

PROFILES: tuple[Profile, ...] = (
    *(Profile(pattern=name, alone=AT_ONCE, runs_args=True) for name in _SHELL_IMAGES),
    Profile(pattern="nginx*", servers=("nginx",)),
    Profile(pattern="httpd*", servers=("httpd", "httpd-foreground")),
    Profile(pattern="redis*", servers=("redis-server",)),
    Profile(pattern="pause*", servers=("/pause",)),
    Profile(pattern="*"),
)
"""The first match counts; the last one matches everything."""


def is_placeholder(container: Container, argv: Sequence[str]) -> bool:
    """Whether *argv* stands in for a program of the image, and was not asked for itself."""
    argv = tuple(argv)
    return argv in (FOR_EVER, AT_ONCE) and argv != (*container.command, *container.args)


class NoSuchProgramError(Exception):
    """The pod's command is not on this machine, and nothing stands in for it."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f'exec: "{program}": executable file not found in $PATH '
            "(containers run with this machine's programs, images are not pulled)"
        )


def short_name(image: str) -> str:
    """``registry/library/nginx:1.27@sha256:…`` → ``nginx``."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def profile_of(image: str) -> Profile:
    """The first profile that matches *image*."""
    name = short_name(image)
    return next(profile for profile in PROFILES if fnmatchcase(name, profile.pattern))


def command_line(
    image: str,
    command: Sequence[str],
    args: Sequence[str],
    *,
    find: Callable[[str], str | None],
) -> tuple[str, ...]:
    """The argument list that stands in for the container.

    *find* says where a program lies, as seen by the container, or ``None``.

    Raises:
        NoSuchProgramError: a command was given that the machine lacks.
    """
    profile = profile_of(image)
    if not command and not args:
        return profile.alone
    if not command and not profile.runs_args:
        return FOR_EVER
    argv = (*command, *args)
    if find(argv[0]):
        return argv
    if argv[0] in profile.servers:
        return FOR_EVER
    if argv[0] in ("python", "python3"):
        return (sys.executable, *argv[1:])
    raise NoSuchProgramError(argv[0])
