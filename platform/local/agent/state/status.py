"""State of a pod and its status: pure, without I/O and clock.

`apply` folds events into a `PodState`; `phase_of` and `render` compute the pod's status from it,
for real and simulated pods alike. `pod_actions` decides from the same state what to do next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from ....model import times
from ....model.pod import FINISHED, PodPhase
from .core_types import RESTART, Container, Pod

PLACEHOLDER = "batholith.io/Placeholder"
"""Condition of a pod in which a container runs a placeholder instead of its image's program."""

SIGTERM_EXIT_CODE, SIGKILL_EXIT_CODE = 143, 137

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


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A container cannot be started."""

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
    """Return the state after *event*."""
    match event:
        case Accepted():
            at, steady_at = state.started_at or event.at, state.steady_at or event.steady_at
            return replace(state, started_at=at, steady_at=steady_at)
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
    )


def _probed(old: ContainerState, event: ProbeResult | ProbeFailed) -> ContainerState:
    if not old.running:
        return old
    if isinstance(event, ProbeFailed):
        return replace(old, kill_at=old.kill_at or event.kill_at)
    passed = old.has_started or event.started
    return replace(old, started=event.started, ready=event.ready, has_started=passed)


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
    )
    consecutive_exits = 1 if duration >= back_off.reset_after else old.consecutive_exits + 1
    return replace(
        old,
        running=False,
        exit=ended,
        consecutive_exits=consecutive_exits,
        start_failure=None,
        started=False,
        ready=False,
        kill_at=None,
    )


def should_restart(pod: Pod, container: Container, last_exit: ContainerExit) -> bool:
    """Return whether the rules or the policy of *container*, or the pod's, restart it."""
    if container in pod.spec.ephemeral_containers:
        return False
    rules = (each for each in container.restart_policy_rules if each.applies_to(last_exit.code))
    rule = next(rules, None)
    if rule is not None and rule.action == RESTART:
        return True
    policy = container.restart_policy or pod.spec.restart_policy
    if container in pod.spec.init_containers and not container.is_sidecar:
        return last_exit.code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and last_exit.code != 0)


def is_init_complete(container: Container, state: ContainerState) -> bool:
    """Return whether the next container may start."""
    if container.is_sidecar:
        return state.has_started
    return state.exit is not None and state.exit.code == 0


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


def format_time(timestamp: datetime) -> str:
    """Format a timestamp like Kubernetes, to the second."""
    return _format_second(int(timestamp.timestamp()))


@lru_cache(maxsize=4096)
def _format_second(second: int) -> str:
    return times.format(datetime.fromtimestamp(second, UTC))


def render(pod: Pod, state: PodState, *, now: datetime, back_off: BackOff) -> dict[str, Any]:
    """Return the agent's fields of ``status`` for a strategic merge patch.

    Unchanged conditions keep the transition times of *pod*.
    """
    phase = phase_of(pod, state)
    renderer = _ContainerRenderer(pod, state, back_off, is_terminal=phase in FINISHED)
    status: dict[str, Any] = {
        "phase": str(phase),
        "conditions": _conditions(pod, state, phase, now),
        "containerStatuses": [renderer.container(c) for c in pod.spec.containers],
    }
    if pod.spec.init_containers:
        status["initContainerStatuses"] = [renderer.container(c) for c in pod.spec.init_containers]
    if ephemeral := pod.spec.ephemeral_containers:
        status["ephemeralContainerStatuses"] = [renderer.ephemeral_container(c) for c in ephemeral]
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
        changed_at = old.last_transition_time if old and old.status == value else format_time(now)
        return (
            {"type": kind, "status": value, "lastTransitionTime": changed_at}
            | ({"reason": reason} if reason else {})
            | ({"message": message} if message else {})
        )

    waiting = [
        c.name for c in pod.spec.init_containers if not is_init_complete(c, state.of(c.name))
    ]
    unready = [c.name for c in pod.spec.containers if not state.of(c.name).ready]
    reason = "ContainersNotReady"
    message = f"containers with unready status: [{' '.join(unready)}]"
    if phase is PodPhase.SUCCEEDED:
        reason, message = "PodCompleted", ""
    elif phase is PodPhase.FAILED:
        reason, message = "PodFailed", ""
    ready = not unready and not waiting
    gates = pod.unready_gates if ready else ()
    unmet = ("ReadinessGatesNotReady", ", ".join(gates)) if gates else (reason, message)
    done = "PodCompleted" if phase is PodPhase.SUCCEEDED else ""
    incomplete = f"containers with incomplete status: [{' '.join(waiting)}]"
    placeholders = [c for c in pod.containers.values() if state.of(c.name).placeholder]
    named = ", ".join(f"{c.name} ({c.image})" for c in placeholders)
    not_run = f"images are not stored, and no program was run for: {named}"
    return [
        condition("PodScheduled", True),  # a pod that was created with its node has none
        *(
            [condition("DisruptionTarget", True, "TerminationByKubelet", state.termination.message)]
            if state.termination and state.termination.reason == "Evicted"
            else ()
        ),
        *([condition(PLACEHOLDER, True, "ProgramNotRun", not_run)] if placeholders else ()),
        condition("PodReadyToStartContainers", state.prepared and not done),
        condition("Initialized", True, done)
        if not waiting
        else condition("Initialized", False, "ContainersNotInitialized", incomplete),
        condition("ContainersReady", ready, *(() if ready else (reason, message))),
        condition("Ready", ready and not gates, *(unmet if gates or not ready else ())),
    ]


@dataclass(frozen=True, slots=True)
class _ContainerRenderer:
    """Renders the container statuses of one pod."""

    pod: Pod
    state: PodState
    back_off: BackOff
    is_terminal: bool

    def container(self, container: Container) -> dict[str, Any]:
        """Return one entry of ``containerStatuses``."""
        state = self.state.of(container.name)
        now, last = self._states(container, state)
        finished_init = container in self.pod.spec.init_containers and is_init_complete(
            container, state
        )
        return {
            "name": container.name,
            "image": state.image or container.image,
            "imageID": state.image_id,
            "containerID": f"batholith://{state.container_id}" if state.container_id else "",
            "ready": state.ready or (finished_init and not container.is_sidecar),
            "started": state.started,
            "restartCount": state.restarts,
            "state": now,
            "lastState": last,
        }

    def ephemeral_container(self, container: Container) -> dict[str, Any]:
        """Return one entry of ``ephemeralContainerStatuses``: as kubelets, never ready."""
        found = self.container(container)
        del found["started"]
        return {**found, "ready": False}

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
        initializes = bool(self.pod.spec.init_containers)
        return {"waiting": {"reason": "PodInitializing" if initializes else "ContainerCreating"}}


def _terminated(ended: ContainerExit | None) -> dict[str, Any]:
    if ended is None:
        return {}
    terminated: dict[str, Any] = {
        "exitCode": ended.code,
        "reason": ended.reason,
        "finishedAt": format_time(ended.at),
        "startedAt": format_time(ended.started_at or ended.at),
    }
    if ended.message:
        terminated["message"] = ended.message
    if ended.container_id:
        terminated["containerID"] = f"batholith://{ended.container_id}"
    return {"terminated": terminated}


def _go_seconds(seconds: int) -> str:
    """``90`` → ``1m30s``, as Go formats durations."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp; ``None`` for none."""
    return times.parse(text) if text else None
