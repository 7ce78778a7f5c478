"""The groupers by name, and how the PodGroup of a pod is named."""

from collections.abc import Iterable, Mapping, Sequence

from ..core_types import Pod
from . import annotation, argo, jobset, leader_worker_set, mpi, ray, spark
from .base import Grouper, Membership

GROUPERS: Mapping[str, Grouper] = {
    module.GROUPER.name: module.GROUPER
    for module in (annotation, jobset, leader_worker_set, ray, spark, mpi, argo)
}
"""In the order in which they are tried."""
DEFAULT = (annotation.GROUPER.name,)
"""Those that read no objects of other projects."""


class Grouping:
    """The groupers that are enabled."""

    def __init__(self, names: Sequence[str] = DEFAULT) -> None:
        """Enable the groupers with *names*, each a key of :data:`GROUPERS`."""
        self._groupers = [grouper for name, grouper in GROUPERS.items() if name in names]

    def of(self, pod: Pod) -> tuple[Grouper, Membership] | None:
        """Return the grouper of *pod*; ``None`` if its PodGroup is named after its controller."""
        for grouper in self._groupers:
            found = grouper.membership(pod)
            if found is not None:
                return grouper, found
        return None

    def name_of(self, pod: Pod) -> str:
        """Return the name of the PodGroup generated for *pod*."""
        found = self.of(pod)
        return pod.generated_podgroup_name if found is None else found[1].podgroup

    def key_of(self, pod: Pod) -> str:
        """Return the key of that PodGroup."""
        return f"{pod.metadata.namespace}/{self.name_of(pod)}"

    def is_managed(self, pod: Pod) -> bool:
        """Whether *pod* has no PodGroup yet, or the generated one; one of Kubernetes itself is
        none of ours."""
        return pod.spec.scheduling_group is None and pod.podgroup_name in ("", self.name_of(pod))

    def index(self, pod: Pod) -> Iterable[str]:
        """Index of pods by their generated PodGroup."""
        return (self.key_of(pod),) if self.is_managed(pod) else ()
