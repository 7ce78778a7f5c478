"""Values that the scheduler reads of a pod's name, annotations and conditions."""

import math
import re

from ..core_types import Pod

_INTEGER = re.compile(r"[+-]?[0-9]{1,15}", re.ASCII)


def task_priority(pod: Pod) -> int:
    """Return the priority of the pod among those of its gang."""
    annotation = pod.metadata.annotations.get("volcano.sh/task-priority", "")
    if _INTEGER.fullmatch(annotation) and abs(int(annotation)) < 2**31:
        return int(annotation)
    return 1 if pod.spec.priority is None else pod.spec.priority


def task_index(name: str) -> float:
    """Return the number at the end of the pod name; infinity if there is none."""
    head, _, tail = name.rpartition("-")
    return float(tail) if "-" in head and _INTEGER.fullmatch(tail) else math.inf


def reported_condition(pod: Pod) -> tuple[str, str] | None:
    """Return reason and message of the condition that the pod is not scheduled; None without it."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason, condition.message
    return None
