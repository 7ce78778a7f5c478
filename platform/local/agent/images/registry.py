"""Client of registries: the HTTP API that OCI's distribution specification describes.

Credentials are sent to the registry, and to the token server that it names, and never follow a
redirect to another host. Everything that a registry sends is limited, and verified by its digest.
"""

import base64
import os
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from .archives import store_image
from .credentials import Credential, Endpoint
from .errors import ImageError
from .formats import (
    ACCEPTED_TYPES,
    MAX_JSON,
    Descriptor,
    Document,
    decode,
    decode_manifest,
    select_platform,
    sha256,
    verified,
)
from .references import Reference, is_digest
from .store import ImageStore, StoredImage
from .unpacking import Blob, UnpackLimits

_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_ATTEMPTS = 4
RETRY_DELAY = 0.5
"""Seconds before the first retry; doubled for each further one."""

MIN_TIME, _MIN_RATE = 300.0, 16 << 10
"""Seconds that any response may take, and bytes per second beyond them."""

_MAX_REDIRECTS = 5
_MAX_TOKEN = 64 << 10
_MAX_INDEXES = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_T = TypeVar("_T")
_PARAMETER = re.compile(r'([A-Za-z]+)="([^"]*)"')


def pull(
    store: ImageStore, name: Reference, endpoints: Sequence[Endpoint], *, limits: UnpackLimits
) -> StoredImage:
    """Store an image from the first endpoint that has it.

    Raises:
        ImageError: no endpoint has it, or it is invalid; with the reason of the last one.
        OSError: the store cannot be written.
    """
    error = ImageError("no registry is configured")
    context = ssl.create_default_context()
    with store.in_use():
        for endpoint in endpoints:
            for credential in endpoint.credentials or (None,):
                with httpx.Client(verify=context, timeout=_TIMEOUT) as http:
                    session = _Session(http, endpoint.url.rstrip("/"), name.repository, credential)
                    try:
                        return _pull_from(store, name, session, limits)
                    except _DeniedError as failed:
                        error = failed
                    except ImageError as failed:
                        error = failed
                        break
    raise error


class _DeniedError(ImageError):
    """The registry rejects the credential."""


class _TransientError(ImageError):
    """Another attempt may succeed."""


def _pull_from(
    store: ImageStore, name: Reference, session: "_Session", limits: UnpackLimits
) -> StoredImage:
    data, digest = b"", ""
    reference = name.digest or name.tag
    for _ in range(_MAX_INDEXES):
        data = session.manifest(reference)
        if is_digest(reference):
            verified(data, reference, "a manifest")
        digest = digest or sha256(data)
        document = decode(data, Document, "a manifest")
        if document.manifests is None:
            break
        reference = select_platform(document, f"the index {name}").digest
        if not is_digest(reference):
            raise ImageError("an index has an invalid digest")
    else:
        raise ImageError("indexes are nested too deeply")
    config, layers = decode_manifest(data, "the manifest")

    @contextmanager
    def opened(layer: Descriptor) -> Iterator[Blob]:
        with store.temporary() as directory:
            blob = session.download(layer, directory / "blob", limits)
            try:
                yield blob
            finally:
                os.close(blob.descriptor)

    return store_image(
        store,
        name,
        digest=digest,
        config=(config.digest, session.small_blob(config)),
        layers=layers,
        opened=opened,
        limits=limits,
    )


@dataclass(slots=True)
class _Session:
    """Requests about one repository of one server."""

    http: httpx.Client
    base: str
    repository: str
    credential: Credential | None
    _authorization: str = field(default="", repr=False)

    def manifest(self, reference: str) -> bytes:
        """Return a manifest or an index."""
        headers = {"Accept": ", ".join(ACCEPTED_TYPES)}
        return self._retried(lambda: self._read(f"manifests/{reference}", headers, MAX_JSON))

    def small_blob(self, descriptor: Descriptor) -> bytes:
        """Return a verified blob that fits into memory."""
        _check_digest(descriptor)
        path = f"blobs/{descriptor.digest}"
        data = self._retried(lambda: self._read(path, {}, MAX_JSON))
        return verified(data, descriptor.digest, "the image's configuration")

    def download(self, descriptor: Descriptor, path: Path, limits: UnpackLimits) -> Blob:
        """Download a blob, continuing where a connection broke; its digest is not verified."""
        _check_digest(descriptor)
        if descriptor.size > limits.size:
            raise ImageError(f"a layer of {descriptor.size} bytes exceeds the limit")
        if shutil.disk_usage(path.parent).free - descriptor.size < limits.free:
            raise ImageError("not enough free space for a layer")
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._retried(lambda: self._download_rest(descriptor, opened))
        os.unlink(path)
        return Blob(opened, 0, descriptor.size)

    def _download_rest(self, descriptor: Descriptor, file: int) -> None:
        position = os.lseek(file, 0, os.SEEK_END)
        if position == descriptor.size:
            return
        headers = {"Range": f"bytes={position}-"} if position else {}
        with self._get(f"blobs/{descriptor.digest}", headers) as response:
            if position and response.status_code != 206:
                position = 0
                os.ftruncate(file, 0)
                os.lseek(file, 0, os.SEEK_SET)
            # As sent: a layer that is compressed stays so.
            for chunk in _chunks(response, descriptor.size):
                position += len(chunk)
                if position > descriptor.size:
                    raise ImageError(f"a blob has more than its {descriptor.size} bytes")
                _write(file, chunk)
        if position < descriptor.size:
            raise _TransientError(f"a blob ended after {position} of {descriptor.size} bytes")

    def _read(self, path: str, headers: dict[str, str], limit: int) -> bytes:
        with self._get(path, headers) as response:
            return _read_limited(response, limit)

    def _retried(self, work: Callable[[], _T]) -> _T:
        for attempt in range(_ATTEMPTS):
            try:
                return work()
            except (httpx.TransportError, _TransientError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise ImageError(f"{self.base}: {_reason(error)}") from None
                time.sleep(RETRY_DELAY * 2**attempt)
        raise AssertionError

    @contextmanager
    def _get(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Send a request, authorized if the server demands it; follow redirects."""
        url = httpx.URL(f"{self.base}/v2/{self.repository}/{path}")
        with self._send(url, headers) as response:
            challenge = response.headers.get("www-authenticate", "")
            if response.status_code != 401 or self._authorization:
                _check_status(response, path)
                yield response
                return
        self._authorize(challenge)
        with self._send(url, headers) as response:
            _check_status(response, path)
            yield response

    @contextmanager
    def _send(self, url: httpx.URL, headers: dict[str, str]) -> Iterator[httpx.Response]:
        origin, sent = _origin(url), {"Accept-Encoding": "identity", **headers}
        if self._authorization:
            sent["Authorization"] = self._authorization
        for _ in range(_MAX_REDIRECTS):
            with self.http.stream("GET", url, headers=sent) as response:
                if response.status_code not in _REDIRECTS:
                    yield response
                    return
                target = url.join(response.headers.get("location", ""))
            if target.scheme != "https" and target.scheme != url.scheme:
                raise ImageError(f"{self.base} redirects to an insecure address")
            if _origin(target) != origin:
                sent.pop("Authorization", None)
            url = target
        raise ImageError(f"{self.base}: too many redirects")

    def _authorize(self, challenge: str) -> None:
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            if self.credential is None:
                raise _DeniedError(f"{self.base} requires credentials")
            self._authorization = _basic(self.credential)
        elif scheme.lower() == "bearer":
            self._authorization = f"Bearer {self._retried(lambda: self._token(rest))}"
        else:
            raise _DeniedError(f"{self.base} requires an unknown authentication")

    def _token(self, challenge: str) -> str:
        parameters = dict(_PARAMETER.findall(challenge))
        realm = httpx.URL(parameters.get("realm", ""))
        if realm.scheme != "https" and (realm.scheme != "http" or self.base.startswith("https:")):
            raise ImageError(f"{self.base} names an insecure token server")
        query = {"scope": f"repository:{self.repository}:pull"}
        if service := parameters.get("service"):
            query["service"] = service
        headers = {"Authorization": _basic(self.credential)} if self.credential else {}
        url = realm.copy_merge_params(query)
        with self.http.stream("GET", url, headers=headers) as response:
            _check_status(response, "token")
            data = _read_limited(response, _MAX_TOKEN)
        decoded = decode(data, _Token, "the response of the token server")
        token = decoded.token or decoded.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise ImageError("the token server sent no token")
        return token


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


def _check_status(response: httpx.Response, what: str) -> None:
    code = response.status_code
    if code in (200, 206):
        return
    host = response.url.host
    if code in (401, 403):
        raise _DeniedError(f"{host}: {code}: pull access denied, or the repository does not exist")
    if code in _RETRIED:
        raise _TransientError(f"{host}: status {code} for {what}")
    if code == 404:
        raise ImageError(f"{host}: {what}: not found")
    raise ImageError(f"{host}: status {code} for {what}")


def _check_digest(descriptor: Descriptor) -> None:
    if not is_digest(descriptor.digest):
        raise ImageError(f"{descriptor.digest[:100]!r} is not a digest sha256:…")


def _chunks(response: httpx.Response, size: int) -> Iterator[bytes]:
    """Yield the content, as long as it arrives faster than `_MIN_RATE`."""
    deadline = time.monotonic() + MIN_TIME + size / _MIN_RATE
    for chunk in response.iter_raw():
        yield chunk
        if time.monotonic() > deadline:
            raise ImageError(f"{response.url.host} is too slow")


def _read_limited(response: httpx.Response, limit: int) -> bytes:
    data = b""
    for chunk in _chunks(response, limit):
        data += chunk
        if len(data) > limit:
            raise ImageError(f"{response.url.host}: a response is larger than {limit} bytes")
    return data


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _basic(credential: Credential) -> str:
    text = f"{credential.username}:{credential.password}".encode()
    return f"Basic {base64.b64encode(text).decode()}"


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
