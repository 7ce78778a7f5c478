"""Controller that mirrors Endpoints which users write to EndpointSlices, which are read.

Endpoints belong to the Service of their name. Those of a Service with a selector are written, as
its slices are, by :mod:`.endpoints`.
"""

import hashlib
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

import msgspec

from ...kube.client.client import Client
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.pod_control import Owner
from ...machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ...model.names import ENDPOINTS
from .endpoint_rules import (
    CHANGE_TIME,
    ENDPOINTS_MANAGED_BY,
    ENDPOINTS_MANAGER,
    MANAGED_BY,
    SERVICE_NAME,
)
from .slice_writes import SliceWrites
from .slices import CreateSlice, DeleteSlice, SliceChange, UpdateSlice, ports_key
from .types import Endpoints, EndpointSlice, Json, Service

MIRRORING_MANAGER = "endpointslicemirroring-controller.k8s.io"
SKIP_MIRROR = "endpointslice.kubernetes.io/skip-mirror"
LEADER = "control-plane.alpha.kubernetes.io/leader"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

MAX_ENDPOINTS = 1000
"""Addresses of a subset that are mirrored, as kube-controller-manager's
``--mirroring-max-endpoints-per-subset``."""


class Content(NamedTuple):
    """What a slice has to contain, as JSON."""

    address_type: str
    ports: list[Json]
    endpoints: list[Json]

    @property
    def key(self) -> tuple[str, str]:
        return self.address_type, ports_key(self.ports)


@dataclass(frozen=True, slots=True)
class MirrorView:
    """Endpoints to mirror, and their slices."""

    endpoints: Endpoints | None
    """None: they are deleted, or are not to be mirrored any more."""
    slices: tuple[EndpointSlice, ...]


@dataclass(frozen=True, slots=True)
class ReportSkipped:
    """Addresses that are not mirrored, which is reported as an Event."""

    count: int


Effect = SliceChange | ReportSkipped


class EndpointMirroringController(Controller[MirrorView, Effect]):
    """Mirrors Endpoints of Services without a selector; the key is that of the Service."""

    def __init__(
        self,
        client: Client,
        slices_client: Client,
        *,
        services: Informer[Service],
        recorder: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Read with *client*, write with *slices_client*."""
        super().__init__("endpointslicemirroring", ControllerSettings(), clock=clock)
        self._services, self._recorder = services, recorder
        managed = f"{ENDPOINTS_MANAGED_BY}!={ENDPOINTS_MANAGER}"
        self._endpoints = Informer(client, ENDPOINTS, Endpoints, label_selector=managed)
        self._slices = SliceWrites(
            client, slices_client, MIRRORING_MANAGER, clock=self.clock, enqueue=self.queue.add
        )
        self.sources = [
            KindSource(services, self.enqueue_changes()),
            KindSource(self._endpoints, self.enqueue_changes()),
            self._slices.source,
        ]

    async def observe(self, sync: Sync) -> MirrorView | None:
        """Return the Endpoints with their slices; None if there are neither."""
        endpoints, service = self._endpoints.get(sync.key), self._services.get(sync.key)
        if endpoints is not None and (
            service is None or service.spec.selector or not is_mirrored(endpoints)
        ):
            endpoints = None
        mine = self._slices.of(sync.key)
        return None if endpoints is None and not mine else MirrorView(endpoints, mine)

    def decide(self, view: MirrorView) -> Iterator[Effect]:
        """Yield what differs from the Endpoints; what is created first is never missing."""
        endpoints = view.endpoints
        if endpoints is None:
            yield from map(DeleteSlice, view.slices)
            return
        wanted, skipped = contents(endpoints.subsets)
        by_key: dict[tuple[str, str], list[EndpointSlice]] = {}
        for each in sorted(view.slices, key=lambda each: each.metadata.name):
            key = each.address_type, ports_key(each.ports or ())
            by_key.setdefault(key, []).append(each)
        late: list[Effect] = []
        for content in wanted:
            current, *more = by_key.pop(content.key, [None])
            late += [DeleteSlice(each) for each in more if each is not None]
            if current is None:
                name, ports = _name(endpoints, content), tuple(content.ports)
                entries = tuple(content.endpoints)
                yield CreateSlice(name, entries, ports, content.address_type)
            elif _differs(endpoints, content, current):
                late.append(UpdateSlice(current, tuple(content.endpoints)))
        yield from late
        yield from (DeleteSlice(each) for rest in by_key.values() for each in rest)
        if skipped:
            yield ReportSkipped(skipped)

    async def execute(self, sync: Sync, view: MirrorView, effect: Effect) -> None:
        """Write one object."""
        match effect:
            case CreateSlice():
                await self._create(view, effect)
            case UpdateSlice():
                await self._update(view, effect)
            case DeleteSlice():
                await self._slices.cache.delete(effect.current.metadata)
            case ReportSkipped():
                self._report(view, effect)
            case _:
                assert_never(effect)

    async def _create(self, view: MirrorView, effect: CreateSlice) -> None:
        assert view.endpoints is not None  # noqa: S101 - else there is nothing to create
        await self._slices.create(
            Owner(resource=ENDPOINTS, metadata=view.endpoints.metadata),
            effect,
            labels=_labels(view.endpoints),
            annotations=_annotations(view.endpoints),
        )

    async def _update(self, view: MirrorView, effect: UpdateSlice) -> None:
        assert view.endpoints is not None  # noqa: S101 - as above
        current = effect.current.metadata
        labels, annotations = _labels(view.endpoints), _annotations(view.endpoints)
        metadata = {
            "labels": {**dict.fromkeys(current.labels), **labels},
            "annotations": {**dict.fromkeys(current.annotations), **annotations},
            "ownerReferences": _owners(view.endpoints),
        }
        body = {"metadata": metadata, "endpoints": effect.endpoints}
        await self._slices.cache.patch(current, body)

    def _report(self, view: MirrorView, effect: ReportSkipped) -> None:
        if self._recorder is None or view.endpoints is None:
            return
        self._recorder.record(
            object_reference(ENDPOINTS, view.endpoints.metadata),
            type="Warning",
            reason="TooManyAddressesToMirror",
            message=f"A max of {MAX_ENDPOINTS} addresses can be mirrored to EndpointSlices per "
            f"Endpoints subset. {effect.count} addresses were skipped",
        )


def is_mirrored(endpoints: Endpoints) -> bool:
    """Whether Endpoints are to be mirrored, if their Service has no selector."""
    meta = endpoints.metadata
    return meta.labels.get(SKIP_MIRROR) != "true" and LEADER not in meta.annotations


def contents(subsets: Sequence[Json]) -> tuple[list[Content], int]:
    """Return the contents of all slices, and how many addresses they lack.

    There is one for each set of ports and family of addresses.
    """
    found: dict[tuple[str, str], tuple[list[Json], dict[str, Json]]] = {}
    skipped = 0
    for subset in subsets:
        ports = [_port(each) for each in subset.get("ports") or ()]
        ready = [(each, True) for each in subset.get("addresses") or ()]
        addresses = [*ready, *((each, False) for each in subset.get("notReadyAddresses") or ())]
        skipped += max(len(addresses) - MAX_ENDPOINTS, 0)
        for address, is_ready in addresses[:MAX_ENDPOINTS]:
            ip = ipaddress.ip_address(address["ip"])
            key = f"IPv{ip.version}", ports_key(ports)
            _, endpoints = found.setdefault(key, (ports, {}))
            endpoints.setdefault(_identity(address), _endpoint(address, str(ip), ready=is_ready))
    return [
        Content(family, ports, list(endpoints.values()))
        for (family, _), (ports, endpoints) in sorted(found.items(), key=lambda each: each[0])
    ], skipped


def _port(port: Json) -> Json:
    shown = {"name": port.get("name", ""), "port": port["port"]}
    shown["protocol"] = port.get("protocol", "TCP")
    return {**shown, **({"appProtocol": app} if (app := port.get("appProtocol")) else {})}


def _identity(address: Json) -> str:
    return msgspec.json.encode(address, order="sorted").decode()


def _endpoint(address: Json, ip: str, *, ready: bool) -> Json:
    fields = ("hostname", "nodeName", "targetRef")
    kept: Json = {key: address[key] for key in fields if key in address}
    return {"addresses": [ip], "conditions": {"ready": ready}, **kept}


def _labels(endpoints: Endpoints) -> dict[str, str]:
    meta = endpoints.metadata
    return {**meta.labels, SERVICE_NAME: meta.name, MANAGED_BY: MIRRORING_MANAGER}


def _annotations(endpoints: Endpoints) -> dict[str, str]:
    given = endpoints.metadata.annotations
    return {key: value for key, value in given.items() if key not in (CHANGE_TIME, LAST_APPLIED)}


def _owners(endpoints: Endpoints) -> list[Json]:
    reference = Owner(resource=ENDPOINTS, metadata=endpoints.metadata).controller_reference()
    return [msgspec.to_builtins(reference)]


def _differs(endpoints: Endpoints, content: Content, current: EndpointSlice) -> bool:
    meta = current.metadata
    return (
        list(current.endpoints or ()) != content.endpoints
        or meta.labels != _labels(endpoints)
        or meta.annotations != _annotations(endpoints)
        or not endpoints.metadata.controls(meta)
    )


def _name(endpoints: Endpoints, content: Content) -> str:
    """Return the name of a new slice, the same after a crash: then the slice exists already."""
    text = "/".join((endpoints.metadata.uid, *content.key))
    suffix = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{endpoints.metadata.name}-{suffix}"
