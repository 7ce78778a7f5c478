"""Start of the program of this directory that needs no installation: a shim, or its fork server."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...network.node_namespace import passing_rights
from . import shim

PROGRAM = Path(shim.__file__).with_name("starting.py")
FIRST_DESCRIPTOR = 3
"""The number that the first passed descriptor has in the program."""


def spawn(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: int,
    descriptors: Sequence[int] = (),
) -> int:
    """Start the program in a new session, with *output* as its outputs; return its id.

    Raises:
        OSError: no process can be created.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    ends = (null, output, output, *descriptors)
    try:
        with passing_rights():
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(PROGRAM), *arguments],
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, end, to) for to, end in enumerate(ends)],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
            )
    finally:
        os.close(null)
