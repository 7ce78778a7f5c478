"""Fields of jobs and PodGroups that Batholith's scheduler does not act on.

They are stored, and a job's are copied to its PodGroup, but pods are scheduled as if they were not
there. Objects may be malformed, so types are checked.
"""

from collections.abc import Iterable, Iterator
from typing import Any

Found = Iterator[tuple[str, str]]
"""Yields the paths of such fields, and why they have no effect."""


def of_job(spec: object, path: str) -> Found:
    """Yield the fields of a job's *spec*, which is at *path*."""
    if not isinstance(spec, dict):
        return
    tasks = spec.get("tasks")
    for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
        if isinstance(task, dict):
            yield from _of_task(task, f"{path}.tasks[{index}]")


def _of_task(task: dict[str, Any], path: str) -> Found:
    if task.get("topologyPolicy") not in (None, "", "none"):
        yield f"{path}.topologyPolicy", "processors are not assigned to pods"
    if task.get("partitionPolicy"):
        yield (
            f"{path}.partitionPolicy",
            "the job is scheduled as one gang; partitions are only labelled and restarted as such",
        )


def of_podgroup(spec: object, path: str) -> Found:
    """Yield the fields of a PodGroup's *spec*, which is at *path*."""
    if not isinstance(spec, dict):
        return
    if spec.get("subGroupPolicy"):
        yield f"{path}.subGroupPolicy", "a PodGroup is scheduled as one gang, without sub-groups"


def warnings(new: Iterable[tuple[str, str]], old: Iterable[tuple[str, str]]) -> list[str]:
    """Return a warning for each field of *new* that was not in *old*, the object before."""
    known = dict(old)
    return [f"{path} has no effect on scheduling: {why}" for path, why in new if path not in known]
