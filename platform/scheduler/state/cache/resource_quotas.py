"""The resource quotas of namespaces: the resources that are compared when gangs are admitted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....model.base import ApiStruct
from ....model.meta import ObjectMeta
from ..resources import Amounts, amount, amounts

_PREFIX = "requests."


class ResourceQuotaStatus(ApiStruct, frozen=True):
    """What a quota allows, and what pods use of it; written by a controller of Kubernetes."""

    hard: dict[str, str | int | float] = {}
    used: dict[str, str | int | float] = {}


class ResourceQuota(ApiStruct, frozen=True):
    """A resource quota."""

    metadata: ObjectMeta = ObjectMeta()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota; amounts as in :mod:`.resources`."""

    name: str
    hard: Amounts
    used: Amounts


class NamespaceQuotas:
    """Quotas by namespace."""

    def __init__(self) -> None:
        """Start without quotas."""
        self._by_namespace: dict[str, dict[str, Quota]] = {}

    def update(self, old: ResourceQuota | None, new: ResourceQuota | None) -> bool:
        """Add, update or delete a quota; returns whether anything that is compared has changed."""
        quota = new or old
        if quota is None:
            return False
        name, namespace = quota.metadata.name, quota.metadata.namespace
        quotas = self._by_namespace.setdefault(namespace, {})
        before = quotas.pop(name, None)
        if new is not None:
            hard, used = _compared(new.status.hard), _compared(new.status.used)
            quotas[name] = Quota(name, hard, used)
        if not quotas:
            del self._by_namespace[namespace]
        return before != quotas.get(name)

    def of(self, namespace: str) -> Iterable[Quota]:
        """Return the quotas of *namespace*, by name."""
        quotas = self._by_namespace.get(namespace, {})
        return [quotas[name] for name in sorted(quotas)]


def _compared(quantities: dict[str, str | int | float]) -> Amounts:
    """Return the amounts that admission compares: ``cpu`` and ``requests.cpu`` are the same."""
    requests = {
        name.removeprefix(_PREFIX): quantity
        for name, quantity in quantities.items()
        if name.startswith(_PREFIX)
    }
    others = {name: each for name, each in quantities.items() if not name.startswith(_PREFIX)}
    return amounts(requests | others) | quota_only_amounts(quantities)


def quota_only_amounts(quantities: Mapping[str, str | int | float] | None) -> Amounts:
    """Return the entries of a resource list that quotas alone limit: limits and numbers of pods."""
    return {
        name: amount(name, quantity)
        for name, quantity in (quantities or {}).items()
        if is_quota_only(name)
    }


def is_quota_only(name: str) -> bool:
    """Return whether quotas alone limit a resource, and neither nodes nor queues."""
    return name.startswith("limits.") or name == "count/pods"
