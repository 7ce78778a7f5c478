"""Health and metrics over HTTP: ``/healthz``, ``/livez``, ``/readyz`` and ``/metrics``.

Answered by the loop that does the work: where that is stuck, the probe gets no answer. A check is
a function that returns what is wrong, or ``None``; *alive* checks are what a restart would mend,
*ready* checks are what only needs time.

Each connection serves one request and gets a limited time for it, so that slow or silent clients
hold nothing up.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..httpserver.buffering import BufferingListener
from ..httpserver.limits import Limits
from ..httpserver.metrics import ListenerMetrics
from ..httpserver.sockets import bind

log = logging.getLogger(__name__)

READ_TIMEOUT, WRITE_TIMEOUT = 5.0, 60.0
"""How long a client may take to ask, and then to take the answer."""

_MAX_BODY = 64 * 1024
"""Bytes of a request's body; none has a meaning."""

MAX_STALENESS = 60.0
"""Seconds without the server after which what caches hold is no news any more."""

TLS12_CIPHER_SUITES = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
)
"""What is offered to clients that speak no TLS 1.3."""

Check = Callable[[], str | None]
"""Returns what is wrong, or ``None``."""


class CannotListenError(OSError):
    """An address is taken, or not one of this machine."""


class Leadership(Protocol):
    """A candidate for leadership, as far as health goes."""

    elected: asyncio.Event
    holder: str
    """Identity of the leader last observed; empty before."""

    def healthy(self) -> bool:
        """False when it leads and should have noticed long ago that it does not."""
        ...


class MonitoredInformer(Protocol):
    """A watch cache, as far as health goes."""

    name: str

    @property
    def synced(self) -> bool:
        """Whether the first list is complete."""
        ...

    @property
    def stale_seconds(self) -> float:
        """Seconds for which the server could not be followed; 0 while it can."""
        ...


@dataclass(frozen=True, slots=True)
class Health:
    """The checks of a process, by name."""

    livez: dict[str, Check] = field(default_factory=dict)
    readyz: dict[str, Check] = field(default_factory=dict)
    details: dict[str, Callable[[], str]] = field(default_factory=dict)
    """What is said beside the name of a check that is fulfilled."""

    def add_informer_check(
        self,
        informers: Callable[[], Iterable[MonitoredInformer]],
        *,
        max_staleness: float = MAX_STALENESS,
    ) -> None:
        """Be ready once there are *caches* and all of them are synced, and while none of them is
        out of touch with the server for more than *patience* seconds."""

        def check() -> str | None:
            known = list(informers())
            late = {cache.name for cache in known if not cache.synced}
            if late:
                return f"not synced yet: {', '.join(sorted(late))}"
            lost = {cache.name for cache in known if cache.stale_seconds > max_staleness}
            if lost:
                longest = max(cache.stale_seconds for cache in known)
                return f"out of touch for {longest:.0f} s: {', '.join(sorted(lost))}"
            return None if known else "not started yet"

        self.readyz["caches"] = check

    def add_leader_check(self, candidate: Leadership) -> None:
        """Be ready once *candidate* leads or knows who does, and alive while it is not late."""

        def alive() -> str | None:
            return None if candidate.healthy() else "leads, but has not renewed its lease in time"

        def ready() -> str | None:
            known = candidate.elected.is_set() or candidate.holder
            return None if known else "neither leads nor has seen a leader"

        def role() -> str:
            leads = candidate.elected.is_set()
            return "leads" if leads else f"stands by for {candidate.holder}"

        self.livez["leader-election"] = alive
        self.readyz["leader"] = ready
        self.details["leader"] = role

    def handle(self, path: str, *, verbose: bool) -> web.Response | None:
        """The answer to a GET of *path*; ``None`` if there is nothing of that name."""
        _, endpoint, *rest = path.split("/")
        checks: dict[str, Check] = {"ping": lambda: None, **self.livez}
        if endpoint == "readyz":
            checks |= self.readyz
        elif endpoint not in ("healthz", "livez"):
            return None
        if rest:
            name = "/".join(rest)
            if name not in checks:
                return None
            checks = {name: checks[name]}
        found = {name: check() for name, check in checks.items()}
        return self._render(endpoint, found, verbose=verbose)

    def _render(
        self, endpoint: str, found: Mapping[str, str | None], *, verbose: bool
    ) -> web.Response:
        bad = any(found.values())
        lines = [
            f"[-]{name}: {why}" if why else self._passed_line(name) for name, why in found.items()
        ]
        if verbose:
            lines.append(f"{endpoint} check {'failed' if bad else 'passed'}")
        elif bad:
            lines = [line for line in lines if line.startswith("[-]")]
        else:
            return web.Response(text="ok")
        return web.Response(status=503 if bad else 200, text="\n".join(lines) + "\n")

    def _passed_line(self, name: str) -> str:
        remark = self.details.get(name)
        return f"[+]{name} ok: {remark()}" if remark is not None else f"[+]{name} ok"


class _FrozenMetrics:
    """Figures as they were at one moment."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


async def _render_metrics(registry: CollectorRegistry) -> web.Response:
    """Read on the loop, where nothing changes meanwhile; written out in a thread beside it."""
    view = CollectorRegistry(auto_describe=False)
    view.register(_FrozenMetrics(registry.collect()))
    body = await asyncio.to_thread(generate_latest, view)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address and what is served there."""

    address: str
    """``[HOST]:PORT``; without a host all addresses."""

    health: Health | None = None
    registry: CollectorRegistry | None = None
    tls: ssl.SSLContext | None = None
    limits: Limits = field(default_factory=Limits)
    """Times are our own: probes and scrapers are quick."""

    listener_metrics: ListenerMetrics = field(default_factory=ListenerMetrics)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        if request.path == "/metrics" and self.registry is not None:
            return await _render_metrics(self.registry)
        found = None
        if self.health is not None:
            found = self.health.handle(request.path, verbose="verbose" in request.query)
        return found or web.Response(status=404, text="404 page not found\n")


@contextlib.asynccontextmanager
async def serve_endpoints(endpoints: Iterable[Endpoint]) -> AsyncIterator[list[int]]:
    """Serve *places* for the length of the block, which gets their ports.

    Raises:
        CannotListenError: an address is taken, or not one of this machine.
        ValueError: an address is none.
    """
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(_serve_endpoint(place))
            for place in _merge_by_address(endpoints)
        ]


def _with_probe_timeouts(limits: Limits) -> Limits:
    """The same with the times of probes."""
    return replace(
        limits,
        handshake_timeout=READ_TIMEOUT,
        header_timeout=READ_TIMEOUT,
        body_timeout=READ_TIMEOUT,
        idle_timeout=WRITE_TIMEOUT,
        write_timeout=WRITE_TIMEOUT,
    )


def _merge_by_address(endpoints: Iterable[Endpoint]) -> Iterable[Endpoint]:
    """What is served at one address, together."""
    by_address: dict[str, Endpoint] = {}
    for place in endpoints:
        other = by_address.get(place.address, place)
        by_address[place.address] = Endpoint(
            address=place.address,
            health=other.health or place.health,
            registry=other.registry or place.registry,
            tls=other.tls or place.tls,
            limits=place.limits,
            listener_metrics=place.listener_metrics,
        )
    return by_address.values()


@contextlib.asynccontextmanager
async def _serve_endpoint(endpoint: Endpoint) -> AsyncIterator[int]:
    kinds = {"health": endpoint.health, "metrics": endpoint.registry}
    what = " ".join(kind for kind, served in kinds.items() if served is not None)

    async def handle(request: web.BaseRequest) -> web.Response:
        response = await endpoint.handle(request)
        response.force_close()
        fronts.on_response_sent(request.protocol)
        return response

    server = web.Server(handle, access_log=None)
    fronts = BufferingListener(
        name=what,
        body_limit=_MAX_BODY,
        limits=_with_probe_timeouts(endpoint.limits),
        metrics=endpoint.listener_metrics,
    )
    fronts.backend_factory = server
    host, port = split_host_port(endpoint.address)
    try:
        sockets = await bind(host, port)
    except OSError as error:
        text = f"cannot listen on {endpoint.address}: {error.strerror or error}"
        raise CannotListenError(text) from error
    bound: int = sockets[0].getsockname()[1]
    log.info("listening", extra={"serves": what, "address": f"{host}:{bound}"})
    for listening in sockets:
        fronts.listen(listening, tls=endpoint.tls)
    try:
        yield bound
    finally:
        fronts.stop()
        await server.shutdown(1.0)
        fronts.abort_all()


def split_host_port(address: str) -> tuple[str, int]:
    """Host (empty: all) and port of ``[HOST]:PORT``.

    Raises:
        ValueError: it is no such address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no [HOST]:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def tls_context(*, client_ca: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """TLS from files, if all three are named; clients may show a certificate of *authority*.

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
        raise OSError(f"authority {client_ca}: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
