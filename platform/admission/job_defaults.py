"""What a job gets that its author left out.

The rules and their order are Volcano's. Unlike there, the rest of the object stays exactly as
it was sent, and the defaults also come back when an update leaves them out again, so that a
manifest can be applied a second time. Fields of a wrong type are left alone: the schema refuses
them and names them.
"""

from typing import Any

from ..model.admission import Json
from ..model.names import DEFAULT_QUEUE
from .decoding import nested_object

DEFAULT_MAX_RETRY = 3
_PLUGINS_NEEDING_SVC = ("tensorflow", "mpi", "pytorch", "ray")


def set_defaults(job: Json, *, scheduler_name: str, keep_zero: bool = False) -> Json:
    """*job* with its defaults; the same object where nothing was missing.

    *keep_zero* says that a ``spec.minAvailable`` of 0 is meant, as it may be in an update.
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
        filled = [_set_task_defaults(task, index) for index, task in enumerate(tasks)]
        if any(new is not old for new, old in zip(filled, tasks, strict=True)):
            changed["tasks"] = filled
        wanted = spec.get("minAvailable")
        if wanted is None or (_is_zero(wanted) and not keep_zero):
            changed["minAvailable"] = sum(map(_min_available, filled))
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
        # Names of services could not be resolved with the node's own DNS settings.
        changed["template"] = template | {"spec": pod | {"dnsPolicy": "ClusterFirstWithHostNet"}}
    return task | changed if changed else task


def _default_min_available(task: Json) -> int:
    partitions = nested_object(task, "partitionPolicy")
    least = _number(partitions.get("minPartitions"))
    if least > 0:
        return least * _number(partitions.get("partitionSize"))
    return _number(task.get("replicas"))


def _min_available(task: Any) -> int:
    return _number(task.get("minAvailable")) if isinstance(task, dict) else 0


def _implied_plugins(plugins: Json) -> Json:
    """Plugins that others cannot do without."""
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
