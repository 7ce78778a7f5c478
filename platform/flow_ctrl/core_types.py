"""The fields of Jobs that the JobFlow controller reads."""

from collections.abc import Iterable

from ..model.base import ApiStruct
from ..model.flow import JobFlow, TaskPhases
from ..model.job import JobState
from ..model.meta import ObjectMeta
from ..model.names import FLOW_GROUP, JOBFLOWS


class Task(ApiStruct, frozen=True):
    """A task of a Job."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None

    @property
    def required_pods(self) -> int:
        """Number of pods that a probe of the task requires."""
        required = self.replicas if self.min_available is None else self.min_available
        return max(required, min(self.replicas, 1))


class JobSpec(ApiStruct, frozen=True):
    """``spec`` of a Job."""

    tasks: tuple[Task, ...] = ()
    suspend: bool = False


class JobStatus(ApiStruct, frozen=True):
    """``status`` of a Job."""

    state: JobState = JobState()
    retry_count: int = 0
    running_duration: str | None = None
    task_status_count: dict[str, TaskPhases] = {}


class Job(ApiStruct, frozen=True):
    """A Job, perhaps of a JobFlow."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def phase(self) -> str:
        """``status.state.phase``, empty before the first status."""
        return self.status.state.phase

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks by name; one without gets that of the Job's defaults."""
        return named_tasks(self.spec.tasks)

    @property
    def flow_uid(self) -> str:
        """Uid of the JobFlow that controls the Job; empty if none does."""
        owner = self.metadata.controller
        if owner is None or owner.kind != JOBFLOWS.kind:
            return ""
        return owner.uid if owner.api_version.partition("/")[0] == FLOW_GROUP else ""

    def is_controlled_by(self, flow: JobFlow) -> bool:
        """Whether the Job is this flow's, and not one's of the same name."""
        return self.flow_uid != "" and flow.metadata.controls(self.metadata)


def named_tasks(tasks: Iterable[Task]) -> dict[str, Task]:
    """Return tasks by name; one without gets that of the Job's defaults."""
    return {task.name or f"default{number}": task for number, task in enumerate(tasks)}


def index_by_flow(job: Job) -> tuple[str, ...]:
    """Index function: identity of the JobFlow that controls a Job."""
    owner = job.metadata.controller
    if owner is None or not job.flow_uid:
        return ()
    return (job.metadata.owner_identity(owner),)
