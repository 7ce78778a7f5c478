"""What happened to a pod's containers, and the status that says so: no I/O, no clock.

A `PodState` is folded from events (`apply`); `phase_of` and `render` turn it into what Kubernetes
shows. Real and simulated pods take the same road, so they cannot tell different stories.
`lifecycle` decides from the same state what is to be done next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from ...model import times
from ...model.pod import FINISHED, PodPhase
from .core_types import Container, Pod

PLACEHOLDER = "batholith.io/Placeholder"
"""The condition of a pod in which a container runs no program of its image."""

LOST_CODE = 137
LOST_REASON = "ContainerStatusUnknown"
LOST_MESSAGE = "The container could not be located when the pod was terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """How long a container that ended waits before it runs again."""

    initial_delay: float = 10.0
    """Seconds before the second restart; the first comes at once, each later one waits twice."""

    max_delay: float = 300.0
    """Seconds that no wait exceeds."""

    reset_after: float = 600.0
    """A run of so many seconds starts the count afresh."""

    def delay(self, consecutive_exits: int) -> float:
        """Seconds to wait after the *streak*-th end in a row (1 is the first)."""
        if consecutive_exits <= 1:
            return 0.0
        return float(
            min(self.max_delay, self.initial_delay * 2.0 ** min(consecutive_exits - 2, 60))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExit:
    """The end of one run."""

    code: int
    at: datetime
    steady_at: datetime | None = None
    """The same in the agent's steady time, by which restarts are due; ``None``: as *at*."""

    started_at: datetime | None = None
    reason: str = ""
    message: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """What is known about one container; all defaults means: never tried."""

    running: bool = False
    started_at: datetime | None = None
    """Start of the current or last run."""

    steady_at: datetime | None = None
    """The same in steady time, if it is known."""

    exit: ContainerExit | None = None
    """How the current run ended; ``None`` while it runs or before the first."""

    last: ContainerExit | None = None
    """How the run before ended."""

    restarts: int = 0
    consecutive_exits: int = 0
    """Ends in a row, for the back-off."""

    start_failure: tuple[str, str] | None = None
    """Reason and message why it cannot be started, if it cannot."""

    container_id: str = ""

    started: bool = False
    """It runs, and its start went well: hook and startup probe, if any."""

    ready: bool = False
    """It runs, and says that it is ready, if it is asked."""

    has_started: bool = False
    """This run or one before started well."""

    placeholder: bool = False
    """It stands in for an image whose program is not known."""

    kill_at: datetime | None = None
    """It is to be stopped, and killed at this time; its restart policy says what follows."""

    @property
    def was_attempted(self) -> bool:
        """It ran at least once."""
        return self.running or self.exit is not None


NOT_ATTEMPTED = ContainerState()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTermination:
    """The pod as a whole is to end."""

    at: datetime
    """In steady time."""

    grace_period: float
    """Seconds from *at* until the kill."""

    reason: str = ""
    """``DeadlineExceeded`` and the like; empty for a deletion."""

    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """What is known about a pod."""

    containers: Mapping[str, ContainerState] = field(default_factory=dict)
    started_at: datetime | None = None
    """When the agent took the pod on."""

    steady_at: datetime | None = None
    """The same in steady time, by which its deadline comes; ``None``: as *started_at*."""

    prepared: bool = False
    """Volumes and address are there."""

    pod_ip: str = ""
    host_ip: str = ""
    termination: PodTermination | None = None

    def of(self, name: str) -> ContainerState:
        """The state of one container, untried if nothing is known."""
        return self.containers.get(name, NOT_ATTEMPTED)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The agent took the pod on."""

    at: datetime
    steady_at: datetime | None = None
    """In steady time, here and in the events below."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Volumes and addresses are there; containers may start."""

    pod_ip: str
    host_ip: str


@dataclass(frozen=True, slots=True)
class Started:
    """A container runs; what it was not asked yet counts as no."""

    name: str
    at: datetime
    container_id: str = ""
    started: bool = True
    ready: bool = True
    placeholder: bool = False
    steady_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a running container's probes say."""

    name: str
    started: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """A container's hook or probes failed: it is to be stopped, killed at *kill_at*."""

    name: str
    kill_at: datetime


@dataclass(frozen=True, slots=True)
class Exited:
    """A container ended."""

    name: str
    at: datetime
    code: int
    reason: str = ""
    message: str = ""
    steady_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A container cannot be started, and why."""

    name: str
    reason: str
    message: str = ""


Event = (
    Accepted
    | Prepared
    | Started
    | ProbeResult
    | ProbeFailed
    | Exited
    | StartFailed
    | PodTermination
)


def apply(state: PodState, event: Event, back_off: BackOff) -> PodState:
    """The state after *event*."""
    match event:
        case Accepted():
            at, seen = state.started_at or event.at, state.steady_at or event.steady_at
            return replace(state, started_at=at, steady_at=seen)
        case Prepared():
            return replace(state, prepared=True, pod_ip=event.pod_ip, host_ip=event.host_ip)
        case PodTermination():
            return replace(state, termination=_earlier_termination(state.termination, event))
        case Started():
            return _with_container(state, event.name, _started(state.of(event.name), event))
        case ProbeResult() | ProbeFailed():
            return _with_container(state, event.name, _probed(state.of(event.name), event))
        case Exited():
            return _with_container(
                state, event.name, _exited(state.of(event.name), event, back_off)
            )
        case StartFailed():
            blocked = replace(state.of(event.name), start_failure=(event.reason, event.message))
            return _with_container(state, event.name, blocked)


def _with_container(state: PodState, name: str, container: ContainerState) -> PodState:
    return replace(state, containers={**state.containers, name: container})


def _earlier_termination(old: PodTermination | None, new: PodTermination) -> PodTermination:
    """A later request may shorten the grace, never lengthen it, and keeps the first reason."""
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
    )


def _probed(old: ContainerState, event: ProbeResult | ProbeFailed) -> ContainerState:
    if not old.running:
        return old
    if isinstance(event, ProbeFailed):
        return replace(old, kill_at=old.kill_at or event.kill_at)
    passed = old.has_started or event.started
    return replace(old, started=event.started, ready=event.ready, has_started=passed)


def _exited(old: ContainerState, event: Exited, back_off: BackOff) -> ContainerState:
    begun, over = (
        (old.steady_at, event.steady_at)
        if old.steady_at and event.steady_at
        else (old.started_at, event.at)
    )
    ran = (over - begun).total_seconds() if begun else 0.0
    ended = ContainerExit(
        code=event.code,
        at=event.at,
        steady_at=event.steady_at,
        started_at=old.started_at,
        reason=event.reason or ("Completed" if event.code == 0 else "Error"),
        message=event.message,
        container_id=old.container_id,
    )
    streak = 1 if ran >= back_off.reset_after else old.consecutive_exits + 1
    return replace(
        old,
        running=False,
        exit=ended,
        consecutive_exits=streak,
        start_failure=None,
        started=False,
        ready=False,
        kill_at=None,
    )


def should_restart(pod: Pod, container: Container, last_exit: ContainerExit) -> bool:
    """Whether the policy starts *container* again after *ended*."""
    if container.is_sidecar:
        return True
    if container in pod.spec.init_containers:
        return last_exit.code != 0 and pod.spec.restart_policy != "Never"
    if pod.spec.restart_policy == "Always":
        return True
    return pod.spec.restart_policy == "OnFailure" and last_exit.code != 0


def is_init_complete(container: Container, state: ContainerState) -> bool:
    """Whether the next container in order may start."""
    if container.is_sidecar:
        return state.has_started
    return state.exit is not None and state.exit.code == 0


def is_initialized(pod: Pod, state: PodState) -> bool:
    """Whether all init containers are through, as far as they must be."""
    return all(is_init_complete(c, state.of(c.name)) for c in pod.spec.init_containers)


def phase_of(pod: Pod, state: PodState) -> PodPhase:
    """The phase that the containers' states amount to."""
    mains = [state.of(c.name) for c in pod.spec.containers]
    everyone = [state.of(name) for name in pod.containers]
    if state.termination is not None and not any(c.running for c in everyone):
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


def format_time(timestamp: datetime) -> str:
    """A moment as Kubernetes writes it, to the second."""
    return _format_second(int(timestamp.timestamp()))


@lru_cache(maxsize=4096)
def _format_second(second: int) -> str:
    return times.format(datetime.fromtimestamp(second, UTC))


def render(pod: Pod, state: PodState, *, now: datetime, back_off: BackOff) -> dict[str, Any]:
    """The agent's share of ``status``, whole, for a strategic merge patch.

    Conditions keep the time of their last change from what *pod* shows.
    """
    phase = phase_of(pod, state)
    over = phase in FINISHED
    shown = _ContainerRenderer(pod, state, back_off, is_terminal=over)
    status: dict[str, Any] = {
        "phase": str(phase),
        "conditions": _conditions(pod, state, phase, now),
        "containerStatuses": [shown.container(c) for c in pod.spec.containers],
    }
    if pod.spec.init_containers:
        status["initContainerStatuses"] = [shown.container(c) for c in pod.spec.init_containers]
    if state.started_at:
        status["startTime"] = format_time(state.started_at)
    if state.host_ip:
        status |= {"hostIP": state.host_ip, "hostIPs": [{"ip": state.host_ip}]}
    if state.pod_ip:
        status |= {"podIP": state.pod_ip, "podIPs": [{"ip": state.pod_ip}]}
    if state.termination and state.termination.reason:
        status |= {"reason": state.termination.reason, "message": state.termination.message}
    return status


def _conditions(pod: Pod, state: PodState, phase: PodPhase, now: datetime) -> list[dict[str, Any]]:
    before = {c.type: c for c in pod.status.conditions}

    def condition(kind: str, is_true: bool, reason: str = "", message: str = "") -> dict[str, Any]:
        value = "True" if is_true else "False"
        old = before.get(kind)
        since = old.last_transition_time if old and old.status == value else format_time(now)
        made = {"type": kind, "status": value, "lastTransitionTime": since}
        return (
            made
            | ({"reason": reason} if reason else {})
            | ({"message": message} if message else {})
        )

    waiting = [
        c.name for c in pod.spec.init_containers if not is_init_complete(c, state.of(c.name))
    ]
    idle = [c.name for c in pod.spec.containers if not state.of(c.name).ready]
    why, what = "ContainersNotReady", f"containers with unready status: [{' '.join(idle)}]"
    if phase is PodPhase.SUCCEEDED:
        why, what = "PodCompleted", ""
    elif phase is PodPhase.FAILED:
        why, what = "PodFailed", ""
    ready = not idle and not waiting
    done = "PodCompleted" if phase is PodPhase.SUCCEEDED else ""
    incomplete = f"containers with incomplete status: [{' '.join(waiting)}]"
    shown = [c for c in pod.containers.values() if state.of(c.name).placeholder]
    named = ", ".join(f"{c.name} ({c.image})" for c in shown)
    said = f"images are not pulled, and no program was run for: {named}"
    return [
        *([condition(PLACEHOLDER, True, "ProgramNotRun", said)] if shown else ()),
        condition("PodReadyToStartContainers", state.prepared and not done),
        condition("Initialized", True, done)
        if not waiting
        else condition("Initialized", False, "ContainersNotInitialized", incomplete),
        condition("ContainersReady", ready, *(() if ready else (why, what))),
        condition("Ready", ready, *(() if ready else (why, what))),
    ]


@dataclass(frozen=True, slots=True)
class _ContainerRenderer:
    """How each container of one pod is shown."""

    pod: Pod
    state: PodState
    back_off: BackOff
    is_terminal: bool

    def container(self, container: Container) -> dict[str, Any]:
        """One entry of ``containerStatuses``."""
        state = self.state.of(container.name)
        now, last = self._states(container, state)
        finished_init = container in self.pod.spec.init_containers and is_init_complete(
            container, state
        )
        return {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "containerID": f"batholith://{state.container_id}" if state.container_id else "",
            "ready": state.ready or (finished_init and not container.is_sidecar),
            "started": state.started,
            "restartCount": state.restarts,
            "state": now,
            "lastState": last,
        }

    def _states(
        self, container: Container, state: ContainerState
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        last = _terminated(state.last)
        if state.running:
            started = {"startedAt": format_time(state.started_at)} if state.started_at else {}
            return {"running": started}, last
        if state.exit is None:
            return self._not_attempted(container, state), last
        if not self.is_terminal and self._waiting(container, state):
            return {"waiting": self._crash_loop(container, state)}, _terminated(state.exit)
        return _terminated(state.exit), last

    def _waiting(self, container: Container, state: ContainerState) -> bool:
        if (
            self.state.termination
            or state.exit is None
            or self.back_off.delay(state.consecutive_exits) <= 0
        ):
            return False
        return should_restart(self.pod, container, state.exit)

    def _crash_loop(self, container: Container, state: ContainerState) -> dict[str, str]:
        meta = self.pod.metadata
        if state.start_failure:
            return {"reason": state.start_failure[0], "message": state.start_failure[1]}
        delay = timedelta(seconds=round(self.back_off.delay(state.consecutive_exits)))
        text = _go_seconds(int(delay.total_seconds()))
        return {
            "reason": "CrashLoopBackOff",
            "message": f"back-off {text} restarting failed container={container.name} "
            f"pod={meta.name}_{meta.namespace}({meta.uid})",
        }

    def _not_attempted(self, container: Container, state: ContainerState) -> dict[str, Any]:
        if self.is_terminal and self.state.termination and is_initialized(self.pod, self.state):
            lost = {"exitCode": LOST_CODE, "reason": LOST_REASON, "message": LOST_MESSAGE}
            return {"terminated": lost}
        if state.start_failure:
            return {
                "waiting": {"reason": state.start_failure[0], "message": state.start_failure[1]}
            }
        later = container in self.pod.spec.containers and self.pod.spec.init_containers
        return {"waiting": {"reason": "PodInitializing" if later else "ContainerCreating"}}


def _terminated(ended: ContainerExit | None) -> dict[str, Any]:
    if ended is None:
        return {}
    shown: dict[str, Any] = {
        "exitCode": ended.code,
        "reason": ended.reason,
        "finishedAt": format_time(ended.at),
        "startedAt": format_time(ended.started_at or ended.at),
    }
    if ended.message:
        shown["message"] = ended.message
    if ended.container_id:
        shown["containerID"] = f"batholith://{ended.container_id}"
    return {"terminated": shown}


def _go_seconds(seconds: int) -> str:
    """``90`` → ``1m30s``, as Kubernetes writes durations."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def parse_time(text: str | None) -> datetime | None:
    """A wire time as a moment; ``None`` for none."""
    return times.parse(text) if text else None
