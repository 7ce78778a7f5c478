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


def of_podgroup(spec: object, path: str) -> Found:
    """Yield the fields of a PodGroup's *spec*, which is at *path*."""
    if not isinstance(spec, dict):
        return
    policies = spec.get("subGroupPolicy")
    for index, policy in enumerate(policies if isinstance(policies, list) else ()):
        if isinstance(policy, dict) and not (
            policy.get("matchLabelKeys") and isinstance(policy.get("labelSelector"), dict)
        ):
            yield (
                f"{path}.subGroupPolicy[{index}]",
                "without labelSelector and matchLabelKeys it selects no pods",
            )


def warnings(new: Iterable[tuple[str, str]], old: Iterable[tuple[str, str]]) -> list[str]:
    """Return a warning for each field of *new* that was not in *old*, the object before."""
    known = dict(old)
    return [f"{path} has no effect on scheduling: {why}" for path, why in new if path not in known]
