"""Sources of the ``Authorization`` header: a token, a token file, a credential plugin."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from .effects import Secret
from .errors import ConfigError
from .exec_plugin import ExecPlugin, PluginCredential
from .timing import Timing

EXPIRY_MARGIN = timedelta(seconds=10)
"""How long before its expiry a token of a plugin is replaced."""


class CredentialSource(Protocol):
    """Source of the ``Authorization`` header; safe for use by several threads."""

    def current(self) -> Secret | None:
        """Return the header if that needs neither file nor process, else ``None``."""
        ...

    def fetch(self) -> Secret:
        """Return the header; blocks.

        Raises:
            ConfigError: it cannot be fetched.
        """
        ...

    def invalidate(self, rejected: Secret) -> bool:
        """Discard a header that the server rejected; return whether `fetch` may return another."""
        ...


class StaticToken:
    """A constant bearer token; none if it is empty."""

    def __init__(self, token: str = "") -> None:
        self._header = bearer(token)

    def current(self) -> Secret:
        """Return the header."""
        return self._header

    def fetch(self) -> Secret:
        """Return the header."""
        return self._header

    def invalidate(self, rejected: Secret) -> bool:
        """Return False: there is no other."""
        return False


class TokenFile:
    """A bearer token in a file that others may replace; the file is read for each request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = Secret("")

    def current(self) -> None:
        """Return ``None``: the file must be read."""
        return

    def fetch(self) -> Secret:
        """Return the token of the file; the previous one while the file cannot be read."""
        try:
            found = bearer(self._path.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            if self._last:
                return self._last
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"cannot read token file {self._path}: {reason}") from None
        if not found:
            raise ConfigError(f"token file {self._path} is empty")
        self._last = found
        return found

    def invalidate(self, rejected: Secret) -> bool:
        """Return whether the file has another token by now."""
        return self.fetch() != rejected


class PluginToken:
    """The token of a credential plugin, kept until it expires or is rejected."""

    def __init__(
        self,
        plugin: ExecPlugin,
        *,
        timing: Timing,
        use_certificate: Callable[[PluginCredential], None],
    ) -> None:
        """Run *plugin*; its client certificates are passed to *use_certificate*."""
        self._plugin = plugin
        self._timing = timing
        self._use_certificate = use_certificate
        self._lock = threading.Lock()
        self._header: Secret | None = None
        self._expires: datetime | None = None

    def current(self) -> Secret | None:
        """Return the header unless it expires now."""
        with self._lock:
            return self._unexpired()

    def fetch(self) -> Secret:
        """Return the header, running the plugin if it has expired; one thread at a time."""
        with self._lock:
            header = self._unexpired()
            if header is None:
                found = self._plugin.run()
                if found.certificate:
                    self._use_certificate(found)
                header = self._header = bearer(found.token.reveal())
                self._expires = found.expires
            return header

    def invalidate(self, rejected: Secret) -> bool:
        """Have the plugin run again, unless another thread did so after the rejected request."""
        with self._lock:
            if self._header == rejected:
                self._header = None
        return True

    def _unexpired(self) -> Secret | None:
        if self._expires is not None and self._timing.now() >= self._expires - EXPIRY_MARGIN:
            self._header = None
        return self._header


def bearer(token: str) -> Secret:
    """Return the header of a bearer token; empty for none.

    Raises:
        ConfigError: it contains characters that no header may contain.
    """
    if not token:
        return Secret("")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("the token contains characters that a header cannot contain")
    return Secret(f"Bearer {token}")
