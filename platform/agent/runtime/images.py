"""How a local process stands in for an image, since there is no image here to take it from.

An image brings three things that matter to us: what runs when the pod gives no command, what its
own entry point makes of arguments, and programs that this machine may lack.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..state.core_types import Container

RUN_FOREVER = ("tail", "-f", "/dev/null")
"""Stands in for a server: runs until it is told to end."""

EXIT_IMMEDIATELY = ("true",)
"""Stands in for a shell without a terminal: ends at once, well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProfile:
    """What is known about a family of images."""

    pattern: str
    """Matched against the image's last path component, without tag and digest."""

    default_command: tuple[str, ...] = RUN_FOREVER
    """Runs when the pod names neither command nor arguments."""

    runs_args: bool = False
    """The image has no entry point, so that the pod's arguments are a command of their own."""

    servers: tuple[str, ...] = ()
    """Programs of the image that serve until stopped; stood in for where the machine lacks them."""


_SHELL_IMAGES = (
    "busybox", "alpine", "ubuntu", "debian", "centos", "fedora", "rockylinux", "bash",
    "python", "golang", "node", "perl", "ruby", "openjdk", "hello-world",
)  # fmt: skip

PROFILES: tuple[ImageProfile, ...] = (
    *(
        ImageProfile(pattern=name, default_command=EXIT_IMMEDIATELY, runs_args=True)
        for name in _SHELL_IMAGES
    ),
    ImageProfile(pattern="nginx*", servers=("nginx",)),
    ImageProfile(pattern="httpd*", servers=("httpd", "httpd-foreground")),
    ImageProfile(pattern="redis*", servers=("redis-server",)),
    ImageProfile(pattern="pause*", servers=("/pause",)),
    ImageProfile(pattern="*"),
)
"""The first match counts; the last one matches everything."""


def is_placeholder(container: Container, argv: Sequence[str]) -> bool:
    """Whether *argv* stands in for a program of the image, and was not asked for itself."""
    argv = tuple(argv)
    return argv in (RUN_FOREVER, EXIT_IMMEDIATELY) and argv != (*container.command, *container.args)


class ProgramNotFoundError(Exception):
    """The pod's command is not on this machine, and nothing stands in for it."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f'exec: "{program}": executable file not found in $PATH '
            "(containers run with this machine's programs, images are not pulled)"
        )


def short_name(image: str) -> str:
    """``registry/library/nginx:1.27@sha256:…`` → ``nginx``."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def profile_of(image: str) -> ImageProfile:
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
        return profile.default_command
    if not command and not profile.runs_args:
        return RUN_FOREVER
    argv = (*command, *args)
    if find(argv[0]):
        return argv
    if argv[0] in profile.servers:
        return RUN_FOREVER
    if argv[0] in ("python", "python3"):
        return (sys.executable, *argv[1:])
    raise ProgramNotFoundError(argv[0])
