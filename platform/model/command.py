"""Volcano's Command (``bus.volcano.sh/v1alpha1``): an order to a Job or a Queue.

It is carried out, then deleted by the controller of its target.
"""

from .base import Part
from .meta import ObjectMeta, OwnerReference


class Command(Part, frozen=True):
    """An order; *action* is one of :class:`~batholith.model.job.Action`."""

    metadata: ObjectMeta = ObjectMeta()
    action: str = ""
    target: OwnerReference | None = None
    reason: str = ""
    message: str = ""

    @property
    def age(self) -> tuple[str, int]:
        """Sorts Commands by when they were made: the order in which they are obeyed."""
        meta = self.metadata
        return meta.creation_timestamp or "", int(meta.resource_version or 0)
