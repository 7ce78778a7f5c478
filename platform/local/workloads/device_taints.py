"""Controllers of tainted devices: one evicts pods, the other one writes the status of rules."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import assert_never

import msgspec

from ...kube.client.client import Client, PatchType
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ...machinery.result import Result
from ...model import times
from ...model.device_taints import NO_EFFECT, NO_EXECUTE
from ...model.names import DEVICETAINTRULES, PODS
from ...model.pod import DISRUPTION_TARGET
from .claim_rules import ResourceClaim
from .device_taint_rules import (
    STATUS_PERIOD,
    CancelEviction,
    DeviceEviction,
    DeviceTaintRule,
    EvictPod,
    PodTaintsEffect,
    PodTaintsView,
    ResourceSlice,
    ScheduleEviction,
    TaintRuleView,
    WriteRuleCondition,
    allocated_devices,
    claims_in_use,
    current_slices,
    decide_condition,
    decide_eviction,
    eviction_of,
)
from .resource_claims import CLAIMS_INDEX, claims_of
from .types import Pod

POOL_INDEX = "pool"

_LONGEST_WAIT = 86_400.0
"""Seconds after which a pod with a longer toleration is reconciled again."""


def pool_of(resource_slice: ResourceSlice) -> Iterator[str]:
    """Yield the pool of a slice."""
    spec = resource_slice.spec
    yield f"{spec.driver}/{spec.pool.name}"


def pools_of(claim: ResourceClaim) -> Iterator[str]:
    """Yield the pools whose devices a claim has."""
    for (driver, pool, _), _ in allocated_devices(claim):
        yield f"{driver}/{pool}"


class DeviceTaints:
    """What is known of the taints of devices, and of the pods that use these."""

    def __init__(
        self,
        *,
        pods: Informer[Pod],
        claims: Informer[ResourceClaim],
        slices: Informer[ResourceSlice],
        rules: Informer[DeviceTaintRule],
    ) -> None:
        """*pods* has the index of :func:`.claims_of`, *slices* and *claims* have those of
        :func:`pool_of` and :func:`pools_of`."""
        self.pods = pods
        self.claims = claims
        self.slices = slices
        self.rules = rules
        self.evicted: Counter[str] = Counter()
        """Pods that were evicted because of a rule, by its uid."""

    def eviction_of(self, pod: Pod, rules: Iterable[DeviceTaintRule]) -> DeviceEviction | None:
        """Return when *pod* is evicted because of slices and *rules*, if it is."""
        if not pod.spec.node_name:
            return None
        found = (self.claims.get(key) for key in claims_of(pod))
        claims = {each.metadata.name: each for each in found if each is not None}
        used = list(claims_in_use(pod, claims))
        pools = {names[:2] for each in used for names, _ in allocated_devices(each)}
        slices = {
            pool: current_slices(self.slices.by_index(POOL_INDEX, "/".join(pool))) for pool in pools
        }
        return eviction_of(used, slices, list(rules))


class DeviceTaintRuleController(Controller[TaintRuleView, WriteRuleCondition]):
    """Reports in the status of DeviceTaintRules which pods they evict."""

    def __init__(
        self,
        client: Client,
        taints: DeviceTaints,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__("device-taint-rules", ControllerSettings(), clock=clock)
        self._taints = taints
        self._rules = WriteThroughCache(
            client, DEVICETAINTRULES, DeviceTaintRule, taints.rules, clock=self.clock
        )
        self.keep(self._rules)
        self.sources = [
            KindSource(taints.rules, self._on_rule),
            *(KindSource(each, _ignore) for each in (taints.pods, taints.claims, taints.slices)),
        ]

    def _on_rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if new is not None and (old is None or old.spec != new.spec):
            self.queue.add(new.metadata.key)

    def update_later(self, eviction: DeviceEviction) -> None:
        """Update the status of the rules that cause *eviction* after a delay, within which it may
        change again."""
        for name in eviction.rules.values():
            self.queue.add_after(name, STATUS_PERIOD)

    async def observe(self, sync: Sync) -> TaintRuleView | Result | None:
        """Return the rule with the pods that it concerns, unless its status is recent."""
        rule = self._rules.get(sync.key)
        if rule is None:
            return None
        now, before = self.clock.now(), rule.condition
        if before is not None and before.get("observedGeneration") == rule.metadata.generation:
            written = times.known(before.get("lastTransitionTime"))
            due = written + timedelta(seconds=STATUS_PERIOD) if written is not None else now
            if due > now:
                return Result(requeue_after=(due - now).total_seconds())
        return TaintRuleView(
            rule,
            times.format(now),
            evicted=self._taints.evicted[rule.metadata.uid],
            pending=self._pending(rule),
            published=self._published(rule),
            allocated=sum(
                rule.spec.taints(names)
                for each in self._taints.claims
                for names, _ in allocated_devices(each)
            ),
        )

    def _pending(self, rule: DeviceTaintRule) -> Counter[str]:
        """Return the pods that are evicted because of *rule*, or would be, by namespace."""
        if rule.spec.taint.get("effect") not in (NO_EXECUTE, NO_EFFECT):
            return Counter()
        taint = {**rule.spec.taint, "effect": NO_EXECUTE}
        spec = msgspec.structs.replace(rule.spec, taint=taint)
        evicting = msgspec.structs.replace(rule, spec=spec)
        evictions = (
            (pod.metadata.namespace, self._taints.eviction_of(pod, [evicting]))
            for pod in self._taints.pods
            if pod.spec.resource_claims and pod.is_active
        )
        return Counter(
            namespace
            for namespace, eviction in evictions
            if eviction is not None and eviction.rules
        )

    def _published(self, rule: DeviceTaintRule) -> int:
        """Return how many devices of slices *rule* selects."""
        pools = {pool for each in self._taints.slices for pool in pool_of(each)}
        return sum(
            rule.spec.taints((each.spec.driver, each.spec.pool.name, device.name))
            for pool in pools
            for each in current_slices(self._taints.slices.by_index(POOL_INDEX, pool))
            for device in each.spec.devices
        )

    def decide(self, view: TaintRuleView) -> Iterator[WriteRuleCondition]:
        """See :func:`.device_taint_rules.decide_condition`."""
        return decide_condition(view)

    async def execute(self, sync: Sync, view: TaintRuleView, effect: WriteRuleCondition) -> None:
        """Write the condition, and leave those of others."""
        status = {"status": {"conditions": [effect.condition]}}
        meta = view.rule.metadata
        await self._rules.patch(meta, status, subresource="status", kind=PatchType.STRATEGIC)

    def forget(self, key: str) -> None:
        """Drop what is kept for *key*, and the numbers of rules that do not exist any more."""
        super().forget(key)
        existing = {each.metadata.uid for each in self._taints.rules}
        for uid in self._taints.evicted.keys() - existing:
            del self._taints.evicted[uid]


class DeviceTaintEvictionController(Controller[PodTaintsView, PodTaintsEffect]):
    """Evicts pods whose devices have taints with the effect NoExecute that they do not tolerate."""

    def __init__(
        self,
        client: Client,
        taints: DeviceTaints,
        rule_status: DeviceTaintRuleController,
        *,
        recorder: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__("device-taint-eviction", ControllerSettings(), clock=clock)
        self._taints = taints
        self._rule_status = rule_status
        self._recorder = recorder
        self._pods = WriteThroughCache(client, PODS, Pod, taints.pods, clock=self.clock)
        self._scheduled: dict[str, tuple[str, DeviceEviction]] = {}
        """Evictions that are not due yet, by the key of the pod, and its uid."""
        self.keep(self._pods)
        self.sources = [
            KindSource(taints.rules, self._on_rule),
            KindSource(taints.slices, self._on_slice),
            KindSource(taints.claims, self._on_claim),
            KindSource(taints.pods, self._on_pod),
        ]

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        known = new or old
        if known is not None and known.spec.resource_claims:
            self.queue.add(known.metadata.key)

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        known = new or old
        if known is not None:
            self._add_pods_of(known)

    def _on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        known = new or old
        for pool in pool_of(known) if known is not None else ():
            for claim in self._taints.claims.by_index(POOL_INDEX, pool):
                self._add_pods_of(claim)

    def _on_rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if old is not None and new is not None and old.spec == new.spec:
            return
        specs = [each.spec for each in (old, new) if each is not None]
        for claim in self._taints.claims:
            names = [names for names, _ in allocated_devices(claim)]
            if any(spec.taints(each) for spec in specs for each in names):
                self._add_pods_of(claim)

    def _add_pods_of(self, claim: ResourceClaim) -> None:
        for pod in self._taints.pods.by_index(CLAIMS_INDEX, claim.metadata.key):
            self.queue.add(pod.metadata.key)

    async def observe(self, sync: Sync) -> PodTaintsView | None:
        """Return the pod; ``None`` if it has ended, or does so."""
        pod = self._pods.get(sync.key)
        if pod is None or not pod.is_active:
            return None
        uid, _ = self._scheduled.get(sync.key, ("", None))
        if uid and uid != pod.metadata.uid:
            self._unschedule(sync.key)  # that of a pod that had this name before
        scheduled = sync.key in self._scheduled
        eviction = self._taints.eviction_of(pod, self._taints.rules)
        return PodTaintsView(pod, eviction, scheduled, self.clock.now().timestamp())

    def decide(self, view: PodTaintsView) -> Iterator[PodTaintsEffect]:
        """See :func:`.device_taint_rules.decide_eviction`."""
        return decide_eviction(view)

    async def execute(self, sync: Sync, view: PodTaintsView, effect: PodTaintsEffect) -> None:
        """Evict the pod, now or later, or report that it is not evicted."""
        match effect:
            case ScheduleEviction(eviction, seconds):
                scheduled = view.pod.metadata.uid, eviction
                if self._scheduled.get(sync.key) != scheduled:
                    self._scheduled[sync.key] = scheduled
                    self._rule_status.update_later(eviction)
                sync.after(min(seconds, _LONGEST_WAIT))
            case CancelEviction():
                self._record(view.pod, "Cancelling deletion")
                self._unschedule(sync.key)
            case EvictPod(eviction):
                await self._evict(view.pod)
                self._taints.evicted.update(eviction.rules.keys())
                self._rule_status.update_later(eviction)
            case _:
                assert_never(effect)

    async def _evict(self, pod: Pod) -> None:
        """Set the condition and delete the pod; what another one has the name of stays."""
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": times.format(self.clock.now()),
        }
        if not any(
            (each.type, each.status) == (DISRUPTION_TARGET, "True")
            for each in pod.status.conditions
        ):
            self._record(pod, "Marking for deletion")
            status = {"status": {"conditions": [condition]}}
            await self._pods.patch(
                pod.metadata, status, subresource="status", kind=PatchType.STRATEGIC
            )
        await self._pods.delete(pod.metadata)

    def _record(self, pod: Pod, message: str) -> None:
        if self._recorder is not None:
            self._recorder.record(
                object_reference(PODS, pod.metadata),
                type="Normal",
                reason="DeviceTaintManagerEviction",
                message=message,
            )

    def forget(self, key: str) -> None:
        """Drop what is kept for *key*: the pod has ended."""
        super().forget(key)
        self._unschedule(key)

    def _unschedule(self, key: str) -> None:
        scheduled = self._scheduled.pop(key, None)
        if scheduled is not None:
            self._rule_status.update_later(scheduled[1])


def _ignore(old: object, new: object) -> None:
    """Only wait for the objects."""
