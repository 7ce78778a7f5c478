"""What a pod needs next: a pure function from what is known to the commands that follow.

Both runtimes carry the same commands out: `worker` with processes, `simulate` with timers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...model.pod import FINISHED
from .core_types import Container, Pod
from .status import BackOff, Ending, PodState, init_done, phase_of, restarts


@dataclass(frozen=True, slots=True)
class Start:
    """Start the container now."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the container to end, and kill it at *kill_at*."""

    name: str
    kill_at: datetime


@dataclass(frozen=True, slots=True)
class Expire:
    """The pod used up its time: it is to end for *ending*'s reason."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make volumes and address."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing runs and nothing will: report the last status and tidy up."""


_LONG_AGO = datetime.min.replace(tzinfo=UTC)

Command = Start | Stop | Expire | Prepare | Finish


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to ask again if nothing happens before."""

    commands: tuple[Command, ...] = ()
    wake_at: datetime | None = None


def decide(pod: Pod, state: PodState, *, now: datetime, back_off: BackOff) -> Decision:
    """Say what *pod* needs at *now*, in steady time; do none of it.

    Asking again without news gives the same answer: the caller remembers what is under way.
    """
    if state.ending is not None:
        return _end(pod, state, state.ending)
    if phase_of(pod, state) in FINISHED:
        kill_at = now + timedelta(seconds=pod.grace)
        return _stop_all(pod, state, kill_at)
    expiry = _expiry(pod, state)
    if expiry is not None and expiry <= now:
        message = "Pod was active on the node longer than the specified deadline"
        ending = Ending(at=now, grace=pod.grace, reason="DeadlineExceeded", message=message)
        return Decision((Expire(ending),))
    if not state.prepared:
        return Decision((Prepare(),), expiry)
    commands: list[Command] = [
        Stop(name, known.stop_at)
        for name, known in state.containers.items()
        if known.running and known.stop_at is not None
    ]
    wakes = [expiry] if expiry else []
    for container in _due(pod, state):
        at = _start_time(pod, state, container, back_off)
        if at is None:
            continue
        if at <= now:
            commands.append(Start(container.name))
        else:
            wakes.append(at)
    return Decision(tuple(commands), min(wakes, default=None))


def _end(pod: Pod, state: PodState, ending: Ending) -> Decision:
    return _stop_all(pod, state, ending.at + timedelta(seconds=ending.grace))


def _stop_all(pod: Pod, state: PodState, kill_at: datetime) -> Decision:
    """Main containers first; sidecars follow when those are down, the last one first."""
    mains = [c.name for c in pod.spec.containers if state.of(c.name).running]
    inits = [c.name for c in reversed(pod.spec.init_containers) if state.of(c.name).running]
    names = mains or inits[:1]
    if not names:
        return Decision((Finish(),))
    return Decision(tuple(Stop(name, kill_at) for name in names), kill_at)


def _expiry(pod: Pod, state: PodState) -> datetime | None:
    seconds = pod.spec.active_deadline_seconds
    begun = state.seen or state.started_at
    if seconds is None or begun is None:
        return None
    return begun + timedelta(seconds=seconds)


def _due(pod: Pod, state: PodState) -> Iterator[Container]:
    """The containers whose turn it is: sidecars so far and the next init, or else the main ones."""
    for container in pod.spec.init_containers:
        done = init_done(container, state.of(container.name))
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
        return _LONG_AGO
    if not restarts(pod, container, known.exit):
        return None
    return (known.exit.seen or known.exit.at) + timedelta(seconds=back_off.delay(known.streak))
