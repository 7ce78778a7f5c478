"""Lease lock of leader election: get, create, update and watch one Lease.

An update names the resourceVersion that it replaces, so one of several writers wins. Unknown fields
and labels are preserved.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from ...model.meta import ObjectMeta
from ...model.names import LEASES
from ..errors import DecodeError
from .client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionRecord:
    """Holder of a Lease. Times are RFC 3339 by the holder's clock, informational only."""

    holder_identity: str
    """Identity of the holder; empty if the lease is released."""
    lease_duration: int
    """Seconds of validity after each renewal; 0 if unset."""
    acquire_time: str
    renew_time: str
    transitions: int
    """Number of changes of the holder."""

    def renew(self, *, duration: int, now: datetime) -> "LeaderElectionRecord":
        """Return the record renewed for *duration* seconds."""
        return replace(self, lease_duration=duration, renew_time=format_micro_time(now))


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as last read or written."""

    record: LeaderElectionRecord
    metadata: ObjectMeta
    body: dict[str, Any]
    """The whole object as received."""


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class WatchedLease(msgspec.Struct, frozen=True):
    """A Lease as an informer caches it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _LeaseSpec = _LeaseSpec()

    @property
    def lease(self) -> Lease:
        """The Lease for a candidate, which reads it before it writes."""
        return Lease(_record_from_spec(self.spec), self.metadata, {})


class LeaseLock:
    """The Lease *namespace*/*name*."""

    def __init__(
        self, client: Client, *, namespace: str, name: str, labels: Mapping[str, str] | None = None
    ) -> None:
        """*labels* are set when it is created."""
        self._labels = dict(labels or {})
        self._client = client
        self._namespace = namespace
        self._name = name

    async def get(self) -> Lease:
        """Return the current Lease.

        Raises:
            NotFoundError: it does not exist.
            ApiError, ConnectionLostError, DecodeError: it cannot be read.
        """
        return _decode_lease(
            await self._client.get(
                LEASES, self._name, namespace=self._namespace, view=dict[str, Any]
            )
        )

    async def create(self, record: LeaderElectionRecord) -> Lease:
        """Create the Lease.

        Raises:
            AlreadyExistsError: another candidate created it.
            NotFoundError: the namespace does not exist.
            ApiError, ConnectionLostError, DecodeError: it may not have been created.
        """
        meta: dict[str, object] = {"name": self._name, "namespace": self._namespace}
        if self._labels:
            meta["labels"] = self._labels
        body = {"metadata": meta, "spec": _spec_fields(record)}
        return _decode_lease(
            await self._client.create(LEASES, body, namespace=self._namespace, view=dict[str, Any])
        )

    async def update(self, lease: Lease, record: LeaderElectionRecord) -> Lease:
        """Update *lease* to *record* if it is unchanged on the server.

        Raises:
            ConflictError, NotFoundError: it was modified or deleted.
            ApiError, ConnectionLostError, DecodeError: it may not have been updated.
        """
        spec = {**lease.body.get("spec", {}), **_spec_fields(record)}
        return _decode_lease(
            await self._client.replace(
                LEASES,
                self._name,
                {**lease.body, "spec": spec},
                namespace=self._namespace,
                view=dict[str, Any],
            )
        )

    async def watch(self) -> AsyncIterator[LeaderElectionRecord]:
        """Yield the current record and each change until the server closes the watch.

        Raises:
            ApiError, ConnectionLostError, DecodeError: the watch failed.
        """
        events = self._client.watch(
            LEASES,
            view=WatchedLease,
            namespace=self._namespace,
            field_selector=f"metadata.name={self._name}",
        )
        async for event in events:
            if event.type != "DELETED":
                yield _record_from_spec(event.object.spec)


def format_micro_time(value: datetime) -> str:
    """Format a MicroTime."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _decode_lease(body: dict[str, Any]) -> Lease:
    try:
        view = msgspec.convert(body, WatchedLease)
    except msgspec.ValidationError as error:
        raise DecodeError(f"cannot decode response as Lease: {error}") from error
    return Lease(_record_from_spec(view.spec), view.metadata, body)


def _record_from_spec(spec: _LeaseSpec) -> LeaderElectionRecord:
    return LeaderElectionRecord(
        holder_identity=spec.holder_identity or "",
        lease_duration=spec.lease_duration_seconds or 0,
        acquire_time=spec.acquire_time or "",
        renew_time=spec.renew_time or "",
        transitions=spec.lease_transitions or 0,
    )


def _spec_fields(record: LeaderElectionRecord) -> dict[str, object]:
    return {
        "holderIdentity": record.holder_identity,
        "leaseDurationSeconds": record.lease_duration,
        "acquireTime": record.acquire_time or None,
        "renewTime": record.renew_time or None,
        "leaseTransitions": record.transitions,
    }
