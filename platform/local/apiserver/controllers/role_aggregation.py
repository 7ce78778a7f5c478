"""Aggregates ClusterRoles: one with an ``aggregationRule`` has the rules of those it selects."""

import msgspec

from ....model.meta import LabelSelector
from ....model.selectors import Selector, SelectorError, from_label_selector
from ..authorization.bootstrap_policy import RESOURCES
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from .base import Controller, ControllerContext

CLUSTER_ROLES = RESOURCES[0]


class RoleAggregationController(Controller):
    """Keeps the rules of aggregated ClusterRoles up to date."""

    name = "clusterrole-aggregation"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._kind = context.catalog.require(CLUSTER_ROLES)
        self._roles = context.resource_store(CLUSTER_ROLES)
        self.observed = (self._roles,)
        self._aggregated: set[str] = set()
        """Names of the roles with an aggregation rule."""

    def enqueue_all(self) -> None:
        """See :meth:`Controller.enqueue_all`."""
        self._aggregated = {each.name for each in self._roles.entries() if _selectors(each)}
        self._enqueue()

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """See :meth:`Controller.on_event`."""
        if event.type != DELETED and _selectors(event.entry):
            self._aggregated.add(event.entry.name)
        else:
            self._aggregated.discard(event.entry.name)
        self._enqueue()

    def _enqueue(self) -> None:
        for name in self._aggregated:
            self.queue.add(name)

    async def reconcile(self, key: str) -> float | None:
        """See :meth:`Controller.reconcile`."""
        role = self._roles.latest("", key)
        if role is None or role.deleting:
            return None
        selectors = _selectors(role)
        if not selectors:
            return None
        rules: list[Json] = []
        for selector in selectors:
            for each in self._roles.ordered():
                if each.name == key:
                    continue
                obj = each.parse()
                if selector.matches(obj["metadata"].get("labels") or {}):
                    rules += (rule for rule in obj.get("rules") or () if rule not in rules)
        if rules == (role.parse().get("rules") or []):
            return None
        await self.context.update_unchecked(
            self._kind, role.key, lambda obj: {**obj, "rules": rules}
        ).committed()
        return None


def _selectors(entry: StoredObject) -> list[Selector]:
    """Return the selectors of a role's aggregation rule, without those that are malformed."""
    given = (entry.parse().get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    selectors = []
    for each in given:
        try:
            selectors.append(from_label_selector(msgspec.convert(each, LabelSelector)))
        except (SelectorError, msgspec.ValidationError):
            continue
    return selectors
