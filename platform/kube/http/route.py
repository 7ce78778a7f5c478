"""The address of an API server and the route to it: TLS, server name, proxy."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Scheme, host and port of a URL, with its path prefix and credentials."""

    scheme: str
    host: str
    """Host name or IP address, without brackets."""
    port: int
    path: str = ""
    """Prefix of each request path; never ends with a slash."""
    user_info: str = ""
    """``user:password``, decoded."""

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Parse an ``http`` or ``https`` URL.

        Raises:
            ConfigError: the URL is malformed or has another scheme.
        """
        try:
            split = urlsplit(url)
            port = split.port
            host = (split.hostname or "").encode("idna").decode("ascii")
        except (ValueError, UnicodeError) as error:
            raise ConfigError(f"cannot parse URL: {error}") from error
        if split.scheme not in _DEFAULT_PORTS or not host:
            raise ConfigError(f"not an http or https URL: {split.scheme}://{host}")
        user_info, at, _ = split.netloc.rpartition("@")
        return cls(
            scheme=split.scheme,
            host=host,
            port=port or _DEFAULT_PORTS[split.scheme],
            path=split.path.rstrip("/"),
            user_info=unquote(user_info) if at else "",
        )

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to connect to a server."""

    origin: Origin
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """Name to verify in the certificate, if it differs from the host."""
    proxy: Origin | None = None
    """HTTP proxy to connect through; TLS is established with the server, not with the proxy."""
    unix_socket: str = ""
    """Path of a Unix socket to connect to instead of the origin."""
    before_connect: Callable[[], None] | None = None
    """Called before each new connection."""
