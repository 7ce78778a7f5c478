"""Convert pods of jobs."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from ...model import times
from ...model.pod import PodPhase
from ...model.pod_failure import pod_exit_code
from ...wire.jobs import ContainerRun, PodPhaseName, PodSummary
from ..jobs.kinds import PodPosition
from ..jobs.pod_views import ContainerStatus, JobPod, Terminated


def pod_of(pod: JobPod, located: PodPosition) -> PodSummary:
    """Convert a pod."""
    status = pod.status
    ended = [each.state.terminated for each in status.container_statuses]
    ends = [each.finished_at for each in ended if each is not None and each.finished_at]
    reason, message = _reason(pod)
    return PodSummary(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        task=located.task,
        index=located.index,
        phase=_phase(status.phase),
        ready=pod.is_ready,
        restarts=sum(each.restart_count for each in pod.all_statuses()),
        node=pod.spec.node_name,
        ip=status.pod_ip,
        reason=reason,
        message=message,
        created_at=times.known(pod.metadata.creation_timestamp),
        scheduled_at=_scheduled_at(pod),
        started_at=times.known(status.start_time),
        finished_at=times.known(max(ends, default=None)) if pod.is_finished else None,
        runs=sorted(_runs(status.container_statuses), key=_start),
        exit_code=_exit_code(pod),
        containers=[each.name for each in pod.spec.containers],
        init_containers=[each.name for each in pod.spec.init_containers],
        deleting=pod.metadata.deletion_timestamp is not None,
    )


def _scheduled_at(pod: JobPod) -> datetime | None:
    for each in pod.status.conditions:
        if (each.type, each.status) == ("PodScheduled", "True"):
            return times.known(each.last_transition_time)
    return None


def _runs(statuses: Iterable[ContainerStatus]) -> Iterator[ContainerRun]:
    for each in statuses:
        for ended in (each.last_state.terminated, each.state.terminated):
            if ended is not None and ended.started_at:
                yield ContainerRun(
                    container=each.name,
                    started_at=times.known(ended.started_at),
                    finished_at=times.known(ended.finished_at),
                    exit_code=ended.exit_code,
                )
        running = each.state.running
        if running is not None and running.started_at:
            yield ContainerRun(container=each.name, started_at=times.known(running.started_at))


def _start(run: ContainerRun) -> datetime:
    return run.started_at or _UNKNOWN


_UNKNOWN = datetime.min.replace(tzinfo=UTC)
_PHASES: dict[str, PodPhaseName] = {
    "Pending": "Pending",
    "Running": "Running",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
}


def _phase(text: str) -> PodPhaseName:
    return _PHASES.get(text, "Unknown") if text else "Pending"


def _failed(pod: JobPod) -> Terminated | None:
    """Return how the first container ended that failed."""
    for each in pod.all_statuses():
        ended = each.state.terminated
        if ended is not None and ended.exit_code:
            return ended
    return None


def _exit_code(pod: JobPod) -> int | None:
    states = (each.state.terminated for each in pod.all_statuses())
    codes = (ended.exit_code for ended in states if ended is not None)
    return pod_exit_code(codes, succeeded=pod.status.phase == PodPhase.SUCCEEDED)


def _reason(pod: JobPod) -> tuple[str, str]:
    """Return reason and message of the pod, else of a container, else why it is not scheduled."""
    status = pod.status
    if status.reason or status.message:
        return status.reason, status.message
    if failed := _failed(pod):
        return failed.reason, failed.message
    if waits := _waiting(pod.all_statuses()):
        return waits
    for each in status.conditions:
        if (each.type, each.status) == ("PodScheduled", "False"):
            return each.reason, each.message
    return "", ""


def _waiting(statuses: Iterable[ContainerStatus]) -> tuple[str, str] | None:
    for each in statuses:
        waiting = each.state.waiting
        if waiting is not None and waiting.reason:
            return waiting.reason, waiting.message
    return None
