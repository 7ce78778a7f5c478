"""Convert jobs and pods, as the API server delivers them, to what is recorded. Pure."""

import functools
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from ...model import times
from ...model.base import ApiStruct
from ...model.job import FINAL_PHASES
from ...model.meta import ObjectMeta
from ...model.names import ACCOUNT, GROUP_NAME, QUEUE_NAME
from ...model.pod import FINISHED, PodPhase
from ...model.pod_failure import pod_exit_code
from ...model.pod_resources import ContainerResources, PodResources, Resources, effective_resources
from ...model.quantity import QuantityError
from ...model.recorded import is_recorded, recorded_value
from ...model.resource_names import is_extended
from ...store.records import JobRecord, PhaseEntry, PodRecord, to_micros
from ...wire.jobs import JobSummary
from ..jobs.kinds import KINDS, JobKind
from ..jobs.views import CachedBatchJob, CachedJob, CachedObject, CachedTrainingJob

log = logging.getLogger(__name__)

MAX_SPEC_BYTES = 64 * 1024
"""Maximum size of a stored spec; of a larger one only the size is stored."""
MAX_MESSAGE = 4096
"""Maximum length of a stored reason or message."""

_NANO = 1_000_000_000
_COUNTED_RESOURCES = ("cpu", "memory")
_KIND_BY_OWNER = {(kind.resource.api_version, kind.resource.kind): kind for kind in KINDS.values()}


class _SpecOnly(msgspec.Struct, frozen=True):
    spec: msgspec.Raw = msgspec.Raw(b"null")


class Terminated(ApiStruct, frozen=True):
    """Terminated state of a container."""

    finished_at: str | None = None
    exit_code: int = 0


class ContainerState(ApiStruct, frozen=True):
    """State of a container."""

    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """One container of a pod."""

    state: ContainerState = ContainerState()


class PodSpec(PodResources, frozen=True):
    """Fields of a pod's spec that are recorded: its resources."""


class PodStatus(ApiStruct, frozen=True):
    """Fields of a pod's status that are recorded."""

    phase: str = ""
    start_time: str | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class RecordedPod(ApiStruct, frozen=True):
    """A pod as the recorder decodes it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


_SPEC_DECODER = msgspec.json.Decoder(_SpecOnly)


def job_record(
    kind: JobKind, job: CachedObject, raw: bytes | msgspec.Raw, *, deleted: bool
) -> JobRecord:
    """Return the record of a job of *kind*, decoded from *raw*."""
    summary: JobSummary = kind.summarize(job)
    spec = bytes(_SPEC_DECODER.decode(raw).spec)
    finished_at = summary.finished_at if summary.phase in FINAL_PHASES else None
    finished = finished_at and times.format(finished_at)
    mark = ""
    if finished and _ttl(job) is not None and not is_recorded(job.metadata.annotations, finished):
        mark = recorded_value(summary.phase, finished, summary.resource_version)
    return JobRecord(
        uid=summary.uid,
        kind=kind.name,
        namespace=summary.namespace,
        name=summary.name,
        queue=_text(summary.queue),
        user=_text(summary.user),
        account=_text(summary.labels.get(ACCOUNT, "")),
        phase=summary.phase,
        reason=_text(summary.reason),
        message=_text(summary.message),
        spec=spec.decode(errors="replace") if len(spec) <= MAX_SPEC_BYTES else None,
        spec_bytes=len(spec),
        labels=msgspec.json.encode(summary.labels).decode(),
        tasks=msgspec.json.encode(summary.tasks).decode(),
        resource_version=summary.resource_version,
        created_at=_at(summary.created_at) or 0,
        started_at=_at(summary.started_at),
        finished_at=_at(finished_at),
        phases=_phases(job, summary),
        deleted=deleted,
        mark=mark,
    )


def _ttl(job: CachedObject) -> int | None:
    if isinstance(job, CachedTrainingJob):
        return job.spec.run_policy.ttl_seconds_after_finished
    return job.spec.ttl_seconds_after_finished


def _phases(job: CachedObject, summary: JobSummary) -> tuple[PhaseEntry, ...]:
    """Return the phases that the status shows, in order; the current one with its reason."""
    entered = dict(_entered(job, summary))
    current = entered.pop(summary.phase, None)
    found = sorted((at, phase) for phase, at in entered.items())
    entries = [PhaseEntry(phase=phase, entered_at=at) for at, phase in found]
    if current is not None:
        entries.append(
            PhaseEntry(
                phase=summary.phase,
                entered_at=current,
                reason=_text(summary.reason),
                message=_text(summary.message),
            )
        )
    return tuple(entries)


def _entered(job: CachedObject, summary: JobSummary) -> Iterator[tuple[str, int]]:
    """Yield phases with the times at which they were entered, as far as the status has them."""
    created = _at(summary.created_at)
    if created is not None:
        yield "Pending", created
    if isinstance(job, CachedJob):
        found = [(each.status, each.last_transition_time) for each in job.status.conditions]
        found.append((job.status.state.phase, job.status.state.last_transition_time))
    elif isinstance(job, CachedBatchJob):
        found = [("Running", job.status.start_time), *_conditions(job, _BATCH_PHASES)]
    else:
        found = list(_conditions(job, _TRAINING_PHASES))
    if summary.finished_at is not None:
        found.append((summary.phase, times.format(summary.finished_at)))
    for phase, at in found:
        micros = _micros(at)
        if phase and micros is not None:
            yield phase, micros


_BATCH_PHASES = {
    "SuccessCriteriaMet": "Completing",
    "FailureTarget": "Terminating",
    "Suspended": "Suspended",
}
_TRAINING_PHASES = {
    "Running": "Running",
    "Restarting": "Restarting",
    "Suspended": "Suspended",
}


def _conditions(
    job: CachedBatchJob | CachedTrainingJob, phases: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    for condition in job.status.conditions:
        if condition.type in phases and (
            condition.status == "True" or isinstance(job, CachedTrainingJob)
        ):
            yield phases[condition.type], condition.last_transition_time


def pod_record(pod: RecordedPod, *, deleted: bool) -> PodRecord | None:
    """Return the record of a pod; ``None`` unless a job controls it."""
    owner = pod.metadata.controller
    kind = _KIND_BY_OWNER.get((owner.api_version, owner.kind)) if owner is not None else None
    if owner is None or kind is None:
        return None
    meta, status = pod.metadata, pod.status
    finished = status.phase in FINISHED
    annotations = meta.annotations
    queue = annotations.get(QUEUE_NAME, "") if annotations.get(GROUP_NAME) else ""
    return PodRecord(
        uid=meta.uid,
        job_uid=owner.uid,
        kind=kind.name,
        namespace=meta.namespace,
        job=owner.name,
        queue=_text(queue),
        requests=_requests(pod),
        started_at=_micros(status.start_time),
        finished=finished,
        ended_at=_last_end(status) if finished else None,
        exit_code=_exit_code(status) if finished else None,
        latest_end=_micros(meta.deletion_timestamp),
        deleted=deleted,
    )


def _last_end(status: PodStatus) -> int | None:
    """Return when the last container of a finished pod ended."""
    ends = [_micros(each.finished_at) for each in _ended(status)]
    return max((end for end in ends if end), default=None)


def _exit_code(status: PodStatus) -> int | None:
    codes = (each.exit_code for each in _ended(status))
    return pod_exit_code(codes, succeeded=status.phase == PodPhase.SUCCEEDED)


def _ended(status: PodStatus) -> list[Terminated]:
    containers = (*status.init_container_statuses, *status.container_statuses)
    return [each.state.terminated for each in containers if each.state.terminated is not None]


def _requests(pod: RecordedPod) -> str:
    try:
        amounts = effective_resources(pod.spec, "requests")
    except QuantityError as error:
        key = pod.metadata.key
        log.warning("cannot read requests of pod", extra={"pod": key, "error": str(error)})
        amounts = {}
    return msgspec.json.encode(
        {
            name: amount.nanos / _NANO
            for name, amount in sorted(amounts.items())
            if amount.nanos > 0 and (name in _COUNTED_RESOURCES or is_extended(name))
        }
    ).decode()


@functools.lru_cache(maxsize=4096)  # jobs and pods of a burst have the same times
def _at(time: datetime | None) -> int | None:
    return None if time is None else to_micros(time)


def _micros(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return to_micros(times.parse(text))
    except times.TimeError:
        return None


def _text(text: str) -> str:
    """Return *text* as both databases can store it."""
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    return clean[:MAX_MESSAGE]


__all__ = ["ContainerResources", "RecordedPod", "Resources", "job_record", "pod_record"]
