"""Pod state from the status that the API server holds, for an agent without records of the pod."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from .core_types import ContainerStateTerminated, ContainerStatus, Pod
from .status import ContainerExit, ContainerState, PodState, parse_time


def state_from_status(pod: Pod) -> PodState:
    """Return the state that the pod's status shows, in wall clock times."""
    return PodState(
        containers={
            status.name: _container_from_status(status)
            for status in pod.status.all_container_statuses
        },
        started_at=parse_time(pod.status.start_time),
        prepared=bool(pod.status.pod_ip),
        pod_ip=pod.status.pod_ip,
    )


def _container_from_status(status: ContainerStatus) -> ContainerState:
    terminated, last = status.state.terminated, status.last_state.terminated
    running = status.state.running
    current = _exit_from_status(terminated) if terminated else None
    if current is None and running is None and last is not None:
        current, last = _exit_from_status(last), None
    return ContainerState(
        running=running is not None,
        started_at=parse_time(running.started_at) if running else None,
        exit=current,
        last=_exit_from_status(last) if last else None,
        restarts=status.restart_count,
        consecutive_exits=status.restart_count + (1 if current else 0),
        started=running is not None,
        ready=running is not None,
        has_started=running is not None or current is not None,
        image=status.image if status.image_id else "",
        image_id=status.image_id,
        volume_images={
            mount.name: mount.volume_status.image.image_ref
            for mount in status.volume_mounts
            if mount.volume_status is not None and mount.volume_status.image is not None
        },
        resources=status.resources if running is not None else None,
    )


def _exit_from_status(terminated: ContainerStateTerminated) -> ContainerExit:
    return ContainerExit(
        code=terminated.exit_code,
        at=parse_time(terminated.finished_at) or datetime.fromtimestamp(0, UTC),
        started_at=parse_time(terminated.started_at),
        reason=terminated.reason,
        message=terminated.message,
    )


def with_steady_times(state: PodState, from_wall: Callable[[datetime], datetime]) -> PodState:
    """Return *state* with the steady times of its wall clock times."""
    exited = {
        name: replace(each, exit=replace(each.exit, steady_at=from_wall(each.exit.at)))
        for name, each in state.containers.items()
        if each.exit is not None
    }
    started = from_wall(state.started_at) if state.started_at else None
    return replace(state, containers={**state.containers, **exited}, steady_at=started)
