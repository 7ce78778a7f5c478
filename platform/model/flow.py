"""Volcano's JobFlow and JobTemplate (``flow.volcano.sh/v1alpha1``).

The spec of a template and the patch of a flow stay raw JSON until a Job is created from them.
"""

from enum import StrEnum

import msgspec

from .base import ApiStruct
from .meta import ObjectMeta


class FlowPhase(StrEnum):
    """``status.state.phase`` of a JobFlow; the empty phase of a new flow counts as PENDING."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEED = "Succeed"
    FAILED = "Failed"
    TERMINATING = "Terminating"
    """Never set, neither by Volcano."""


FINAL_FLOW_PHASES = frozenset({FlowPhase.SUCCEED, FlowPhase.FAILED, FlowPhase.TERMINATING})
"""Phases that a flow never leaves."""


class RetainPolicy(StrEnum):
    """What becomes of the Jobs of a flow that succeeded; RETAIN if unset."""

    RETAIN = "retain"
    DELETE = "delete"


class HttpHeader(ApiStruct, frozen=True):
    """A header of an HTTP probe."""

    name: str = ""
    value: str = ""


class HttpGetProbe(ApiStruct, frozen=True):
    """An HTTP request to the pods of a task; an empty task means all tasks."""

    task_name: str = ""
    path: str = ""
    port: int = 0
    http_header: HttpHeader | None = None


class TcpSocketProbe(ApiStruct, frozen=True):
    """A TCP connection to the pods of a task; an empty task means all tasks."""

    task_name: str = ""
    port: int = 0


class TaskStatusProbe(ApiStruct, frozen=True):
    """A phase of the pods of a task; an empty task means all tasks."""

    task_name: str = ""
    phase: str = ""


class Probe(ApiStruct, frozen=True):
    """Conditions on targets with the named tasks, which replace their completion."""

    http_get_list: tuple[HttpGetProbe, ...] = ()
    tcp_socket_list: tuple[TcpSocketProbe, ...] = ()
    task_status_list: tuple[TaskStatusProbe, ...] = ()

    @property
    def request_tasks(self) -> tuple[str, ...]:
        """The tasks whose pods get requests; an empty name means all tasks."""
        http = tuple(each.task_name for each in self.http_get_list)
        return http + tuple(each.task_name for each in self.tcp_socket_list)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a condition; an empty name means all tasks."""
        return self.request_tasks + tuple(each.task_name for each in self.task_status_list)


class FlowDependsOn(ApiStruct, frozen=True):
    """What the Job of a flow waits for."""

    targets: tuple[str, ...] = ()
    probe: Probe | None = None


class FlowPatch(ApiStruct, frozen=True):
    """Changes of the template."""

    job_spec: msgspec.Raw = msgspec.Raw(b"{}")


class Flow(ApiStruct, frozen=True):
    """One Job of a JobFlow; *name* is that of its JobTemplate."""

    name: str = ""
    depends_on: FlowDependsOn | None = None
    patch: FlowPatch | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The flows that it depends on."""
        return self.depends_on.targets if self.depends_on is not None else ()

    @property
    def probe(self) -> Probe:
        """The probe, empty if there is none."""
        given = self.depends_on.probe if self.depends_on is not None else None
        return given or Probe()


class JobFlowSpec(ApiStruct, frozen=True):
    """Desired state of a JobFlow."""

    flows: tuple[Flow, ...] = ()
    job_retain_policy: str = ""

    def merged_flows(self) -> dict[str, Flow]:
        """Return the flows by name, in their order.

        A name that is listed several times is one Job. It waits for all targets and probes of the
        entries; its patch is the first one.
        """
        merged: dict[str, Flow] = {}
        for flow in self.flows:
            first = merged.get(flow.name)
            merged[flow.name] = flow if first is None else _merge(first, flow)
        return merged


def _merge(first: Flow, second: Flow) -> Flow:
    one, other = first.probe, second.probe
    probe = Probe(
        http_get_list=one.http_get_list + other.http_get_list,
        tcp_socket_list=one.tcp_socket_list + other.tcp_socket_list,
        task_status_list=one.task_status_list + other.task_status_list,
    )
    targets = tuple(dict.fromkeys(first.targets + second.targets))
    return Flow(
        name=first.name,
        depends_on=FlowDependsOn(targets=targets, probe=probe) if targets else None,
        patch=first.patch or second.patch,
    )


class RunningHistory(ApiStruct, frozen=True):
    """A phase that was observed of a Job."""

    start_timestamp: str | None = None
    end_timestamp: str | None = None
    state: str = ""


class FlowJobStatus(ApiStruct, frozen=True):
    """A Job of the flow, which may have been deleted since."""

    name: str = ""
    state: str = ""
    start_timestamp: str | None = None
    end_timestamp: str | None = None
    restart_count: int = 0
    running_histories: tuple[RunningHistory, ...] = ()


class TaskPhases(ApiStruct, frozen=True):
    """Number of a task's pods by pod phase."""

    phase: dict[str, int] = {}


class FlowCondition(ApiStruct, frozen=True):
    """State of a Job of the flow."""

    phase: str = ""
    create_time: str | None = None
    running_duration: str | None = None
    task_status_count: dict[str, TaskPhases] = {}
    reason: str = ""
    """Not in Volcano, like the fields below: why the Job fails the flow."""
    message: str = ""
    passed_probes: tuple[str, ...] = ()
    """Flows whose probe of this Job has passed."""


class FlowState(ApiStruct, frozen=True):
    """Phase of a JobFlow."""

    phase: str = ""


class JobFlowStatus(ApiStruct, frozen=True):
    """Status written by the JobFlow controller."""

    pending_jobs: tuple[str, ...] = ()
    running_jobs: tuple[str, ...] = ()
    failed_jobs: tuple[str, ...] = ()
    completed_jobs: tuple[str, ...] = ()
    terminated_jobs: tuple[str, ...] = ()
    un_know_jobs: tuple[str, ...] = ()
    """Jobs in other phases; the name is Volcano's."""
    job_status_list: tuple[FlowJobStatus, ...] = ()
    conditions: dict[str, FlowCondition] = {}
    state: FlowState = FlowState()


class JobFlow(ApiStruct, frozen=True):
    """A JobFlow."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobFlowSpec = JobFlowSpec()
    status: JobFlowStatus = JobFlowStatus()

    def job_name(self, flow: str) -> str:
        """Return the name of the Job of *flow*."""
        return f"{self.metadata.name}-{flow}"

    @property
    def phase(self) -> FlowPhase:
        """The phase; PENDING before the first status."""
        return FlowPhase(self.status.state.phase or FlowPhase.PENDING)


class JobTemplateStatus(ApiStruct, frozen=True):
    """Status written by the JobTemplate controller."""

    job_depends_on_list: tuple[str, ...] = ()
    """Jobs that were created from the template; the name is Volcano's."""


class JobTemplate(ApiStruct, frozen=True):
    """A JobTemplate; its spec is that of a Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: JobTemplateStatus = JobTemplateStatus()
