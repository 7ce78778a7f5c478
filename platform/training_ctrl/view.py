"""The state of a job that decisions depend on. Immutable."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..machinery.pod_control import Owner
from ..model.meta import ObjectMeta
from ..model.names import Resource
from ..model.training.types import TrainingJob
from .core_types import DependentObject, Group, Pod, Service
from .frameworks.base import Framework, PodSettings
from .gangs import Gang


def _no_object(resource: Resource, name: str) -> DependentObject | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """A job and what belongs to it."""

    framework: Framework[Any]
    job: TrainingJob[Any]
    """The job with defaults."""
    now: datetime
    pods: tuple[Pod, ...] = ()
    services: tuple[Service, ...] = ()
    observed_pods: frozenset[str] = frozenset()
    """Uids of the pods that the informer has, also of those that this controller has deleted."""
    claim_errors: tuple[Exception, ...] = ()
    """Why other pods and Services could not be adopted or released."""
    gang: Gang | None = None
    """How pods are scheduled together, if they are."""
    podgroup: Group | None = None
    """The PodGroup of the job's name, under any controller."""
    find_object: Callable[[Resource, str], DependentObject | None] = _no_object
    """Returns an object in the job's namespace."""
    served: Callable[[Resource], bool] = lambda resource: True
    """Whether the API server has a resource."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Values of the PriorityClasses by name."""
    settings: PodSettings = field(default_factory=PodSettings)
    size_error: str = ""
    """Why the job must not get pods: it has too many."""
    ttl_waits_for_history: bool = False
    """An expired job is deleted once the recorder of the history has annotated it."""

    def controls(self, meta: ObjectMeta) -> bool:
        """Whether the job controls an object."""
        return self.job.metadata.controls(meta)

    @property
    def owner(self) -> Owner:
        """The job as the owner of what is created for it."""
        return Owner(resource=self.framework.kind.resource, metadata=self.job.metadata)

    def conflict_message(self, resource: Resource, name: str) -> str:
        """Return the text for an object that has a name which the job needs and is not its own."""
        kind = self.framework.kind.name
        return (
            f'Resource "{name}" of {kind}Kind "{resource.kind}" already exists '
            f"and is not managed by {kind}"
        )
