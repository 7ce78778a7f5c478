"""Jobs without a PodGroup: their only pod describes the one that they would have.

A job is of that kind by its spec, and stays so while each of its active pods describes the present
spec of the PodGroup. If in doubt, or if no scheduler handles such pods, it gets a PodGroup.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from ...machinery.clock import Clock
from ...model import names, times
from ...model.base import ApiStruct
from ...model.described_podgroup import MAX_TEXT, decode, encode
from ...model.job import Job, TaskSpec
from ...model.meta import ObjectMeta
from ...model.pod import PodPhase
from ...model.podgroup import PodGroup, PodGroupSpec
from .. import podgroups
from ..tracker.core_types import Pod, PodCondition
from ..tracker.pod_info import PodInfo

SILENCE = 60.0
"""Seconds without a report of a scheduler on described pods after which a pod gets a PodGroup."""

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation of a Job that contains the whole manifest."""
_CLAIMS = frozenset({"persistentVolumeClaim", "ephemeral"})
"""Kinds of volumes with a claim."""


class _Spec(ApiStruct, frozen=True):
    scheduler_name: str = ""
    node_name: str = ""
    scheduling_gates: tuple[msgspec.Raw, ...] | None = None
    resource_claims: tuple[msgspec.Raw, ...] | None = None
    scheduling_group: msgspec.Raw | None = None
    workload_ref: msgspec.Raw | None = None
    volumes: tuple[dict[str, msgspec.Raw], ...] | None = None


class _Meta(ApiStruct, frozen=True):
    annotations: dict[str, str] | None = None


class _Template(ApiStruct, frozen=True):
    metadata: _Meta | None = None
    spec: _Spec | None = None


_TEMPLATE = msgspec.json.Decoder(_Template)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutPodGroup:
    """What a job has instead of a PodGroup, as long as it needs none."""

    description: str
    """The annotation of a pod that is created."""
    check_after: float | None = None
    """Seconds after which the job is to be synced, if no scheduler reports on its pod."""


class DescribedPodGroups:
    """Decides which jobs need no PodGroup, and observes whether schedulers handle their pods."""

    def __init__(self, *, enabled: bool, scheduler_names: Collection[str], clock: Clock) -> None:
        """Pods of *scheduler_names* alone may be without a PodGroup, and only if *enabled*."""
        self._enabled = enabled
        self._scheduler_names = frozenset(scheduler_names)
        self._clock = clock
        self._reported_at: dict[str, float] = {}
        """When a report of a scheduler on described pods was observed last, in Unix time."""

    def scheduler_of(self, job: Job, spec: PodGroupSpec) -> str:
        """Return the scheduler of the only pod of *job*, whose PodGroup would have *spec*.

        Empty if a job with such a spec has a PodGroup.
        """
        if not self._enabled or not _has_one_plain_task(job) or spec.sub_group_policy:
            return ""
        scheduler = _scheduler_of_template(job, job.spec.tasks[0])
        return scheduler if scheduler in self._scheduler_names else ""

    def observe(self, scheduler: str, old: Pod | None, new: Pod) -> None:
        """Note what *scheduler* has reported on a pod between two versions of it."""
        if not scheduler or names.PODGROUP not in new.metadata.annotations:
            return
        report = _report(new)
        if report is not None and (old is None or _report(old) != report):
            self._reported_at[scheduler] = self._clock.now().timestamp()

    def without_podgroup(
        self, job: Job, spec: PodGroupSpec, *, scheduler: str, pods: Iterable[PodInfo]
    ) -> WithoutPodGroup | None:
        """Return what *job* has instead of a PodGroup of *spec*; ``None`` if it needs one.

        *scheduler* is the result of :meth:`scheduler_of`, and *pods* are its active pods.

        Raises:
            SchedulerSilentError: it needs one because no scheduler handles its pod.
        """
        if not scheduler or job.metadata.annotations.get(names.PODGROUPS_OF_JOB) == "all":
            return None
        check_after = None
        for pod in pods:
            described = decode(pod.description)
            if described is None or described.spec != spec:
                return None
            if pod.phase is PodPhase.PENDING and not pod.reported:
                check_after = self._silence_left(pod, scheduler)
                if check_after <= 0:
                    raise SchedulerSilentError(pod.name)
        text = _description(job, spec)
        if len(text) > MAX_TEXT:
            return None
        return WithoutPodGroup(description=text, check_after=check_after)

    def _silence_left(self, pod: PodInfo, scheduler: str) -> float:
        """Return for how many seconds the scheduler may still be silent about *pod*."""
        since = self._reported_at.get(scheduler, 0.0)
        if pod.event_time is not None:
            since = max(since, times.parse(pod.event_time).timestamp())
        return since + SILENCE - self._clock.now().timestamp()


class SchedulerSilentError(Exception):
    """No scheduler has reported on a described pod."""

    def __init__(self, pod: str) -> None:
        super().__init__(
            f"no scheduler has reported on pod {pod} for {SILENCE:g} s, which has no PodGroup: "
            "the PodGroup is created"
        )


def _report(pod: Pod) -> PodCondition | None:
    """Return that a scheduler has bound *pod*, or why it does not; None if it has not reported."""
    return next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)


def _description(job: Job, spec: PodGroupSpec) -> str:
    meta = podgroups.build(job, spec).metadata
    annotations = {name: text for name, text in meta.annotations.items() if name != _LAST_APPLIED}
    return encode(
        PodGroup(metadata=ObjectMeta(labels=meta.labels, annotations=annotations), spec=spec)
    )


def _has_one_plain_task(job: Job) -> bool:
    spec = job.spec
    if len(spec.tasks) != 1 or spec.min_available != 1 or spec.network_topology is not None:
        return False
    task = spec.tasks[0]
    has_rules = task.depends_on is not None or task.partition_policy is not None
    is_single = task.replicas == 1 and task.min_available in (None, 1)
    return is_single and not (has_rules or task.topology_policy or spec.volumes or spec.plugins)


def _scheduler_of_template(job: Job, task: TaskSpec) -> str:
    """Return the scheduler of the pods of *task*; empty if they may need a PodGroup."""
    try:
        template = _TEMPLATE.decode(task.template)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    spec, meta = template.spec or _Spec(), template.metadata or _Meta()
    needs_podgroup = (
        spec.node_name
        or spec.scheduling_gates
        or spec.resource_claims
        or spec.scheduling_group
        or spec.workload_ref
        or names.QUEUE_GATE in (meta.annotations or {})
        or any(_CLAIMS & volume.keys() for volume in spec.volumes or ())
    )
    if needs_podgroup:
        return ""
    return spec.scheduler_name or job.spec.scheduler_name or names.SCHEDULER_NAME
