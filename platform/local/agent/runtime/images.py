"""Commands of containers without a stored image: local programs run instead of the image's.

An image defines the command of a pod without one, how its entry point treats arguments, and
programs that this machine may lack.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..state.core_types import Container

RUN_FOREVER = ("tail", "-f", "/dev/null")
"""Placeholder for a server: runs until it is stopped."""

EXIT_IMMEDIATELY = ("true",)
"""Placeholder for a shell without a terminal: exits immediately with code 0."""

_PYTHON = ("python", "python3")
"""Programs that every machine has: Batholith's own interpreter replaces a missing one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProfile:
    """Defaults of a family of images."""

    pattern: str
    """Matched against the image's last path component, without tag and digest."""

    default_command: tuple[str, ...] = RUN_FOREVER
    """Runs if the pod has neither command nor arguments."""

    interactive_command: tuple[str, ...] = ()
    """Runs instead if the container has an input, and the machine this program."""

    runs_args: bool = False
    """Whether the image has no entry point, so that the pod's arguments are the command."""

    servers: tuple[str, ...] = ()
    """Servers of the image; a placeholder replaces those that the machine lacks."""


_SHELL_IMAGES = (
    "busybox",
    "alpine",
    "ubuntu",
    "debian",
    "centos",
    "fedora",
    "rockylinux",
    "bash",
    "golang",
)
_LANGUAGE_IMAGES = ("python", "node", "perl", "ruby", "openjdk", "hello-world")

PROFILES: tuple[ImageProfile, ...] = (
    *(
        ImageProfile(
            pattern=name,
            default_command=EXIT_IMMEDIATELY,
            interactive_command=("sh",) if name in _SHELL_IMAGES else (),
            runs_args=True,
        )
        for name in (*_SHELL_IMAGES, *_LANGUAGE_IMAGES)
    ),
    ImageProfile(pattern="nginx*", servers=("nginx",)),
    ImageProfile(pattern="httpd*", servers=("httpd", "httpd-foreground")),
    ImageProfile(pattern="redis*", servers=("redis-server",)),
    ImageProfile(pattern="pause*", servers=("/pause",)),
    ImageProfile(pattern="*"),
)
"""The first match counts; the last one matches everything."""


def is_placeholder(container: Container, argv: Sequence[str]) -> bool:
    """Return whether *argv* is a placeholder, and not the container's own command."""
    argv = tuple(argv)
    return argv in (RUN_FOREVER, EXIT_IMMEDIATELY) and argv != (*container.command, *container.args)


class ProgramNotFoundError(Exception):
    """The pod's command is not found on this machine, and has no placeholder."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f'exec: "{program}": executable file not found in $PATH '
            "(the container runs with this machine's programs, since its image is not stored)"
        )


def short_name(image: str) -> str:
    """``registry/library/nginx:1.27@sha256:…`` → ``nginx``."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def profile_of(image: str) -> ImageProfile:
    """Return the first profile that matches *image*."""
    name = short_name(image)
    return next(profile for profile in PROFILES if fnmatchcase(name, profile.pattern))


def command_line(
    image: str,
    command: Sequence[str],
    args: Sequence[str],
    *,
    find: Callable[[str], str | None],
    is_installed: Callable[[str], bool] = lambda program: False,
    interactive: bool = False,
) -> tuple[str, ...]:
    """Return the command that runs for the container.

    *find* returns the path of a program inside the container, or ``None``. *interactive*: the
    container has an input.

    The entry points of most images for data and ML work (Dask, Jupyter, Prefect) prepare the
    container and execute the arguments. What the entry point of another image does is not known:
    arguments are the command if they begin with a program for which *is_installed* is true.

    Raises:
        ProgramNotFoundError: the machine lacks the pod's command.
    """
    profile = profile_of(image)
    if not command and not args:
        shell = profile.interactive_command
        return shell if interactive and shell and find(shell[0]) else profile.default_command
    argv = (*command, *args)
    is_program = argv[0] in _PYTHON or is_installed(argv[0])
    if not (command or profile.runs_args or is_program):
        return RUN_FOREVER
    if find(argv[0]):
        return argv
    if argv[0] in profile.servers:
        return RUN_FOREVER
    if argv[0] in _PYTHON:
        return (sys.executable, *argv[1:])
    raise ProgramNotFoundError(argv[0])
