"""Gangs of a job's pods, by Volcano's or another scheduler's PodGroups. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import msgspec

from ..model import names
from ..model.base import ApiStruct
from ..model.names import Resource
from ..model.pod_resources import Amounts, ContainerResources, add
from ..model.podgroup import PodGroupPhase
from ..model.quantity import QuantityError, parse
from ..model.training.types import SchedulingPolicy, TrainingJob

SCHEDULER_PLUGINS_PODGROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
_POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"

Job = TrainingJob[Any]
Spec = dict[str, Any]


class Gang(ABC):
    """How a scheduler learns which pods are the gang of a job."""

    resource: ClassVar[Resource]
    waiting_phases: ClassVar[Collection[str]] = ()
    """Phases of a PodGroup in which its pods must not be created."""

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler

    @abstractmethod
    def spec(self, job: Job, existing: Spec, priorities: Mapping[str, int]) -> Spec:
        """Return the fields of the PodGroup's spec that follow from *job*.

        *priorities* are the values of the PriorityClasses by name.

        Raises:
            QuantityError: a quantity in a template is malformed.
        """

    def delays(self, phase: str) -> bool:
        """Whether no pod may be created while the PodGroup is in *phase*."""
        return phase in self.waiting_phases

    def decorate(self, pod: dict[str, Any], job: Job, replica_type: str) -> None:
        """Add *pod* to the job's gang."""
        pod["spec"]["schedulerName"] = pod["spec"].get("schedulerName") or self.scheduler
        self._add_to_podgroup(pod["metadata"], job, replica_type)

    @abstractmethod
    def _add_to_podgroup(self, metadata: dict[str, Any], job: Job, replica_type: str) -> None:
        """Name the PodGroup in the metadata of a pod."""

    def names_other_scheduler(self, job: Job) -> bool:
        """Whether a template of *job* names another scheduler."""
        return any(
            scheduler not in ("", self.scheduler)
            for scheduler in (
                msgspec.json.decode(spec.template, type=_Template).spec.scheduler_name
                for spec in job.spec.replica_specs.values()
            )
        )


class VolcanoGang(Gang):
    """PodGroups of Volcano: pods are created once the PodGroup is Inqueue."""

    resource = names.PODGROUPS
    waiting_phases = ("", PodGroupPhase.PENDING)

    def spec(self, job: Job, existing: Spec, priorities: Mapping[str, int]) -> Spec:
        """Return the fields of the PodGroup's spec that follow from *job*."""
        policy = _policy(job)
        return {
            "minMember": min_member(job),
            "queue": existing.get("queue") or policy.queue or names.DEFAULT_QUEUE,
            "priorityClassName": policy.priority_class,
            "minResources": min_resources(job, priorities),
        }

    def _add_to_podgroup(self, metadata: dict[str, Any], job: Job, replica_type: str) -> None:
        metadata["annotations"] |= {
            names.GROUP_NAME: job.metadata.name,
            names.TASK_SPEC: replica_type.lower(),
        }


class SchedulerPluginsGang(Gang):
    """PodGroups of the scheduler plugins of Kubernetes."""

    resource = SCHEDULER_PLUGINS_PODGROUPS

    def spec(self, job: Job, existing: Spec, priorities: Mapping[str, int]) -> Spec:
        """Return the fields of the PodGroup's spec that follow from *job*."""
        timeout = _policy(job).schedule_timeout_seconds
        spec: Spec = {"minMember": min_member(job), "minResources": min_resources(job, priorities)}
        return spec if timeout is None else {**spec, "scheduleTimeoutSeconds": timeout}

    def _add_to_podgroup(self, metadata: dict[str, Any], job: Job, replica_type: str) -> None:
        metadata["labels"][_POD_GROUP_LABEL] = job.metadata.name


def gang_of(scheduler: str) -> Gang | None:
    """Return the gang for ``--gang-scheduler-name``; ``None`` if that is empty."""
    if not scheduler:
        return None
    if scheduler.lower() == names.SCHEDULER_NAME:
        return VolcanoGang(names.SCHEDULER_NAME)
    return SchedulerPluginsGang(scheduler)


def changes(existing: Spec, desired: Spec) -> Spec:
    """Return the merge patch of the fields of *desired* that *existing* has otherwise."""
    patch: Spec = {}
    for field, value in desired.items():
        old = existing.get(field)
        if isinstance(value, dict):
            old = old or {}
            if not _same_amounts(old, value):
                patch[field] = dict.fromkeys(old.keys() - value.keys()) | value
        elif (old or type(value)()) != value:
            patch[field] = value or None
    return patch


def min_member(job: Job) -> int:
    """Return the minimum number of pods that are scheduled together."""
    minimum = _policy(job).min_available
    if minimum is not None:
        return minimum
    return sum(spec.replicas or 0 for spec in job.spec.replica_specs.values())


def min_resources(job: Job, priorities: Mapping[str, int]) -> dict[str, Any]:
    """Return the resources of the gang: those given, or the sum over its most important pods.

    Raises:
        QuantityError: a quantity in a template is malformed.
    """
    given = _policy(job).min_resources
    if given is not None:
        return dict(given)
    types = [
        (msgspec.json.decode(spec.template, type=_Template).spec, spec.replicas or 0)
        for spec in job.spec.replica_specs.values()
    ]
    types.sort(key=lambda each: -priorities.get(each[0].priority_class_name, 0))
    left, total = min_member(job), Amounts()
    for spec, replicas in types:
        number = min(replicas, left)
        left -= number
        for container in spec.containers if number > 0 else ():
            amounts = container.resources.requests or container.resources.limits
            add(total, {name: parse(amount) * number for name, amount in amounts.items()})
    return {name: str(amount) for name, amount in sorted(total.items())}


def _policy(job: Job) -> SchedulingPolicy:
    return job.spec.run_policy.scheduling_policy or SchedulingPolicy()


def _same_amounts(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    try:
        return old.keys() == new.keys() and all(
            parse(old[name]) == parse(new[name]) for name in new
        )
    except QuantityError:
        return old == new


class _PodSpec(ApiStruct, frozen=True):
    containers: tuple[ContainerResources, ...] = ()
    scheduler_name: str = ""
    priority_class_name: str = ""


class _Template(ApiStruct, frozen=True):
    spec: _PodSpec = _PodSpec()
