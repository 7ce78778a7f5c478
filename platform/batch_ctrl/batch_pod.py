"""One pod of a Job as decisions see it. Immutable."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ..model import times
from ..model.base import ApiStruct
from ..model.names import COMPLETION_INDEX
from ..model.pod import FINISHED, PodPhase
from ..model.selectors import NOTHING, Selector, SelectorError, from_label_selector
from . import failure_policy
from .core_types import (
    INDEX_FAILURES,
    INDEX_IGNORED_FAILURES,
    TRACKING_FINALIZER,
    UNLIMITED,
    Job,
    Pod,
    PodFailurePolicy,
)
from .failure_policy import COUNTED, FailureMatch

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
"""An integer that is short enough for ``int()``: pods may have any annotation."""
_PHASES = {"": PodPhase.PENDING} | {phase.value: phase for phase in PodPhase}


class _TemplateSpec(ApiStruct, frozen=True):
    restart_policy: str = ""


class _Template(ApiStruct, frozen=True):
    spec: _TemplateSpec = _TemplateSpec()


@dataclass(frozen=True, slots=True)
class JobTraits:
    """The part of a Job's spec that its pods are read with. Only the completions ever change."""

    uid: str
    indexed: bool
    completions: int
    """Number of indexes of an Indexed Job."""
    replaces_only_failed: bool
    policy: PodFailurePolicy | None
    selector: Selector
    restarts_in_place: bool
    """The restart policy is OnFailure, so that restarts count towards the backoff limit."""

    @classmethod
    def of(cls, job: Job) -> "JobTraits":
        """Return the traits of *job*."""
        try:
            selector = from_label_selector(job.spec.selector)
        except SelectorError:  # rejected by the API server
            selector = NOTHING
        template = msgspec.json.decode(job.spec.template, type=_Template)
        return cls(
            uid=job.metadata.uid,
            indexed=job.is_indexed,
            completions=job.completions,
            replaces_only_failed=job.replaces_only_failed,
            policy=job.spec.pod_failure_policy,
            selector=selector,
            restarts_in_place=template.spec.restart_policy == "OnFailure",
        )

    def has_index(self, index: int | None) -> bool:
        """Whether the Job has this index."""
        return index is not None and index < self.completions


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPod:
    """One pod of a Job."""

    uid: str
    name: str
    index: int | None = None
    """Completion index; ``None`` if the annotation is missing or invalid."""
    phase: PodPhase = PodPhase.PENDING
    terminating: bool = False
    """The pod has a deletion timestamp."""
    finalizer: bool = False
    """The pod has the tracking finalizer: it is not counted yet."""
    scheduled: bool = True
    """The pod has a node."""
    matches: bool = True
    """The Job's selector matches the pod's labels."""
    ready: bool = False
    restarts: int = 0
    """Sum of the restart counts of all containers."""
    failures: int = 0
    """Counted failures of the index before this pod."""
    ignored_failures: int = 0
    match: FailureMatch = COUNTED
    """Result of the pod failure policy, if this pod has failed or fails."""
    finished_at: float = 0.0
    """When the pod ended, in seconds since the epoch; 0 while it is active."""
    resource_version: str = ""

    @property
    def active(self) -> bool:
        """Whether the pod is neither finished nor terminating."""
        return not self.terminating and self.phase not in FINISHED

    @property
    def stopping(self) -> bool:
        """Whether the pod is terminating and not finished."""
        return self.terminating and self.phase not in FINISHED

    @property
    def succeeded(self) -> bool:
        """Whether the pod succeeded."""
        return self.phase is PodPhase.SUCCEEDED

    @property
    def may_run(self) -> bool:
        """Whether the pod is terminating and has a node, whose kubelet will report its end."""
        return self.stopping and self.scheduled

    def has_failed(self, *, replaces_only_failed: bool) -> bool:
        """Whether the pod counts as failed. A terminating one does unless its end is awaited.

        No Job waits for the end of a pod without node, which no kubelet would ever report.
        """
        if self.phase is PodPhase.FAILED:
            return True
        return self.stopping and not (replaces_only_failed and self.may_run)

    @property
    def failure_order(self) -> tuple[int, float, str]:
        """The latest failed pod of an index has the highest value."""
        return (self.failures + self.ignored_failures, self.finished_at, self.name)

    @property
    def key_in_order(self) -> tuple[int, str]:
        """Order in which pods are counted: by index, then name."""
        return (UNLIMITED if self.index is None else self.index, self.name)


def parse_pod(pod: Pod, traits: JobTraits) -> BatchPod:
    """Return the view of *pod*, which the Job of *traits* controls."""
    meta, status = pod.metadata, pod.status
    phase = _PHASES.get(status.phase, PodPhase.UNKNOWN)
    terminating = meta.deletion_timestamp is not None
    ready = next((one for one in status.conditions if one.type == "Ready"), None)
    ended = terminating or phase in FINISHED
    sidecars = {one.name for one in pod.spec.init_containers if one.restart_policy == "Always"}
    return BatchPod(
        uid=meta.uid,
        name=meta.name,
        index=_parse_index(meta.annotations.get(COMPLETION_INDEX)) if traits.indexed else None,
        phase=phase,
        terminating=terminating,
        finalizer=TRACKING_FINALIZER in meta.finalizers,
        scheduled=bool(pod.spec.node_name),
        matches=traits.selector.matches(meta.labels),
        ready=ready is not None and ready.status == "True",
        restarts=sum(one.restart_count for one in status.container_statuses)
        + sum(one.restart_count for one in status.init_container_statuses),
        failures=_parse_count(meta.annotations.get(INDEX_FAILURES)),
        ignored_failures=_parse_count(meta.annotations.get(INDEX_IGNORED_FAILURES)),
        match=COUNTED if traits.policy is None else failure_policy.match(traits.policy, pod),
        finished_at=finish_time(pod, sidecars) if ended else 0.0,
        resource_version=meta.resource_version,
    )


def finish_time(pod: Pod, sidecars: Iterable[str] = ()) -> float:
    """Return when *pod* ended: when its last container did, or else the best estimate."""
    meta, status = pod.metadata, pod.status
    names = set(sidecars)
    containers = [
        *status.container_statuses,
        *(one for one in status.init_container_statuses if one.name in names),
    ]
    ends = [one.state.terminated.finished_at for one in containers if one.state.terminated]
    if containers and len(ends) == len(containers) and all(ends):
        return max(_seconds(end) for end in ends)
    for condition in status.conditions:
        if condition.type == "Ready" and condition.status == "False":
            if condition.last_transition_time:
                return _seconds(condition.last_transition_time)
            break
    if meta.deletion_timestamp is not None:
        return _seconds(meta.deletion_timestamp) - (meta.deletion_grace_period_seconds or 0)
    return _seconds(meta.creation_timestamp)


def _seconds(text: str | None) -> float:
    try:
        return times.parse(text or "").timestamp()
    except times.TimeError:
        return 0.0


def _parse_index(text: str | None) -> int | None:
    if text is None or not _INTEGER.fullmatch(text):
        return None
    index = int(text)
    return index if index >= 0 else None


def _parse_count(text: str | None) -> int:
    """Parse a failure count; invalid ones are 0."""
    if text is None or not _INTEGER.fullmatch(text):
        return 0
    count = int(text)
    return count if 0 <= count <= UNLIMITED else 0
