"""The disruption controller: counts the pods under each PodDisruptionBudget.

It maintains ``status`` as kube-controller-manager does; an eviction decrements the allowed
disruptions (`verbs.disruption_budgets`).
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from ....model import names, times
from ..current_time import current_time
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.disruption_budgets import SYNC_FAILED, selector_of, with_condition
from ..verbs.scale import desired_replicas
from .base import Controller, ControllerContext

DELETION_TIMEOUT = timedelta(minutes=2)
"""Seconds after which an eviction whose pod still exists has failed."""

BATCH_DELAY = 0.1
"""Seconds over which pod changes are batched into one count."""


class _ExpectedCountError(Exception):
    """The expected number of pods cannot be determined."""


class _PodInfo(NamedTuple):
    """Fields of a pod that are counted."""

    rv: int
    ready: bool
    owner: Mapping[str, str]
    """Reference to its controller; empty without one."""


class DisruptionController(Controller):
    """Maintains the status of budgets; the key is namespace and name."""

    name = "disruption"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._kind = context.catalog.require(names.POD_DISRUPTION_BUDGETS)
        self._budgets = context.resource_store(names.POD_DISRUPTION_BUDGETS)
        self._pods = context.resource_store(names.PODS)
        self.observed = (self._budgets, self._pods)
        self._pod_infos: dict[tuple[str, str], _PodInfo] = {}

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a changed budget, and the budgets of a changed pod."""
        entry = event.entry
        if resource_store is self._budgets:
            self.queue.add("/".join(entry.key))
        elif resource_store is self._pods:
            if event.type == DELETED:
                self._pod_infos.pop(entry.key, None)
            for budget in self._budgets.by_namespace.get(entry.namespace, {}).values():
                selector, old = selector_of(budget), event.previous
                if selector.matches(entry.labels) or (old and selector.matches(old.labels)):
                    self.queue.add_after("/".join(budget.key), BATCH_DELAY)

    def enqueue_all(self) -> None:
        """Enqueue all budgets."""
        for entry in self._budgets.entries():
            self.queue.add("/".join(entry.key))

    async def reconcile(self, key: str) -> float | None:
        """Update the status of one budget."""
        namespace, _, name = key.partition("/")
        entry = self._budgets.latest(namespace, name)
        if entry is None:
            return None
        selector = selector_of(entry)
        pods = [
            pod for pod in self._pods.latest_entries_in(namespace) if selector.matches(pod.labels)
        ]
        now = current_time()
        recheck: list[datetime] = []

        def with_status(budget: Json) -> Json:
            status, waits = self._status(budget, pods, now)
            recheck[:] = waits
            return {**budget, "status": status}

        await self.context.update_unchecked(self._kind, entry.key, with_status).committed()
        return max((min(recheck) - now).total_seconds(), 0.0) if recheck else None

    def _status(
        self, budget: Json, pods: list[StoredObject], now: datetime
    ) -> tuple[Json, list[datetime]]:
        """Return the desired status of a budget, and when its next failed eviction expires."""
        old: Json = budget.get("status") or {}
        disrupted = _disrupted_pods(old, pods, now)
        base = {**old, "observedGeneration": budget["metadata"].get("generation", 0)}
        base.pop("disruptedPods", None)
        if disrupted:
            base["disruptedPods"] = disrupted
        waits = [times.parse(when) + DELETION_TIMEOUT for when in disrupted.values()]
        try:
            expected, desired = self._expected_counts(budget.get("spec") or {}, pods)
        except _ExpectedCountError as error:
            # As in kube-controller-manager, observedGeneration is not updated here.
            failed = {**old, "disruptionsAllowed": 0}
            return with_condition(failed, SYNC_FAILED, str(error)), waits
        healthy = sum(
            self._pod_info(pod).ready
            for pod in pods
            if not pod.deleting and pod.name not in disrupted
        )
        allowed = max(healthy - desired, 0) if expected > 0 else 0
        base |= {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
        }
        return with_condition(base, "SufficientPods" if allowed else "InsufficientPods"), waits

    def _expected_counts(self, spec: Json, pods: list[StoredObject]) -> tuple[int, int]:
        """Return how many pods are expected, and how many of them must be healthy."""
        most, least = spec.get("maxUnavailable"), spec.get("minAvailable")
        if most is not None:
            expected = self._expected_scale(pods)
            return expected, max(expected - _scaled_value(most, expected), 0)
        if isinstance(least, str):
            expected = self._expected_scale(pods)
            return expected, _scaled_value(least, expected)
        return len(pods), int(least or 0)

    def _expected_scale(self, pods: list[StoredObject]) -> int:
        """Return the total replicas of the controllers of *pods*."""
        owners = {}
        for pod in pods:
            owner = self._pod_info(pod).owner
            if owner and owner["uid"] not in owners:
                owners[owner["uid"]] = self._controller_scale(owner, pod)
        return sum(owners.values())

    def _controller_scale(self, owner: Mapping[str, str], pod: StoredObject) -> int:
        for kind in self.context.catalog.kinds():
            resource = kind.resource
            if (resource.api_version, resource.kind) != (owner["apiVersion"], owner["kind"]):
                continue
            if "scale" not in kind.subresources:
                plural = f"{resource.plural}.{resource.group}"
                raise _ExpectedCountError(f"{plural} does not implement the scale subresource")
            found = self.context.writer.store.resource_store(kind).latest(
                pod.namespace, owner["name"]
            )
            if found is not None and found.uid == owner["uid"]:
                return desired_replicas(kind, kind.from_stored(found.parse()))
        raise _ExpectedCountError(f'found no controllers for pod "{pod.name}"')

    def _pod_info(self, pod: StoredObject) -> _PodInfo:
        """Return the counted fields of *pod*; cached while it is unchanged."""
        known = self._pod_infos.get(pod.key)
        if known is None or known.rv != pod.rv:
            known = self._pod_infos[pod.key] = _build_pod_info(pod)
        return known


def _build_pod_info(pod: StoredObject) -> _PodInfo:
    content = pod.parse()
    conditions = (content.get("status") or {}).get("conditions") or ()
    ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    references = content["metadata"].get("ownerReferences") or ()
    owner: Json = next((each for each in references if each.get("controller")), {})
    return _PodInfo(pod.rv, ready, owner)


def _disrupted_pods(status: Json, pods: list[StoredObject], now: datetime) -> dict[str, str]:
    """Return the evictions in progress: their pods still exist."""
    there = {pod.name for pod in pods if not pod.deleting}
    return {
        name: when
        for name, when in (status.get("disruptedPods") or {}).items()
        if name in there and times.parse(when) + DELETION_TIMEOUT > now
    }


def _scaled_value(value: int | str, total: int) -> int:
    """Return a number, or a percentage of *total*, rounded up."""
    if isinstance(value, str):
        return math.ceil(int(value.rstrip("%")) * total / 100)
    return value
