"""Health and metrics over HTTP: ``/healthz``, ``/livez``, ``/readyz`` and ``/metrics``.

Served by the event loop that does the work, so that a probe of a stuck loop times out. A check is a
function that returns an error, or ``None``; *livez* checks fail if a restart would help, *readyz*
checks also while the process is starting or stale.

Each connection serves one request with a timeout, so that slow or silent clients block nothing.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..httpserver.asgi import Receive, Response, Scope, Send
from ..httpserver.asgi_server import serve_application
from ..httpserver.buffering import BufferingListener
from ..httpserver.limits import Limits
from ..httpserver.metrics import ListenerMetrics
from ..httpserver.sockets import bind
from ..kube.metrics import MonitoredInformer

log = logging.getLogger(__name__)

READ_TIMEOUT, WRITE_TIMEOUT = 5.0, 60.0
"""Seconds for a client to send the request, and to receive the response."""

DRAIN_TIMEOUT = 1.0
"""Seconds of the shutdown for requests in flight."""

_MAX_BODY = 64 * 1024
"""Maximum bytes of a request body, which is ignored."""

MAX_STALENESS = 60.0
"""Seconds without a watch after which informers count as stale."""

TLS12_CIPHER_SUITES = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
)
"""Cipher suites for clients without TLS 1.3."""

Check = Callable[[], str | None]
"""Returns an error, or ``None``."""


class CannotListenError(OSError):
    """The address is in use, or not an address of this machine."""


class Leadership(Protocol):
    """Leader elector, as seen by health checks."""

    elected: asyncio.Event

    @property
    def holder(self) -> str:
        """Return the identity of the leader last observed; empty before."""
        ...

    def healthy(self) -> bool:
        """Return False if it leads although its lease has long expired."""
        ...


@dataclass(frozen=True, slots=True)
class Health:
    """The checks of a process, by name."""

    livez: dict[str, Check] = field(default_factory=dict)
    readyz: dict[str, Check] = field(default_factory=dict)
    conditions: dict[str, Check] = field(default_factory=dict)
    """Checks that readyz lists with ``?verbose``, and that fail only where requested by name."""

    details: dict[str, Callable[[], str]] = field(default_factory=dict)
    """Details shown with the name of a passed check."""

    def add_informer_check(
        self,
        informers: Callable[[], Iterable[MonitoredInformer]],
        *,
        max_staleness: float = MAX_STALENESS,
    ) -> None:
        """Be ready once *informers* exist and are synced, while none is staler than
        *max_staleness* seconds. Those of optional resources that the cluster lacks do not count."""

        def check() -> str | None:
            known = [each for each in informers() if not each.is_absent]
            unsynced = {informer.name for informer in known if not informer.synced}
            if unsynced:
                return f"not synced yet: {', '.join(sorted(unsynced))}"
            stale = {each.name for each in known if each.stale_seconds > max_staleness}
            if stale:
                seconds = max(informer.stale_seconds for informer in known)
                return f"stale for {seconds:.0f} s: {', '.join(sorted(stale))}"
            return None if known else "not started yet"

        self.readyz["caches"] = check

    def add_start_check(self, started: asyncio.Event) -> None:
        """Be ready only after *started*: informers may be created after the first ones are synced,
        for kinds that are found to be served."""
        self.readyz["controllers"] = lambda: None if started.is_set() else "not started yet"

    def add_leader_check(self, candidate: Leadership) -> None:
        """Be ready once *candidate* leads or has observed a leader, and live while it renews."""

        def live() -> str | None:
            return None if candidate.healthy() else "leading, but lease not renewed in time"

        def ready() -> str | None:
            known = candidate.elected.is_set() or candidate.holder
            return None if known else "not leading, and no leader observed"

        def role() -> str:
            leading = candidate.elected.is_set()
            return "leading" if leading else f"standby, leader is {candidate.holder}"

        self.livez["leader-election"] = live
        self.readyz["leader"] = ready
        self.details["leader"] = role

    def handle(self, path: str, *, verbose: bool) -> Response | None:
        """Return the response to GET *path*; ``None`` if the path is unknown."""
        _, endpoint, *rest = path.split("/")
        checks: dict[str, Check] = {"ping": lambda: None, **self.livez}
        if endpoint == "readyz":
            checks |= self.readyz
        elif endpoint not in ("healthz", "livez"):
            return None
        if rest:
            name = "/".join(rest)
            checks |= self.conditions if endpoint == "readyz" else {}
            if name not in checks:
                return None
            checks = {name: checks[name]}
        results = {name: check() for name, check in checks.items()}
        failed = any(results.values())
        if verbose and endpoint == "readyz" and not rest:
            results |= {name: check() for name, check in self.conditions.items()}
        return self._render(endpoint, results, failed=failed, verbose=verbose)

    def _render(
        self, endpoint: str, results: Mapping[str, str | None], *, failed: bool, verbose: bool
    ) -> Response:
        lines = [
            f"[-]{name}: {error}" if error else self._passed_line(name)
            for name, error in results.items()
        ]
        if verbose:
            lines.append(f"{endpoint} check {'failed' if failed else 'passed'}")
        elif failed:
            lines = [line for line in lines if line.startswith("[-]")]
        else:
            return Response.text("ok")
        return Response.text("\n".join(lines) + "\n", status=503 if failed else 200)

    def _passed_line(self, name: str) -> str:
        detail = self.details.get(name)
        return f"[+]{name} ok: {detail()}" if detail is not None else f"[+]{name} ok"


class _FrozenMetrics:
    """Metrics of one point in time."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


async def _render_metrics(registry: CollectorRegistry) -> Response:
    """Collect on the loop, without concurrent changes; render in a thread."""
    view = CollectorRegistry(auto_describe=False)
    view.register(_FrozenMetrics(registry.collect()))
    body = await asyncio.to_thread(generate_latest, view)
    return Response(body=body, content_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address with the health checks and metrics served there."""

    address: str
    """``[HOST]:PORT``; all addresses without a host."""

    health: Health | None = None
    registry: CollectorRegistry | None = None
    tls: ssl.SSLContext | None = None
    limits: Limits = field(default_factory=Limits)
    """Limits of the listener; its timeouts are overridden."""

    listener_metrics: ListenerMetrics = field(default_factory=ListenerMetrics)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, and close its connection."""
        await (await self._respond(scope)).send(send, close=True)

    async def _respond(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status=405, headers=(("allow", "GET, HEAD"),))
        path = scope["path"]
        if path == "/metrics" and self.registry is not None:
            return await _render_metrics(self.registry)
        response = None
        if self.health is not None:
            query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            response = self.health.handle(path, verbose="verbose" in query)
        return response or Response.text("404 page not found\n", status=404)


@contextlib.asynccontextmanager
async def serve_endpoints(endpoints: Iterable[Endpoint]) -> AsyncIterator[list[int]]:
    """Serve *endpoints* within the block; yield their ports.

    Raises:
        CannotListenError: an address is taken, or not one of this machine.
        ValueError: an address is none.
    """
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(_serve_endpoint(endpoint))
            for endpoint in _merge_by_address(endpoints)
        ]


def _with_probe_timeouts(limits: Limits) -> Limits:
    """Return *limits* with the timeouts of probes."""
    return replace(
        limits,
        handshake_timeout=READ_TIMEOUT,
        header_timeout=READ_TIMEOUT,
        body_timeout=READ_TIMEOUT,
        idle_timeout=WRITE_TIMEOUT,
        write_timeout=WRITE_TIMEOUT,
    )


def _merge_by_address(endpoints: Iterable[Endpoint]) -> Iterable[Endpoint]:
    """Merge endpoints of the same address."""
    by_address: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        other = by_address.get(endpoint.address, endpoint)
        by_address[endpoint.address] = Endpoint(
            address=endpoint.address,
            health=other.health or endpoint.health,
            registry=other.registry or endpoint.registry,
            tls=other.tls or endpoint.tls,
            limits=endpoint.limits,
            listener_metrics=endpoint.listener_metrics,
        )
    return by_address.values()


@contextlib.asynccontextmanager
async def _serve_endpoint(endpoint: Endpoint) -> AsyncIterator[int]:
    contents = {"health": endpoint.health, "metrics": endpoint.registry}
    name = " ".join(key for key, content in contents.items() if content is not None)

    listener = BufferingListener(
        name=name,
        body_limit=_MAX_BODY,
        limits=_with_probe_timeouts(endpoint.limits),
        metrics=endpoint.listener_metrics,
    )
    host, port = split_host_port(endpoint.address)
    try:
        sockets = await bind(host, port)
    except OSError as error:
        text = f"cannot listen on {endpoint.address}: {error.strerror or error}"
        raise CannotListenError(text) from error
    bound_port: int = sockets[0].getsockname()[1]
    async with serve_application(
        endpoint.serve, listener, sockets, tls=endpoint.tls, drain_timeout=DRAIN_TIMEOUT
    ):
        log.info("listening", extra={"serves": name, "address": f"{host}:{bound_port}"})
        yield bound_port


def split_host_port(address: str) -> tuple[str, int]:
    """Split ``[HOST]:PORT`` into host (empty for all addresses) and port.

    Raises:
        ValueError: *address* is malformed.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not [HOST]:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def tls_context(*, client_ca: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """Create a TLS context if all three files are given; *client_ca* verifies client certificates.

    Raises:
        OSError: a file is missing or cannot be used.
    """
    if not (client_ca and certificate and key):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(":".join(TLS12_CIPHER_SUITES))
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise OSError(f"certificate {certificate}, key {key}: {error}") from error
    try:
        context.load_verify_locations(client_ca)
    except OSError as error:
        raise OSError(f"CA {client_ca}: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
