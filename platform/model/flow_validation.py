"""Rules of a JobFlow's spec, for admission and for flows that were stored without it.

Pure functions. The phrases of the errors about the graph are Volcano's.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

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
    errors = []
    if spec.job_retain_policy not in ("", *RetainPolicy):
        supported = ", ".join(f'"{each}"' for each in RetainPolicy)
        errors.append(
            f'spec.jobRetainPolicy: unsupported value "{spec.job_retain_policy}":'
            f" supported values: {supported}"
        )
    return errors + blocking_errors(spec)


def blocking_errors(spec: JobFlowSpec) -> list[str]:
    """Return those errors with which no order of the Jobs can be determined."""
    errors = [graph] if (graph := graph_error(spec.flows)) else []
    for number, flow in enumerate(spec.flows):
        path = f"spec.flows[{number}].dependsOn.probe"
        errors += _probe_errors(flow.probe, path)
        if flow.probe != Probe() and not flow.targets:
            errors.append(f"{path}: has no effect without targets")
    return errors


def duplicate_warnings(flows: Sequence[Flow]) -> list[str]:
    """Return a warning for each entry whose name an earlier one has."""
    warnings = []
    first: dict[str, int] = {}
    patched: set[str] = set()
    for number, flow in enumerate(flows):
        earlier = first.setdefault(flow.name, number)
        if earlier != number:
            ignored = flow.patch is not None and flow.name in patched
            warnings.append(
                f'spec.flows[{number}].name: duplicate value "{flow.name}": it is one job with'
                f" spec.flows[{earlier}], which waits for the targets of both"
                f"{'; its patch is ignored' if ignored else ''}"
            )
        if flow.patch is not None:
            patched.add(flow.name)
    return warnings


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
        return f"{NOT_A_DAG}: it has a cycle of {_shown(cyclic)}"
    return ""


def _cyclic(flows: Sequence[Flow]) -> set[str]:
    """Return the flows that depend on themselves, and those between them."""
    edges: dict[str, set[str]] = {}
    for flow in flows:
        edges.setdefault(flow.name, set()).update(flow.targets)
    return set(_without_ends(_reversed(_without_ends(edges))))


def _without_ends(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Remove the vertices without edges, and again those that lose all their edges so."""
    sources = _reversed(edges)
    left = {name: len(its) for name, its in edges.items()}
    ends = deque(name for name, number in left.items() if not number)
    while ends:
        name = ends.popleft()
        del left[name]
        for source in sources[name]:
            left[source] -= 1
            if not left[source]:
                ends.append(source)
    return {name: edges[name] & left.keys() for name in left}


def _reversed(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    reverse: dict[str, set[str]] = {name: set() for name in edges}
    for name, its in edges.items():
        for target in its:
            reverse[target].add(name)
    return reverse


def _shown(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


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
