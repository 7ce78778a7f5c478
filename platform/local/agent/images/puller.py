"""Pulls of images for containers: from where, how often, and which events report them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ....machinery.clock import Clock
from ..state.environment import ContainerConfigError
from .credentials import Keyring, matching
from .errors import ImageError
from .pulling import pull_in_process
from .references import DEFAULT_REGISTRY, Reference, parse
from .registry import Endpoint
from .store import StoredImage
from .unpacking import UnpackLimits

_DOCKER_HUB_HOST = "registry-1.docker.io"
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MAX_DELAY = 300.0
_PARALLEL_PULLS = 3

RecordEvent = Callable[[str, str, bool], None]
"""Records an event about the pod: reason, message, whether it is a warning."""

GetKeyring = Callable[[], Awaitable[Keyring]]


class ImageUnavailableError(ContainerConfigError):
    """A container cannot have its image; *reason* is that of its waiting state."""

    def __init__(self, reason: str, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after

    @property
    def summary(self) -> str:
        """The reason: other events have the message."""
        return self.reason


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry from which images may be pulled when they are needed."""

    host: str
    mirrors: tuple[str, ...] = ()
    """URLs that are tried first, in order."""


def parse_registries(texts: tuple[str, ...]) -> tuple[Registry, ...]:
    """Return the registries of ``HOST`` and ``HOST=URL``, where the URL is that of a mirror.

    Raises:
        ValueError: one is malformed.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        host, separator, url = text.partition("=")
        try:
            registry = parse(f"{host}/name/name").registry
        except ImageError:
            registry = ""
        if (
            not registry
            or "/" in host
            or (registry == DEFAULT_REGISTRY) != (host == DEFAULT_REGISTRY)
        ):
            raise ValueError(f"--registry {text!r}: {host!r} is not the host of a registry")
        if separator and not _is_base_url(url):
            raise ValueError(f"--registry {text!r}: {url!r} is not http(s)://HOST[:PORT]")
        found[host] = (*found.get(host, ()), *([url] if separator else []))
    return tuple(Registry(host, mirrors) for host, mirrors in found.items())


def _is_base_url(url: str) -> bool:
    split = urlsplit(url)
    valid = split.scheme in ("http", "https") and split.hostname and "@" not in split.netloc
    return bool(valid) and split.path in ("", "/") and not split.query and not split.fragment


@dataclass(slots=True)
class _Failure:
    message: str
    delay: float
    until: float
    """Monotonic time of the next attempt."""


class Puller:
    """Pulls images, each once at a time, with increasing delays after failures."""

    def __init__(
        self,
        data_dir: Path,
        registries: tuple[Registry, ...],
        *,
        clock: Clock,
        retry: float,
        limits: UnpackLimits | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._mirrors: Mapping[str, tuple[str, ...]] = {r.host: r.mirrors for r in registries}
        self._clock = clock
        self._retry = retry
        self._limits = limits or UnpackLimits()
        self._slots = asyncio.Semaphore(_PARALLEL_PULLS)
        self._tasks: dict[tuple[str, tuple[Endpoint, ...]], asyncio.Task[StoredImage]] = {}
        self._failures: dict[str, _Failure] = {}

    def is_configured(self, reference: Reference) -> bool:
        """Return whether the image's registry may be used unasked."""
        return reference.registry in self._mirrors

    async def pull(
        self, image: str, reference: Reference, keyring: GetKeyring, record: RecordEvent
    ) -> StoredImage:
        """Pull an image, which the pod calls *image*.

        Raises:
            ImageUnavailableError: the pull failed, or an earlier one did and it is too soon.
        """
        self._check_backoff(image, reference, record)
        record("Pulling", f'Pulling image "{image}"', False)
        start = self._clock.monotonic()
        endpoints = self._endpoints(reference, await keyring())
        key = (str(reference), endpoints)
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.create_task(self._run(reference, endpoints))
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        try:
            stored = await asyncio.shield(self._tasks[key])
        except ImageError as error:
            raise self._failed(image, reference, str(error), record) from None
        self._failures.pop(str(reference), None)
        seconds = self._clock.monotonic() - start
        text = f'Successfully pulled image "{image}" in {seconds:.3g}s'
        record("Pulled", f"{text}. Image size: {stored.size} bytes.", False)
        return stored

    async def _run(self, reference: Reference, endpoints: tuple[Endpoint, ...]) -> StoredImage:
        async with self._slots:
            return await pull_in_process(self._data_dir, reference, endpoints, self._limits)

    def _check_backoff(self, image: str, reference: Reference, record: RecordEvent) -> None:
        failure = self._failures.get(str(reference))
        if failure is None:
            return
        wait = failure.until - self._clock.monotonic()
        if wait > 0:
            record("BackOff", f'Back-off pulling image "{image}"', False)
            message = f'Back-off pulling image "{image}": ErrImagePull: {failure.message}'
            raise ImageUnavailableError("ImagePullBackOff", message, retry_after=wait)

    def _failed(
        self, image: str, reference: Reference, message: str, record: RecordEvent
    ) -> ImageUnavailableError:
        known = self._failures.get(str(reference))
        delay = min(known.delay * 2, _MAX_DELAY) if known else self._retry
        until = self._clock.monotonic() + delay
        self._failures[str(reference)] = _Failure(message, delay, until)
        record("Failed", f'Failed to pull image "{image}": {message}', True)
        # Before the next attempt the status changes to ImagePullBackOff, as kubelet's does.
        return ImageUnavailableError("ErrImagePull", message, retry_after=delay / 2)

    def _endpoints(self, reference: Reference, keyring: Keyring) -> tuple[Endpoint, ...]:
        host = reference.registry
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        scheme = "http" if name in _LOCAL_HOSTS else "https"
        origin = f"{scheme}://{_DOCKER_HUB_HOST if host == DEFAULT_REGISTRY else host}"
        found = [
            Endpoint(url, tuple(matching(keyring, urlsplit(url).netloc, reference.repository)))
            for url in self._mirrors.get(host, ())
        ]
        own = tuple(matching(keyring, host, reference.repository))
        return (*found, Endpoint(origin, own))

    async def close(self) -> None:
        """Cancel the pulls; what they have unpacked completely remains."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
