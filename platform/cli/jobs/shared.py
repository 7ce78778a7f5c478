"""What the commands have in common: exit codes, their error, names of jobs."""

from typing import Any

FAILED = 1
"""The server rejected the request, or the job has failed."""
WRONG_ARGUMENTS = 2
NO_CLUSTER = 3
"""No cluster is up, or it does not respond."""
NOT_FOUND = 4
NOT_PERMITTED = 5
TIMEOUT = 124
"""A timeout has passed, as in timeout(1)."""

IN_PROCESS = "http://127.0.0.1"
"""Address of the application in this process: nothing listens there."""


class CommandFailedError(Exception):
    """What was asked for was not reached; the message is for people."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def key(job: Any) -> str:
    """Return ``KIND/NAME`` of a job: of its handle, its summary or its record."""
    return f"{job.kind}/{job.name}"
