"""What a job plugin is: anything that can do one or more small things.

A plugin is made anew from the arguments in the job's spec, keeps no state and does no I/O: it
shapes pods, and it says which objects the job needs beside them. The controller makes those.
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
    """Makes the object; called only if it is not there, in a thread (it may take long)."""
    synced_data: Mapping[str, str] = field(default_factory=dict)
    """Entries of ``data`` that are kept as here when the job is scaled; others are left alone."""


@runtime_checkable
class PodMutator(Protocol):
    """A plugin that changes pods before they are created."""

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Change *pod* in place."""
        ...


@runtime_checkable
class ObjectProvider(Protocol):
    """A plugin that needs objects beside the pods."""

    def on_job_add(self, job: Job) -> Sequence[DesiredObject]:
        """The objects to make before the first pod, and to keep up to date."""
        ...


@runtime_checkable
class ObjectRemover(Protocol):
    """A plugin whose objects go when the job ends (all go with the Job itself anyhow)."""

    def on_job_delete(self, job: Job) -> Sequence[tuple[Resource, str]]:
        """The objects to remove, by kind and name."""
        ...


@runtime_checkable
class HasWarnings(Protocol):
    """A plugin that could not make sense of all its arguments."""

    warnings: tuple[str, ...]
    """One sentence for each, for an event on the job."""


@runtime_checkable
class JobValidator(Protocol):
    """A plugin that some jobs do not fit."""

    def validate_job(self, job: Job) -> Sequence[str]:
        """What of *job* makes the plugin do less than its user expects; a sentence each."""
        ...


class Factory(Protocol):
    """Makes a plugin from its arguments; what the entry points name."""

    def __call__(self, arguments: Sequence[str], /) -> object:
        """A plugin that acts as *arguments* say; arguments that make no sense are complained of."""
        ...
