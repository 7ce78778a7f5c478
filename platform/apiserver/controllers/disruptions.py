"""The disruption controller: counts the pods under each PodDisruptionBudget.

It keeps ``status`` as kube-controller-manager does; an eviction takes one from what it allows
(`verbs.disruption_budgets`).
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ...model import names, times
from ..http.requests import Json
from ..storage.object_store import Shelf
from ..storage.stored_objects import DELETED, Entry, Event
from ..verbs.disruption_budgets import SYNC_FAILED, selector_of, with_condition
from ..verbs.scale import wanted_replicas
from .base import Keeper, Tools

GONE_WITHIN = timedelta(minutes=2)
"""An eviction after which the pod is still there for so long has failed."""

GATHER = 0.1
"""Seconds that changes of pods are gathered for one count."""


class _Uncountable(Exception):  # noqa: N818 - an outcome, told in a condition
    """It cannot be said how many pods there should be."""


class _Facts(NamedTuple):
    """What of a pod matters."""

    rv: int
    ready: bool
    owner: Mapping[str, str]
    """The reference to its controller; empty without one."""


class DisruptionController(Keeper):
    """Keeps the status of budgets; the key is namespace and name."""

    name = "disruption"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._kind = tools.catalog.known(names.POD_DISRUPTION_BUDGETS)
        self._budgets = tools.shelf(names.POD_DISRUPTION_BUDGETS)
        self._pods = tools.shelf(names.PODS)
        self._facts: dict[tuple[str, str], _Facts] = {}

    def observe(self, shelf: Shelf, event: Event) -> None:
        """Queue a budget that changed, and those of a pod that did."""
        entry = event.entry
        if shelf is self._budgets:
            self.queue.add("/".join(entry.key))
        elif shelf is self._pods:
            if event.type == DELETED:
                self._facts.pop(entry.key, None)
            for budget in self._budgets.spaces.get(entry.namespace, {}).values():
                wanted, old = selector_of(budget), event.previous
                if wanted.matches(entry.labels) or (old and wanted.matches(old.labels)):
                    self.queue.add_after("/".join(budget.key), GATHER)

    def start(self) -> None:
        """Queue all budgets."""
        for entry in self._budgets.entries():
            self.queue.add("/".join(entry.key))

    async def reconcile(self, key: str) -> float | None:
        """Count the pods of one budget."""
        namespace, _, name = key.partition("/")
        entry = self._budgets.latest(namespace, name)
        if entry is None:
            return None
        wanted = selector_of(entry)
        pods = [pod for pod in self._pods.heads_of(namespace) if wanted.matches(pod.labels)]
        now = datetime.now(UTC)
        recheck: list[datetime] = []

        def counted(budget: Json) -> Json:
            status, waits = self._status(budget, pods, now)
            recheck[:] = waits
            return {**budget, "status": status}

        await self.tools.change(self._kind, entry.key, counted).settled()
        return max((min(recheck) - now).total_seconds(), 0.0) if recheck else None

    def _status(
        self, budget: Json, pods: list[Entry], now: datetime
    ) -> tuple[Json, list[datetime]]:
        """The status that a budget should have, and when its failed evictions are over."""
        old: Json = budget.get("status") or {}
        disrupted = _disrupted(old, pods, now)
        base = {**old, "observedGeneration": budget["metadata"].get("generation", 0)}
        base.pop("disruptedPods", None)
        if disrupted:
            base["disruptedPods"] = disrupted
        waits = [times.parse(when) + GONE_WITHIN for when in disrupted.values()]
        try:
            expected, desired = self._wanted(budget.get("spec") or {}, pods)
        except _Uncountable as error:
            # As in a real cluster the generation is not taken for observed.
            failed = {**old, "disruptionsAllowed": 0}
            return with_condition(failed, SYNC_FAILED, str(error)), waits
        healthy = sum(
            self._read(pod).ready for pod in pods if not pod.deleting and pod.name not in disrupted
        )
        allowed = max(healthy - desired, 0) if expected > 0 else 0
        base |= {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
        }
        return with_condition(base, "SufficientPods" if allowed else "InsufficientPods"), waits

    def _wanted(self, spec: Json, pods: list[Entry]) -> tuple[int, int]:
        """How many pods there should be, and how many of them healthy."""
        most, least = spec.get("maxUnavailable"), spec.get("minAvailable")
        if most is not None:
            expected = self._scale(pods)
            return expected, max(expected - _share(most, expected), 0)
        if isinstance(least, str):
            expected = self._scale(pods)
            return expected, _share(least, expected)
        return len(pods), int(least or 0)

    def _scale(self, pods: list[Entry]) -> int:
        """How many pods the controllers of *pods* want together."""
        owners = {}
        for pod in pods:
            owner = self._read(pod).owner
            if owner and owner["uid"] not in owners:
                owners[owner["uid"]] = self._replicas(owner, pod)
        return sum(owners.values())

    def _replicas(self, owner: Mapping[str, str], pod: Entry) -> int:
        for kind in self.tools.catalog.kinds():
            resource = kind.resource
            if (resource.api_version, resource.kind) != (owner["apiVersion"], owner["kind"]):
                continue
            if "scale" not in kind.subresources:
                plural = f"{resource.plural}.{resource.group}"
                raise _Uncountable(f"{plural} does not implement the scale subresource")
            found = self.tools.writer.registry.shelf(kind).latest(pod.namespace, owner["name"])
            if found is not None and found.uid == owner["uid"]:
                return wanted_replicas(kind, kind.from_stored(found.parse()))
        raise _Uncountable(f'found no controllers for pod "{pod.name}"')

    def _read(self, pod: Entry) -> _Facts:
        """What of *pod* matters; read anew only where it changed."""
        known = self._facts.get(pod.key)
        if known is None or known.rv != pod.rv:
            known = self._facts[pod.key] = _facts_of(pod)
        return known


def _facts_of(pod: Entry) -> _Facts:
    content = pod.parse()
    conditions = (content.get("status") or {}).get("conditions") or ()
    ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    references = content["metadata"].get("ownerReferences") or ()
    owner: Json = next((each for each in references if each.get("controller")), {})
    return _Facts(pod.rv, ready, owner)


def _disrupted(status: Json, pods: list[Entry], now: datetime) -> dict[str, str]:
    """The evictions that are under way: their pods are there still, and may go at any moment."""
    there = {pod.name for pod in pods if not pod.deleting}
    return {
        name: when
        for name, when in (status.get("disruptedPods") or {}).items()
        if name in there and times.parse(when) + GONE_WITHIN > now
    }


def _share(value: int | str, whole: int) -> int:
    """A number, or a percentage of *whole*, rounded up."""
    if isinstance(value, str):
        return math.ceil(int(value.rstrip("%")) * whole / 100)
    return value
