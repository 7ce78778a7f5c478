"""Volcano's Command (``bus.volcano.sh/v1alpha1``): requests an action on a Job or Queue.

The controller of the target executes the Command, then deletes it.
"""

from .base import ApiStruct
from .meta import ObjectMeta, OwnerReference
from .names import JOBS, OPERATION, QUEUES, Resource
from .validation import dns1123_subdomain_error

MAX_OPERATION = 36
"""Maximum length of the id of an operation, a UUID."""


class Command(ApiStruct, frozen=True):
    """A Command; *action* is one of :class:`~batholith.model.job.Action`."""

    metadata: ObjectMeta = ObjectMeta()
    action: str = ""
    target: OwnerReference | None = None
    reason: str = ""
    message: str = ""

    def targets_kind(self, kind: Resource) -> bool:
        """Return whether the target is of *kind*."""
        target = self.target
        return target is not None and (target.api_version, target.kind) == (
            kind.api_version,
            kind.kind,
        )

    @property
    def operation(self) -> str:
        """The operation of the REST API that created the Command; empty if there is none."""
        operation = self.metadata.annotations.get(OPERATION, "")
        return operation if len(operation) <= MAX_OPERATION else ""

    @property
    def sort_key(self) -> tuple[str, int]:
        """Creation time and resourceVersion: the order in which Commands are executed."""
        meta = self.metadata
        return meta.creation_timestamp or "", int(meta.resource_version or 0)


def target_name_error(name: str) -> str:
    """Return why *name* cannot be the name of a Job or Queue, or ``""``."""
    problem = dns1123_subdomain_error(name) if name else "name is empty"
    return f"cannot execute: target name {name[:253]!r} is invalid: {problem}" if problem else ""


def target_kind_error(command: Command) -> str:
    """Return why no controller will ever execute *command*, given its target's kind, or ``""``."""
    target = command.target
    if target is None:
        return "cannot execute: no target"
    if not target.api_version or not target.kind:
        return "cannot execute: the target has no apiVersion or kind"
    is_known = command.targets_kind(JOBS) or command.targets_kind(QUEUES)
    if is_known or target.api_version.partition("/")[0] not in (JOBS.group, QUEUES.group):
        return ""  # Another controller may own that kind.
    return f"cannot execute: {target.api_version} {target.kind} does not support Commands"
