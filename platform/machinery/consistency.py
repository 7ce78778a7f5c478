"""Minimum resource versions: a sync waits until the informers report the controller's own writes.

Expectations follow each child; this follows any write by its resourceVersion, that of the object's
own status too. A controller records the version of each response (:meth:`ConsistencyStore.wrote`)
and skips a sync while an informer is behind (:meth:`ConsistencyStore.stale_resources`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..model.names import Resource
from .clock import Clock
from .expectations import TTL


@dataclass(frozen=True, slots=True)
class _Minimum:
    """Version that a store must have, and since when."""

    version: int
    since: float


class ConsistencyStore:
    """Minimum resource version of each key and resource.

    *versions* has for each watched resource the function that returns up to which version its
    store is complete, such as ``lambda: pods.resource_version``. A minimum expires after *ttl*
    seconds, because a server that was restored from a backup never reaches it.
    """

    def __init__(
        self, clock: Clock, versions: Mapping[Resource, Callable[[], str]], *, ttl: float = TTL
    ) -> None:
        self._clock = clock
        self._versions = versions
        self._ttl = ttl
        self._minimum: dict[str, dict[Resource, _Minimum]] = {}

    def wrote(self, key: str, resource: Resource, resource_version: str) -> None:
        """Record the version of an object that was written for *key*.

        A version that is not a number is not recorded.

        Raises:
            KeyError: the resource is not watched.
        """
        if resource not in self._versions:
            raise KeyError(resource)
        if not resource_version.isdecimal():
            return
        record = self._minimum.setdefault(key, {})
        version, known = int(resource_version), record.get(resource)
        if known is None or known.version < version:
            record[resource] = _Minimum(version, self._clock.monotonic())

    def stale_resources(self, key: str) -> tuple[Resource, ...]:
        """Return the resources whose stores do not have all writes for *key* yet.

        A store without version, while a list is due, is stale.
        """
        record = self._minimum.get(key, {})
        for resource, minimum in [*record.items()]:
            if self._is_reached(resource, minimum):
                del record[resource]
        if not record:
            self._minimum.pop(key, None)
        return tuple(record)

    def _is_reached(self, resource: Resource, minimum: _Minimum) -> bool:
        version = self._versions[resource]()
        if version.isdecimal() and int(version) >= minimum.version:
            return True
        return self._clock.monotonic() - minimum.since > self._ttl

    def delete(self, key: str) -> None:
        """Remove the versions of a key whose object is deleted."""
        self._minimum.pop(key, None)

    def __len__(self) -> int:
        """Number of keys with writes that may not be in the stores."""
        return len(self._minimum)
