"""Python SDK of the REST API, blocking and asynchronous.

.. code-block:: python

    from batholith.client import Client, Job

    with Client() as client:
        job = client.jobs.submit(Job("hello").task("main", image="busybox", command=["date"]))
        job.wait(timeout=60)
        print(*job.logs(), sep="\\n")

Imports are light: httpx and msgspec, and nothing of the server.
"""

from ..wire.commands import BulkResults, Command
from ..wire.jobs import JobSummary, Phase, PodSummary
from ..wire.problem import Problem
from .async_client import AsyncClient, AsyncJobHandle
from .builder import Job
from .client import Client, JobHandle
from .errors import (
    ApiError,
    BadRequestError,
    ClientError,
    ConfigError,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    GoneError,
    InvalidError,
    JobDeletedError,
    ManifestError,
    NotFoundError,
    PhaseUnreachableError,
    PreconditionFailedError,
    RateLimitedError,
    ServerError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedResponseError,
    UnreachableError,
    WaitError,
    WaitTimeoutError,
)
from .timing import Retries
from .watch_state import Change, ChangeType

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncJobHandle",
    "BadRequestError",
    "BulkResults",
    "Change",
    "ChangeType",
    "Client",
    "ClientError",
    "Command",
    "ConfigError",
    "ConflictError",
    "DeadlineError",
    "ForbiddenError",
    "GoneError",
    "InvalidError",
    "Job",
    "JobDeletedError",
    "JobHandle",
    "JobSummary",
    "ManifestError",
    "NotFoundError",
    "Phase",
    "PhaseUnreachableError",
    "PodSummary",
    "PreconditionFailedError",
    "Problem",
    "RateLimitedError",
    "Retries",
    "ServerError",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "UnexpectedResponseError",
    "UnreachableError",
    "WaitError",
    "WaitTimeoutError",
]
