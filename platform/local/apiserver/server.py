"""Assemble the embedded API server and run it on a listening socket.

Local files are the caller's business (``local.apiserver``): the server gets their paths, the users
by bearer token and the socket in :class:`Config`.
"""

import asyncio
import base64
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...httpserver.limits import Limits
from ...kube.supervision import cancel_and_wait, supervise
from ...machinery.clock import Clock, SystemClock
from ...machinery.x509 import CertKeyPair
from ...model import names
from ...model.admission import Webhook
from ...model.bootstrap_tokens import BootstrapToken
from ...model.names import Resource
from ...model.service_network import PodNetwork
from . import bootstrap
from .admission.dynamic import DynamicAdmission
from .admission.quotas import Quotas
from .aggregation.client import AggregatorClient, FrontProxyFiles
from .aggregation.content import RemoteContent
from .aggregation.remote_apis import RemoteApis
from .app import App
from .authorization import node_graph
from .authorization.authorizer import Authorizer
from .authorization.bootstrap_policy import RESOURCES as POLICY_RESOURCES
from .authorization.node_authorizer import NodeAuthorizer
from .authorization.node_graph import NodeGraph
from .controllers.account_tokens import AccountTokenController
from .controllers.api_services import ApiServiceController
from .controllers.base import Controller, ControllerContext
from .controllers.bootstrap_tokens import BootstrapTokenController
from .controllers.certificates import CertificateController
from .controllers.crds import CrdController
from .controllers.disruptions import DisruptionController
from .controllers.event_ttl import EventTtlController
from .controllers.flow_control import FlowControlController
from .controllers.garbage_collector import GarbageCollector
from .controllers.namespaces import NamespaceController
from .controllers.node_health import NodeLifecycleSettings
from .controllers.node_lifecycle import NodeLifecycleController
from .controllers.pod_garbage_collector import PodGarbageCollector
from .controllers.pods_by_node import PodsByNode
from .controllers.protection import PROTECTION_CONTROLLERS
from .controllers.remote_garbage import RemoteGarbageCollector
from .controllers.resource_quotas import ResourceQuotaController
from .controllers.role_aggregation import RoleAggregationController
from .controllers.service_addresses import ServiceAddressController
from .controllers.system_services import SystemServicesController
from .controllers.taint_eviction import TaintEvictionController
from .controllers.volumes import PersistentVolumeController
from .current_time import use_clock
from .discovery.catalog import Catalog
from .errors.status import StatusError, disk_full
from .http.auth import Authenticator, User
from .http.connections import Connections, RequestHandler
from .http.requests import Json
from .metrics import ServerMetrics
from .service_accounts.bootstrap_tokens import BootstrapTokens
from .service_accounts.issuer import IssuerDiscovery
from .service_accounts.revoked_nodes import revoked_nodes
from .service_accounts.tokens import ServiceAccountTokens
from .storage.object_store import ObjectStore
from .storage.sqlite import SqliteStore
from .storage.stored_objects import StoredObject
from .verbs.admission import Admission, LatestReader
from .verbs.computed import ComputedReader
from .verbs.deletes import Deleter
from .verbs.handlers import Handlers
from .verbs.http_proxy import HttpProxy, ProxyKinds
from .verbs.log_proxy import LogProxy
from .verbs.pod_subresources import PodKinds, PodSubresources
from .verbs.reads import Reader
from .verbs.stream_proxy import StreamProxy
from .verbs.token_requests import TokenRequests
from .verbs.writes import Writer

log = logging.getLogger(__name__)

DRAIN_TIMEOUT = 5.0
"""Seconds that shutdown waits for requests in flight."""

START_TIMEOUT = 30.0
"""Seconds that start waits for each write of the server's controllers."""

_HTTPS = 443

BOOTSTRAP_RETRY_INTERVAL = 2.0
"""Seconds between attempts to create the default objects on a full disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """How other machines join the cluster as nodes."""

    listener: socket.socket | None
    """Listening socket that they reach; ``None``: the server's own."""

    address: str
    """``host:port`` of it."""

    token: BootstrapToken | None = None
    """A token to create at start."""

    volumes_node: str = ""
    """The node that has the directories of claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Configuration of one API server; options of kube-apiserver have its flags' names."""

    database: Path
    """SQLite file of all objects; created if it does not exist."""

    listener: socket.socket
    """Listening socket."""

    local_listener: socket.socket | None = None
    """Listening socket of clients on this machine, without TLS."""

    service_listener: socket.socket | None = None
    """Listening socket at the address of the Service ``kubernetes``; ``None``: *listener*."""

    address: str
    """``host:port`` at which clients reach the server."""

    ca: CertKeyPair
    """CA of the cluster: it is published to pods, verifies the certificates of agents and clients,
    and signs those of certificate requests."""

    tls_cert_file: Path
    tls_private_key_file: Path

    kubelet_client_certificate: Path
    """With its key, authenticates the log proxy to agents."""
    kubelet_client_key: Path

    requestheader_client_ca_file: Path
    """CA of the next certificate, which other API servers read from a ConfigMap."""

    proxy_client_cert_file: Path
    """With its key, authenticates requests that are passed on to other API servers."""
    proxy_client_key_file: Path

    users_by_token: Mapping[str, User]

    service_account_signing_key: bytes
    """Private key that signs the tokens of service accounts, PEM."""

    joining: Joining | None = None
    """``None``: other machines cannot join."""

    webhooks: Sequence[Webhook] = ()
    """Admission webhooks, called in this process."""

    crds: Sequence[Json] = ()
    """Custom resource definitions to install at start, and to restore if they were changed."""

    optional_crds: Sequence[Json] = ()
    """Custom resource definitions to install at start if they are missing."""

    limits: Limits = field(default_factory=Limits)
    """Limits per client of the listener."""

    collect_garbage: bool = True
    """Whether dependents of deleted owners are deleted."""

    node_lifecycle: NodeLifecycleSettings | None = field(default_factory=NodeLifecycleSettings)
    """When nodes count as lost and their pods are deleted; ``None`` disables both."""

    pod_network: PodNetwork = PodNetwork.HOST
    """Where pods run, on which the addresses of Services depend."""

    dns_address: str = ""
    """Address of the name server of the cluster; empty if it has none."""

    wrap_handler: Callable[[RequestHandler], RequestHandler] | None = None
    """Wraps the handler of all requests: fault injection of :mod:`batholith.testing`."""

    clock: Clock = field(default_factory=SystemClock)
    """Time of objects and controllers; requests and watches end by the system's."""


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[App]:
    """Run an API server for the duration of the block.

    Raises:
        OSError: a file cannot be used.
    """
    core = _ServerCore(config)
    async with core.running(), _listening(core.app, config):
        yield core.app


class _ServerCore:
    """Store, controllers and application: all but the listener."""

    def __init__(self, config: Config) -> None:
        self._crds, self._optional_crds = config.crds, config.optional_crds
        self._clock, self._ca = config.clock, config.ca.certificate_pem
        self._front_proxy_ca = config.requestheader_client_ca_file.read_text()
        self._joining = joining = config.joining
        self._store = ObjectStore(SqliteStore(config.database))
        self._catalog = Catalog()
        lookup = LatestReader(self._store, self._catalog)
        self._node_graph = _node_graph(self._store, self._catalog)
        self._authorizer = _authorizer(self._store, self._catalog, self._node_graph)
        self._dynamic = DynamicAdmission(
            self._store, self._catalog, self._authorizer, get=lookup.get, list_all=lookup.list
        )
        quotas = Quotas(self._store, self._catalog)
        self._store.write_observers.append(quotas)
        rules = lookup, config.webhooks, self._authorizer, self._dynamic, quotas
        admission = Admission(*rules, network=config.pod_network)
        self._writer = Writer(self._store, self._catalog, admission)
        self._deleter = deleter = Deleter(self._writer)
        tls = _kubelet_client_context(config)
        self._log_proxy, streams = LogProxy(tls), StreamProxy(tls)
        self._http_proxy = HttpProxy(
            self._store, _proxy_kinds(self._catalog), self._dynamic.services, tls
        )
        context = ControllerContext(
            writer=self._writer, deleter=deleter, catalog=self._catalog, clock=config.clock
        )
        self._system_services = _system_services(context, config)
        tokens = ServiceAccountTokens(
            config.service_account_signing_key, self._latest, lambda: config.clock.now().timestamp()
        )
        self._controllers: list[Controller] = [
            CrdController(context),
            AccountTokenController(context, tokens, self._ca),
            CertificateController(
                context,
                self._authorizer,
                config.ca,
                reserved={each.rpartition(":")[0] for each in (_endpoint(config), config.address)},
                is_revoked=revoked_nodes(self._latest),
            ),
            self._system_services,
            EventTtlController(context),
            PersistentVolumeController(context, joining.volumes_node if joining else ""),
            DisruptionController(context),
            FlowControlController(context),
            *(each(context) for each in PROTECTION_CONTROLLERS),
            ResourceQuotaController(context, quotas),
            RoleAggregationController(context),
            ServiceAddressController(context, config.pod_network.ranges.cluster_ips),
        ]
        if joining is not None:
            self._controllers.append(BootstrapTokenController(context))
        self._pods_by_node = PodsByNode(context.resource_store(names.PODS))
        if config.node_lifecycle is not None:
            self._controllers += self._node_controllers(context, config.node_lifecycle)
        apis, self._aggregator = self._aggregation(context, config)
        handlers = self._handlers(config, deleter, tokens=tokens, streams=streams)
        self.app = self._create_app(config, handlers, tokens=tokens, apis=apis)

    def _aggregation(
        self, context: ControllerContext, config: Config
    ) -> tuple[RemoteApis, AggregatorClient]:
        apis, services = RemoteApis(self._catalog), self._dynamic.services
        files = FrontProxyFiles(config.proxy_client_cert_file, config.proxy_client_key_file)
        client = AggregatorClient(services, files)
        self._controllers += [
            ApiServiceController(context, apis, client, services),
            NamespaceController(context, ca=self._ca, remote=RemoteContent(apis, client)),
        ]
        if config.collect_garbage:
            garbage = GarbageCollector(context)
            self._controllers += [garbage, RemoteGarbageCollector(context, garbage, apis, client)]
        return apis, client

    def _create_app(
        self, config: Config, handlers: Handlers, *, tokens: ServiceAccountTokens, apis: RemoteApis
    ) -> App:
        return App(
            catalog=self._catalog,
            handlers=handlers,
            authenticator=handlers.authenticator,
            authorizer=self._authorizer,
            metrics=ServerMetrics(self._store.resource_stores, self._store.failures),
            address=config.address,
            writable=lambda: self._store.writable,
            clock=config.clock,
            issuer=IssuerDiscovery(tokens, _address_for_pods(config)),
            is_revoked=revoked_nodes(self._latest),
            remote_apis=apis,
            aggregator=self._aggregator,
        )

    def _handlers(
        self,
        config: Config,
        deleter: Deleter,
        *,
        tokens: ServiceAccountTokens,
        streams: StreamProxy,
    ) -> Handlers:
        return Handlers(
            reader=Reader(self._store, self._writer.converter),
            writer=self._writer,
            deleter=deleter,
            pods=PodSubresources(
                self._writer, deleter, _pod_kinds(self._catalog), self._log_proxy, streams
            ),
            proxy=self._http_proxy,
            token_requests=TokenRequests(self._writer, tokens, self._latest),
            computed=ComputedReader(self._store, self._catalog, self._log_proxy),
            authenticator=Authenticator(
                config.users_by_token, tokens, BootstrapTokens(self._latest, config.clock.now)
            ),
            authorizer=self._authorizer,
        )

    def _node_controllers(
        self, context: ControllerContext, settings: NodeLifecycleSettings
    ) -> list[Controller]:
        pods = self._pods_by_node
        return [
            NodeLifecycleController(context, pods, settings),
            TaintEvictionController(context, pods),
            PodGarbageCollector(context, pods, settings),
        ]

    def _latest(self, resource: Resource, namespace: str, name: str) -> StoredObject | None:
        return self._store.resource_store(self._catalog.require(resource)).latest(namespace, name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        use_clock(self._clock)
        store = self._store
        self._pods_by_node.rebuild()
        self._authorizer.rebuild()
        self._node_graph.rebuild()
        self._dynamic.rebuild()
        store.listeners += [
            self._pods_by_node.observe,
            self._authorizer.observe,
            self._node_graph.observe,
            self._dynamic.observe,
        ]
        for controller in self._controllers:
            # The CRD controller is first: the stores of custom kinds exist for those after it.
            for kind in self._catalog.stored_kinds():
                store.resource_store(kind)
            controller.enqueue_all()
            stores = (store,) if controller.observed is None else controller.observed
            for observed in stores:
                observed.listeners.append(controller.handle_event)
        store.replay()
        committing = asyncio.create_task(
            supervise("store", store.run, may_end=lambda: store.stopping)
        )
        tasks = [asyncio.create_task(controller.run()) for controller in self._controllers]
        try:
            try:
                await self._bootstrap()
            except StatusError:
                if store.writable:
                    raise
                # Serve anyway: clients can read, and delete objects to free space.
                log.exception("cannot create the default objects, retrying")
                retrying = supervise(
                    "bootstrap", self._retry_bootstrap, may_end=lambda: self.app.ready
                )
                tasks.append(asyncio.create_task(retrying))
            yield
        finally:
            self.app.ready = False
            await cancel_and_wait(*tasks)
            store.stop()
            await committing
            await store.close()
            await self._log_proxy.close()
            await self._http_proxy.close()
            await self._aggregator.close()
            await self._dynamic.close()

    async def _bootstrap(self) -> None:
        await bootstrap.ensure_defaults(
            self._writer,
            self._catalog,
            self._crds,
            deleter=self._deleter,
            optional_definitions=self._optional_crds,
            joining=self._join_objects(),
            authentication=bootstrap.authentication_data(self._front_proxy_ca, client_ca=self._ca),
        )
        await self._wait_bootstrapped()
        self.app.ready = True

    def _join_objects(self) -> bootstrap.JoinObjects | None:
        if self._joining is None:
            return None
        ca = base64.b64encode(self._ca).decode()
        cluster = {
            "server": f"https://{self._joining.address}",
            "certificate-authority-data": ca,
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "", "cluster": cluster}],
        }
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
        return bootstrap.JoinObjects(cluster_info=text, token=self._joining.token)

    async def _retry_bootstrap(self) -> None:
        """Retry until the disk has space."""
        while not self.app.ready:
            await asyncio.sleep(BOOTSTRAP_RETRY_INTERVAL)
            try:
                await self._bootstrap()
            except StatusError:
                log.warning("cannot create the default objects, retrying", exc_info=True)

    async def _wait_bootstrapped(self) -> None:
        """Wait until the custom kinds are served and the Services of the system exist."""
        for definition in self._crds:
            while not self._catalog.crd_kinds(definition["metadata"]["name"]):
                await self._next_version()
        while not self._system_services.is_synced:
            await self._next_version()

    async def _next_version(self) -> None:
        if not self._store.writable:
            raise disk_full()
        await self._store.wait_until_fresh(self._store.committed_rv + 1, timeout=START_TIMEOUT)


def _system_services(context: ControllerContext, config: Config) -> SystemServicesController:
    return SystemServicesController(
        context,
        address=_endpoint(config),
        service_address=_service_address(config),
        dns_address=config.dns_address,
        namespaces=bootstrap.SYSTEM_NAMESPACES,
    )


def _service_address(config: Config) -> tuple[str, int] | None:
    """Return address and port of the Service ``kubernetes``; ``None``: those of the server."""
    if config.pod_network is PodNetwork.NAMESPACES:  # the Service proxy relays to the server
        return config.pod_network.ranges.api_server_ip, _HTTPS
    if config.service_listener is None:
        return None
    host, port = config.service_listener.getsockname()
    return host, port


def _address_for_pods(config: Config) -> str:
    """Return ``host:port`` at which pods reach the server in any network."""
    service = _service_address(config)
    return _endpoint(config) if service is None else f"{service[0]}:{service[1]}"


def _endpoint(config: Config) -> str:
    """Return ``host:port`` of the server for the machines of the cluster."""
    return config.address if config.joining is None else config.joining.address


def _node_graph(store: ObjectStore, catalog: Catalog) -> NodeGraph:
    kinds = {(kind.resource.group, kind.resource.plural): kind for kind in catalog.stored_kinds()}
    return NodeGraph(
        {plural: store.resource_store(kinds[group, plural]) for group, plural in node_graph.WATCHED}
    )


def _authorizer(store: ObjectStore, catalog: Catalog, graph: NodeGraph) -> Authorizer:
    stores = [store.resource_store(catalog.require(each)) for each in POLICY_RESOURCES]
    cluster_roles, cluster_role_bindings, roles, role_bindings = stores
    return Authorizer(
        roles=roles,
        role_bindings=role_bindings,
        cluster_roles=cluster_roles,
        cluster_role_bindings=cluster_role_bindings,
        nodes=NodeAuthorizer(graph),
    )


def _pod_kinds(catalog: Catalog) -> PodKinds:
    return PodKinds(
        pods=catalog.require(names.PODS),
        nodes=catalog.require(names.NODES),
        budgets=catalog.require(names.POD_DISRUPTION_BUDGETS),
    )


def _proxy_kinds(catalog: Catalog) -> ProxyKinds:
    return ProxyKinds(
        pods=catalog.require(names.PODS),
        nodes=catalog.require(names.NODES),
        services=catalog.require(names.SERVICES),
    )


def _kubelet_client_context(config: Config) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=config.ca.certificate_pem.decode())
    context.load_cert_chain(config.kubelet_client_certificate, config.kubelet_client_key)
    return context


@asynccontextmanager
async def _listening(app: App, config: Config) -> AsyncIterator[None]:
    """Serve *app* on the listener."""
    handler: RequestHandler = app
    if config.wrap_handler is not None:
        handler = config.wrap_handler(app)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.tls_cert_file, config.tls_private_key_file)
    context.load_verify_locations(cadata=config.ca.certificate_pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    connections = Connections(
        handler,
        is_authenticated=app.is_authenticated,
        limits=config.limits,
        metrics=app.metrics.listeners,
    )
    connections.listen(config.listener, tls=context)
    if config.joining is not None and config.joining.listener is not None:
        connections.listen(config.joining.listener, tls=context)
    if config.service_listener is not None:
        connections.listen(config.service_listener, tls=context)
    if config.local_listener is not None:
        connections.listen(config.local_listener)
    try:
        yield
    finally:
        connections.stop()
        app.handlers.writer.store.close_watches()
        await connections.close(DRAIN_TIMEOUT)
