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


@dataclass(frozen=True, slots=True, init=False)
class DesiredObject:
    """An object that a job needs as long as it has pods."""

    resource: Resource
    name: str
    build: Callable[[], JsonObject]
    """Builds the object; called in a thread, and only if the object does not exist."""
    synced_data: Mapping[str, str] = field(default_factory=dict)
    """Entries of ``data`` that are updated when the job is scaled; others are not changed."""

    def __init__(
        self,
        *,
        resource: Resource,
        name: str,
        build: Callable[[], JsonObject],
        synced_data: Mapping[str, str] | None = None,
        follow: Mapping[str, str] | None = None,
    ) -> None:
        """*follow* is the name of *synced_data* in earlier versions.

        Raises:
            TypeError: both are given.
        """
        if synced_data is not None and follow is not None:
            raise TypeError("synced_data and follow are the same argument")
        object.__setattr__(self, "resource", resource)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "build", build)
        object.__setattr__(self, "synced_data", dict(synced_data or follow or {}))

    @property
    def follow(self) -> Mapping[str, str]:
        """Alias of ``synced_data``."""
        return self.synced_data


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


# Names of earlier versions, for plugins of other packages.

Made = JsonObject
Wanted = DesiredObject
ShapesPods = PodMutator
BringsObjects = ObjectProvider
TakesObjectsAway = ObjectRemover


@runtime_checkable
class HasComplaints(Protocol):
    """:class:`HasWarnings` with the attribute's name of earlier versions."""

    complaints: tuple[str, ...]


@runtime_checkable
class ChecksJobs(Protocol):
    """:class:`JobValidator` with the method's name of earlier versions."""

    def complaints_about(self, job: Job) -> Sequence[str]:
        """Return what ``validate_job`` returns."""
        ...
