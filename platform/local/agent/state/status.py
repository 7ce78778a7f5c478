"""State of a pod: pure, without I/O and clock.

`apply` folds events into a `PodState`; `phase_of` and `rendering` compute the pod's status from it,
for real and simulated pods alike. `pod_actions` decides from the same state what to do next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ....model import times
from ....model.pod import PodPhase
from ....model.pod_resources import Resources
from .core_types import RESTART, RESTART_ALL, Container, Pod, RestartRule
from .resizes import Rejection, is_equal

SIGTERM_EXIT_CODE, SIGKILL_EXIT_CODE = 143, 137

RESIZE = "Resize"
"""Why a container restarts that the agent stopped to give it other resources."""

LOST_CODE = SIGKILL_EXIT_CODE
LOST_REASON = "ContainerStatusUnknown"
LOST_MESSAGE = "The container could not be located when the pod was terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """Restart backoff of containers."""

    initial_delay: float = 10.0
    """Seconds before the second restart; the first is immediate, later delays double."""

    max_delay: float = 300.0
    """Maximum delay in seconds."""

    reset_after: float = 600.0
    """Seconds of a run that reset the delay."""

    def delay(self, consecutive_exits: int) -> float:
        """Return the seconds to wait after the given number of exits in a row."""
        if consecutive_exits <= 1:
            return 0.0
        return float(
            min(self.max_delay, self.initial_delay * 2.0 ** min(consecutive_exits - 2, 60))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExit:
    """Exit of one run."""

    code: int
    at: datetime
    steady_at: datetime | None = None
    """*at* in the agent's steady time, which determines restarts; ``None``: the same as *at*."""

    started_at: datetime | None = None
    reason: str = ""
    message: str = ""
    container_id: str = ""
    restart: str = ""
    """Why it is started again under any restart policy: `RESIZE`, `RESTART_ALL`, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """State of one container; the default means that it was never started."""

    running: bool = False
    started_at: datetime | None = None
    """Start of the current run, or of the last one."""

    steady_at: datetime | None = None
    """*started_at* in steady time, if known."""

    exit: ContainerExit | None = None
    """Exit of the current run; ``None`` while it runs, or before the first run."""

    last: ContainerExit | None = None
    """Exit of the previous run."""

    restarts: int = 0
    consecutive_exits: int = 0
    """Exits in a row, for the restart backoff."""

    start_failure: tuple[str, str] | None = None
    """Reason and message of a failed start."""

    container_id: str = ""

    started: bool = False
    """It runs, and its postStart hook and startup probe, if any, have succeeded."""

    ready: bool = False
    """It runs, and its readiness probe, if any, succeeds."""

    has_started: bool = False
    """*started* was set in this run or an earlier one."""

    placeholder: bool = False
    """It runs a placeholder instead of its image's program."""

    image: str = ""
    """Complete name of the image that it runs, if any."""

    image_id: str = ""
    volume_images: Mapping[str, str] = field(default_factory=dict)
    """Ids of the images that it has as volumes, by name of volume."""

    resources: Resources | None = None
    """Resources with which it runs."""

    kill_at: datetime | None = None
    """Set when the container must be stopped: when to kill it. The restart policy still applies."""

    @property
    def was_attempted(self) -> bool:
        """Whether it ran at least once."""
        return self.running or self.exit is not None


NOT_ATTEMPTED = ContainerState()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTermination:
    """Request to terminate the pod."""

    at: datetime
    """In steady time."""

    grace_period: float
    """Seconds from *at* to SIGKILL."""

    reason: str = ""
    """Reason of the pod's status, such as ``DeadlineExceeded``; empty for a deletion."""

    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """State of a pod."""

    containers: Mapping[str, ContainerState] = field(default_factory=dict)
    started_at: datetime | None = None
    """When the agent accepted the pod."""

    steady_at: datetime | None = None
    """*started_at* in steady time, from which its deadline counts; ``None``: as *started_at*."""

    prepared: bool = False
    """The pod has volumes and an address."""

    pod_ip: str = ""
    host_ip: str = ""
    termination: PodTermination | None = None
    resize_rejection: Rejection | None = None
    """Why other resources that the spec asks for are not allocated."""

    resize_error: str = ""
    """Why allocated resources are not applied yet."""

    def of(self, name: str) -> ContainerState:
        """Return the state of one container."""
        return self.containers.get(name, NOT_ATTEMPTED)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The agent accepted the pod."""

    at: datetime
    steady_at: datetime | None = None
    """*at* in steady time, also in the events below."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Volumes and addresses are set up; containers may start."""

    pod_ip: str
    host_ip: str


@dataclass(frozen=True, slots=True)
class Started:
    """A container was started."""

    name: str
    at: datetime
    container_id: str = ""
    started: bool = True
    ready: bool = True
    placeholder: bool = False
    steady_at: datetime | None = None
    image: str = ""
    """Complete name of the image that it runs; empty for programs of the machine."""

    image_id: str = ""
    volume_images: Mapping[str, str] = field(default_factory=dict)
    """Ids of the images that it has as volumes, by name of volume."""

    resources: Resources | None = None


@dataclass(frozen=True, slots=True)
class Resized:
    """A running container has other resources."""

    name: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class ResizeReviewed:
    """Why resources of the spec are not allocated to the pod, or are not applied, if so."""

    rejection: Rejection | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Changed result of a running container's probes."""

    name: str
    started: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """A container's hook or probe failed: stop it, and kill it at *kill_at*."""

    name: str
    kill_at: datetime


@dataclass(frozen=True, slots=True)
class Exited:
    """A container exited."""

    name: str
    at: datetime
    code: int
    reason: str = ""
    message: str = ""
    steady_at: datetime | None = None
    restart: str = ""


@dataclass(frozen=True, slots=True)
class AllRestarted:
    """No container runs, and all start again, init containers first."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A container cannot be started."""

    name: str
    reason: str
    message: str = ""


ContainerEvent = Started | Resized | ProbeResult | ProbeFailed | Exited | StartFailed
Event = Accepted | Prepared | PodTermination | ResizeReviewed | AllRestarted | ContainerEvent


def apply(state: PodState, event: Event, back_off: BackOff) -> PodState:
    """Return the state after *event*."""
    match event:
        case Accepted():
            at, steady_at = state.started_at or event.at, state.steady_at or event.steady_at
            return replace(state, started_at=at, steady_at=steady_at)
        case Prepared():
            return replace(state, prepared=True, pod_ip=event.pod_ip, host_ip=event.host_ip)
        case PodTermination():
            return replace(state, termination=_earlier_termination(state.termination, event))
        case ResizeReviewed():
            return replace(state, resize_rejection=event.rejection, resize_error=event.error)
        case AllRestarted():
            known = {name: _reset(each) for name, each in state.containers.items()}
            return replace(state, containers=known)
        case _:
            known = {**state.containers}
            known[event.name] = _apply_to_container(state.of(event.name), event, back_off)
            return replace(state, containers=known)


def _apply_to_container(
    old: ContainerState, event: ContainerEvent, back_off: BackOff
) -> ContainerState:
    match event:
        case Started():
            return _started(old, event)
        case Resized():
            return replace(old, resources=event.resources)
        case ProbeResult() | ProbeFailed():
            return _probed(old, event)
        case Exited():
            return _exited(old, event, back_off)
        case StartFailed():
            return replace(old, start_failure=(event.reason, event.message))


def _earlier_termination(old: PodTermination | None, new: PodTermination) -> PodTermination:
    """A later request may shorten the grace period, never extend it, and keeps the first reason."""
    if old is None:
        return new
    kill_at = min(
        old.at + timedelta(seconds=old.grace_period), new.at + timedelta(seconds=new.grace_period)
    )
    return replace(old, grace_period=(kill_at - old.at).total_seconds())


def _started(old: ContainerState, event: Started) -> ContainerState:
    return ContainerState(
        running=True,
        started_at=event.at,
        steady_at=event.steady_at,
        last=old.exit or old.last,
        restarts=old.restarts + (1 if old.exit is not None else 0),
        consecutive_exits=old.consecutive_exits,
        container_id=event.container_id,
        started=event.started,
        ready=event.ready,
        has_started=old.has_started or event.started,
        placeholder=event.placeholder,
        image=event.image,
        image_id=event.image_id,
        volume_images=event.volume_images,
        resources=event.resources,
    )


def _probed(old: ContainerState, event: ProbeResult | ProbeFailed) -> ContainerState:
    if not old.running:
        return old
    if isinstance(event, ProbeFailed):
        return replace(old, kill_at=old.kill_at or event.kill_at)
    passed = old.has_started or event.started
    return replace(old, started=event.started, ready=event.ready, has_started=passed)


def _reset(old: ContainerState) -> ContainerState:
    if old.exit is None:
        return old
    return replace(old, exit=replace(old.exit, restart=RESTART_ALL), has_started=False)


def _exited(old: ContainerState, event: Exited, back_off: BackOff) -> ContainerState:
    start, end = (
        (old.steady_at, event.steady_at)
        if old.steady_at and event.steady_at
        else (old.started_at, event.at)
    )
    duration = (end - start).total_seconds() if start else 0.0
    ended = ContainerExit(
        code=event.code,
        at=event.at,
        steady_at=event.steady_at,
        started_at=old.started_at,
        reason=event.reason or ("Completed" if event.code == 0 else "Error"),
        message=event.message,
        container_id=old.container_id,
        restart=event.restart,
    )
    consecutive_exits = 1 if duration >= back_off.reset_after else old.consecutive_exits + 1
    if event.restart == RESIZE:
        consecutive_exits = 0
    return replace(
        old,
        running=False,
        exit=ended,
        consecutive_exits=consecutive_exits,
        start_failure=None,
        started=False,
        ready=False,
        has_started=old.has_started and event.restart != RESTART_ALL,
        kill_at=None,
    )


def _matching_rule(container: Container, code: int) -> RestartRule | None:
    """Return the first restart rule that applies to an exit of *container*."""
    return next((each for each in container.restart_policy_rules if each.applies_to(code)), None)


def restart_triggers(pod: Pod, state: PodState) -> tuple[str, ...]:
    """Return the containers that exited so that all containers of the pod must be restarted."""
    return tuple(
        each.name
        for each in (*pod.spec.init_containers, *pod.spec.containers)
        if (ended := state.of(each.name).exit) is not None
        and not ended.restart
        and (rule := _matching_rule(each, ended.code)) is not None
        and rule.action == RESTART_ALL
    )


def is_resizing(pod: Pod, state: PodState) -> bool:
    """Return whether a container runs with other resources than those allocated to it."""
    for each in (*pod.spec.init_containers, *pod.spec.containers):
        known = state.of(each.name)
        if known.running and known.resources is not None:
            if not is_equal(known.resources, each.resources):
                return True
        elif not known.running and known.exit is not None and known.exit.restart == RESIZE:
            return True
    return False


def should_restart(pod: Pod, container: Container, last_exit: ContainerExit) -> bool:
    """Return whether the rules or the policy of *container*, or the pod's, restart it."""
    if container in pod.spec.ephemeral_containers:
        return False
    if last_exit.restart:
        return True
    rule = _matching_rule(container, last_exit.code)
    if rule is not None and rule.action in (RESTART, RESTART_ALL):
        return True
    policy = container.restart_policy or pod.spec.restart_policy
    if container in pod.spec.init_containers and not container.is_sidecar:
        return last_exit.code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and last_exit.code != 0)


def is_init_complete(container: Container, state: ContainerState) -> bool:
    """Return whether the next container may start."""
    if container.is_sidecar:
        return state.has_started
    return state.exit is not None and state.exit.code == 0 and not state.exit.restart


def is_initialized(pod: Pod, state: PodState) -> bool:
    """Return whether all init containers are complete, and all sidecars started."""
    return all(is_init_complete(c, state.of(c.name)) for c in pod.spec.init_containers)


def phase_of(pod: Pod, state: PodState) -> PodPhase:
    """Return the pod's phase."""
    mains = [state.of(c.name) for c in pod.spec.containers]
    containers = [state.of(name) for name in pod.containers]
    if state.termination is not None and not any(c.running for c in containers):
        clean = not state.termination.reason and all(c.exit and c.exit.code == 0 for c in mains)
        return PodPhase.SUCCEEDED if clean else PodPhase.FAILED
    if not is_initialized(pod, state) and not any(c.was_attempted for c in mains):
        return PodPhase.FAILED if _init_failed(pod, state) else PodPhase.PENDING
    if any(not c.was_attempted for c in mains):
        return PodPhase.PENDING
    if any(c.running for c in mains):
        return PodPhase.RUNNING
    return _final_phase(pod, state)


def _init_failed(pod: Pod, state: PodState) -> bool:
    for container in pod.spec.init_containers:
        ended = state.of(container.name).exit
        if ended and ended.code != 0 and not should_restart(pod, container, ended):
            return True
    return False


def _final_phase(pod: Pod, state: PodState) -> PodPhase:
    ends = [(c, ended) for c in pod.spec.containers if (ended := state.of(c.name).exit)]
    if any(should_restart(pod, container, ended) for container, ended in ends):
        return PodPhase.RUNNING
    return PodPhase.SUCCEEDED if all(ended.code == 0 for _, ended in ends) else PodPhase.FAILED


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp; ``None`` for none."""
    return times.parse(text) if text else None
