"""The Lease over which candidates contend: read, made and replaced as a whole.

A replacement names the version that it replaces, so of several writers one wins. Fields and labels
that we know nothing of stay as they are.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from ...model.meta import ObjectMeta
from ...model.names import LEASES
from ..errors import DecodeError
from .client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who holds a Lease. Times are RFC 3339 text by the holder's clock, for people to read."""

    holder: str
    """Identity of the holder; empty when nobody holds it."""
    duration: int
    """Seconds for which it is held after each renewal; 0 where nothing stands there."""
    acquired: str
    renewed: str
    transitions: int
    """How often it has changed hands."""

    def renew(self, *, duration: int, now: datetime) -> "LeaseRecord":
        """The same holder's record, renewed for *duration* seconds."""
        return replace(self, duration=duration, renewed=format_micro_time(now))


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as it was read or written last."""

    record: LeaseRecord
    metadata: ObjectMeta
    body: dict[str, Any]
    """The whole object, as the server keeps it."""


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _LeaseView(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _LeaseSpec = _LeaseSpec()


class LeaseStore:
    """The one Lease *namespace*/*name* on a server."""

    def __init__(self, client: Client, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> Lease:
        """The Lease as it is now.

        Raises:
            NotFoundError: there is none.
            ApiError, ConnectionLostError, UnreadableAnswerError: it cannot be read.
        """
        return _decode_lease(
            await self._client.get(
                LEASES, self._name, namespace=self._namespace, view=dict[str, Any]
            )
        )

    async def create(self, record: LeaseRecord) -> Lease:
        """Make the Lease.

        Raises:
            AlreadyExistsError: somebody was faster.
            NotFoundError: there is no such namespace.
            ApiError, ConnectionLostError, UnreadableAnswerError: it may not have been made.
        """
        meta = {"name": self._name, "namespace": self._namespace}
        body = {"metadata": meta, "spec": _spec_fields(record)}
        return _decode_lease(
            await self._client.create(LEASES, body, namespace=self._namespace, view=dict[str, Any])
        )

    async def replace(self, lease: Lease, record: LeaseRecord) -> Lease:
        """Let *record* stand in the place of *lease*, if that is still what stands there.

        Raises:
            ConflictError, NotFoundError: it is not.
            ApiError, ConnectionLostError, UnreadableAnswerError: it may not have been replaced.
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

    async def watch(self) -> AsyncIterator[LeaseRecord]:
        """The record as it is now, and whenever it has changed, until the server ends the watch.

        Raises:
            ApiError, ConnectionLostError, UnreadableAnswerError: the watch broke.
        """
        events = self._client.watch(
            LEASES,
            view=_LeaseView,
            namespace=self._namespace,
            field_selector=f"metadata.name={self._name}",
        )
        async for event in events:
            if event.type != "DELETED":
                yield _record_from_spec(event.object.spec)


def format_micro_time(value: datetime) -> str:
    """A moment as Leases carry it, with microseconds."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _decode_lease(body: dict[str, Any]) -> Lease:
    try:
        seen = msgspec.convert(body, _LeaseView)
    except msgspec.ValidationError as error:
        raise DecodeError(f"answer is no Lease: {error}") from error
    return Lease(_record_from_spec(seen.spec), seen.metadata, body)


def _record_from_spec(spec: _LeaseSpec) -> LeaseRecord:
    return LeaseRecord(
        holder=spec.holder_identity or "",
        duration=spec.lease_duration_seconds or 0,
        acquired=spec.acquire_time or "",
        renewed=spec.renew_time or "",
        transitions=spec.lease_transitions or 0,
    )


def _spec_fields(record: LeaseRecord) -> dict[str, object]:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration,
        "acquireTime": record.acquired or None,
        "renewTime": record.renewed or None,
        "leaseTransitions": record.transitions,
    }
