"""The node that a cycle has chosen for a pod."""

from dataclasses import dataclass

from ...model.log_fields import object_fields
from ...model.podgroup import PodGroup
from ..state.gangs.device_claims import DeviceBinding
from ..state.gangs.pvcs import ClaimBinding
from ..state.nodes.node_matrix import NodeInfo
from ..state.podinfo.declared_fields import FieldValues


@dataclass(frozen=True, slots=True)
class GangRef:
    """A gang, and its PodGroup as the cycle saw it."""

    key: str
    podgroup: PodGroup | None = None

    def log_fields(self) -> dict[str, str]:
        """Return the fields that name the gang in logs."""
        if self.podgroup is None:
            return {"podgroup": self.key}
        return object_fields("podgroup", self.podgroup.metadata)


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod and the node that is chosen for it."""

    namespace: str
    name: str
    uid: str
    node: str
    gang: GangRef | None = None
    """Its gang, if that has a PodGroup."""

    node_info: NodeInfo | None = None
    """The node as the cycle saw it."""

    fields: FieldValues = ()
    """What plugins have declared of the pod, see :meth:`.PodFields.of`."""

    volumes: tuple[ClaimBinding, ...] = ()
    """What is to be bound to PVCs of the pod before it is bound."""

    devices: tuple[DeviceBinding, ...] = ()
    """What is to be written into its claims of devices before it is bound."""

    @property
    def group_key(self) -> str:
        """Equal for the pods of a gang, and different for other pods."""
        return self.gang.key if self.gang is not None else self.uid
