"""What distinguishes the kinds of training jobs, as data."""

from dataclasses import dataclass

from ..names import Resource
from .types import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingKind:
    """One kind of training jobs."""

    resource: Resource
    description: str
    """Text for ``kubectl explain``."""
    framework: str
    """Value of the metrics label ``framework``."""
    replica_field: str
    """Field of the replica types in ``spec``, e.g. ``tfReplicaSpecs``."""
    replica_types: tuple[str, ...]
    """Replica types in the order in which they are reconciled."""
    main_container: str
    port_name: str
    port: int
    adds_port: bool = True
    """Whether the port is added to the main container if it is missing."""
    restart_policy: RestartPolicy
    """Default of the replica types."""
    needs_main_container: bool = True
    """Whether each template must have the main container."""
    has_services: bool = True
    """Whether each pod has a Service of its name, which must be a DNS label."""
    scalable: bool = False
    """Whether the kind has ``/scale``, for the workers."""

    @property
    def name(self) -> str:
        """Return the kind's name, e.g. ``TFJob``."""
        return self.resource.kind

    @property
    def controller_name(self) -> str:
        """Return the value of the label of the operator's name, e.g. ``tfjob-controller``."""
        return f"{self.name.lower()}-controller"

    @property
    def webhook_path(self) -> str:
        """Return the path of the validating webhook."""
        return f"/validate-kubeflow-org-v1-{self.name.lower()}"

    @property
    def webhook_name(self) -> str:
        """Return the name of the validating webhook."""
        return f"validator.{self.name.lower()}.training-operator.kubeflow.org"

    def canonical_type(self, text: str) -> str | None:
        """Return the replica type whose letters *text* has, upper or lower; ``None`` if unknown."""
        lowered = text.lower()
        return next((each for each in self.replica_types if each.lower() == lowered), None)
