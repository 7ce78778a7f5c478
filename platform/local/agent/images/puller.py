"""Pulls of images for containers: from where, how often, and which events report them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ....kube.supervision import cancel_and_wait
from ....machinery.clock import Clock
from ..state.environment import ContainerConfigError
from .credentials import Endpoint, Keyring, matching
from .errors import ImageError
from .pulling import pull_in_process
from .references import DEFAULT_REGISTRY, Reference, parse
from .store import StoredImage
from .unpacking import UnpackLimits

_DOCKER_HUB_HOST = "registry-1.docker.io"
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MAX_DELAY = 300.0
_PARALLEL_PULLS = 3
_MAX_FAILURES = 1000
"""Failed pulls whose back-off is remembered."""


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


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull that a container waits for; pods that need the same image share its task."""

    image: str
    task: "asyncio.Task[StoredImage | _Failure]"
    record: RecordEvent

    def result(self) -> StoredImage:
        """Return the image; the task is done.

        Raises:
            ImageUnavailableError: the pull failed.
        """
        found = (
            _Failure("the agent was stopped", 0.0, 0.0)
            if self.task.cancelled()
            else self.task.result()
        )
        if isinstance(found, _Failure):
            text = f'Failed to pull image "{self.image}": {found.message}'
            self.record("Failed", text, True)
            # Before the next attempt the status changes to ImagePullBackOff, as kubelet's does.
            raise ImageUnavailableError("ErrImagePull", found.message, retry_after=found.delay / 2)
        text = f'Successfully pulled image "{self.image}". Image size: {found.size} bytes.'
        self.record("Pulled", "; ".join((text, *found.notes)), False)
        return found


_Key = tuple[Reference, tuple[Endpoint, ...]]
"""What is pulled from where, with which credentials: a failure with others delays no pod."""


class ImagePullingError(Exception):
    """A container cannot start yet, because its image is being pulled."""


class Puller:
    """Pulls images, each once at a time, with increasing delays after failures."""

    def __init__(
        self,
        data_dir: Path,
        registries: tuple[Registry, ...],
        *,
        clock: Clock,
        retry: float,
    ) -> None:
        self._data_dir = data_dir
        self._mirrors: Mapping[str, tuple[str, ...]] = {r.host: r.mirrors for r in registries}
        self._clock = clock
        self._retry = retry
        self._slots = asyncio.Semaphore(_PARALLEL_PULLS)
        self._tasks: dict[_Key, asyncio.Task[StoredImage | _Failure]] = {}
        self._failures: dict[_Key, _Failure] = {}

    def is_configured(self, reference: Reference) -> bool:
        """Return whether the image's registry may be used unasked."""
        return reference.registry in self._mirrors

    async def start(
        self, image: str, reference: Reference, keyring: GetKeyring, record: RecordEvent
    ) -> "Pull":
        """Start to pull an image, which the pod calls *image*, or join a pull of it.

        Raises:
            ImageUnavailableError: an earlier pull failed, and it is too soon for another one.
        """
        key = (reference, self._endpoints(reference, await keyring()))
        self._check_backoff(image, key, record)
        record("Pulling", f'Pulling image "{image}"', False)
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.create_task(self._run(key))
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return Pull(image, self._tasks[key], record)

    async def _run(self, key: _Key) -> "StoredImage | _Failure":
        async with self._slots:
            try:
                stored = await pull_in_process(self._data_dir, *key, UnpackLimits())
            except (ImageError, OSError) as error:
                known = self._failures.pop(key, None)
                delay = min(known.delay * 2, _MAX_DELAY) if known else self._retry
                failure = _Failure(str(error), delay, self._clock.monotonic() + delay)
                self._failures[key] = failure
                if len(self._failures) > _MAX_FAILURES:
                    del self._failures[next(iter(self._failures))]
                return failure
        self._failures.pop(key, None)
        return stored

    def _check_backoff(self, image: str, key: _Key, record: RecordEvent) -> None:
        failure = self._failures.get(key)
        if failure is None:
            return
        wait = failure.until - self._clock.monotonic()
        if wait > 0:
            record("BackOff", f'Back-off pulling image "{image}"', False)
            message = f'Back-off pulling image "{image}": ErrImagePull: {failure.message}'
            raise ImageUnavailableError("ImagePullBackOff", message, retry_after=wait)

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
        await cancel_and_wait(*tasks)
