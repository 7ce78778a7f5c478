"""Annotations of jobs of all kinds: who acts on them, and what their values may be."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..model.admission import ObjectReader
from ..model.dependencies import dependency_errors
from ..model.kept_nodes import keep_nodes_error
from ..model.lost_pods import replace_nodes_error
from ..model.names import (
    BEGIN,
    DEPENDS_ON,
    KEEP_NODES,
    MAX_PARALLEL,
    NOTIFY,
    NOTIFY_EVENTS,
    REPLACE_NODES,
    RUNNING_ESTIMATE,
    TIME_LIMIT,
    TIME_LIMIT_WARNING,
)
from .notifications import notify_errors
from .time_limits import job_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedJob:
    """What the values of annotations are checked against."""

    name: str
    annotations: Mapping[str, str]
    queue: str
    """Empty if the job is not scheduled in one."""
    is_update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Annotations that are checked together."""

    names: tuple[str, ...]
    errors: Callable[[AnnotatedJob, ObjectReader], Iterator[str]]
    volcano_only: bool = False
    """Whether the controllers of other kinds do not act on them."""


def _time_errors(job: AnnotatedJob, reader: ObjectReader) -> Iterator[str]:
    removed = job.is_update and TIME_LIMIT not in job.annotations
    return job_errors(job.annotations, job.queue, reader, removed=removed)


def _dependency_errors(job: AnnotatedJob, _: ObjectReader) -> Iterator[str]:
    return dependency_errors(job.name, job.annotations)


def _notify_errors(job: AnnotatedJob, _: ObjectReader) -> Iterator[str]:
    return notify_errors(job.annotations)


def _replacement_errors(job: AnnotatedJob, _: ObjectReader) -> Iterator[str]:
    if error := replace_nodes_error(job.annotations):
        yield error


def _kept_nodes_errors(job: AnnotatedJob, _: ObjectReader) -> Iterator[str]:
    if error := keep_nodes_error(job.annotations):
        yield error


def _no_errors(_: AnnotatedJob, __: ObjectReader) -> Iterator[str]:
    return iter(())


RULES = (
    Rule(names=(TIME_LIMIT, TIME_LIMIT_WARNING, RUNNING_ESTIMATE), errors=_time_errors),
    Rule(names=(DEPENDS_ON, BEGIN), errors=_dependency_errors, volcano_only=True),
    Rule(names=(NOTIFY, NOTIFY_EVENTS), errors=_notify_errors),
    Rule(names=(REPLACE_NODES,), errors=_replacement_errors),
    Rule(names=(KEEP_NODES,), errors=_kept_nodes_errors),
    # Depends on the tasks: see array_errors.
    Rule(names=(MAX_PARALLEL,), errors=_no_errors, volcano_only=True),
)


def annotation_errors(
    job: AnnotatedJob, old: Mapping[str, object] | None, reader: ObjectReader, *, volcano: bool
) -> Iterator[str]:
    """Yield what is wrong with the annotations that a write adds to *old* or changes; ``None`` is
    a new job."""
    for rule in RULES:
        if rule.volcano_only and not volcano:
            continue
        if old is None or any(job.annotations.get(each) != old.get(each) for each in rule.names):
            yield from rule.errors(job, reader)
