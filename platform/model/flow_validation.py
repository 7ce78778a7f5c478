"""Rules of a JobFlow's spec, for admission and for flows that were stored without it.

Pure functions. The phrases of the errors about the graph are Volcano's.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence

from .flow import Flow, JobFlowSpec, Probe, RetainPolicy

NOT_A_DAG = "jobflow Flow is not DAG"
UNDEFINED_VERTEX = "vertex is not defined"

RUNNING, COMPLETED, SUCCEEDED = "Running", "Completed", "Succeeded"
POD_PHASES = ("Pending", RUNNING, SUCCEEDED, "Failed", "Unknown")
TASK_PHASES = (*POD_PHASES, COMPLETED)
"""Phases of a taskStatusList: those of pods, and Completed, which means Succeeded."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PATH = re.compile(r"[!-~]*")
_HEADER_VALUE = re.compile(r"[ -~\t]*")
_HOP_HEADERS = frozenset(("connection", "content-length", "transfer-encoding", "upgrade"))
"""Headers that would change how a request is read."""
_SHOWN = 5
"""Names shown in an error, at most."""


def spec_errors(spec: JobFlowSpec) -> list[str]:
    """Return what is wrong with *spec*; empty if it is valid."""
    errors = [*_duplicate_errors(spec.flows)]
    if graph := graph_error(spec.flows):
        errors.append(graph)
    if spec.job_retain_policy not in ("", *RetainPolicy):
        supported = ", ".join(f'"{each}"' for each in RetainPolicy)
        errors.append(
            f'spec.jobRetainPolicy: unsupported value "{spec.job_retain_policy}":'
            f" supported values: {supported}"
        )
    for number, flow in enumerate(spec.flows):
        path = f"spec.flows[{number}].dependsOn.probe"
        errors += _probe_errors(flow.probe, path)
        if flow.probe != Probe() and not flow.targets:
            errors.append(f"{path}: has no effect without targets")
    return errors


def graph_error(flows: Sequence[Flow]) -> str:
    """Return why the dependencies are no directed acyclic graph; empty if they are.

    Linear in the number of flows and targets.
    """
    names = {flow.name for flow in flows}
    undefined = {target for flow in flows for target in flow.targets if target not in names}
    if undefined:
        return f"{NOT_A_DAG}: {UNDEFINED_VERTEX}: {_shown(undefined)}"
    cyclic = _cyclic(flows)
    if cyclic:
        return f"{NOT_A_DAG}: {_shown(cyclic)} depend on themselves"
    return ""


def _cyclic(flows: Sequence[Flow]) -> set[str]:
    """Return the flows of cycles, and those that depend on them."""
    targets: dict[str, set[str]] = {}
    dependents: dict[str, list[str]] = {}
    for flow in flows:
        targets.setdefault(flow.name, set()).update(flow.targets)
    for name, its in targets.items():
        for target in its:
            dependents.setdefault(target, []).append(name)
    left = {name: len(its) for name, its in targets.items()}
    ready = deque(name for name, number in left.items() if not number)
    while ready:
        name = ready.popleft()
        del left[name]
        for dependent in dependents.get(name, ()):
            left[dependent] -= 1
            if not left[dependent]:
                ready.append(dependent)
    return set(left)


def _shown(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _duplicate_errors(flows: Sequence[Flow]) -> Iterator[str]:
    seen: set[str] = set()
    for number, flow in enumerate(flows):
        if flow.name in seen:
            yield f'spec.flows[{number}].name: duplicate value "{flow.name}"'
        seen.add(flow.name)


def _probe_errors(probe: Probe, path: str) -> Iterator[str]:
    for number, http in enumerate(probe.http_get_list):
        at = f"{path}.httpGetList[{number}]"
        yield from _port_errors(http.port, at)
        if not _PATH.fullmatch(http.path):
            yield f"{at}.path: must consist of visible ASCII characters"
        header = http.http_header
        if header is None:
            continue
        if not _TOKEN.fullmatch(header.name) or header.name.lower() in _HOP_HEADERS:
            yield f'{at}.httpHeader.name: invalid value "{header.name}"'
        if not _HEADER_VALUE.fullmatch(header.value):
            yield f"{at}.httpHeader.value: must consist of visible ASCII characters and spaces"
    for number, tcp in enumerate(probe.tcp_socket_list):
        yield from _port_errors(tcp.port, f"{path}.tcpSocketList[{number}]")
    for number, status in enumerate(probe.task_status_list):
        if status.phase not in TASK_PHASES:
            supported = ", ".join(f'"{each}"' for each in TASK_PHASES)
            yield (
                f'{path}.taskStatusList[{number}].phase: unsupported value "{status.phase}":'
                f" supported values: {supported}"
            )


def _port_errors(port: int, path: str) -> Iterator[str]:
    if not 1 <= port <= 65535:
        yield f"{path}.port: invalid value {port}: must be between 1 and 65535"
