"""How many pods a job may have.

Controllers and plugins list all pods of a job in memory. They must not exhaust it because of a
single manifest.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line imports this module for its flags
    from .job import JobSpec
    from .training.types import ReplicaSpec

MAX_PODS = 100_000
"""Default maximum of the pods of one job: ``--max-pods-per-job``."""


def volcano_pods(spec: "JobSpec") -> int:
    """Return the number of pods of a Volcano job."""
    return _total(task.replicas for task in spec.tasks)


def training_pods(specs: "Iterable[ReplicaSpec]") -> int:
    """Return the number of pods of a training job; a type without a number counts as one."""
    return _total(1 if each.replicas is None else each.replicas for each in specs)


def too_many_pods_error(pods: int, limit: int) -> str:
    """Return why a job may not have as many as *pods*, or ``""``."""
    if pods <= limit:
        return ""
    return f"the job has {pods} pods, but a job may have at most {limit} (--max-pods-per-job)"


def _total(replicas: Iterable[int]) -> int:
    """Sum *replicas*; a negative number, which is rejected elsewhere, must not hide others."""
    return sum(max(number, 0) for number in replicas)
