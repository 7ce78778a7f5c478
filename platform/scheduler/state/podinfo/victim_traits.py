"""Fields of pods that decide whether they may be evicted, and whether they may evict others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ....model import durations, times
from ....model.names import LAST_CHECKPOINT
from ..core_types import Pod

PREEMPTABLE = "volcano.sh/preemptable"
COOLDOWN_TIME = "volcano.sh/cooldown-time"

_CRITICAL_CLASSES = ("system-cluster-critical", "system-node-critical")
_SYSTEM_NAMESPACE = "kube-system"
_DEFAULT_GRACE_PERIOD = 30


@dataclass(frozen=True, slots=True)
class VictimTraits:
    """What preemption needs to know of a pod."""

    preemptable: bool
    """Whether it may be evicted; the annotation, else the label, else true."""

    critical: bool
    """Whether it is critical for the cluster."""

    may_preempt: bool
    """Whether other pods may be evicted for it (``preemptionPolicy``)."""

    grace_period: int
    """Seconds."""

    protected_until: int
    """When its cooldown ends, which plugin ``cdp`` respects, as Unix time; 0 without one."""

    started: int
    """When it was bound or started, as Unix time; 0 if it was not."""

    saved: int
    """Until when its work is saved, as Unix time; 0 without a checkpoint."""

    active_deadline: int | None
    """Seconds after its start in which the kubelet ends it, if it does."""

    labels: Mapping[str, str]


def victim_traits(pod: Pod) -> VictimTraits:
    """Return the traits of *pod*."""
    meta, spec = pod.metadata, pod.spec
    preemptable = meta.annotations.get(PREEMPTABLE, meta.labels.get(PREEMPTABLE))
    cooldown = meta.annotations.get(COOLDOWN_TIME) or meta.labels.get(COOLDOWN_TIME, "")
    grace, started = spec.termination_grace_period_seconds, _started(pod)
    return VictimTraits(
        preemptable=preemptable is None or _is_true(preemptable),
        critical=spec.priority_class_name in _CRITICAL_CLASSES
        or meta.namespace == _SYSTEM_NAMESPACE,
        may_preempt=spec.preemption_policy != "Never",
        grace_period=_DEFAULT_GRACE_PERIOD if grace is None else grace,
        protected_until=started + math.ceil(_seconds(cooldown)) if cooldown and started else 0,
        started=started,
        saved=unix_time(meta.annotations.get(LAST_CHECKPOINT, "")),
        active_deadline=spec.active_deadline_seconds,
        labels=meta.labels,
    )


def restarted_traits(traits: VictimTraits, pod: Pod) -> VictimTraits:
    """Return the traits of *pod*, of which only the status has changed since it had *traits*."""
    return traits if traits.started == _started(pod) else victim_traits(pod)


def _started(pod: Pod) -> int:
    if not pod.spec.node_name:
        return 0
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            if condition.last_transition_time:
                return unix_time(condition.last_transition_time)
            break
    return unix_time(pod.status.start_time or pod.metadata.creation_timestamp or "")


@lru_cache(maxsize=4096)
def unix_time(text: str) -> int:
    """Return a timestamp as Unix time; 0 if it is malformed or empty."""
    try:
        return int(times.parse(text).timestamp())
    except times.TimeError:
        return 0


def _is_true(text: str) -> bool:
    return text.lower() in ("true", "t", "1")


def _seconds(text: str) -> float:
    """Return a Go duration in seconds; 0 if it is malformed."""
    try:
        return max(durations.parse(text).total_seconds(), 0.0)
    except ValueError:
        return 0.0
