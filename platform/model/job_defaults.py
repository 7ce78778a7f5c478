"""Defaults of Volcano's jobs.

The webhooks set them in the JSON of a job before it is stored. The controller sets them in the
decoded spec, so that a job means the same in a cluster without webhooks, or if it was created
before they were installed. The rules are Volcano's.
"""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from .admission import Json, nested_object
from .job import Job, JobSpec, TaskSpec
from .names import DEFAULT_QUEUE

MAX_RETRY = 3
_UNSET = -1
_PLUGINS_NEEDING_SVC = frozenset(("tensorflow", "mpi", "pytorch", "ray"))


def implied_plugins(given: Collection[str]) -> list[str]:
    """Return the plugins that the *given* ones require, and that are missing."""
    required = {"svc": not _PLUGINS_NEEDING_SVC.isdisjoint(given), "ssh": "mpi" in given}
    return [name for name, needed in required.items() if needed and name not in given]


def _task_name(index: int) -> str:
    return f"default{index}"


def _default_min_available(replicas: int, min_partitions: int, partition_size: int) -> int:
    """Return the number of pods of a task that the job requires, unless the task sets it."""
    return min_partitions * partition_size if min_partitions > 0 else replicas


class DefaultedSpec(JobSpec, frozen=True):
    """``spec`` of a Job with its defaults.

    An explicit ``minAvailable`` of 0 is kept, because an update may have set it.
    """

    min_available: int = _UNSET

    def __post_init__(self) -> None:
        if not all(map(_is_complete, self.tasks)):
            tasks = tuple(_with_defaults(each, index) for index, each in enumerate(self.tasks))
            force_setattr(self, "tasks", tasks)
        if self.min_available == _UNSET:
            force_setattr(self, "min_available", sum(_min_available(each) for each in self.tasks))
        if not self.max_retry:
            force_setattr(self, "max_retry", MAX_RETRY)
        if added := implied_plugins(self.plugins):
            force_setattr(self, "plugins", {**self.plugins, **dict.fromkeys(added, ())})


def _is_complete(task: TaskSpec) -> bool:
    return bool(task.name and task.max_retry) and task.min_available is not None


def _with_defaults(task: TaskSpec, index: int) -> TaskSpec:
    return msgspec.structs.replace(
        task,
        name=task.name or _task_name(index),
        min_available=_min_available(task),
        max_retry=task.max_retry or MAX_RETRY,
    )


def _min_available(task: TaskSpec) -> int:
    if task.min_available is not None:
        return task.min_available
    policy = task.partition_policy
    if policy is None:
        return task.replicas
    return _default_min_available(task.replicas, policy.min_partitions, policy.partition_size)


class DefaultedJob(Job, frozen=True):
    """A Job with the defaults of its spec."""

    spec: DefaultedSpec = DefaultedSpec()


def set_defaults(job: Json, *, scheduler_name: str, keep_zero: bool = False) -> Json:
    """Return *job* with defaults; the same object if nothing was missing.

    Unlike in Volcano, all other fields are preserved as sent, and defaults are also set on update,
    so that a manifest that omits them can be applied again. Fields of a wrong type are skipped: the
    schema rejects them.

    *keep_zero*: keep an explicit ``spec.minAvailable`` of 0, which an update may set.
    """
    spec = job.get("spec") or {}
    if not isinstance(spec, dict):
        return job
    changed: Json = {}
    if not spec.get("queue"):
        changed["queue"] = DEFAULT_QUEUE
    if not spec.get("schedulerName"):
        changed["schedulerName"] = scheduler_name
    if _is_zero(spec.get("maxRetry")):
        changed["maxRetry"] = MAX_RETRY
    tasks = spec.get("tasks")
    if isinstance(tasks, list):
        defaulted = [_set_task_defaults(task, index) for index, task in enumerate(tasks)]
        if any(new is not old for new, old in zip(defaulted, tasks, strict=True)):
            changed["tasks"] = defaulted
        min_available = spec.get("minAvailable")
        if min_available is None or (_is_zero(min_available) and not keep_zero):
            given = [task for task in defaulted if isinstance(task, dict)]
            changed["minAvailable"] = sum(_number(task.get("minAvailable")) for task in given)
    if isinstance(plugins := spec.get("plugins"), dict) and (added := implied_plugins(plugins)):
        changed["plugins"] = plugins | {name: [] for name in added}
    return job | {"spec": spec | changed} if changed else job


def _set_task_defaults(task: Any, index: int) -> Any:
    if not isinstance(task, dict):
        return task
    changed: Json = {}
    if not task.get("name"):
        changed["name"] = _task_name(index)
    if task.get("minAvailable") is None:
        partitions = nested_object(task, "partitionPolicy")
        changed["minAvailable"] = _default_min_available(
            _number(task.get("replicas")),
            _number(partitions.get("minPartitions")),
            _number(partitions.get("partitionSize")),
        )
    if _is_zero(task.get("maxRetry")):
        changed["maxRetry"] = MAX_RETRY
    template = nested_object(task, "template")
    pod = nested_object(template, "spec")
    if pod.get("hostNetwork") is True and not pod.get("dnsPolicy"):
        # The node's own DNS settings do not resolve service names.
        changed["template"] = template | {"spec": pod | {"dnsPolicy": "ClusterFirstWithHostNet"}}
    return task | changed if changed else task


def _is_zero(value: Any) -> bool:
    return value is None or (type(value) is int and value == 0)


def _number(value: Any) -> int:
    return value if type(value) is int else 0
