"""What a Volcano job waits for before anything is created for it: other jobs, and a time.

``batholith.io/depends-on`` is ``afterok:NAME``, ``afterany:NAME``, ``afternotok:NAME`` and
``singleton``, separated by commas, of which all must be met. Names are those of Volcano jobs in the
same namespace. ``batholith.io/begin`` is a time of RFC 3339.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from . import times
from .field_errors import quote
from .job import FINAL_PHASES, JobPhase
from .names import BEGIN, DEPENDS_ON
from .validation import dns1123_subdomain_error

MAX_DEPENDENCIES = 100


class DependencyType(StrEnum):
    """When a dependency is met."""

    AFTER_OK = "afterok"
    """The job is Completed."""
    AFTER_NOT_OK = "afternotok"
    """It has ended otherwise."""
    AFTER_ANY = "afterany"
    """It has ended."""
    SINGLETON = "singleton"
    """All jobs of the same name and user that were created before have ended."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """One dependency."""

    type: DependencyType
    job: str = ""
    """Name of the other job; empty for a singleton."""

    @classmethod
    def parse(cls, text: str) -> "Dependency":
        """Return the dependency of ``afterok:NAME`` or ``singleton``.

        Raises:
            ValueError: it is malformed.
        """
        kind, colon, job = text.partition(":")
        if kind not in set(DependencyType):
            raise ValueError(f"{text!r} is none of {', '.join(DependencyType)}")
        found = DependencyType(kind)
        if (found is DependencyType.SINGLETON) == bool(colon):
            raise ValueError(f"{text!r} is neither TYPE:JOB nor singleton")
        if colon and (problem := dns1123_subdomain_error(job)):
            raise ValueError(f"{text!r}: {problem}")
        return cls(found, job)

    def __str__(self) -> str:
        """Return the text of the annotation."""
        return f"{self.type}:{self.job}" if self.job else str(self.type)


def parse_dependencies(text: str) -> Sequence[Dependency]:
    """Return the dependencies of an annotation, each once.

    Raises:
        ValueError: one is malformed, or there are too many.
    """
    found = list(dict.fromkeys(Dependency.parse(each) for each in text.split(",")))
    if len(found) > MAX_DEPENDENCIES:
        raise ValueError(f"{len(found)} dependencies are more than {MAX_DEPENDENCIES}")
    return found


def dependencies_of(annotations: Mapping[str, str]) -> Sequence[Dependency]:
    """Return the dependencies of a job.

    Raises:
        ValueError: the annotation is malformed, which admission denies.
    """
    text = annotations.get(DEPENDS_ON)
    return [] if text is None else parse_dependencies(text)


def is_met(kind: DependencyType, phase: str | None) -> bool | None:
    """Return whether a dependency on a job in *phase* is met; ``None`` while that is not known.

    *phase* is ``None`` for a job that does not exist: how it has ended is not known.
    """
    if phase is not None and phase not in FINAL_PHASES:
        return None
    match kind:
        case DependencyType.AFTER_OK:
            return phase == JobPhase.COMPLETED
        case DependencyType.AFTER_NOT_OK:
            return phase is not None and phase != JobPhase.COMPLETED
        case _:
            return True


def begin_of(annotations: Mapping[str, str]) -> datetime | None:
    """Return the time before which a job does not begin; ``None`` if it has none.

    Raises:
        ValueError: it is malformed, which admission denies.
    """
    text = annotations.get(BEGIN)
    return None if text is None else times.parse(text)


def dependency_errors(name: str, annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the annotations of the job *name*."""
    try:
        if any(each.job == name for each in dependencies_of(annotations)):
            raise ValueError("a job cannot depend on itself")
    except ValueError as error:
        text = quote(annotations[DEPENDS_ON])
        yield f"metadata.annotations[{DEPENDS_ON}]: Invalid value: {text}: {error}"
    try:
        begin_of(annotations)
    except ValueError as error:
        yield f"metadata.annotations[{BEGIN}]: Invalid value: {quote(annotations[BEGIN])}: {error}"
