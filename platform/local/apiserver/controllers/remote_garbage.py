"""Garbage of other API servers: their objects whose owners are deleted, and ours that they own.

The objects of other servers are listed at intervals, by their metadata: what they own and who owns
them changes seldom, and no connection has to stay open for each of their kinds.
"""

import logging
from collections.abc import AsyncIterator, Collection
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from ....model import names
from ..admission.webhook_client import CallError
from ..aggregation.client import GARBAGE_COLLECTOR, AggregatorClient
from ..aggregation.remote_apis import RemoteApi, RemoteApis
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from .base import Controller, ControllerContext
from .garbage_collector import GarbageCollector

log = logging.getLogger(__name__)

INTERVAL = 30.0
"""Seconds between two lists; kube-controller-manager learns of other servers as often."""

_PAGE = 500
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_DELETABLE = frozenset(("delete", "list", "watch"))
"""Verbs of the resources that Kubernetes' garbage collector cares for."""

_GONE = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

_Kind = tuple[str, str]
"""``apiVersion`` and ``kind``."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    owner_references: tuple[Json, ...] = ()


class _Item(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    items: tuple[_Item, ...] = ()
    metadata: _ListMetadata = _ListMetadata()


class _Listed(NamedTuple):
    """The objects of one kind on another server."""

    api: RemoteApi
    resource: Json
    items: tuple[_Metadata, ...]


class RemoteGarbageCollector(Controller):
    """Deletes objects with their owners across servers; there is one key."""

    name = "remote-garbage"

    def __init__(
        self,
        context: ControllerContext,
        local: GarbageCollector,
        apis: RemoteApis,
        client: AggregatorClient,
    ) -> None:
        super().__init__(context)
        self._local, self._apis, self._client = local, apis, client
        self._api_services = context.resource_store(names.API_SERVICES)
        self.observed = (self._api_services,)
        local.orphan_elsewhere = self._orphan
        self._suspects: set[tuple[str, bytes]] = set()
        """Objects of the last lists without owners, by uid and references."""

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Ask other servers when an APIService changes, and else at intervals."""
        self.queue.add(self.name)

    def enqueue_all(self) -> None:
        """Begin to ask other servers."""
        self.queue.add(self.name)

    async def reconcile(self, key: str) -> float | None:
        """Delete what has no owner any more; return the interval."""
        if not self._apis.served():
            return INTERVAL
        # Before the lists: what a list lacks then is deleted, and not only created later.
        owners = self._local.unknown_owners()
        listed = {kind: each async for kind, each in self._list_all()}
        known = {each.uid for found in listed.values() for each in found.items}
        for uid, kind in owners.items():
            if kind in listed and uid not in known:
                self._local.owner_is_deleted(uid)
        before, self._suspects = self._suspects, set()
        for found in listed.values():
            for item in found.items:
                if not self._is_garbage(item, listed.keys(), known):
                    continue
                suspect = item.uid, msgspec.json.encode(item.owner_references)
                # The list of an owner may be older than that of its dependent, as no two lists are
                # of one moment: then the owner is in the next one.
                is_local = not any(_kind_of(each) in listed for each in item.owner_references)
                if is_local or suspect in before:
                    await self._delete(found, item)
                self._suspects.add(suspect)
        return INTERVAL

    def _is_garbage(self, item: _Metadata, kinds: Collection[_Kind], known: set[str]) -> bool:
        """Whether all owners of an object of another server are deleted."""
        if item.deletion_timestamp is not None or not item.owner_references:
            return False
        return all(
            owner.get("uid") not in known
            if _kind_of(owner) in kinds
            else self._local.is_deleted(owner.get("uid", ""), *_kind_of(owner))
            for owner in item.owner_references
        )

    async def _orphan(self, uid: str) -> None:
        """Remove the references to an owner of this server.

        Raises:
            CallError: an object has changed, or its server cannot be reached.
        """
        async for _, found in self._list_all():
            for item in found.items:
                left = [each for each in item.owner_references if each.get("uid") != uid]
                if len(left) < len(item.owner_references):
                    metadata = {
                        "uid": item.uid,
                        "resourceVersion": item.resource_version,
                        "ownerReferences": left or None,
                    }
                    status = await self._send(found, item, "PATCH", {"metadata": metadata})
                    if status >= HTTPStatus.BAD_REQUEST and status != HTTPStatus.NOT_FOUND:
                        raise CallError(f"cannot orphan {item.name}: status {status}")

    async def _list_all(self) -> AsyncIterator[tuple[_Kind, _Listed]]:
        """Yield the objects by kind; kinds that cannot be listed now are left out."""
        for api, resources in self._apis.served():
            for each in resources if api.available else ():
                if not _DELETABLE.issubset(each["verbs"]):
                    continue
                kind = f"{api.group}/{api.version}", each["responseKind"]["kind"]
                try:
                    items = [item async for item in self._list(api, each["resource"])]
                except CallError as error:
                    log.info("cannot list objects", extra={"kind": kind[1], "error": str(error)})
                else:
                    yield kind, _Listed(api, each, tuple(items))

    async def _list(self, api: RemoteApi, plural: str) -> AsyncIterator[_Metadata]:
        token = ""
        while True:
            path = f"{api.path}/{quote(plural)}?limit={_PAGE}"
            path += f"&continue={quote(token, safe='')}" if token else ""
            status, body = await self._client.call(
                api, "GET", path, user=GARBAGE_COLLECTOR, accept=_METADATA_LIST
            )
            if status != HTTPStatus.OK:
                raise CallError(f"cannot list {path}: status {status}")
            try:
                page = msgspec.json.decode(body, type=_List)
            except msgspec.DecodeError as error:
                raise CallError(f"cannot list {path}: {error}") from error
            for item in page.items:
                yield item.metadata
            token = page.metadata.continue_
            if not token:
                return

    async def _delete(self, found: _Listed, item: _Metadata) -> None:
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": item.uid},
            "propagationPolicy": "Background",
        }
        try:
            status = await self._send(found, item, "DELETE", options)
        except CallError as error:
            log.info("cannot delete an object", extra={"object": item.name, "error": str(error)})
            return
        if status >= HTTPStatus.BAD_REQUEST and status not in _GONE:
            log.warning("cannot delete an object", extra={"object": item.name, "status": status})

    async def _send(self, found: _Listed, item: _Metadata, method: str, body: Json) -> int:
        """Send a request for an object; return the status.

        Raises:
            CallError: its server cannot be reached.
        """
        space = f"/namespaces/{quote(item.namespace)}" if item.namespace else ""
        path = f"{found.api.path}{space}/{quote(found.resource['resource'])}/{quote(item.name)}"
        status, _ = await self._client.call(
            found.api, method, path, user=GARBAGE_COLLECTOR, body=msgspec.json.encode(body)
        )
        return status


def _kind_of(owner: Json) -> _Kind:
    return owner.get("apiVersion", ""), owner.get("kind", "")
