"""The PodGroup and the pods that a Volcano job would have. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ...model import names
from ...model.arrays import max_parallel
from ...model.job import Job, TaskSpec
from ...model.job_podgroup import desired_spec, partition_of
from ...model.meta import ObjectMeta
from ...model.podgroup import PodGroup
from ...model.quantity import QuantityError
from ...model.simulation import MAX_PODS
from ..state.core_types import Pod
from ..state.resources import amount, pod_request, to_quantity

_UID = "simulated"


class CannotSimulateError(ValueError):
    """The job cannot be simulated; the text names the field."""


@dataclass(frozen=True, slots=True)
class ProposedGang:
    """A job of which nothing is stored."""

    job: Job
    created: str
    """When it is created, as RFC 3339 text."""

    priorities: Mapping[str, int]
    """Values of the PriorityClasses by name."""

    @property
    def key(self) -> str:
        """``namespace/name`` of its PodGroup."""
        return f"{self.job.metadata.namespace}/{self._name}"

    @property
    def _name(self) -> str:
        return f"{self.job.metadata.name}-{_UID}"

    def check(self) -> None:
        """Check that the job can be simulated.

        Raises:
            CannotSimulateError: it cannot.
        """
        if not self.job.spec.tasks:
            raise CannotSimulateError("spec.tasks: a job without tasks has no pods")
        self.podgroup()
        self.pods()

    @property
    def size(self) -> int:
        """Number of pods that it needs to start."""
        return self.job.spec.min_available

    def podgroup(self) -> PodGroup:
        """Return its PodGroup, which is not admitted yet.

        Raises:
            CannotSimulateError: a template is malformed.
        """
        meta = self.job.metadata
        try:
            spec = desired_spec(self.job, priorities=self.priorities)
        except (QuantityError, msgspec.ValidationError) as error:
            raise CannotSimulateError(f"spec.tasks: {error}") from None
        return PodGroup(
            metadata=ObjectMeta(
                name=self._name,
                namespace=meta.namespace,
                uid=_UID,
                labels=meta.labels,
                annotations=meta.annotations,
                creation_timestamp=self.created,
            ),
            spec=spec,
        )

    def pods(self) -> list[Pod]:
        """Return its pods.

        Raises:
            CannotSimulateError: a template is malformed, or there are more than :data:`MAX_PODS`.
        """
        tasks = self.job.spec.tasks
        if sum(task.replicas for task in tasks) > MAX_PODS:
            raise CannotSimulateError(f"spec.tasks: more than {MAX_PODS:,} pods")
        return [pod for task in tasks for pod in self._pods_of(task)]

    def _pods_of(self, task: TaskSpec) -> list[Pod]:
        template = self._template(task)
        meta = template.metadata
        annotations = {
            **meta.annotations,
            names.GROUP_NAME: self._name,
            names.TASK_SPEC: task.name,
        }
        found = []
        limit = max_parallel(self.job.metadata.annotations)
        count = task.replicas if limit is None else min(task.replicas, limit)
        for index in range(count):
            name = f"{self.job.metadata.name}-{task.name}-{index}"
            metadata = ObjectMeta(
                name=name,
                namespace=self.job.metadata.namespace,
                uid=f"{_UID}:{name}",
                labels={**meta.labels, **_labels(task, index)},
                annotations=annotations,
                creation_timestamp=self.created,
            )
            found.append(Pod(metadata=metadata, spec=template.spec))
        return found

    def _template(self, task: TaskSpec) -> Pod:
        try:
            pod = msgspec.json.decode(task.template, type=Pod)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CannotSimulateError(f"spec.tasks[{task.name}].template: {error}") from None
        spec = pod.spec
        priority = self.priorities.get(spec.priority_class_name, spec.priority)
        scheduler_name = self.job.spec.scheduler_name or names.SCHEDULER_NAME
        spec = msgspec.structs.replace(
            spec, priority=priority, scheduler_name=spec.scheduler_name or scheduler_name
        )
        return msgspec.structs.replace(pod, spec=spec)

    # -- changes -------------------------------------------------------------------------------

    def with_pods(self, count: int) -> "ProposedGang":
        """Return the job with *count* pods, which all are its gang; the largest task loses them."""
        spec = self.job.spec
        largest = max(spec.tasks, key=lambda task: task.replicas)
        fewer = sum(task.replicas for task in spec.tasks) - count
        tasks = [
            _resized(task, task.replicas - fewer) if task is largest else task
            for task in spec.tasks
        ]
        return self._with_spec(min_available=count, tasks=tuple(tasks))

    @property
    def fewest_pods(self) -> int:
        """Number of pods with one pod in the largest task."""
        replicas = [task.replicas for task in self.job.spec.tasks]
        return sum(replicas) - max(replicas) + 1

    def with_queue(self, name: str) -> "ProposedGang":
        """Return the job in the queue *name*."""
        return self._with_spec(queue=name)

    def with_fraction(self, resource: str, divisor: int) -> "ProposedGang":
        """Return the job with the requests of *resource* divided by *divisor*."""
        tasks = [
            msgspec.structs.replace(task, template=_divided(task, resource, divisor))
            for task in self.job.spec.tasks
        ]
        return self._with_spec(tasks=tuple(tasks))

    def request(self, resource: str) -> int:
        """Return the largest request of *resource* of one of its pods."""
        found = (pod_request(self._template(task).spec) for task in self.job.spec.tasks)
        return max((each.get(resource, 0) for each in found), default=0)

    def _with_spec(self, **fields: Any) -> "ProposedGang":
        spec = msgspec.structs.replace(self.job.spec, **fields)
        return replace(self, job=msgspec.structs.replace(self.job, spec=spec))


def _resized(task: TaskSpec, replicas: int) -> TaskSpec:
    minimum = task.min_available
    if minimum is not None:
        minimum = min(minimum, replicas)
    return msgspec.structs.replace(task, replicas=replicas, min_available=minimum)


def _divided(task: TaskSpec, resource: str, divisor: int) -> msgspec.Raw:
    """Return the template of *task* with smaller requests and limits of *resource*."""
    body = msgspec.json.decode(task.template)
    for container in body.get("spec", {}).get("containers") or ():
        for amounts in (container.get("resources") or {}).values():
            if isinstance(amounts, dict) and resource in amounts:
                units = amount(resource, amounts[resource]) // divisor
                if "/" in resource:  # an extended resource exists in whole units only
                    units -= units % amount(resource, 1)
                amounts[resource] = to_quantity(resource, units)
    return msgspec.Raw(msgspec.json.encode(body))


def _labels(task: TaskSpec, index: int) -> dict[str, str]:
    """Return the labels of the job controller that decide on scheduling."""
    labels = {names.TASK_INDEX: str(index)}
    if partition := partition_of(task, index):
        labels |= {names.TASK_SPEC: task.name, names.PARTITION_ID: partition}
    return labels
