"""Bodies of the routes of pods."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field

from ...model.pod import PodPhase
from ..jobs.kinds import PodPlace
from ..jobs.pod_views import ContainerStatus, JobPod, Terminated

PodPhaseName = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


class PodOut(BaseModel):
    """A pod of a job."""

    name: str
    uid: str
    task: str
    index: int | None = Field(description="Index in the task, if the pod has one.")
    phase: PodPhaseName
    ready: bool
    restarts: int = Field(description="Sum of the restarts of all containers.")
    node: str = Field(description="Empty while the pod is not scheduled.")
    ip: str
    reason: str = Field(description="Why the pod waits or has failed, as far as it is known.")
    message: str
    started_at: str | None
    finished_at: str | None
    exit_code: int | None = Field(
        description="Exit code of the first container that failed, or 0 once all have succeeded."
    )
    containers: list[str]
    init_containers: list[str]
    deleting: bool = Field(description="Whether the pod is being terminated.")

    @classmethod
    def of(cls, pod: JobPod, located: PodPlace) -> "PodOut":
        """Convert a pod."""
        status = pod.status
        ended = [each.state.terminated for each in status.container_statuses]
        times = [each.finished_at for each in ended if each is not None and each.finished_at]
        reason, message = _reason(pod)
        return cls(
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
            started_at=status.start_time,
            finished_at=max(times, default=None) if pod.is_finished else None,
            exit_code=_exit_code(pod),
            containers=[each.name for each in pod.spec.containers],
            init_containers=[each.name for each in pod.spec.init_containers],
            deleting=pod.metadata.deletion_timestamp is not None,
        )


class PodList(BaseModel):
    """One page of the pods of a job, by name."""

    items: list[PodOut]
    next_cursor: str | None = Field(description="For the next page; null on the last one.")


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
    failed = _failed(pod)
    if failed is not None:
        return failed.exit_code
    return 0 if pod.status.phase == PodPhase.SUCCEEDED else None


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
