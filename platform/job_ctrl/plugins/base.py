"""Interface of job plugins: a plugin implements one or more extension points.

A plugin is created from the arguments in the job's spec, has no state and does no I/O: it mutates
pods, and returns the objects that the job needs in addition. The controller creates them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ...model.job import Job
from ...model.names import Resource
from ..pods import Pod

JsonObject = dict[str, Any]
"""An object to create, as decoded JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredObject:
    """An object that a job needs as long as it has pods."""

    resource: Resource
    name: str
    build: Callable[[], JsonObject]
    """Builds the object; called in a thread, and only if the object does not exist."""
    synced_data: Mapping[str, str] = field(default_factory=dict)
    """Entries of ``data`` that are updated when the job is scaled; others are not changed."""


@runtime_checkable
class PodMutator(Protocol):
    """A plugin that changes pods before they are created."""

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Change *pod*, which is decoded JSON."""
        ...


@runtime_checkable
class ObjectProvider(Protocol):
    """A plugin that needs objects in addition to the pods."""

    def on_job_add(self, job: Job) -> Sequence[DesiredObject]:
        """Return the objects to create before the first pod, and to update later."""
        ...


@runtime_checkable
class ObjectRemover(Protocol):
    """A plugin whose objects are deleted when the job ends, and not only with the job."""

    def on_job_delete(self, job: Job) -> Sequence[tuple[Resource, str]]:
        """Return the objects to delete, by kind and name."""
        ...


@runtime_checkable
class HasWarnings(Protocol):
    """A plugin with invalid arguments."""

    warnings: tuple[str, ...]
    """One sentence per argument, for an event on the job."""


@runtime_checkable
class JobValidator(Protocol):
    """A plugin that requires something of the job."""

    def validate_job(self, job: Job) -> Sequence[str]:
        """Return why the plugin has less effect than expected, one sentence each."""
        ...


class Factory(Protocol):
    """Creates a plugin from its arguments; entry points name factories."""

    def __call__(self, arguments: Sequence[str], /) -> object:
        """Return a plugin; invalid arguments become its ``warnings``."""
        ...
