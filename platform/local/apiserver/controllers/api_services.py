"""APIServices: those of this server are maintained, and other servers checked.

kube-apiserver has three controllers for it: autoregister, and those of the availability of local
and remote APIServices.
"""

import logging

import msgspec

from ....model import names
from ..admission.services import NoEndpointError, ServiceResolver
from ..admission.webhook_client import CallError
from ..aggregation.client import AggregatorClient
from ..aggregation.remote_apis import Documents, RemoteApi, RemoteApis, parse_api
from ..builtin.api_services import (
    AUTOMANAGED,
    local_api_service,
    with_condition,
    with_local_condition,
)
from ..discovery.remote import parse_resources
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, WatchEvent
from ..verbs.options import DeleteOptions
from ..verbs.writes import UpdateFunc
from .base import Controller, ControllerContext, internal_request

log = logging.getLogger(__name__)

CHECK_INTERVAL = 30.0
"""Seconds between checks of a server that is available."""

RETRY_INTERVAL = 5.0
"""Seconds between checks of one that is not."""

_SERVICE_LABEL = "kubernetes.io/service-name"
_CLUSTER_IP = "ClusterIP"
_INDEX = "/openapi/v3"


class _UnavailableError(Exception):
    """Why an APIService is not available."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ApiServiceController(Controller):
    """Maintains APIServices and their conditions; the key is a name."""

    name = "apiservice"
    workers = 4

    def __init__(
        self,
        context: ControllerContext,
        apis: RemoteApis,
        client: AggregatorClient,
        resolver: ServiceResolver,
    ) -> None:
        super().__init__(context)
        self._apis, self._client, self._resolver = apis, client, resolver
        self._kind = context.catalog.require(names.API_SERVICES)
        self._api_services = context.resource_store(names.API_SERVICES)
        self._definitions = context.resource_store(names.CRDS)
        self._services = context.resource_store(names.SERVICES)
        self._slices = context.resource_store(names.ENDPOINTSLICES)
        self._endpoints = context.resource_store(names.ENDPOINTS)
        self.observed = (self._api_services, self._services, self._slices, self._endpoints)
        context.catalog.on_change = self._enqueue_names

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a changed APIService, and those whose Service or its endpoints changed."""
        entry = event.entry
        if resource_store is self._api_services:
            self._apis.update(entry.name, None if event.type == DELETED else entry.shared())
            self.queue.add(entry.name)
            return
        service = entry.name
        if resource_store is self._slices:
            service = entry.labels.get(_SERVICE_LABEL, "")
        elif resource_store is not self._services and resource_store is not self._endpoints:
            return
        for name in self._apis.names_with_service(entry.namespace, service):
            self.queue.add(name)

    def enqueue_all(self) -> None:
        """Enqueue the APIServices that exist, and those that should."""
        for entry in self._api_services.entries():
            self._apis.update(entry.name, entry.shared())
        self._enqueue_names()

    def _enqueue_names(self) -> None:
        for group, version in self.context.catalog.group_versions():
            if group != names.API_SERVICES.group:  # as in Kubernetes, it has none
                self.queue.add(f"{version}.{group}")
        for entry in self._api_services.entries():
            self.queue.add(entry.name)

    async def reconcile(self, key: str) -> float | None:
        """Maintain an APIService of this server, or check the server of another one."""
        version, _, group = key.partition(".")
        custom = self.context.catalog.group_versions().get((group, version))
        if custom is not None and group != names.API_SERVICES.group:
            await self._maintain(local_api_service(group, version, custom=custom))
            return None
        entry = self._api_services.latest("", key)
        if entry is None or entry.deleting:
            return None
        obj = entry.parse()
        api = parse_api(obj)
        if api is not None:
            return await self._check(key, obj, api)
        labels = obj["metadata"].get("labels") or {}
        if AUTOMANAGED not in labels:
            await self._write(key, with_local_condition)
        elif not self._has_definition(group, version):
            request = internal_request(self._kind, ("", key))
            await self.context.deleter.delete(request, DeleteOptions()).committed()
        return None

    def _has_definition(self, group: str, version: str) -> bool:
        """Whether there is a definition whose kinds may be served soon."""
        return any(
            spec.get("group") == group
            and any(each.get("name") == version for each in spec.get("versions") or ())
            for spec in (entry.shared()["spec"] for entry in self._definitions.entries())
        )

    async def _maintain(self, wanted: Json) -> None:
        name = wanted["metadata"]["name"]
        if self._api_services.latest("", name) is None:
            await self.context.create(names.API_SERVICES, "", wanted).committed()
            return

        def with_content(obj: Json) -> Json:
            metadata = obj["metadata"]
            labels = {**(metadata.get("labels") or {}), **wanted["metadata"]["labels"]}
            maintained = {**obj, "metadata": {**metadata, "labels": labels}, "spec": wanted["spec"]}
            return with_local_condition(maintained)

        await self._write(name, with_content)

    async def _write(self, name: str, change: UpdateFunc) -> None:
        written = self.context.update_unchecked(self._kind, ("", name), change)
        await written.committed()

    async def _check(self, name: str, checked: Json, api: RemoteApi) -> float:
        """Write whether the server of an APIService is available; return when to check again."""
        status, reason, message = "True", "Passed", "all checks passed"
        try:
            self._check_service(api)
            documents = await self._fetch_documents(name, api)
        except _UnavailableError as error:
            status, reason, message = "False", error.reason, error.message
        else:
            self._apis.set_documents(name, documents)
        latest = self._api_services.latest("", name)
        if latest is None:
            return RETRY_INTERVAL

        def with_result(obj: Json) -> Json:
            if obj.get("spec") != checked.get("spec"):
                return obj  # the changed one is checked next
            return with_condition(obj, status, reason, message)

        await self._write(name, with_result)
        return CHECK_INTERVAL if status == "True" else RETRY_INTERVAL

    def _check_service(self, api: RemoteApi) -> None:
        """Check that the Service of an API exists and has endpoints.

        Raises:
            _UnavailableError: it does not.
        """
        where = f'service/{api.service} in "{api.namespace}"'
        entry = self._services.get(api.namespace, api.service)
        if entry is None:
            raise _UnavailableError("ServiceNotFound", f"{where} is not present")
        spec = entry.shared().get("spec") or {}
        if spec.get("type") != _CLUSTER_IP:
            return
        ports = spec.get("ports") or ()
        port = next((each for each in ports if each.get("port") == api.port), None)
        if port is None:
            text = f"{where} is not listening on port {api.port}"
            raise _UnavailableError("ServicePortError", text)
        try:
            self._resolver.resolve(api.namespace, api.service, api.port)
        except NoEndpointError as error:
            if not any(
                each.labels.get(_SERVICE_LABEL) == api.service
                for each in self._slices.ordered(api.namespace)
            ):
                text = f"cannot find endpointslices for {where}"
                raise _UnavailableError("EndpointsNotFound", text) from error
            named = port.get("name", "")
            text = f'endpointslices for {where} have no addresses with port name "{named}"'
            raise _UnavailableError("MissingEndpoints", text) from error

    async def _fetch_documents(self, name: str, api: RemoteApi) -> Documents:
        """Read what the server of an API publishes.

        Raises:
            _UnavailableError: it has no discovery document.
        """
        try:
            found = await self._client.fetch(api, api.path)
            resources = parse_resources(found.body or b"", group=api.group, version=api.version)
        except CallError as error:
            raise _UnavailableError("FailedDiscoveryCheck", str(error)) from error
        except (msgspec.DecodeError, RecursionError) as error:
            text = f"the discovery document of {api.path} cannot be read: {error}"
            raise _UnavailableError("FailedDiscoveryCheck", text) from error
        documents = msgspec.structs.replace(self._apis.documents(name), resources=resources)
        try:
            return await self._fetch_openapi(documents, api)
        except (CallError, msgspec.DecodeError, RecursionError):
            # As in kube-apiserver, a server without such documents is available.
            log.info("cannot read OpenAPI documents", extra={"apiservice": name}, exc_info=True)
            return documents

    async def _fetch_openapi(self, documents: Documents, api: RemoteApi) -> Documents:
        index = await self._client.fetch(api, _INDEX)
        paths = msgspec.json.decode(index.body or b"{}", type=_OpenApiIndex).paths
        url = paths.get(api.path.removeprefix("/"), _OpenApiPath()).server_relative_url
        if url.startswith(f"{_INDEX}{api.path}"):
            documents = msgspec.structs.replace(documents, openapi_v3_url=url)
        found = await self._client.fetch(api, "/openapi/v2", etag=documents.openapi_v2_etag)
        if found.body is None:
            return documents
        content = msgspec.json.decode(found.body, type=dict)
        return msgspec.structs.replace(documents, openapi_v2=content, openapi_v2_etag=found.etag)


class _OpenApiPath(msgspec.Struct, frozen=True):
    server_relative_url: str = msgspec.field(default="", name="serverRelativeURL")


class _OpenApiIndex(msgspec.Struct, frozen=True):
    paths: dict[str, _OpenApiPath] = {}
