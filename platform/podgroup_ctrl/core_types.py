"""Fields of pods and their owners that the PodGroup controller reads."""

from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import GROUP_NAME
from ..model.native_podgroup import PodSchedulingGroup
from ..model.pod import FINISHED, PodPhaseStatus
from ..model.pod_resources import PodResources


class PodSpec(PodResources, frozen=True):
    """Fields of a pod's spec from which its PodGroup is built."""

    scheduler_name: str = ""
    priority_class_name: str = ""
    scheduling_group: PodSchedulingGroup | None = None


class Pod(ApiStruct, frozen=True):
    """A pod that may need a PodGroup."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodPhaseStatus = PodPhaseStatus()

    @property
    def is_finished(self) -> bool:
        """Whether the pod is finished."""
        return self.status.phase in FINISHED

    @property
    def podgroup_name(self) -> str:
        """Name of the PodGroup in the pod's annotation; empty if none."""
        return self.metadata.annotations.get(GROUP_NAME, "")

    @property
    def generated_podgroup_name(self) -> str:
        """Name of the PodGroup generated for the pod, after its controller or the pod itself; a
        grouper may name another one."""
        controller = self.metadata.controller
        return f"podgroup-{controller.uid if controller else self.metadata.uid}"


class OwnerSpec(ApiStruct, frozen=True):
    """Replicas and deadline of an owner."""

    replicas: int | None = None
    active_deadline_seconds: int | None = None


class Owner(ApiStruct, frozen=True):
    """A ReplicaSet, StatefulSet, DaemonSet or Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: OwnerSpec = OwnerSpec()
