"""Run the embedded API server on a data directory, with its own certificates and tokens."""

import asyncio
import errno
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...httpserver.limits import Limits, raise_open_files
from ...kube.private_files import ensure_private_dir, read_private
from ...machinery.clock import Clock, SystemClock
from ...model.admission import Webhook
from ...model.service_network import PodNetwork
from ..apiserver import server
from ..apiserver.app import App
from ..apiserver.controllers.node_health import NodeLifecycleSettings
from ..apiserver.http.connections import RequestHandler
from . import kubeconfig, pki, tokens
from .kubeconfig import ClusterAccess
from .pki import Pki
from .tokens import USERS, Tokens

log = logging.getLogger(__name__)

GC_THRESHOLD = 50_000
"""Allocations between two runs of the cyclic garbage collector: our own data have no cycles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How other machines reach the API server, to join as nodes."""

    host: str
    """IP address of this machine."""

    listener: socket.socket | None
    """Listening socket at *host*; ``None``: that of the server."""

    token_file: Path | None = None
    """File with a token to create, which is removed then (:func:`.tokens.write_first`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an API server on a data directory."""

    data_dir: Path
    """Directory of ``cluster.db``, ``pki/``, ``tokens.json`` and ``kubeconfig``."""

    host: str = "127.0.0.1"
    port: int = 7443
    """0 selects a free port."""

    listener: socket.socket | None = None
    """Listening socket to use instead of *host* and *port*."""

    local_listener: socket.socket | None = None
    """Listening Unix socket of clients on this machine, without TLS."""

    service_listener: socket.socket | None = None
    """Listening socket at the address of the Service ``kubernetes``; ``None``: that of the
    server."""

    network: Network | None = None
    """How other machines reach the server; ``None``: not at all."""

    webhooks: Sequence[Webhook] = ()
    """Admission webhooks, called in this process."""

    crds: Sequence[dict[str, Any]] = ()
    """Custom resource definitions to install at start, and to restore if they were changed."""

    optional_crds: Sequence[dict[str, Any]] = ()
    """Custom resource definitions to install at start if they are missing."""

    extra_cert_names: Sequence[str] = ()
    """Additional host names and addresses for the serving certificates."""

    limits: Limits = field(default_factory=Limits)
    """Limits per client of the listener."""

    collect_garbage: bool = True
    """Whether dependents of deleted owners are deleted."""

    node_lifecycle: NodeLifecycleSettings | None = field(default_factory=NodeLifecycleSettings)
    """When nodes count as lost and their pods are deleted; ``None`` disables both."""

    node: str = ""
    """Name of the node whose agent has the token ``agent``; empty: it simulates nodes."""

    pod_network: PodNetwork = PodNetwork.HOST
    """Where pods run, on which the addresses of Services depend."""

    dns_address: str = ""
    """Address of the name server of the cluster; empty if it has none."""

    wrap_handler: Callable[[RequestHandler], RequestHandler] | None = None
    """Wraps the handler of all requests: fault injection of :mod:`batholith.testing`."""

    clock: Clock = field(default_factory=SystemClock)
    """Time of objects and controllers, which tests advance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A running API server and the files that clients need."""

    url: str
    """``https://host:port``."""

    port: int
    pki: Pki
    tokens: Tokens
    kubeconfig: Path
    """Of the user ``admin``."""

    app: App


async def serve(settings: Settings, *, ready: asyncio.Event | None = None) -> None:
    """Run the API server until cancelled; set *ready* once it serves requests.

    Raises:
        OSError: the port is in use, or the data directory cannot be used.
    """
    raise_open_files(settings.limits.connections)
    async with running(settings):
        # Objects loaded at start stay: exclude them from further collections.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 50)
        if ready is not None:
            ready.set()
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[RunningServer]:
    """Run the API server for the duration of the block."""
    ensure_private_dir(settings.data_dir)
    network, service = settings.network, settings.service_listener
    hosts = (
        settings.host,
        *((network.host,) if network else ()),
        *((service.getsockname()[0],) if service else ()),
        *settings.extra_cert_names,
        *pki.names_in(settings.pod_network),
    )
    certs = pki.ensure(settings.data_dir / "pki", names=hosts)
    token_set = tokens.ensure(settings.data_dir / "tokens.json")
    listener = settings.listener or socket.create_server(
        (settings.host, settings.port), backlog=2048
    )
    with listener:
        config = _server_config(settings, certs, token_set=token_set, listener=listener)
        url = f"https://{config.address}"
        path = settings.data_dir / "kubeconfig"
        access = ClusterAccess(
            server=url, ca=config.ca.certificate_pem, user="admin", token=token_set["admin"]
        )
        _write_kubeconfig(path, access)
        async with server.running(config) as app:
            if network is not None and network.token_file is not None and app.ready:
                # Removed, so that a token that is deleted is not created again.
                network.token_file.unlink(missing_ok=True)
            yield RunningServer(
                url=url,
                port=listener.getsockname()[1],
                pki=certs,
                tokens=token_set,
                kubeconfig=path,
                app=app,
            )


def _server_config(
    settings: Settings, certs: Pki, *, token_set: Tokens, listener: socket.socket
) -> server.Config:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return server.Config(
        database=settings.data_dir / "cluster.db",
        listener=listener,
        local_listener=settings.local_listener,
        service_listener=settings.service_listener,
        address=f"{host}:{listener.getsockname()[1]}",
        ca=pki.signing_ca(settings.data_dir / "pki"),
        tls_cert_file=certs.server.certificate,
        tls_private_key_file=certs.server.key,
        kubelet_client_certificate=certs.client.certificate,
        kubelet_client_key=certs.client.key,
        requestheader_client_ca_file=certs.front_proxy_ca,
        proxy_client_cert_file=certs.front_proxy_client.certificate,
        proxy_client_key_file=certs.front_proxy_client.key,
        users_by_token={
            token_set[name]: tokens.user_of(name, node=settings.node) for name in USERS
        },
        service_account_signing_key=read_private(certs.service_account_key),
        joining=_joining(settings, listener),
        webhooks=settings.webhooks,
        crds=settings.crds,
        optional_crds=settings.optional_crds,
        limits=settings.limits,
        collect_garbage=settings.collect_garbage,
        node_lifecycle=settings.node_lifecycle,
        pod_network=settings.pod_network,
        dns_address=settings.dns_address,
        wrap_handler=settings.wrap_handler,
        clock=settings.clock,
    )


def _joining(settings: Settings, listener: socket.socket) -> server.Joining | None:
    network = settings.network
    if network is None:
        return None
    token = None
    if network.token_file is not None:
        token = tokens.read_first(network.token_file)
    port = (network.listener or listener).getsockname()[1]
    return server.Joining(
        listener=network.listener,
        address=f"{network.host}:{port}",
        token=token,
        volumes_node=settings.node,
    )


def _write_kubeconfig(path: Path, access: ClusterAccess) -> None:
    try:
        kubeconfig.write(path, access)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        log.exception("cannot write kubeconfig", extra={"path": str(path)})
