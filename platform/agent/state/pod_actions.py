"""What a pod needs next: a pure function from what is known to the commands that follow.

Both runtimes carry the same commands out: `worker` with processes, `simulate` with timers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...model.pod import FINISHED
from .core_types import Container, Pod
from .status import BackOff, PodState, PodTermination, is_init_complete, phase_of, should_restart


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start the container now."""

    name: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Ask the container to end, and kill it at *kill_at*."""

    name: str
    kill_at: datetime


@dataclass(frozen=True, slots=True)
class DeadlineExceeded:
    """The pod used up its time: it is to end for *ending*'s reason."""

    termination: PodTermination


@dataclass(frozen=True, slots=True)
class SetUpPod:
    """Make volumes and address."""


@dataclass(frozen=True, slots=True)
class FinalizePod:
    """Nothing runs and nothing will: report the last status and tidy up."""


_MIN_TIME = datetime.min.replace(tzinfo=UTC)

PodAction = StartContainer | StopContainer | DeadlineExceeded | SetUpPod | FinalizePod


@dataclass(frozen=True, slots=True)
class PodActions:
    """What to do now, and when to ask again if nothing happens before."""

    actions: tuple[PodAction, ...] = ()
    wake_at: datetime | None = None


def compute_pod_actions(
    pod: Pod, state: PodState, *, now: datetime, back_off: BackOff
) -> PodActions:
    """Say what *pod* needs at *now*, in steady time; do none of it.

    Asking again without news gives the same answer: the caller remembers what is under way.
    """
    if state.termination is not None:
        return _terminate_actions(pod, state, state.termination)
    if phase_of(pod, state) in FINISHED:
        kill_at = now + timedelta(seconds=pod.grace_period)
        return _stop_actions(pod, state, kill_at)
    expiry = _active_deadline(pod, state)
    if expiry is not None and expiry <= now:
        message = "Pod was active on the node longer than the specified deadline"
        ending = PodTermination(
            at=now, grace_period=pod.grace_period, reason="DeadlineExceeded", message=message
        )
        return PodActions((DeadlineExceeded(ending),))
    if not state.prepared:
        return PodActions((SetUpPod(),), expiry)
    commands: list[PodAction] = [
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
            commands.append(StartContainer(container.name))
        else:
            wakes.append(at)
    return PodActions(tuple(commands), min(wakes, default=None))


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
    begun = state.steady_at or state.started_at
    if seconds is None or begun is None:
        return None
    return begun + timedelta(seconds=seconds)


def _startable_containers(pod: Pod, state: PodState) -> Iterator[Container]:
    """The containers whose turn it is: sidecars so far and the next init, or else the main ones."""
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
    """When the container may start; ``None`` if it runs, or is done for good."""
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
