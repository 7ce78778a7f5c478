"""Table row of a pod, with kubectl's status column."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from .ages import age

Json = dict[str, Any]

_NONE = "<none>"
_NODE_LOST = "NodeLost"


def pod_row(pod: Json, now: datetime) -> list[Any]:
    """Return the cells of a pod."""
    spec, status, metadata = pod.get("spec", {}), pod.get("status", {}), pod["metadata"]
    sidecars = _sidecars(spec)
    states = [
        *(s for s in status.get("initContainerStatuses", ()) if s.get("name") in sidecars),
        *status.get("containerStatuses", ()),
    ]
    ready = sum(bool(s.get("ready") and "running" in s.get("state", {})) for s in states)
    total = len(spec.get("containers") or ()) + len(sidecars)
    conditions = {c.get("type"): c.get("status", "") for c in status.get("conditions", ())}
    gates = [gate.get("conditionType", "") for gate in spec.get("readinessGates", ())]
    passed = sum(conditions.get(gate) == "True" for gate in gates)
    addresses = status.get("podIPs") or [{"ip": status.get("podIP") or _NONE}]
    return [
        metadata.get("name", ""),
        f"{ready}/{total}",
        pod_status(pod),
        _restarts(pod, states, now),
        age(metadata.get("creationTimestamp"), now),
        addresses[0].get("ip", _NONE),
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        f"{passed}/{len(gates)}" if gates else _NONE,
    ]


def pod_status(pod: Json) -> str:
    """Return the status column: phase, reason or state of the containers."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    reason = str(status.get("reason") or status.get("phase") or "")
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    starting = _init_status(spec, status)
    reason = starting or reason
    if not starting or _is_initialized(status):
        reason = _main_status(status, reason)
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == _NODE_LOST else "Terminating"
    return reason


def _sidecars(spec: Json) -> set[str]:
    return {
        container.get("name", "")
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }


def _init_status(spec: Json, status: Json) -> str:
    """Return the status of the first unfinished init container; empty if all are finished."""
    sidecars = _sidecars(spec)
    total = len(spec.get("initContainers") or ())
    for index, each in enumerate(status.get("initContainerStatuses", ())):
        state = each.get("state", {})
        ended = state.get("terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if each.get("name") in sidecars and each.get("started"):
            continue
        if ended is not None:
            return f"Init:{ended.get('reason') or _exit(ended)}"
        waits = state.get("waiting", {}).get("reason", "")
        if waits and waits != "PodInitializing":
            return f"Init:{waits}"
        return f"Init:{index}/{total}"
    return ""


def _is_initialized(status: Json) -> bool:
    """Return whether initialization is over: a sidecar that ends later is ignored."""
    held = status.get("conditions", ())
    return any((c.get("type"), c.get("status")) == ("Initialized", "True") for c in held)


def _exit(terminated: Json) -> str:
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"


def _main_status(status: Json, reason: str) -> str:
    running = False
    for each in reversed(status.get("containerStatuses", ())):
        state = each.get("state", {})
        if waits := state.get("waiting", {}).get("reason"):
            reason = waits
        elif (ended := state.get("terminated")) is not None:
            reason = ended.get("reason") or _exit(ended)
        elif each.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        ready = any(
            c.get("type") == "Ready" and c.get("status") == "True"
            for c in status.get("conditions", ())
        )
        return "Running" if ready else "NotReady"
    return reason


def _restarts(pod: Json, states: Iterable[Json], now: datetime) -> str:
    """Return restarts and the time since the last one; of init containers while they run."""
    status = pod.get("status", {})
    counted = list(states)
    if _init_status(pod.get("spec", {}), status) and not _is_initialized(status):
        counted = status.get("initContainerStatuses", [])
    total = sum(each.get("restartCount", 0) for each in counted)
    ends = [
        ended["finishedAt"]
        for each in counted
        if (ended := each.get("lastState", {}).get("terminated")) and ended.get("finishedAt")
    ]
    return f"{total} ({age(max(ends), now)} ago)" if total and ends else str(total)
