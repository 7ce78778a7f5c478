"""Authentication of the client: TLS context and ``Authorization`` header.

Tokens from files or credential plugins are reloaded every minute, and immediately after the server
rejected one.
"""

import asyncio
import base64
import logging
import os
import ssl
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ..errors import ConfigError
from ..private_files import read_credential
from ..timing import Timing
from .config import Credentials

log = logging.getLogger(__name__)

REFRESH_INTERVAL = 60.0
"""Seconds for which a token from a file or plugin is cached."""


class CredentialSource(Protocol):
    """Source of the ``Authorization`` header; empty for none."""

    def current(self) -> str | None:
        """Return the value if it is known and valid; ``None`` if :meth:`header` must be awaited."""
        ...

    async def header(self) -> str:
        """Return the current value."""
        ...

    def invalidate(self) -> None:
        """Discard the cached value: the server rejected it."""
        ...


class StaticCredentials:
    """A constant header."""

    def __init__(self, value: str) -> None:
        self._value = value

    def current(self) -> str:
        """The header's value."""
        return self._value

    async def header(self) -> str:
        """The header's value."""
        return self._value

    def invalidate(self) -> None:
        """Do nothing: there is no other value."""


class TokenFileSource:
    """Bearer token in a file that is rotated at runtime."""

    def __init__(self, path: str, timing: Timing) -> None:
        self._path = Path(path)
        self._timing = timing
        self._value = ""
        self._valid_until = float("-inf")

    def current(self) -> str | None:
        """Return the token while it is cached."""
        return self._value if self._timing.monotonic() < self._valid_until else None

    async def header(self) -> str:
        """Return the token, cached for a minute; the previous one if the file is unreadable."""
        now = self._timing.monotonic()
        if now >= self._valid_until:
            self._value = self._read_token() or self._value
            self._valid_until = now + REFRESH_INTERVAL
        return self._value

    def invalidate(self) -> None:
        """Reread the file on next use."""
        self._valid_until = float("-inf")

    def _read_token(self) -> str:
        try:
            token = read_credential(self._path).decode().strip()
        except OSError as error:
            if not self._value:
                reason = error.strerror or error
                raise ConfigError(f"cannot read token {self._path}: {reason}") from error
            log.warning(
                "cannot read token file, keeping the old token", extra={"error": str(error)}
            )
            return ""
        return f"Bearer {token}" if token else ""


class ExecCredentialSource:
    """Credentials of an ``exec`` or OIDC user, fetched by the official client's loader."""

    def __init__(self, loader: Any, configuration: Any, timing: Timing) -> None:
        self._loader = loader
        self._configuration = configuration
        self._timing = timing
        self._valid_until = timing.monotonic() + REFRESH_INTERVAL
        self._refresh_lock = asyncio.Lock()

    def current(self) -> str | None:
        """Return the plugin's token while it is valid."""
        return self._token if self._timing.monotonic() < self._valid_until else None

    async def header(self) -> str:
        """Return the plugin's token; the loader runs the plugin again when it expires."""
        if self._timing.monotonic() >= self._valid_until:
            async with self._refresh_lock:
                if self._timing.monotonic() >= self._valid_until:
                    await self._refresh()
                    self._valid_until = self._timing.monotonic() + REFRESH_INTERVAL
        return self._token

    @property
    def _token(self) -> str:
        return str(self._configuration.api_key.get("BearerToken", ""))

    def invalidate(self) -> None:
        """Refresh on next use."""
        self._valid_until = float("-inf")

    async def _refresh(self) -> None:
        """Run the plugin if needed; keep the previous token if it fails."""
        try:
            await self._loader.load_and_set(self._configuration)
        except Exception as error:
            log.warning("credential plugin failed, keeping the token", extra={"error": str(error)})


async def resolve_credentials(
    credentials: Credentials, timing: Timing
) -> tuple[Credentials, CredentialSource]:
    """Return the header source of *credentials*, running a credential plugin if one is named.

    Also returns the credentials: a plugin may have added a client certificate.

    Raises:
        ConfigError: the plugin or the token file provides no credentials.
    """
    if credentials.plugin is not None:
        return await _from_plugin(credentials, credentials.plugin, timing)
    if credentials.token:
        return credentials, StaticCredentials(f"Bearer {credentials.token}")
    if credentials.token_file:
        source = TokenFileSource(credentials.token_file, timing)
        await source.header()
        return credentials, source
    if credentials.username:
        pair = f"{credentials.username}:{credentials.password}".encode()
        return credentials, StaticCredentials(f"Basic {base64.b64encode(pair).decode()}")
    return credentials, StaticCredentials("")


async def _from_plugin(
    credentials: Credentials, plugin: tuple[str, str], timing: Timing
) -> tuple[Credentials, CredentialSource]:
    # Lazy import: costs 200 ms and 50 MB, for users with plugins only.
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    path, context = plugin
    configuration = Configuration()
    try:
        loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path,
            context=context,
            client_configuration=configuration,
            persist_config=True,
        )
    except Exception as error:
        raise ConfigError(f"{path}: credentials of context {context!r}: {error}") from error
    cert = configuration.cert_file or ""
    if not cert and not configuration.api_key.get("BearerToken"):
        raise ConfigError(f"{path}: the credential plugin of context {context!r} gave nothing")
    if cert:
        credentials = replace(
            credentials,
            cert_file=cert,
            key_file=configuration.key_file or "",
            cert_data=b"",
            key_data=b"",
        )
    return credentials, ExecCredentialSource(loader, configuration, timing)


def tls_context(credentials: Credentials) -> ssl.SSLContext | None:
    """Build the TLS settings for ``https`` servers; None for ``http``.

    Raises:
        ConfigError: a certificate or key cannot be read.
    """
    if not credentials.server.startswith("https://"):
        return None
    try:
        context = _verifying_context(credentials)
        _load_client_cert(context, credentials)
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificates for {credentials.server}: {error}") from error
    return context


class CertificateFile:
    """Loads a client certificate again when its file was replaced by a renewed one."""

    def __init__(self, context: ssl.SSLContext, credentials: Credentials) -> None:
        """*context* has the current one."""
        self._context = context
        self._credentials = credentials
        self._loaded = self._version()

    def reload(self) -> None:
        """Load the certificate if its file has changed; an invalid one changes nothing."""
        version = self._version()
        if version == self._loaded:
            return
        self._loaded = version
        try:
            _load_client_cert(self._context, self._credentials)
        except (OSError, ValueError) as error:
            fields = {"file": self._credentials.cert_file, "error": str(error)}
            log.warning("cannot load client certificate", extra=fields)

    def _version(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._credentials.cert_file)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def _verifying_context(credentials: Credentials) -> ssl.SSLContext:
    if credentials.ca_data:
        context = ssl.create_default_context(cadata=credentials.ca_data.decode("ascii"))
    else:
        context = ssl.create_default_context(cafile=credentials.ca_file or None)
    if credentials.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # Older cluster CAs lack the key usage extension, which newer Pythons demand by default.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


def _load_client_cert(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Load the client certificate; OpenSSL reads files, so inline data go to temporary ones."""
    if not (credentials.cert_data or credentials.cert_file):
        return
    with tempfile.TemporaryDirectory(prefix="batholith-") as directory:
        cert, key = Path(credentials.cert_file), Path(credentials.key_file)
        if credentials.cert_data:
            cert = Path(directory, "cert.pem")
            cert.write_bytes(credentials.cert_data)
        if credentials.key_data:
            key = Path(directory, "key.pem")
            key.write_bytes(credentials.key_data)
        context.load_cert_chain(cert, key)
