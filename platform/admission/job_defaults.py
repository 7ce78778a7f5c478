"""Defaulting of Jobs.

The rules and their order are Volcano's. Unlike in Volcano, all other fields are preserved as sent,
and defaults are also set on update, so that a manifest that omits them can be applied again.
Fields of a wrong type are skipped: the schema rejects them.
"""

from typing import Any

from ..model.admission import Json
from ..model.names import DEFAULT_QUEUE
from .decoding import nested_object

DEFAULT_MAX_RETRY = 3
_PLUGINS_NEEDING_SVC = ("tensorflow", "mpi", "pytorch", "ray")


def set_defaults(job: Json, *, scheduler_name: str, keep_zero: bool = False) -> Json:
    """Return *job* with defaults; the same object if nothing was missing.

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
        changed["maxRetry"] = DEFAULT_MAX_RETRY
    tasks = spec.get("tasks")
    if isinstance(tasks, list):
        defaulted = [_set_task_defaults(task, index) for index, task in enumerate(tasks)]
        if any(new is not old for new, old in zip(defaulted, tasks, strict=True)):
            changed["tasks"] = defaulted
        min_available = spec.get("minAvailable")
        if min_available is None or (_is_zero(min_available) and not keep_zero):
            changed["minAvailable"] = sum(map(_min_available, defaulted))
    if isinstance(plugins := spec.get("plugins"), dict) and (added := _implied_plugins(plugins)):
        changed["plugins"] = plugins | added
    return job | {"spec": spec | changed} if changed else job


def _set_task_defaults(task: Any, index: int) -> Any:
    if not isinstance(task, dict):
        return task
    changed: Json = {}
    if not task.get("name"):
        changed["name"] = f"default{index}"
    if task.get("minAvailable") is None:
        changed["minAvailable"] = _default_min_available(task)
    if _is_zero(task.get("maxRetry")):
        changed["maxRetry"] = DEFAULT_MAX_RETRY
    template = nested_object(task, "template")
    pod = nested_object(template, "spec")
    if pod.get("hostNetwork") is True and not pod.get("dnsPolicy"):
        # The node's own DNS settings do not resolve service names.
        changed["template"] = template | {"spec": pod | {"dnsPolicy": "ClusterFirstWithHostNet"}}
    return task | changed if changed else task


def _default_min_available(task: Json) -> int:
    partitions = nested_object(task, "partitionPolicy")
    min_partitions = _number(partitions.get("minPartitions"))
    if min_partitions > 0:
        return min_partitions * _number(partitions.get("partitionSize"))
    return _number(task.get("replicas"))


def _min_available(task: Any) -> int:
    return _number(task.get("minAvailable")) if isinstance(task, dict) else 0


def _implied_plugins(plugins: Json) -> Json:
    """Return the plugins that the given plugins depend on."""
    added: Json = {}
    if "svc" not in plugins and any(name in plugins for name in _PLUGINS_NEEDING_SVC):
        added["svc"] = []
    if "ssh" not in plugins and "mpi" in plugins:
        added["ssh"] = []
    return added


def _is_zero(value: Any) -> bool:
    return value is None or (type(value) is int and value == 0)


def _number(value: Any) -> int:
    return value if type(value) is int else 0
