"""Volcano's Command (``bus.volcano.sh/v1alpha1``): an order to a Job or a Queue.

It is carried out, then deleted by the controller of its target.
"""

from .base import ApiStruct
from .meta import ObjectMeta, OwnerReference
from .names import JOBS, QUEUES, Resource
from .validation import dns1123_subdomain_error


class Command(ApiStruct, frozen=True):
    """An order; *action* is one of :class:`~batholith.model.job.Action`."""

    metadata: ObjectMeta = ObjectMeta()
    action: str = ""
    target: OwnerReference | None = None
    reason: str = ""
    message: str = ""

    def targets_kind(self, kind: Resource) -> bool:
        """Whether the target is of *kind*."""
        target = self.target
        return target is not None and (target.api_version, target.kind) == (
            kind.api_version,
            kind.kind,
        )

    @property
    def sort_key(self) -> tuple[str, int]:
        """Sorts Commands by when they were made: the order in which they are obeyed."""
        meta = self.metadata
        return meta.creation_timestamp or "", int(meta.resource_version or 0)


def target_name_error(name: str) -> str:
    """Why no Job and no Queue can have the *name* that a Command gives for its target, if so."""
    problem = dns1123_subdomain_error(name) if name else "it is empty"
    return f"cannot obey: target name {name[:253]!r} is invalid: {problem}" if problem else ""


def target_kind_error(command: Command) -> str:
    """Why no controller will ever obey *command*, judging by the kind of its target, if so."""
    target = command.target
    if target is None:
        return "cannot obey: no target is named"
    if not target.api_version or not target.kind:
        return "cannot obey: the target has no apiVersion or no kind"
    ours = command.targets_kind(JOBS) or command.targets_kind(QUEUES)
    if ours or target.api_version.partition("/")[0] not in (JOBS.group, QUEUES.group):
        return ""  # perhaps another controller knows that kind
    return f"cannot obey: {target.api_version} has no {target.kind} that takes Commands"
