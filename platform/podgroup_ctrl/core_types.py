"""What the podgroup controller reads of pods and their owners."""

from collections.abc import Iterable

from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import GROUP_NAME
from ..model.pod import FINISHED
from ..model.pod_resources import PodResources


class PodSpec(PodResources, frozen=True):
    """The part of a pod's spec that its PodGroup is made of."""

    scheduler_name: str = ""
    priority_class_name: str = ""


class PodStatus(ApiStruct, frozen=True):
    """Where the pod is in its life."""

    phase: str = ""


class Pod(ApiStruct, frozen=True):
    """A pod that may need a PodGroup."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_finished(self) -> bool:
        """It will not run any more."""
        return self.status.phase in FINISHED

    @property
    def podgroup_name(self) -> str:
        """Name of the PodGroup that the pod says it belongs to; empty if none."""
        return self.metadata.annotations.get(GROUP_NAME, "")

    @property
    def generated_podgroup_name(self) -> str:
        """Name of the PodGroup made for it: after its controller, or after itself."""
        controller = self.metadata.controller
        return f"podgroup-{controller.uid if controller else self.metadata.uid}"

    @property
    def generated_podgroup_key(self) -> str:
        """Key of that PodGroup."""
        return f"{self.metadata.namespace}/{self.generated_podgroup_name}"

    @property
    def is_managed(self) -> bool:
        """It belongs to no PodGroup yet, or to the one made for it."""
        return self.podgroup_name in ("", self.generated_podgroup_name)


class OwnerSpec(ApiStruct, frozen=True):
    """How many pods an owner wants."""

    replicas: int | None = None


class Owner(ApiStruct, frozen=True):
    """A ReplicaSet, StatefulSet, DaemonSet or Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: OwnerSpec = OwnerSpec()


def index_by_podgroup(pod: Pod) -> Iterable[str]:
    """Index of pods by the PodGroup that is made for them."""
    return (pod.generated_podgroup_key,) if pod.is_managed else ()
