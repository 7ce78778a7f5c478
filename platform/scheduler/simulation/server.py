"""The HTTPS endpoint at which the REST API asks for simulations, and about gangs that wait.

The leader publishes its address, a certificate and a token in a Secret, all of them new: any
reader of that Secret may ask, and no former leader is taken for the current one.
"""

import asyncio
import hmac
import logging
import secrets
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import msgspec

from ...httpserver.asgi import Receive, Response, Scope, Send, read_body
from ...httpserver.asgi_server import serve_application
from ...httpserver.buffering import BufferingListener
from ...httpserver.limits import Limits
from ...httpserver.metrics import ListenerMetrics
from ...httpserver.sockets import bind
from ...kube.client.client import Client
from ...kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConnectionLostError,
    NotFoundError,
    NotSentError,
)
from ...machinery.clock import Clock
from ...machinery.serving_certificate import ServingCertificate
from ...machinery.x509 import CertificateRequest, create_ca, issue_certificate
from ...model.job import Job
from ...model.names import SECRETS
from ...model.scheduler_questions import (
    RESERVATIONS_PATH,
    WAIT_PATH,
    Reservations,
    WaitDetails,
    WaitRequest,
)
from ...model.simulation import (
    CA_KEY,
    ENDPOINT,
    PATH,
    SERVER_NAME,
    TOKEN_KEY,
    URL_KEY,
    SimulationRequest,
    SimulationResult,
)
from .forked import CopyFailedError
from .proposed_gang import CannotSimulateError

log = logging.getLogger(__name__)

MAX_BODY = 3 << 20
_PATHS = (PATH, WAIT_PATH, RESERVATIONS_PATH)
MAX_WAITING = 8
"""Requests that wait for others; their responses are computed one at a time."""

_PUBLISH_INTERVAL = 300.0
"""Seconds after which the Secret is written again, since it may have been changed or deleted."""

_VALIDITY = timedelta(days=3650)
"""The key exists in the memory of this process only, and ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationAddress:
    """Where simulations are served."""

    host: str
    """Address to listen on; empty for all."""

    port: int
    namespace: str
    """Namespace of the Secret."""

    advertised_host: str = ""
    """Address for clients, where it is not *host*."""


class RequestHandler(Protocol):
    """What computes the responses; each may raise CopyFailedError."""

    async def simulate(self, job: Job) -> SimulationResult:
        """Return what would become of *job*.

        Raises:
            CannotSimulateError: the job is malformed.
        """
        ...

    async def explain_wait(self, request: WaitRequest) -> WaitDetails | None:
        """Return what a gang competes with that waits; ``None`` if there is no such gang."""
        ...

    async def list_reservations(self) -> Reservations:
        """Return what is reserved on nodes, and for whom."""
        ...


@dataclass(slots=True)
class SimulationServer:
    """Serves what is asked of this scheduler while it leads."""

    scheduler: RequestHandler
    client: Client
    clock: Clock
    address: SimulationAddress
    metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    _token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _computing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: int = 0

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Serve (not before *elected*) until cancelled.

        Raises:
            OSError: cannot listen on the address.
        """
        if ready is not None:
            ready.set()
        if elected is not None:
            await elected.wait()
        certificate = ServingCertificate()
        ca = create_ca(SERVER_NAME, now=self.clock.now(), validity=_VALIDITY)
        request = CertificateRequest(subject=SERVER_NAME, validity=_VALIDITY, hosts=[SERVER_NAME])
        pair = issue_certificate(ca, request, now=self.clock.now())
        certificate.load(pair.certificate_pem, pair.key_pem)
        listener = BufferingListener(
            name="simulation", body_limit=MAX_BODY, limits=Limits(), metrics=self.metrics
        )
        sockets = await bind(self.address.host, self.address.port)
        port = sockets[0].getsockname()[1]
        host = self.address.advertised_host or self.address.host
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        async with serve_application(
            self._serve, listener, sockets, tls=certificate.context, drain_timeout=1.0
        ):
            while True:
                await self._publish(url, ca.certificate_pem)
                await self.clock.sleep(_PUBLISH_INTERVAL)

    async def _publish(self, url: str, ca: bytes) -> None:
        content = {URL_KEY: url.encode(), CA_KEY: ca, TOKEN_KEY: self._token.encode()}
        body = {"data": {key: b64encode(value).decode() for key, value in content.items()}}
        namespace = self.address.namespace
        try:
            try:
                await self.client.patch(SECRETS, ENDPOINT, body, namespace=namespace)
            except NotFoundError:
                created = {"metadata": {"name": ENDPOINT}, **body}
                await self.client.create(SECRETS, created, namespace=namespace)
        except AlreadyExistsError:
            return  # with the next interval
        except (ApiError, ConnectionLostError, NotSentError) as error:
            log.warning(
                "cannot publish the address for simulations",
                extra={"secret": f"{namespace}/{ENDPOINT}", "error": str(error)},
            )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await (await self._respond(scope, await read_body(receive))).send(send)

    async def _respond(self, scope: Scope, body: bytes) -> Response:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return Response.text("unauthorized\n", status=401)
        if scope["method"] != "POST" or scope["path"] not in _PATHS:
            return Response.text("not found\n", status=404)
        if self._waiting >= MAX_WAITING:
            return Response.text("too many simulations\n", status=429)
        self._waiting += 1
        try:
            async with self._computing:
                result = await self._handle(scope["path"], body)
        except (CannotSimulateError, msgspec.MsgspecError, RecursionError) as error:
            return Response.text(str(error), status=422)
        except CopyFailedError as error:
            log.warning("simulation failed", extra={"error": str(error)})
            return Response.text(f"the simulation failed: {error}", status=500)
        finally:
            self._waiting -= 1
        return Response(body=msgspec.json.encode(result), content_type="application/json")

    async def _handle(self, path: str, body: bytes) -> object:
        if path == WAIT_PATH:
            return await self.scheduler.explain_wait(msgspec.json.decode(body, type=WaitRequest))
        if path == RESERVATIONS_PATH:
            return await self.scheduler.list_reservations()
        job = msgspec.json.decode(body, type=SimulationRequest).job
        return await self.scheduler.simulate(msgspec.json.decode(job, type=Job))
