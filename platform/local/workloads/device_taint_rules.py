"""Decisions about taints of devices: when pods are evicted, and what the status of a rule reports.

The texts are those of kube-controller-manager.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...model import times
from ...model.base import ApiStruct
from ...model.device_taints import NO_EFFECT, NO_EXECUTE, TaintRuleSpec, tolerates
from ...model.meta import ObjectMeta
from .claim_rules import ResourceClaim
from .types import Pod

Json = dict[str, Any]

STATUS_PERIOD = 10.0
"""Seconds between two writes of the status of one rule, unless its spec has changed."""

IN_PROGRESS = "EvictionInProgress"
"""The condition of a rule."""

DeviceNames = tuple[str, str, str]
"""Driver, pool and device."""


class SlicePool(ApiStruct, frozen=True):
    """The pool of a slice."""

    name: str = ""
    generation: int = 0


class SliceDevice(ApiStruct, frozen=True):
    """A device of a slice."""

    name: str = ""
    taints: tuple[Json, ...] = ()


class SliceSpec(ApiStruct, frozen=True):
    """``spec`` of a ResourceSlice."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    devices: tuple[SliceDevice, ...] = ()


class ResourceSlice(ApiStruct, frozen=True):
    """Devices of a pool."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SliceSpec = SliceSpec()


class TaintRuleStatus(ApiStruct, frozen=True):
    """``status`` of a DeviceTaintRule."""

    conditions: tuple[Json, ...] = ()


class DeviceTaintRule(ApiStruct, frozen=True):
    """A taint that an administrator has added to devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TaintRuleSpec = TaintRuleSpec()
    status: TaintRuleStatus = TaintRuleStatus()

    @property
    def condition(self) -> Json | None:
        """The condition of the controller."""
        return next((each for each in self.status.conditions if each["type"] == IN_PROGRESS), None)


def current_slices(slices: Iterable[ResourceSlice]) -> list[ResourceSlice]:
    """Return those of the latest generation of the *slices* of one pool."""
    found = list(slices)
    latest = max((each.spec.pool.generation for each in found), default=0)
    return [each for each in found if each.spec.pool.generation == latest]


# -- pods ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceEviction:
    """When a pod is evicted because of the taints of its devices."""

    at: float
    """Seconds of the epoch."""
    rules: Mapping[str, str]
    """The rules that cause it: name by uid."""


def allocated_devices(claim: ResourceClaim) -> Iterator[tuple[DeviceNames, Sequence[Json]]]:
    """Yield the devices that a claim has, and which tolerations it has for each."""
    for each in ((claim.status.allocation or {}).get("devices") or {}).get("results") or ():
        names = each.get("driver", ""), each.get("pool", ""), each.get("device", "")
        yield names, each.get("tolerations") or ()


def claims_in_use(pod: Pod, claims: Mapping[str, ResourceClaim]) -> Iterator[ResourceClaim]:
    """Yield those of *claims*, by name, that *pod* uses and that are reserved for it."""
    created = pod.status.claim_names
    for wanted in pod.spec.resource_claims:
        claim = claims.get(wanted.resource_claim_name or created.get(wanted.name, ""))
        if (
            claim is not None
            and any(each.uid == pod.metadata.uid for each in claim.status.reserved_for)
            and (wanted.resource_claim_name or claim.was_created_for(pod))
        ):
            yield claim


def eviction_of(
    claims: Iterable[ResourceClaim],
    slices: Mapping[tuple[str, str], Sequence[ResourceSlice]],
    rules: Sequence[DeviceTaintRule],
) -> DeviceEviction | None:
    """Return when a pod with *claims* is evicted, if it is.

    *slices* are the current ones of each pool, by the names of its driver and the pool.
    """
    times_of: list[float] = []
    causes: dict[str, str] = {}
    for claim in claims:
        for names, tolerations in allocated_devices(claim):
            for taint, rule in _taints(names, slices.get(names[:2], ()), rules):
                at = _eviction_time(taint, tolerations)
                if at is not None:
                    times_of.append(at)
                    if rule is not None:
                        causes[rule.metadata.uid] = rule.metadata.name
    return DeviceEviction(min(times_of), causes) if times_of else None


def _taints(
    names: DeviceNames, slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]
) -> Iterator[tuple[Json, DeviceTaintRule | None]]:
    """Yield the taints of a device with the effect NoExecute, and the rule that each is from."""
    devices = (device for each in slices for device in each.spec.devices)
    for device in devices:
        if device.name == names[2]:
            yield from ((each, None) for each in device.taints if _evicts(each))
    for rule in rules:
        if _evicts(rule.spec.taint) and rule.spec.taints(names):
            yield rule.spec.taint, rule


def _evicts(taint: Json) -> bool:
    return taint.get("effect") == NO_EXECUTE


def _eviction_time(taint: Json, tolerations: Iterable[Json]) -> float | None:
    """Return when pods with the device are evicted; ``None`` if the taint is tolerated."""
    durations = [each.get("tolerationSeconds") for each in tolerations if tolerates(each, taint)]
    if None in durations:
        return None
    begin = times.known(taint.get("timeAdded"))
    since = begin.timestamp() if begin is not None else 0.0
    return since + max(min((each for each in durations if each is not None), default=0), 0)


@dataclass(frozen=True, slots=True)
class PodTaintsView:
    """A pod with claims, and when it is evicted."""

    pod: Pod
    eviction: DeviceEviction | None
    is_scheduled: bool
    """Whether its eviction was scheduled before."""
    now: float


@dataclass(frozen=True, slots=True)
class ScheduleEviction:
    """Evict the pod after some seconds, unless that changes."""

    eviction: DeviceEviction
    seconds: float


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict the pod."""

    eviction: DeviceEviction


@dataclass(frozen=True, slots=True)
class CancelEviction:
    """Report that the pod is not evicted after all."""


PodTaintsEffect = ScheduleEviction | EvictPod | CancelEviction


def decide_eviction(view: PodTaintsView) -> Iterator[PodTaintsEffect]:
    """Return what happens to a pod that runs."""
    eviction = view.eviction
    if eviction is None:
        if view.is_scheduled:
            yield CancelEviction()
    elif eviction.at > view.now:
        yield ScheduleEviction(eviction, eviction.at - view.now)
    else:
        yield EvictPod(eviction)


# -- rules -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaintRuleView:
    """A rule, and what it causes."""

    rule: DeviceTaintRule
    now: str
    evicted: int = 0
    """Pods that this controller has evicted because of it."""
    pending: Mapping[str, int] = field(default_factory=dict)
    """Pods that are to be evicted because of it, or would be with the effect NoExecute, by
    namespace."""
    published: int = 0
    """Devices of slices that it selects."""
    allocated: int = 0
    """Devices of claims that it selects."""


@dataclass(frozen=True, slots=True)
class WriteRuleCondition:
    """Write the condition of the controller."""

    condition: Json


def decide_condition(view: TaintRuleView) -> Iterator[WriteRuleCondition]:
    """Return the condition if it has changed."""
    reason, message = _report(view)
    if view.evicted:
        evicted = f"{_counted(view.evicted, 'pod')} evicted since starting the controller."
        message = f"{message} {evicted}" if message else evicted
    condition = {
        "type": IN_PROGRESS,
        "status": "True" if reason == _PENDING else "False",
        "reason": reason,
        "message": message,
        "observedGeneration": view.rule.metadata.generation,
    }
    before = view.rule.condition or {}
    if any(before.get(key, "") != value for key, value in condition.items()):
        yield WriteRuleCondition({**condition, "lastTransitionTime": view.now})


_PENDING = "PodsPendingEviction"


def _report(view: TaintRuleView) -> tuple[str, str]:
    """Return reason and message."""
    effect, pods = view.rule.spec.taint.get("effect"), sum(view.pending.values())
    namespaces = _counted(len(view.pending), "namespace", "different namespaces")
    if effect == NO_EXECUTE:
        if pods:
            verb = "needs" if pods == 1 else "need"
            return _PENDING, f"{_counted(pods, 'pod')} {verb} to be evicted in {namespaces}."
        return ("Completed" if view.evicted else "NotStarted"), ""
    if effect == NO_EFFECT:
        published = _counted(view.published, "published device")
        allocated = _counted(view.allocated, "allocated device")
        return "NoEffect", (
            f"{published} selected. {allocated} selected. {_counted(pods, 'pod')} would be evicted "
            f"in {namespaces} if the effect was NoExecute. This information will not be updated "
            "again. Recreate the DeviceTaintRule to trigger an update."
        )
    return "OtherEffect", "Eviction only happens for the NoExecute effect."


def _counted(count: int, one: str, several: str = "") -> str:
    return f"1 {one}" if count == 1 else f"{count} {several or f'{one}s'}"
