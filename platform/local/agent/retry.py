"""Retries of requests to the API server."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ...kube.errors import UNAVAILABLE_ERRORS, ApiError, ConnectionLostError, UnauthorizedError
from ...machinery.clock import Clock

log = logging.getLogger(__name__)

_RETRY_INTERVAL = 1.0


def is_retriable(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, (*UNAVAILABLE_ERRORS, UnauthorizedError))


def retry_delay(failures: int, *, initial: float, maximum: float) -> float:
    """Return *initial*, doubled with each of the *failures* in a row, and *maximum* at most."""
    return float(min(initial * 2.0 ** min(max(failures - 1, 0), 10), maximum))


async def retry_until_done(work: Callable[[], Coroutine[Any, Any, None]], *, clock: Clock) -> None:
    """Run *work* until the API server accepts it.

    Raises:
        ApiError: the error is permanent.
    """
    while True:
        try:
            await work()
        except (ApiError, ConnectionLostError) as error:
            if not is_retriable(error):
                raise
            log.info("API server unavailable, retrying", extra={"error": str(error)})
        else:
            return
        await clock.sleep(_RETRY_INTERVAL)
