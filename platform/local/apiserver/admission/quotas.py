"""ResourceQuotas: what each namespace uses, and writes that would exceed a limit.

The usage is kept in memory and updated with each queued write, in the step of the event loop that
queues it. A write is checked in the same step, so concurrent writes cannot exceed a limit together.
Nothing of it is stored: after a restart it is counted again. ``status.used`` is written from it by
`controllers.resource_quotas`, and read by clients only.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from ....model.names import RESOURCEQUOTAS
from ....model.pod_resources import Amounts
from ....model.quantity import ZERO, Quantity, QuantityError, parse
from ..current_time import current_time
from ..discovery.catalog import Catalog
from ..errors.status import forbidden
from ..http.requests import Json
from ..storage.object_store import ObjectStore
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import ADDED, DELETED, StoredObject, WatchEvent
from .attributes import AdmissionAttributes
from .quota_usage import (
    Requirement,
    ResourceKey,
    depends_on_content,
    expiry,
    is_checked,
    is_in_scope,
    missing_amounts,
    requirements,
    resource_of,
    usage,
)

log = logging.getLogger(__name__)

ObjectKey = tuple[ResourceKey, str]
"""Resource and name of an object."""

_NOTHING: Json = {"metadata": {}}
"""The content of an object whose usage does not depend on it."""


class QuotaUsage:
    """The limits of one quota, and what the objects of its namespace use of them."""

    def __init__(self, name: str, spec: Json) -> None:
        self.name = name
        self.hard: Json = spec.get("hard") or {}
        self.limits: dict[ResourceKey, dict[str, Quantity]] = {}
        """Limits by the resource whose objects use them."""
        for each, text in self.hard.items():
            if (key := resource_of(each)) is not None:
                self.limits.setdefault(key, {})[each] = parse(text)
        self.used: dict[str, Quantity] = {}
        self.scopes: Sequence[Requirement] = requirements(spec)
        self._charged: dict[ObjectKey, Amounts] = {}
        self._expiries: dict[ObjectKey, datetime] = {}

    def applies_to(self, key: ResourceKey, obj: Json) -> bool:
        """Return whether the object is counted by this quota."""
        return key in self.limits and is_in_scope(key, obj, self.scopes)

    def charge(self, key: ResourceKey, name: str, obj: Json | None, now: datetime) -> None:
        """Count an object as it is now; ``None`` if it is deleted."""
        object_key = key, name
        amounts: Amounts = {}
        self._expiries.pop(object_key, None)
        if obj is not None and self.applies_to(key, obj):
            amounts = self._limited(key, _stored_usage(key, obj, now))
            ends = expiry(key, obj)
            if ends is not None and ends >= now:
                self._expiries[object_key] = ends
        for each, amount in self._charged.pop(object_key, {}).items():
            self.used[each] -= amount
        for each, amount in amounts.items():
            self.used[each] = self.used.get(each, ZERO) + amount
        if amounts:
            self._charged[object_key] = amounts

    def expired(self, now: datetime) -> list[ObjectKey]:
        """Return the objects that are counted although their deletion is overdue."""
        return [object_key for object_key, when in self._expiries.items() if when < now]

    @property
    def next_expiry(self) -> datetime | None:
        """When the next object stops being counted."""
        return min(self._expiries.values(), default=None)

    def excess(self, key: ResourceKey, requested: Amounts) -> str:
        """Return how *requested* exceeds the limits; empty if it does not."""
        exceeded = {
            name: (amount, self.used.get(name, ZERO), self.limits[key][name])
            for name, amount in sorted(self._limited(key, requested).items())
            if amount and self.used.get(name, ZERO) + amount > self.limits[key][name]
        }
        if not exceeded:
            return ""
        texts = (
            ",".join(f"{name}={amounts[column]}" for name, amounts in exceeded.items())
            for column in range(3)
        )
        return "exceeded quota: {}, requested: {}, used: {}, limited: {}".format(self.name, *texts)

    def _limited(self, key: ResourceKey, amounts: Amounts) -> Amounts:
        return {name: amounts[name] for name in self.limits[key] if name in amounts}


class Quotas:
    """The quotas of all namespaces; the usage of a namespace is counted when it is first needed."""

    def __init__(self, store: ObjectStore, catalog: Catalog) -> None:
        self.on_change: Callable[[str, str], None] = lambda namespace, name: None
        """Called with the namespace and name of a quota whose usage has changed."""
        self._store = store
        self._catalog = catalog
        self._quotas = store.resource_store(catalog.require(RESOURCEQUOTAS))
        self._namespaces: dict[str, dict[str, QuotaUsage]] = {}

    def get(self, namespace: str) -> Mapping[str, QuotaUsage]:
        """Return the quotas of a namespace by name, in the order of their names."""
        quotas = self._quotas
        if namespace not in quotas.by_namespace and not quotas.pending:
            return {}
        found = self._namespaces.get(namespace)
        if found is None:
            found = self._count(namespace)
            if found:
                self._namespaces[namespace] = found
        return found

    def status(self, namespace: str, name: str) -> tuple[Json, datetime | None] | None:
        """Return the status of a quota, and when it changes without a write.

        ``None`` if there is no such quota.
        """
        quota = self.get(namespace).get(name)
        if quota is None:
            return None
        now = current_time()
        for key, each in quota.expired(now):
            entry = self._entry(key, namespace, each)
            quota.charge(key, each, entry.parse() if entry else None, now)
        served = {
            (kind.resource.group, kind.resource.plural)
            for kind in self._catalog.stored_kinds()
            if kind.resource.namespaced
        }
        used = {
            each: str(quota.used.get(each, ZERO))
            for key, limits in quota.limits.items()
            if key in served
            for each in limits
        }
        content = {"hard": quota.hard, "used": {each: used[each] for each in sorted(used)}}
        return {key: value for key, value in content.items() if value}, quota.next_expiry

    def check(self, attributes: AdmissionAttributes, obj: Json) -> None:
        """Reject a write that exceeds a quota.

        Raises:
            StatusError: 403.
        """
        if not attributes.namespace:
            return
        resource, old = attributes.kind.resource, attributes.old_object
        key = resource.group, resource.plural
        quotas = [
            each for each in self.get(attributes.namespace).values() if each.applies_to(key, obj)
        ]
        if not quotas or not is_checked(key, obj, old):
            return
        for quota in quotas:
            if missing := missing_amounts(key, obj, quota.limits[key]):
                why = f"failed quota: {quota.name}: must specify {missing}"
                raise forbidden(resource, attributes.name, why)
        now = current_time()
        requested = usage(key, obj, now)
        if negative := sorted(name for name, amount in requested.items() if amount < ZERO):
            why = f"quota usage is negative for resource(s): {','.join(negative)}"
            raise forbidden(resource, attributes.name, why)
        growth = requested if old is None else _growth(requested, usage(key, old, now))
        for quota in quotas:
            counted = old is not None and quota.applies_to(key, old)
            if why := quota.excess(key, growth if counted else requested):
                raise forbidden(resource, attributes.name, why)

    def write_queued(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Count a write. It costs nothing in namespaces without quotas."""
        namespace = event.entry.namespace
        if resource_store is self._quotas and _changes_limits(event):
            for name in self._namespaces.pop(namespace, {}):
                self.on_change(namespace, name)
            return
        quotas = self._namespaces.get(namespace)
        if not quotas:
            return
        resource = resource_store.resource
        key = resource.group, resource.plural
        concerned = [each for each in quotas.values() if key in each.limits]
        if not concerned or (event.type not in (ADDED, DELETED) and not depends_on_content(key)):
            return
        obj = None if event.type == DELETED else _content(key, event.entry)
        now = current_time()
        for quota in concerned:
            quota.charge(key, event.entry.name, obj, now)
            self.on_change(namespace, quota.name)

    def writes_failed(self) -> None:
        """Count everything again: queued writes were not stored."""
        counted, self._namespaces = self._namespaces, {}
        for namespace, quotas in counted.items():
            for name in quotas:
                self.on_change(namespace, name)

    def _count(self, namespace: str) -> dict[str, QuotaUsage]:
        entries = sorted(self._quotas.latest_entries_in(namespace), key=lambda entry: entry.name)
        quotas = {
            each.name: QuotaUsage(each.name, each.parse().get("spec") or {}) for each in entries
        }
        now = current_time()
        for key in {key for quota in quotas.values() for key in quota.limits}:
            concerned = [quota for quota in quotas.values() if key in quota.limits]
            for entry in self._entries_in(key, namespace):
                obj = _content(key, entry)
                for quota in concerned:
                    quota.charge(key, entry.name, obj, now)
        return quotas

    def _entries_in(self, key: ResourceKey, namespace: str) -> Iterable[StoredObject]:
        resource_store = self._resource_store(key)
        return () if resource_store is None else resource_store.latest_entries_in(namespace)

    def _entry(self, key: ResourceKey, namespace: str, name: str) -> StoredObject | None:
        resource_store = self._resource_store(key)
        return None if resource_store is None else resource_store.latest(namespace, name)

    def _resource_store(self, key: ResourceKey) -> ResourceStore | None:
        for kind in self._catalog.stored_kinds():
            if (kind.resource.group, kind.resource.plural) == key and kind.resource.namespaced:
                return self._store.resource_store(kind)
        return None


def _stored_usage(key: ResourceKey, obj: Json, now: datetime) -> Amounts:
    """Return what a stored object uses; nothing if it cannot be read, as no write may fail here."""
    try:
        return usage(key, obj, now)
    except (QuantityError, msgspec.ValidationError):
        log.exception("cannot count a stored object", extra={"object": obj["metadata"].get("name")})
        return {}


def _growth(requested: Amounts, before: Amounts) -> Amounts:
    """Return by how much *requested* exceeds what was counted before."""
    return {name: max(amount - before.get(name, ZERO), ZERO) for name, amount in requested.items()}


def _content(key: ResourceKey, entry: StoredObject) -> Json:
    return entry.parse() if depends_on_content(key) else _NOTHING


def _changes_limits(event: WatchEvent) -> bool:
    previous = event.previous
    if event.type in (ADDED, DELETED) or previous is None:
        return True
    return event.entry.parse().get("spec") != previous.parse().get("spec")
