"""Controller of Endpoints and EndpointSlices: the addresses of the pods behind each Service."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError
from ...machinery.pod_control import Owner
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ...model.names import ENDPOINTS, SERVICES
from . import slices
from .endpoint_rules import (
    CHANGE_TIME,
    ENDPOINTS_MANAGED_BY,
    ENDPOINTS_MANAGER,
    OVER_CAPACITY,
    SLICE_MANAGER,
    PodEndpoint,
    change_time,
    endpoints_labels,
    pod_endpoints,
    slice_labels,
    subsets,
)
from .slice_writes import SliceWrites
from .slices import CreateSlice, DeleteSlice, UpdateSlice
from .types import Endpoints, EndpointSlice, Json, Pod, Service

_BATCH_DELAY = 0.05
"""Seconds in which changes of pods are collected before the endpoints are written."""


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A Service, its pods that have an address, and what is published of them."""

    service: Service | None
    """None: it is deleted, or has no selector any more."""
    found: tuple[PodEndpoint, ...]
    endpoints: Endpoints | None
    slices: tuple[EndpointSlice, ...]


@dataclass(frozen=True, slots=True)
class WriteEndpoints:
    """Endpoints to create or change."""

    metadata: Json
    subsets: list[Json]


@dataclass(frozen=True, slots=True)
class DeleteEndpoints:
    """Endpoints of a Service that has been deleted."""

    current: Endpoints


Effect = WriteEndpoints | DeleteEndpoints | slices.SliceChange


class EndpointsController(Controller[ServiceView, Effect]):
    """Publishes the pods of the Services that have a selector; the key is that of the Service."""

    def __init__(
        self,
        client: Client,
        endpoints_client: Client,
        slices_client: Client,
        *,
        services: Informer[Service],
        pods: Informer[Pod],
        clock: Clock | None = None,
    ) -> None:
        """Read with *client*; write with those of the controllers that Kubernetes has for both.

        *services* and *pods* have the index ``namespace``.
        """
        super().__init__("endpointslice", ControllerSettings(), clock=clock)
        self._services, self._pods = services, pods
        endpoints = Informer(
            client,
            ENDPOINTS,
            Endpoints,
            label_selector=f"{ENDPOINTS_MANAGED_BY}={ENDPOINTS_MANAGER}",
        )
        self._endpoints = WriteThroughCache(
            endpoints_client, ENDPOINTS, Endpoints, endpoints, clock=self.clock
        )
        self._slices = SliceWrites(
            client, slices_client, SLICE_MANAGER, clock=self.clock, enqueue=self.queue.add
        )
        self.keep(self._endpoints)
        self.sources = [
            KindSource(services, self.enqueue_changes()),
            KindSource(endpoints, self.enqueue_changes(self._endpoints)),
            self._slices.source,
            KindSource(pods, self._on_pod),
        ]

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and _published(old) == _published(new):
            return
        pod = new or old
        if pod is None:
            return
        for service in self._services.by_index("namespace", pod.metadata.namespace):
            if any(each is not None and service.selects(each) for each in (old, new)):
                self.queue.add_after(service.metadata.key, _BATCH_DELAY)

    async def observe(self, sync: Sync) -> ServiceView | None:
        """Return the Service with its pods; None if nothing of it is left."""
        service = self._services.get(sync.key)
        await self._endpoints.confirm(sync.key)
        endpoints = self._endpoints.get(sync.key)
        if service is None or not service.selects_pods:
            if endpoints is None:
                return None
            return ServiceView(None, (), endpoints, ())
        pods = self._pods.by_index("namespace", service.metadata.namespace)
        found = tuple(pod_endpoints(service, pods))
        return ServiceView(service, found, endpoints, self._slices.of(sync.key))

    def decide(self, view: ServiceView) -> Iterator[Effect]:
        """Yield what differs from the pods."""
        service = view.service
        if service is None:
            if view.endpoints is not None:
                yield DeleteEndpoints(view.endpoints)
            return
        yield from slices.plan(service, view.found, view.slices)
        wanted, left_out = subsets(service, view.found)
        metadata: Json = {"labels": endpoints_labels(service), "annotations": {}}
        if left_out:
            metadata["annotations"][OVER_CAPACITY] = "truncated"
        current = view.endpoints
        if current is None or (
            list(current.subsets) != wanted
            or current.metadata.labels != metadata["labels"]
            or (OVER_CAPACITY in current.metadata.annotations) != left_out
        ):
            moment = change_time(service, (each.pod for each in view.found))
            metadata["annotations"][CHANGE_TIME] = moment
            yield WriteEndpoints(metadata, wanted)

    async def execute(self, sync: Sync, view: ServiceView, effect: Effect) -> None:
        """Write one object."""
        match effect:
            case DeleteEndpoints():
                await self._endpoints.delete(effect.current.metadata)
            case WriteEndpoints():
                await self._write_endpoints(view, effect)
            case CreateSlice():
                await self._create_slice(view, effect)
            case UpdateSlice():
                await self._update_slice(view, effect)
            case DeleteSlice():
                await self._slices.cache.delete(effect.current.metadata)
            case _:
                assert_never(effect)

    async def _write_endpoints(self, view: ServiceView, effect: WriteEndpoints) -> None:
        assert view.service is not None  # noqa: S101 - else there is nothing to write
        meta, current = view.service.metadata, view.endpoints
        body: Json = {"metadata": effect.metadata, "subsets": effect.subsets}
        if current is not None:
            body["metadata"] = _replacing(effect.metadata, current)
            await self._endpoints.patch(current.metadata, body)
            return
        body["metadata"] = {**effect.metadata, "name": meta.name, "namespace": meta.namespace}
        try:
            await self._endpoints.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            # A user's, or of a request whose response was lost: from now on it is this one's.
            found = await self._endpoints.read(meta.key)
            if found is None:
                raise RequeueError("Endpoints were deleted concurrently") from None
            body["metadata"] = _replacing(effect.metadata, found)
            await self._endpoints.patch(found.metadata, body)

    async def _create_slice(self, view: ServiceView, effect: CreateSlice) -> None:
        assert view.service is not None  # noqa: S101 - as above
        await self._slices.create(
            Owner(resource=SERVICES, metadata=view.service.metadata),
            effect,
            labels=slice_labels(view.service),
            annotations=self._change_time(view),
        )

    async def _update_slice(self, view: ServiceView, effect: UpdateSlice) -> None:
        assert view.service is not None  # noqa: S101 - as above
        metadata = {
            "labels": slice_labels(view.service),
            "annotations": self._change_time(view),
        }
        body = {
            "metadata": _replacing(metadata, effect.current),
            "endpoints": effect.endpoints,
        }
        await self._slices.cache.patch(effect.current.metadata, body)

    def _change_time(self, view: ServiceView) -> Json:
        assert view.service is not None  # noqa: S101 - as above
        return {CHANGE_TIME: change_time(view.service, (each.pod for each in view.found))}


def _replacing(metadata: Json, current: Endpoints | EndpointSlice) -> Json:
    """Return a merge patch of *metadata* that also removes labels which it does not have."""
    removed = current.metadata.labels.keys() - metadata["labels"].keys()
    annotations = {OVER_CAPACITY: None, **metadata["annotations"]}
    return {
        "labels": {**metadata["labels"], **dict.fromkeys(removed)},
        "annotations": annotations,
    }


def _published(pod: Pod) -> tuple[object, ...]:
    """Return what the endpoints of a Service show of a pod."""
    meta, status = pod.metadata, pod.status
    ended = (pod.is_finished, pod.is_terminating)
    return meta.labels, meta.uid, status.pod_ip, pod.is_ready, ended, pod.spec.node_name
