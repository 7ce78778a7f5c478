"""Pod actions: a pure function from a pod's state to what to do next.

The pod worker executes the actions with processes, the simulator with timers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ....model.pod import FINISHED
from .core_types import Container, Pod
from .status import (
    BackOff,
    PodState,
    PodTermination,
    is_init_complete,
    phase_of,
    restart_triggers,
    should_restart,
)


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start the container now."""

    name: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop the container, and kill it at *kill_at*."""

    name: str
    kill_at: datetime


@dataclass(frozen=True, slots=True)
class DeadlineExceeded:
    """The pod exceeded its active deadline: terminate it."""

    termination: PodTermination


@dataclass(frozen=True, slots=True)
class SetUpPod:
    """Set up volumes and address."""


@dataclass(frozen=True, slots=True)
class RestartAll:
    """No container runs: start all of them again, *triggers* because of their exit."""

    triggers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinalizePod:
    """No container runs or will run: write the final status and clean up."""


_MIN_TIME = datetime.min.replace(tzinfo=UTC)

PodAction = StartContainer | StopContainer | DeadlineExceeded | SetUpPod | RestartAll | FinalizePod


@dataclass(frozen=True, slots=True)
class PodActions:
    """The actions that are due, and when to compute them again without an event."""

    actions: tuple[PodAction, ...] = ()
    wake_at: datetime | None = None


def compute_pod_actions(
    pod: Pod, state: PodState, *, now: datetime, back_off: BackOff
) -> PodActions:
    """Return the actions that are due at *now*, in steady time.

    Without a new event the result stays the same: the caller tracks actions in progress.
    """
    if state.termination is not None:
        return _terminate_actions(pod, state, state.termination)
    if phase_of(pod, state) in FINISHED:
        kill_at = now + timedelta(seconds=pod.grace_period)
        return _stop_actions(pod, state, kill_at)
    expiry = _active_deadline(pod, state)
    if expiry is not None and expiry <= now:
        message = "Pod was active on the node longer than the specified deadline"
        termination = PodTermination(
            at=now, grace_period=pod.grace_period, reason="DeadlineExceeded", message=message
        )
        return PodActions((DeadlineExceeded(termination),))
    if not state.prepared:
        return PodActions((SetUpPod(),), expiry)
    if triggers := restart_triggers(pod, state):
        every = (*pod.spec.init_containers, *pod.spec.containers)
        stops = tuple(StopContainer(c.name, now) for c in every if state.of(c.name).running)
        return PodActions(stops or (RestartAll(triggers),), expiry)
    actions: list[PodAction] = [
        StopContainer(name, known.kill_at)
        for name, known in state.containers.items()
        if known.running and known.kill_at is not None
    ]
    wakes = [expiry] if expiry else []
    for container in _startable_containers(pod, state):
        at = _start_time(pod, state, container, back_off)
        if at is None:
            continue
        if at <= now:
            actions.append(StartContainer(container.name))
        else:
            wakes.append(at)
    return PodActions(tuple(actions), min(wakes, default=None))


def _terminate_actions(pod: Pod, state: PodState, termination: PodTermination) -> PodActions:
    return _stop_actions(pod, state, termination.at + timedelta(seconds=termination.grace_period))


def _stop_actions(pod: Pod, state: PodState, kill_at: datetime) -> PodActions:
    """Stop the first stage of `Pod.stop_order` in which a container runs."""
    for stage in pod.stop_order:
        names = [name for name in stage if state.of(name).running]
        if names:
            return PodActions(tuple(StopContainer(name, kill_at) for name in names), kill_at)
    return PodActions((FinalizePod(),))


def _active_deadline(pod: Pod, state: PodState) -> datetime | None:
    seconds = pod.spec.active_deadline_seconds
    start = state.steady_at or state.started_at
    if seconds is None or start is None:
        return None
    return start + timedelta(seconds=seconds)


def _startable_containers(pod: Pod, state: PodState) -> Iterator[Container]:
    """Yield ephemeral containers, started sidecars, and the next init container or the main ones.

    Ephemeral containers start at any time, also to debug an init container.
    """
    yield from pod.spec.ephemeral_containers
    for container in pod.spec.init_containers:
        done = is_init_complete(container, state.of(container.name))
        if container.is_sidecar or not done:
            yield container
        if not done:
            return
    yield from pod.spec.containers


def _start_time(
    pod: Pod, state: PodState, container: Container, back_off: BackOff
) -> datetime | None:
    """Return when the container may start; ``None`` if it runs or must not restart."""
    known = state.of(container.name)
    if known.running:
        return None
    if known.exit is None:
        return _MIN_TIME
    if not should_restart(pod, container, known.exit):
        return None
    return (known.exit.steady_at or known.exit.at) + timedelta(
        seconds=back_off.delay(known.consecutive_exits)
    )
