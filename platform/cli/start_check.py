"""Requests of the checks at start, which wait for an unavailable API server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..kube.client.client import Client
from ..kube.errors import UNAVAILABLE_ERRORS, UnauthorizedError
from ..kube.informer.failure_log import FailureLog

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_INTERVAL = 1.0

_RETRIABLE_ERRORS = (*UNAVAILABLE_ERRORS, UnauthorizedError)
"""Errors to retry; an unauthorized request may succeed once the token is renewed."""


async def retry_while_unavailable(client: Client, request: Callable[[], Awaitable[T]]) -> T:
    """Return the result of *request*, repeated while the API server is unavailable.

    Raises:
        ApiError, DecodeError: any other failure.
    """
    failures = FailureLog(client.timing)
    while True:
        try:
            return await request()
        except _RETRIABLE_ERRORS as error:
            level = failures.level(str(error))
            log.log(level, "waiting for the API server", extra={"error": str(error)})
            await asyncio.sleep(RETRY_INTERVAL)
