"""Compute what follows from the specs of jobs, once for each spec."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...model.job import Job, JobSpec
from ...model.job_podgroup import desired_spec
from ...model.podgroup import PodGroupSpec
from ..plugins.registry import JobPlugins, Registry
from ..tracker.core_types import PriorityClass


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The part of the desired state that follows from the job's spec alone."""

    spec_key: tuple[object, ...]
    """Identifies the version of the spec that this was computed from."""
    priority_classes_generation: int
    """Generation of the priority classes that this was computed from."""
    podgroup_spec: PodGroupSpec
    plugins: JobPlugins
    scheduler: str = ""
    """Scheduler of the only pod of a job that may be without a PodGroup; empty for other jobs."""


class DesiredStates:
    """The desired states of all jobs of one controller."""

    def __init__(
        self,
        plugins: Registry,
        scheduler_of: Callable[[Job, PodGroupSpec], str],
        priority_classes: Iterable[PriorityClass],
    ) -> None:
        """*scheduler_of* returns the scheduler of a job that may be without a PodGroup."""
        self._priority_classes = priority_classes
        self._plugins = plugins
        self._scheduler_of = scheduler_of
        self._generation = 0
        """Number of changes of the PriorityClasses."""
        self._last: tuple[JobSpec, DesiredState] | None = None
        """The last result: the specs of a burst of jobs are mostly equal."""

    def on_priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        """Let the next sync of each job compute its PodGroup again."""
        self._generation += 1

    def of(self, job: Job, known: DesiredState | None) -> DesiredState:
        """Return what follows from the spec of *job*; *known*, if it has not changed.

        Raises:
            QuantityError, msgspec.ValidationError: a template is malformed.
        """
        meta, generation = job.metadata, self._generation
        spec_key = (meta.uid, meta.generation or meta.resource_version)
        if known is not None and (known.spec_key, known.priority_classes_generation) == (
            spec_key,
            generation,
        ):
            return known
        if self._last is not None and not job.spec.plugins:  # they may hold what is of one job
            last_spec, last = self._last
            if last_spec == job.spec and last.priority_classes_generation == generation:
                return replace(last, spec_key=spec_key)
        values = {one.metadata.name: one.value for one in self._priority_classes}
        podgroup_spec = desired_spec(job, priorities=values)
        state = DesiredState(
            spec_key=spec_key,
            priority_classes_generation=generation,
            podgroup_spec=podgroup_spec,
            plugins=self._plugins.for_job(job),
            scheduler=self._scheduler_of(job, podgroup_spec),
        )
        self._last = (job.spec, state)
        return state
