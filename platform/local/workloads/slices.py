"""Distribution of endpoints to EndpointSlices, with as few writes as possible."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .endpoint_rules import (
    PodEndpoint,
    group_by_ports,
    slice_endpoint,
    slice_labels,
    slice_ports,
)
from .types import EndpointSlice, Json, Service

MAX_ENDPOINTS = 100
"""Endpoints of a slice, as kube-controller-manager's ``--max-endpoints-per-slice``."""


@dataclass(frozen=True, slots=True)
class CreateSlice:
    """A slice to create."""

    name: str
    endpoints: tuple[Json, ...]
    ports: tuple[Json, ...]
    address_type: str = "IPv4"


@dataclass(frozen=True, slots=True)
class UpdateSlice:
    """A slice to change."""

    current: EndpointSlice
    endpoints: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class DeleteSlice:
    """A slice that has nothing any more."""

    current: EndpointSlice


SliceChange = CreateSlice | UpdateSlice | DeleteSlice


def plan(
    service: Service, found: Sequence[PodEndpoint], current: Sequence[EndpointSlice]
) -> Iterator[SliceChange]:
    """Yield the changes after which the slices of *service* have exactly the endpoints *found*.

    An endpoint stays in its slice. Without any endpoint there is one empty slice, so that a
    client sees that the Service has none. Creations are first: no endpoint is ever missing.
    """
    groups = {ports: list(pods) for ports, pods in group_by_ports(found).items()} or {(): []}
    by_ports: dict[str, list[EndpointSlice]] = {}
    for each in sorted(current, key=lambda each: each.metadata.name):
        by_ports.setdefault(ports_key(each.ports or ()), []).append(each)
    taken = {each.metadata.name for each in current}
    late: list[SliceChange] = []
    for ports, pods in groups.items():
        entries = [slice_endpoint(service, pod) for pod in pods]
        wanted_ports = tuple(slice_ports(ports))
        existing = by_ports.pop(ports_key(wanted_ports), [])
        created, changed = _distribute(service, entries, existing, taken=taken, ports=wanted_ports)
        yield from created
        late += changed
    yield from late
    yield from (DeleteSlice(each) for rest in by_ports.values() for each in rest)


def _distribute(
    service: Service,
    entries: Sequence[Json],
    existing: Sequence[EndpointSlice],
    *,
    taken: set[str],
    ports: tuple[Json, ...],
) -> tuple[list[SliceChange], list[SliceChange]]:
    """Return the slices to create, and those to change or delete, of one set of ports."""
    unplaced = {_uid(entry): entry for entry in entries}
    contents = [
        [entry for old in each.endpoints or () if (entry := unplaced.pop(_uid(old), None))]
        for each in existing
    ]
    rest = list(unplaced.values())
    for content in contents:
        free = MAX_ENDPOINTS - len(content)
        content += rest[:free]
        rest = rest[free:]
    created: list[SliceChange] = []
    while rest or not (contents or created):
        name = _free_name(service, ports, taken)
        taken.add(name)
        created.append(CreateSlice(name, tuple(rest[:MAX_ENDPOINTS]), ports))
        rest = rest[MAX_ENDPOINTS:]
    labels, changed = slice_labels(service), list[SliceChange]()
    kept = 0
    for each, content in zip(existing, contents, strict=True):
        if not content and (kept or created or any(contents)):
            changed.append(DeleteSlice(each))
            continue
        kept += 1
        if tuple(content) != (each.endpoints or ()) or each.metadata.labels != labels:
            changed.append(UpdateSlice(each, tuple(content)))
    return created, changed


def _uid(entry: Json) -> str:
    return str((entry.get("targetRef") or {}).get("uid", ""))


def ports_key(ports: Iterable[Json]) -> str:
    """Return what identifies the ports of a slice among those of one Service."""
    fields = ("name", "port", "protocol", "appProtocol")
    return ";".join(",".join(str(port.get(each) or "") for each in fields) for port in ports)


def _free_name(service: Service, ports: tuple[Json, ...], taken: set[str]) -> str:
    """Return a name of a slice, the same after a crash: then the slice exists already."""
    for attempt in range(len(taken) + 1):
        text = f"{service.metadata.uid}/{ports_key(ports)}/{attempt}"
        suffix = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        name = f"{service.metadata.name}-{suffix}"
        if name not in taken:
            return name
    raise AssertionError("more names are taken than there are slices")
