"""HTTPS client of webhooks: one request per review, within the event loop but never blocking it."""

import base64
import binascii
import posixpath
import socket
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..storage.stored_objects import new_uid
from .responses import ReviewResponse, WebhookCall
from .reviews import InvalidResponseError, check_response, review
from .services import NoEndpointError, ServiceResolver

if TYPE_CHECKING:
    import aiohttp

MAX_RESPONSE_SIZE = 6 * 2**20
"""Maximum bytes of a response: twice the limit of an object."""

_MAX_CONTEXTS = 64
_MAX_SHOWN = 1024
"""Characters of an unexpected response in a message."""


class WebhookClient:
    """Sends reviews to webhooks."""

    def __init__(self, resolver: ServiceResolver) -> None:
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}
        """By CA bundle in base64."""

    async def call(self, call: WebhookCall) -> ReviewResponse:
        """Send a review; never raises but when cancelled."""
        hook = call.hook
        uid = new_uid()
        body = review(hook.version, uid, call.request)
        try:
            response = await self.post(hook.client_config, body, timeout=hook.timeout)
        except (ssl.SSLError, ValueError) as error:
            return ReviewResponse(error=f"could not get REST client: {error}")
        except CallError as error:
            return ReviewResponse(error=f"failed to call webhook: {error}")
        try:
            return ReviewResponse(response=check_response(response, version=hook.version, uid=uid))
        except InvalidResponseError as error:
            return ReviewResponse(error=f"received invalid webhook response: {error}")

    async def post(self, config: dict[str, object], body: bytes, *, timeout: int) -> bytes:
        """Send *body* to the webhook with this client configuration; return its response.

        Raises:
            CallError: it cannot be called.
            ssl.SSLError: the CA bundle contains no certificates.
            ValueError: the same.
        """
        return await self._post(self._target(config, timeout), body, timeout)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _target(self, config: dict[str, object], timeout: int) -> "_Target":
        bundle = str(config.get("caBundle") or "")
        context = self._contexts.get(bundle)
        if context is None:
            if len(self._contexts) >= _MAX_CONTEXTS:
                self._contexts.clear()
            context = self._contexts[bundle] = load_ca_bundle(bundle)
        service = config.get("service")
        if isinstance(service, dict):
            name, namespace = str(service.get("name", "")), str(service.get("namespace", ""))
            port = int(service.get("port") or HTTPS_PORT)
            path = _clean(str(service.get("path") or ""))
            host = f"{name}.{namespace}.svc"
            shown = f"https://{host}:{port}{path}?timeout={timeout}s"
            return _Target(shown, context, host, path, service=(namespace, name, port))
        split = urlsplit(str(config.get("url", "")))
        path = _clean(split.path)
        shown = f"{split.scheme}://{split.netloc}{path}?timeout={timeout}s"
        return _Target(shown, context, split.hostname or "", path)

    async def _post(self, target: "_Target", body: bytes, timeout: int) -> bytes:
        import aiohttp  # slow to import, and not needed without webhooks

        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        url = target.url
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if target.service:
            try:
                address, port = self._resolver.resolve(*target.service)
            except NoEndpointError as error:
                raise CallError(f'Post "{target.url}": {error}') from error
            host = f"[{address}]" if ":" in address else address
            url = f"https://{host}:{port}{target.path}?timeout={timeout}s"
            headers["Host"] = f"{target.host}:{target.service[2]}"
        try:
            async with self._session.post(
                url,
                data=body,
                headers=headers,
                ssl=target.context,
                server_hostname=target.host if target.service else None,
                timeout=aiohttp.ClientTimeout(total=timeout),
                # A webhook must not choose another target of this server's requests.
                allow_redirects=False,
            ) as response:
                data = await _read(response)
                _check_status(response.status, data)
                return data
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CallError(f'Post "{target.url}": {_reason(error)}') from error


HTTPS_PORT = 443


class CallError(Exception):
    """A webhook cannot be called, or sends no review."""


class _Target:
    """Where a review is sent."""

    def __init__(
        self,
        url: str,
        context: ssl.SSLContext,
        host: str,
        path: str,
        *,
        service: tuple[str, str, int] | None = None,
    ) -> None:
        self.url = url
        self.context = context
        self.host = host
        self.path = path
        self.service = service
        """Namespace, name and port."""


def _clean(path: str) -> str:
    """Return the path that kube-apiserver requests: `//mutate`, which envtest writes, is none."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def load_ca_bundle(bundle: str) -> ssl.SSLContext:
    """Return a context that trusts *bundle*; the system's authorities if it is empty.

    Raises:
        ValueError: it contains no certificates.
        ssl.SSLError: the same.
    """
    if not bundle:
        return ssl.create_default_context()
    try:
        text = base64.b64decode(bundle, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"unable to load root certificates: {error}") from error
    context = ssl.create_default_context(cadata=text)
    # As in Go: each certificate of a bundle is trusted, also that of the server itself (envtest).
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


async def _read(response: "aiohttp.ClientResponse") -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > MAX_RESPONSE_SIZE:
            raise CallError(f"the response is longer than {MAX_RESPONSE_SIZE} bytes")
    return bytes(data)


def _check_status(status: int, body: bytes) -> None:
    """Raise the error that client-go has for a response of this status."""
    if status in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
        return
    if status == HTTPStatus.NOT_FOUND:
        raise CallError("the server could not find the requested resource")
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        raise CallError(f"the webhook redirects the request (status {status})")
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise CallError("the server rejected our request for an unknown reason")
    text = body[:_MAX_SHOWN].decode(errors="replace").strip()
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    raise CallError(f"an error on the server ({quoted}) has prevented the request from succeeding")


def _reason(error: Exception) -> str:
    """Return the text of Go for the usual errors."""
    import aiohttp

    if isinstance(error, TimeoutError):
        return "context deadline exceeded"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"tls: failed to verify certificate: x509: {_certificate_problem(error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        target = f"dial tcp {error.host}:{error.port}"
        if isinstance(error.os_error, ConnectionRefusedError):
            return f"{target}: connect: connection refused"
        if isinstance(error.os_error, socket.gaierror):
            return f"dial tcp: lookup {error.host}: no such host"
        return f"{target}: {error.os_error}"
    return str(error) or "EOF"


def _certificate_problem(error: "aiohttp.ClientConnectorCertificateError") -> str:
    cause = error.certificate_error
    text = getattr(cause, "verify_message", "") or str(cause)
    if "self-signed" in text or "issuer certificate" in text:
        return "certificate signed by unknown authority"
    return text
