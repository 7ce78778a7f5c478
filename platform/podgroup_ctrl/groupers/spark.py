"""SparkApplications of the Spark operator: the driver starts alone, and then creates the executors.

So the gang is the driver, but its queue must have capacity for the executors, too.
"""

import re
from collections.abc import Sequence

from ...model.base import ApiStruct
from ...model.names import Resource
from ...model.pod_resources import ContainerResources, PodResources, Resources
from ..core_types import Pod
from .base import Described, Gang, Grouper, Membership, Role, owner_reference, podgroup_name

APPLICATIONS = Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")
_APP, _ROLE = "sparkoperator.k8s.io/app-name", "spark-role"
_MIB = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1, "g": 1024, "t": 1 << 20, "p": 1 << 30}
_MEMORY = re.compile(r"([0-9]+)([kmgtp]?)b?")
_MIN_OVERHEAD = 384
"""MiB, Spark's minimum of what a container has beyond the memory of the JVM."""
_JVM_FACTOR, _OTHER_FACTOR = 0.1, 0.4


class _PodSpec(ApiStruct, frozen=True):
    cores: int | None = None
    core_request: str = ""
    memory: str = ""
    memory_overhead: str = ""
    instances: int | None = None


class _Allocation(ApiStruct, frozen=True):
    enabled: bool = False
    initial_executors: int | None = None
    min_executors: int | None = None


class _Batch(ApiStruct, frozen=True):
    queue: str | None = None
    priority_class_name: str | None = None


class _Spec(ApiStruct, frozen=True):
    type: str = ""
    memory_overhead_factor: str | None = None
    driver: _PodSpec = _PodSpec()
    executor: _PodSpec = _PodSpec()
    dynamic_allocation: _Allocation = _Allocation()
    batch_scheduler_options: _Batch = _Batch()


class SparkApplication(Described, frozen=True):
    """A SparkApplication."""

    spec: _Spec = _Spec()


def _membership(pod: Pod) -> Membership | None:
    name = pod.metadata.labels.get(_APP, "")
    group = podgroup_name("spark", name)
    return Membership(podgroup=group, owner=name) if group else None


def _gang(found: SparkApplication, _: Sequence[Pod]) -> Gang:
    spec = found.spec
    executors = 1 if spec.executor.instances is None else spec.executor.instances
    if spec.dynamic_allocation.enabled:
        given = spec.dynamic_allocation
        executors = given.initial_executors or given.min_executors or 0
    return Gang(
        owner=owner_reference(found, APPLICATIONS),
        roles=[
            Role(name="driver", count=1, spec=_pod(spec, spec.driver), labels={_ROLE: "driver"}),
            Role(
                name="executors",
                count=executors,
                spec=_pod(spec, spec.executor),
                labels={_ROLE: "executor"},
            ),
        ],
        min_member=1,
        reserves_all=True,
        queue=spec.batch_scheduler_options.queue or "",
        priority_class_name=spec.batch_scheduler_options.priority_class_name or "",
        annotations=found.metadata.annotations,
    )


def _pod(spec: _Spec, given: _PodSpec) -> PodResources:
    """Return what Spark requests for one pod."""
    requests: dict[str, str | int | float] = {"cpu": given.core_request or given.cores or 1}
    memory = _mib(given.memory or "1g")
    if memory is not None:
        overhead = _mib(given.memory_overhead) if given.memory_overhead else None
        if overhead is None:
            overhead = max(_MIN_OVERHEAD, int(memory * _overhead_factor(spec)))
        requests["memory"] = f"{memory + overhead}Mi"
    return PodResources(containers=(ContainerResources(resources=Resources(requests=requests)),))


def _overhead_factor(spec: _Spec) -> float:
    try:
        return float(spec.memory_overhead_factor or "")
    except ValueError:
        return _JVM_FACTOR if spec.type in ("Java", "Scala", "") else _OTHER_FACTOR


def _mib(text: str) -> int | None:
    """Return an amount of memory as the JVM writes it, such as ``512m``; ``None`` if it is none."""
    match = _MEMORY.fullmatch(text.strip().lower())
    return None if match is None else int(int(match[1]) * _MIB[match[2]])


GROUPER = Grouper(
    name="spark", resource=APPLICATIONS, view=SparkApplication, membership=_membership, gang=_gang
)
