"""State of one pod of a job: exit code, restart, abnormal messages. Pure."""

from collections.abc import Iterator
from enum import StrEnum

from ..model import times
from ..model.pod import PodPhase
from ..model.training.types import RestartPolicy
from .core_types import ContainerStatus, Pod

_FIRST_RETRYABLE = 128
"""Exit codes from here on are signals: problems of the infrastructure, not of the program."""

EVICTED = "Evicted"
"""Reason in the status of an evicted pod."""


class Reaction(StrEnum):
    """What follows from a pod in phase Failed."""

    RESTART = "Restart"
    """The pod is deleted and created again."""
    FAIL = "Fail"
    """The job fails."""
    LEAVE = "Leave"
    """The rules of the framework decide."""


def exit_code(pod: Pod, container: str) -> int | None:
    """Return the exit code of the main container, if it has terminated."""
    for status in pod.status.container_statuses:
        if status.name == container and status.state.terminated is not None:
            return status.state.terminated.exit_code
    return None


def reaction(policy: str, code: int | None) -> Reaction:
    """Return what follows from a failed pod whose main container has this exit code, if known."""
    if policy == RestartPolicy.NEVER:
        return Reaction.LEAVE
    if policy == RestartPolicy.EXIT_CODE and code is not None and code < _FIRST_RETRYABLE:
        return Reaction.FAIL
    return Reaction.RESTART


def pod_restart_policy(policy: str) -> str:
    """Return ``restartPolicy`` of the pods of a replica type with this policy."""
    return RestartPolicy.NEVER if policy == RestartPolicy.EXIT_CODE else policy


def container_restarts(pod: Pod) -> int:
    """Return the restarts of all containers of a running pod; 0 of any other."""
    if pod.phase != PodPhase.RUNNING:
        return 0
    return sum(
        status.restart_count
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )


def deletion_requested_by(pod: Pod, time: str | None) -> bool:
    """Whether the deletion of *pod* was requested at *time* or before.

    Such a pod is of an earlier run of a job that was suspended, and is not counted.
    """
    meta = pod.metadata
    if time is None or meta.deletion_timestamp is None:
        return False
    grace = meta.deletion_grace_period_seconds or 0
    requested = times.parse(meta.deletion_timestamp).timestamp() - grace
    return requested <= times.parse(time).timestamp()


def abnormal_messages(pod: Pod) -> tuple[tuple[str, str], ...]:
    """Return reason and message of what is wrong with an active pod, as the events have it."""
    if not pod.is_active:
        return ()
    statuses = pod.status.container_statuses or pod.status.init_container_statuses
    if statuses:
        return tuple(_container_messages(pod.metadata.name, statuses))
    newest = max(
        pod.status.conditions, key=lambda each: each.last_transition_time or "", default=None
    )
    if newest is None or newest.status == "True":
        return ()
    text = f"Error pod {pod.metadata.name} condition message: {newest.message}"
    return ((newest.reason, text),)


def _container_messages(
    pod: str, statuses: tuple[ContainerStatus, ...]
) -> Iterator[tuple[str, str]]:
    for status in statuses:
        start = f"Error pod {pod} container {status.name}"
        terminated, waiting = status.state.terminated, status.state.waiting
        if terminated is not None and terminated.exit_code != 0:
            yield (
                terminated.reason,
                f"{start} exitCode: {terminated.exit_code} "
                f"terminated message: {terminated.message}",
            )
        elif waiting is not None and waiting.message:
            yield waiting.reason, f"{start} waiting message: {waiting.message}"
