"""The resource quota controller: writes the limits and the usage into the status of quotas."""

from ....model.names import CRDS, RESOURCEQUOTAS
from ..admission.quotas import Quotas
from ..current_time import current_time
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from .base import Controller, ControllerContext

BATCH_DELAY = 0.1
"""Seconds over which changes of the usage are batched into one write."""


class ResourceQuotaController(Controller):
    """Maintains the status of quotas; the key is namespace and name."""

    name = "resourcequota"

    def __init__(self, context: ControllerContext, quotas: Quotas) -> None:
        super().__init__(context)
        self._quotas = quotas
        self._kind = context.catalog.require(RESOURCEQUOTAS)
        self._quota_store = context.resource_store(RESOURCEQUOTAS)
        self._definitions = context.resource_store(CRDS)
        self.observed = (self._quota_store, self._definitions)
        quotas.on_change = self._on_usage

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a changed quota, and all when the served kinds may have changed."""
        if resource_store is self._quota_store:
            self.queue.add("/".join(event.entry.key))
        elif resource_store is self._definitions:
            self.enqueue_all()

    def _on_usage(self, namespace: str, name: str) -> None:
        self.queue.add_after(f"{namespace}/{name}", BATCH_DELAY)

    def enqueue_all(self) -> None:
        """Enqueue all quotas."""
        for entry in self._quota_store.entries():
            self.queue.add("/".join(entry.key))

    async def reconcile(self, key: str) -> float | None:
        """Update the status of one quota; return when it changes without a write."""
        namespace, _, name = key.partition("/")
        found = self._quotas.status(namespace, name)
        if found is None:
            return None
        status, expiry = found

        def with_status(quota: Json) -> Json:
            return {**quota, "status": status}

        written = self.context.update_unchecked(self._kind, (namespace, name), with_status)
        await written.committed()
        return None if expiry is None else max((expiry - current_time()).total_seconds(), 0.0)
