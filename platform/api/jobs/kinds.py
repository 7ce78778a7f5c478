"""The kinds of jobs that the REST API serves, one row each: paths, views, summaries, pods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.convertors import Convertor, register_url_convertor

from ...model.meta import ObjectMeta
from ...model.names import (
    BATCH_JOBS,
    COMPLETION_INDEX,
    JOB_NAME,
    JOB_NAMESPACE,
    JOBS,
    TASK_INDEX,
    TASK_SPEC,
    TRAINING_JOB_NAME,
    TRAINING_OPERATOR_NAME,
    TRAINING_REPLICA_INDEX,
    TRAINING_REPLICA_TYPE,
    Resource,
)
from ...model.selectors import Operator, Requirement, Selector, from_label_selector
from ...model.training.kinds import TRAINING_KINDS, TrainingKind
from ...wire.jobs import JobKindName, JobSummary
from .summaries import (
    BATCH_TASK,
    summarize_batch,
    summarize_training,
    summarize_volcano,
)
from .views import CachedBatchJob, CachedJob, CachedObject, training_view

CONVERTOR = "job_kind"
"""Convertor of the path parameter: ``{kind:job_kind}`` matches the kinds and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPosition:
    """Task and index of a pod."""

    task: str
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One kind of jobs."""

    name: JobKindName
    """Segment of the path."""

    resource: Resource

    view: type[CachedObject]
    """Struct that an object of this kind, cached or just read, is decoded as."""

    summarize: Callable[[Any], JobSummary]
    """Returns the summary of an object decoded as :attr:`view`."""

    pod_selector: Callable[[Any], Selector]
    """Returns the label selector of the pods of an object decoded as :attr:`view`. It may match
    those of an earlier job of the same name, too: see ``ObjectMeta.owns``."""

    pod_position: Callable[[ObjectMeta], PodPosition]
    """Returns task and index of a pod of a job of this kind."""

    training: TrainingKind | None = None
    """The kind of a training job."""

    @property
    def label(self) -> str:
        """The kind in messages, e.g. ``Job (batch/v1)``."""
        return f"{self.resource.kind} ({self.resource.api_version})"

    @property
    def is_volcano(self) -> bool:
        """Whether jobs of this kind are Volcano's."""
        return self.name is JobKindName.JOBS


def _selector(labels: Mapping[str, str]) -> Selector:
    return Selector(
        tuple(
            Requirement(label, Operator.IN, frozenset((value,))) for label, value in labels.items()
        )
    )


def _volcano_pods(job: CachedJob) -> Selector:
    meta = job.metadata
    return _selector({JOB_NAME: meta.name, JOB_NAMESPACE: meta.namespace})


def _volcano_position(pod: ObjectMeta) -> PodPosition:
    # Labels of a Volcano of an earlier version lack the task, annotations do not.
    found = {**pod.labels, **pod.annotations}
    return PodPosition(task=found.get(TASK_SPEC, ""), index=_index(found.get(TASK_INDEX)))


def _batch_pods(job: CachedBatchJob) -> Selector:
    return from_label_selector(job.spec.selector)


def _batch_position(pod: ObjectMeta) -> PodPosition:
    return PodPosition(task=BATCH_TASK, index=_index(pod.annotations.get(COMPLETION_INDEX)))


def _training_pods(kind: TrainingKind, job: CachedObject) -> Selector:
    name = job.metadata.name.replace("/", "-")
    return _selector({TRAINING_OPERATOR_NAME: kind.controller_name, TRAINING_JOB_NAME: name})


def _training_position(kind: TrainingKind, pod: ObjectMeta) -> PodPosition:
    lowered = pod.labels.get(TRAINING_REPLICA_TYPE, "")
    return PodPosition(
        task=kind.canonical_type(lowered) or lowered,
        index=_index(pod.labels.get(TRAINING_REPLICA_INDEX)),
    )


def _index(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and text.isascii() and len(text) < 10 else None


def _training_kind(kind: TrainingKind) -> JobKind:
    name = JobKindName(kind.resource.plural)
    return JobKind(
        name=name,
        resource=kind.resource,
        view=training_view(kind),
        summarize=partial(summarize_training, kind=name),
        pod_selector=partial(_training_pods, kind),
        pod_position=partial(_training_position, kind),
        training=kind,
    )


VOLCANO = JobKind(
    name=JobKindName.JOBS,
    resource=JOBS,
    view=CachedJob,
    summarize=summarize_volcano,
    pod_selector=_volcano_pods,
    pod_position=_volcano_position,
)
BATCH = JobKind(
    name=JobKindName.BATCHJOBS,
    resource=BATCH_JOBS,
    view=CachedBatchJob,
    summarize=summarize_batch,
    pod_selector=_batch_pods,
    pod_position=_batch_position,
)
KINDS: Mapping[JobKindName, JobKind] = {
    each.name: each for each in (VOLCANO, BATCH, *map(_training_kind, TRAINING_KINDS))
}
"""All kinds by name."""


class _KindConvertor(Convertor[str]):
    """Matches the names of the kinds, so that other routes may have the same shape."""

    regex = "|".join(KINDS)

    def convert(self, value: str) -> str:
        """Return the segment."""
        return value

    def to_string(self, value: str) -> str:
        """Return the segment."""
        return value


register_url_convertor(CONVERTOR, _KindConvertor())
