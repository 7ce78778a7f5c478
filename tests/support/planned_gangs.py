"""Gangs that describe their members, and what becomes of their plans."""

from typing import Any

import msgspec
from support.scheduler import Amount, SchedulerWorld, podgroup

from batholith.model.meta import OwnerReference
from batholith.model.names import (
    GROUP_NAME,
    JOBS,
    MEMBERS,
    PLAN,
    SCHEDULER_NAME,
    TASK_INDEX,
    TASK_SPEC,
)
from batholith.model.placement import MemberRole, Members, Plan, decode_plan, encode_members
from batholith.model.podgroup import PodGroup
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.core_types import Pod

START = 1_000_000.0


def role(
    name: str, count: int, *, spec: dict[str, Any] | None = None, **requests: Amount
) -> MemberRole:
    """A task whose pods request a CPU unless given."""
    asked = {"cpu": 1} | requests
    body = {
        "metadata": {},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "containers": [{"image": "i", "resources": {"requests": asked}}],
            **(spec or {}),
        },
    }
    return MemberRole(name=name, count=count, pod=msgspec.Raw(msgspec.json.encode(body)))


def planned_gang(
    job: str,
    *roles: MemberRole,
    minimum: int | None = None,
    version: int = 0,
    plan: str = "",
    phase: str = "Pending",
    uid: str = "",
    **more: Any,
) -> PodGroup:
    """The PodGroup of a job whose members are *roles*."""
    members = Members(job=job, uid=f"uid-{job}", version=version, roles=roles)
    group = podgroup(
        f"{job}-uid-{job}", members.count if minimum is None else minimum, phase=phase, **more
    )
    owner = OwnerReference(
        api_version=JOBS.api_version, kind=JOBS.kind, name=job, uid=f"uid-{job}", controller=True
    )
    meta = msgspec.structs.replace(
        group.metadata,
        owner_references=(owner,),
        annotations={MEMBERS: encode_members(members)} | ({PLAN: plan} if plan else {}),
        uid=uid or group.metadata.uid,
    )
    return msgspec.structs.replace(group, metadata=meta)


def created_pod(
    job: str,
    task: str,
    index: int,
    *,
    node: str = "",
    phase: str = "Pending",
    uid: str = "",
    **requests: Amount,
) -> Pod:
    """The pod of a member, on *node* if given."""
    body = {
        "metadata": {
            "name": f"{job}-{task}-{index}",
            "namespace": "ns",
            "uid": uid or f"uid-{job}-{task}-{index}",
            "annotations": {GROUP_NAME: f"{job}-uid-{job}", TASK_SPEC: task},
            "labels": {TASK_INDEX: str(index)},
        },
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "nodeName": node,
            "containers": [{"image": "i", "resources": {"requests": {"cpu": 1} | requests}}],
        },
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


class PlanningWorld(SchedulerWorld):
    """A cluster whose scheduler plans members; the test advances the time."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(place_at_creation=True, **arguments)
        self.time = START
        self.groups: dict[str, PodGroup] = {}
        """PodGroups with what the scheduler has written."""
        self.plans: dict[str, str | None] = {}
        """What is desired as annotation, by PodGroup."""

    def add(self, group: PodGroup) -> None:
        """Create a PodGroup."""
        self.groups[group.metadata.name] = group
        self.upsert(group)

    def submit(self, group: PodGroup) -> list[Decision]:
        """Create a PodGroup, and run cycles until nothing changes."""
        self.add(group)
        return self.settle()

    def settle(self) -> list[Decision]:
        """Run cycles until nothing changes; what they report is written."""
        decisions = []
        for _ in range(10):
            decisions.append(self.decision(now=self.time or 0.0))
            for report in decisions[-1].reports:
                self._write(report.key.partition("/")[2], report)
            if not self.cluster.has_changes():
                return decisions
        raise AssertionError("the scheduler does not become idle")

    def _write(self, name: str, report: Any) -> None:
        old = self.groups.get(name)
        if old is None or report.podgroup is None:
            return
        annotations = dict(old.metadata.annotations)
        if report.plan is not None:
            annotations.pop(PLAN, None)
            if report.plan.text is not None:
                annotations[PLAN] = report.plan.text
        new = PodGroup(
            metadata=msgspec.structs.replace(old.metadata, annotations=annotations),
            spec=old.spec,
            status=report.status,
        )
        if new != old:
            self.groups[name] = new
            self.cluster.update_podgroup(old, new)

    def drop_group(self, job: str) -> None:
        """Delete the PodGroup of a job."""
        self.remove(self.groups.pop(f"{job}-uid-{job}"))

    def plan(self, job: str) -> Plan | None:
        """The plan that the PodGroup of a job has."""
        text = self.groups[f"{job}-uid-{job}"].metadata.annotations.get(PLAN)
        return decode_plan(text) if text else None

    def current_plan(self, job: str) -> Plan:
        """The plan of a job that has one."""
        plan = self.plan(job)
        assert plan is not None
        return plan

    def phase(self, job: str) -> str:
        """The phase of the PodGroup of a job."""
        return self.groups[f"{job}-uid-{job}"].status.phase

    def create_planned(self, job: str, *keys: tuple[str, int]) -> None:
        """Create pods by the plan: all, or these."""
        plan = self.current_plan(job)
        for task, index in keys or plan.nodes:
            self.upsert(created_pod(job, task, index, node=plan.nodes[task, index]))

    def idle(self, node: str) -> int:
        """Thousandths of CPUs that are idle on a node."""
        matrix = self.cluster.node_matrix
        index = matrix.index_of(node)
        return 0 if index is None else int(matrix.idle[0, index])

    def allocated(self, name: str = "default") -> int:
        """Thousandths of CPUs that a queue uses."""
        return self.cluster.queues.by_name[name].allocated.get("cpu", 0)
