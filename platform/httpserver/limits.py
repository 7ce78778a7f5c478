"""Resource limits of a listener for unauthenticated clients."""

import errno
import os
import resource
from dataclasses import dataclass, fields, replace

from ..model import durations, quantity

MIB = 1024 * 1024

_RESERVED_FD_RATIO = 4
"""One in this many file descriptors is reserved for other uses than connections."""


class LimitsError(ValueError):
    """Malformed limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one listener; timeouts in seconds."""

    connections: int = 1000
    """Open connections, including those in a TLS handshake."""

    handshake_timeout: float = 30.0
    """From accepting a connection to the end of its TLS handshake."""

    header_timeout: float = 30.0
    """From the first byte of a request to the end of its headers. For a new connection: from
    accepting it."""

    body_timeout: float = 60.0
    """From the end of a request's headers to the end of its body."""

    idle_timeout: float = 180.0
    """Without a request. Longer than that of clients (Go's 90 s, Batholith's 60 s), so that a
    request does not race with the close."""

    write_timeout: float = 60.0
    """For which an unauthenticated client may not read its response."""

    unfinished_bytes: int = 64 * MIB
    """Bytes of incomplete or queued requests in memory."""

    @classmethod
    def parse(cls, text: str, *, base: "Limits | None" = None) -> "Limits":
        """Change *base* by ``name=value,…``: ``connections=500,header-timeout=10s``.

        Raises:
            LimitsError: a name is unknown, or a value is malformed or not positive.
        """
        kinds = {field.name.replace("_", "-"): field.type for field in fields(cls)}
        found: dict[str, float] = {}
        for item in filter(None, map(str.strip, text.split(","))):
            name, equals, value = item.partition("=")
            if not equals or name not in kinds:
                raise LimitsError(f"{item!r}: want one of {', '.join(kinds)} and its value")
            found[name.replace("-", "_")] = _parse_positive(name, value, integer=kinds[name] is int)
        return replace(base or cls(), **found)  # type: ignore[arg-type]

    @property
    def max_connections(self) -> int:
        """Maximum connections, reduced if file descriptors are scarce."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self.connections
        return max(1, min(self.connections, files - files // _RESERVED_FD_RATIO))


def raise_open_files(connections: int) -> None:
    """Let this process open the files for *connections*, as far as it may.

    The usual soft limit is a few hundred connections, for programs that use `select`. Programs of
    Go raise it, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections * _RESERVED_FD_RATIO // (_RESERVED_FD_RATIO - 1) + 1
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def reserve_open_files(count: int) -> None:
    """Let this process open *count* further files.

    Raises:
        OSError: its hard limit is too low.
    """
    wanted = len(os.listdir("/proc/self/fd")) + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(
            errno.EMFILE,
            f"too few open files are allowed: {wanted} are needed, and the limit is {hard};"
            f" raise it (`ulimit -n {wanted}`)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _parse_positive(name: str, value: str, *, integer: bool) -> float:
    try:
        if integer:
            number: float = quantity.parse(value).value()
        else:
            number = durations.parse(value).total_seconds()
    except ValueError as error:
        raise LimitsError(f"{name}: {error}") from error
    if number <= 0:
        raise LimitsError(f"{name}: {value} is not above zero")
    return number
