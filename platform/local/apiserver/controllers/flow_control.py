"""Restores the FlowSchemas and PriorityLevelConfigurations of every cluster.

It also reports in each FlowSchema whether its priority level exists.
"""

from ..builtin.flow_control_objects import (
    AUTO_UPDATE,
    FLOW_SCHEMAS,
    PRIORITY_LEVELS,
    RESOURCES,
    initial_objects,
    restored,
)
from ..current_time import now
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from ..verbs.options import DeleteOptions
from .base import Controller, ControllerContext, internal_request

_DANGLING = "Dangling"


class FlowControlController(Controller):
    """Maintains both kinds; a key is the plural of a kind and a name."""

    name = "flow-control"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._stores = {each.plural: context.resource_store(each) for each in RESOURCES}
        self._schemas = self._stores[FLOW_SCHEMAS.plural]
        self._levels = self._stores[PRIORITY_LEVELS.plural]
        self.observed = (self._schemas, self._levels)

    def enqueue_all(self) -> None:
        """Enqueue the objects that exist; those of every cluster are created at the start."""
        for plural, store in self._stores.items():
            for entry in store.entries():
                self.queue.add(f"{plural}/{entry.name}")

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a changed object, and the schemas of a changed level."""
        name = event.entry.name
        if resource_store is self._schemas:
            self.queue.add(f"{FLOW_SCHEMAS.plural}/{name}")
        elif resource_store is self._levels:
            self.queue.add(f"{PRIORITY_LEVELS.plural}/{name}")
            for entry in self._schemas.entries():
                if _level_of(entry.shared()) == name:
                    self.queue.add(f"{FLOW_SCHEMAS.plural}/{entry.name}")

    async def reconcile(self, key: str) -> float | None:
        """Restore an object of every cluster, and report whether a level is missing."""
        plural, _, name = key.partition("/")
        (resource,) = (each for each in RESOURCES if each.plural == plural)
        store, wanted = self._stores[plural], initial_objects(resource).get(name)
        entry = store.latest("", name)
        if entry is None:
            if wanted is not None:
                await self.context.create(resource, "", wanted).committed()
            return None
        if entry.deleting:
            return None
        obj, call = entry.parse(), internal_request(store.kind, entry.key)
        if wanted is not None:
            if restored(resource, obj, wanted) != obj:
                written = self.context.writer.patch(
                    call, lambda current: restored(resource, current, wanted)
                )
                await written.committed()
        elif (obj["metadata"].get("annotations") or {}).get(AUTO_UPDATE) == "true":
            # It is of another version of Kubernetes.
            await self.context.deleter.delete(call, DeleteOptions()).committed()
            return None
        if store is self._schemas and self._with_condition(obj) != obj:
            written = self.context.update_unchecked(store.kind, entry.key, self._with_condition)
            await written.committed()
        return None

    def _with_condition(self, schema: Json) -> Json:
        """Return *schema* with the condition whether its priority level is missing."""
        level = _level_of(schema)
        about = f'This FlowSchema references the PriorityLevelConfiguration object named "{level}"'
        exists = self._levels.latest("", level) is not None
        wanted = {
            "type": _DANGLING,
            "status": "False" if exists else "True",
            "reason": "Found" if exists else "NotFound",
            "message": f"{about} {'and it exists' if exists else 'but there is no such object'}",
        }
        status = schema.get("status") or {}
        conditions = status.get("conditions") or []
        held: Json = next((each for each in conditions if each.get("type") == _DANGLING), {})
        if {**held, **wanted} == held:
            return schema
        kept = held.get("lastTransitionTime") if held.get("status") == wanted["status"] else None
        others = [each for each in conditions if each is not held]
        condition = {**wanted, "lastTransitionTime": kept or now()}
        return {**schema, "status": {**status, "conditions": [*others, condition]}}


def _level_of(schema: Json) -> str:
    reference = (schema.get("spec") or {}).get("priorityLevelConfiguration") or {}
    return str(reference.get("name", ""))
