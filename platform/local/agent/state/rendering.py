"""Status of a pod, rendered from its state: pure, without I/O and clock."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from ....model import durations, times
from ....model.pod import FINISHED, PodPhase
from .core_types import RESTART_ALL, Container, Pod
from .resizes import IN_PROGRESS, PENDING, RESIZE_CONDITIONS, builtin_resources
from .status import (
    LOST_CODE,
    LOST_MESSAGE,
    LOST_REASON,
    BackOff,
    ContainerExit,
    ContainerState,
    PodState,
    is_init_complete,
    is_initialized,
    is_resizing,
    phase_of,
    restart_triggers,
    should_restart,
)

ALL_RESTARTING = "AllContainersRestarting"
_MAX_IMAGE_REF = 256
PLACEHOLDER = "batholith.io/Placeholder"
"""Condition of a pod in which a container runs a placeholder instead of its image's program."""


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
    if pod.metadata.generation:
        status["observedGeneration"] = pod.metadata.generation
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
        *_resize_conditions(pod, state, phase, condition),
        *(
            [condition(ALL_RESTARTING, bool(restart_triggers(pod, state)) and not done)]
            if any(c.can_restart_all for c in pod.containers.values())
            else ()
        ),
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


def _resize_conditions(
    pod: Pod, state: PodState, phase: PodPhase, condition: Callable[..., dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the conditions of a pod that is being resized; removals of those that do not hold."""
    found = {}
    if phase not in FINISHED:
        if state.resize_rejection is not None:
            rejection = state.resize_rejection
            found[PENDING] = (rejection.reason, rejection.message)
        if is_resizing(pod, state):
            found[IN_PROGRESS] = ("Error" if state.resize_error else "", state.resize_error)
    for kind, (reason, message) in found.items():
        generation = pod.metadata.generation
        yield {**condition(kind, True, reason, message), "observedGeneration": generation}
    for each in pod.status.conditions:
        if each.type in RESIZE_CONDITIONS and each.type not in found:
            yield {"type": each.type, "$patch": "delete"}


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
            **self._resources(container, state),
            **_volume_mounts(container, state),
        }

    def _resources(self, container: Container, state: ContainerState) -> dict[str, Any]:
        """Return the allocated resources, and those with which the container runs."""
        allocated = container.resources
        actual = state.resources if state.running and state.resources is not None else allocated
        requests = {"allocatedResources": allocated.requests} if allocated.requests else {}
        return {"resources": builtin_resources(actual), **requests}

    def ephemeral_container(self, container: Container) -> dict[str, Any]:
        """Return one entry of ``ephemeralContainerStatuses``: as kubelets, never ready."""
        found = self.container(container)
        for key in ("started", "resources"):
            del found[key]
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
        if state.exit.restart and not self.is_terminal and not self.state.termination:
            # Not as terminated: the API server permits no way back for some restart policies.
            all_ = state.exit.restart == RESTART_ALL
            reason = "RestartingAllContainers" if all_ else "ContainerCreating"
            return {"waiting": {"reason": reason}}, _terminated(state.exit)
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
        return {
            "reason": "CrashLoopBackOff",
            "message": f"back-off {durations.format(delay)} restarting failed "
            f"container={container.name} pod={meta.name}_{meta.namespace}({meta.uid})",
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


def _volume_mounts(container: Container, state: ContainerState) -> dict[str, Any]:
    """Return the mounts of the spec, those of images with what the container has, as kubelets."""
    found = []
    for mount in container.volume_mounts:
        shown: dict[str, Any] = {"name": mount.name, "mountPath": mount.mount_path}
        if mount.read_only:
            shown |= {"readOnly": True, "recursiveReadOnly": "Disabled"}
        if mount.name in state.volume_images:
            ref = _image_ref(state.volume_images[mount.name])
            shown["volumeStatus"] = {"image": {"imageRef": ref}}
        found.append(shown)
    return {"volumeMounts": found} if found else {}


def _image_ref(image_id: str) -> str:
    """Return the id of an image; if it is longer than the API permits, only its digest."""
    return image_id if len(image_id) <= _MAX_IMAGE_REF else image_id.rpartition("@")[2]


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
