"""Jobs as the controller decodes them, with the defaults of their spec.

Admission sets the same defaults before a job is stored. The job means the same in a cluster
without admission, or if it was created before admission was installed.
"""

import msgspec
from msgspec.structs import force_setattr

from ..model.job import Job, JobSpec, TaskSpec

MAX_RETRY = 3
_UNSET = -1
_PLUGINS_NEEDING_SVC = frozenset(("tensorflow", "mpi", "pytorch", "ray"))


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
        if added := self._implied_plugins():
            force_setattr(self, "plugins", {**self.plugins, **dict.fromkeys(added, ())})

    def _implied_plugins(self) -> list[str]:
        """Return the plugins that those in the spec require."""
        given = self.plugins.keys()
        required = {"svc": bool(given & _PLUGINS_NEEDING_SVC), "ssh": "mpi" in given}
        return [name for name, needed in required.items() if needed and name not in given]


def _is_complete(task: TaskSpec) -> bool:
    return bool(task.name and task.max_retry) and task.min_available is not None


def _with_defaults(task: TaskSpec, index: int) -> TaskSpec:
    return msgspec.structs.replace(
        task,
        name=task.name or f"default{index}",
        min_available=_min_available(task),
        max_retry=task.max_retry or MAX_RETRY,
    )


def _min_available(task: TaskSpec) -> int:
    """Return the number of pods of *task* that the job requires."""
    if task.min_available is not None:
        return task.min_available
    policy = task.partition_policy
    if policy is not None and policy.min_partitions > 0:
        return policy.min_partitions * policy.partition_size
    return task.replicas


class DefaultedJob(Job, frozen=True):
    """A Job with the defaults of its spec."""

    spec: DefaultedSpec = DefaultedSpec()
