"""When the ports of a Unified Fabric Manager are read, and which ones are known."""

import logging

from ..kube.client.client import Client
from ..kube.errors import ApiError, ConfigError, ConnectionLostError, DecodeError
from ..machinery.clock import Clock
from .configuration import Ufm
from .ufm import CredentialsError, Port, read_ports

log = logging.getLogger(__name__)

_RETRY = 60.0
"""Seconds after which ports are read again that could not be read."""


class PortReader:
    """Reads the ports of the configured source once in each interval.

    While they cannot be read, and if there are none, the last ones of the same source count: a
    manager that has just started must not delete the HyperNodes.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        """*client* reads the Secret of the source."""
        self._client = client
        self._clock = clock
        self._source: Ufm | None = None
        self._ports: tuple[Port, ...] | None = None
        self._due = 0.0
        """When they are read next, in the time of the clock."""
        self.problems: tuple[str, ...] = ()
        """Why they could not be read."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the ports are to be read again."""
        return max(self._due - self._clock.monotonic(), 0.0)

    async def current(self, source: Ufm | None) -> tuple[Port, ...] | None:
        """Return the ports of *source*, ``None`` if they are not known or it is not configured."""
        if source != self._source:
            self._source, self._ports, self._due, self.problems = source, None, 0.0, ()
        if source is not None and not self.seconds_left:
            await self._read(source)
        return self._ports

    async def _read(self, source: Ufm) -> None:
        try:
            ports = await read_ports(self._client, source)
            problem = "" if ports else "it knows no ports"
        except (
            ApiError,
            ConfigError,
            ConnectionLostError,
            CredentialsError,
            DecodeError,
            OSError,
            TimeoutError,
        ) as error:
            ports, problem = (), f"{type(error).__name__}: {error}"
        seconds = source.interval.total_seconds()
        if problem:
            self.problems = (f"ufm: {source.endpoint}: {problem}",)
            seconds = min(seconds, _RETRY)
        else:
            self._ports, self.problems = ports, ()
            log.info("ports of the fabric manager", extra={"count": len(ports)})
        self._due = self._clock.monotonic() + seconds
