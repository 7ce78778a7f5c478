"""Controls that record writes instead of sending them: for tests and dry runs.

Each call is recorded first and then fails if it is to fail, so that a test sees every attempt.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from ..model.meta import HasMeta, ObjectMeta
from .pod_control import Child, Created, Json, Owner, check_child, with_uid

T = TypeVar("T", bound=HasMeta)


@dataclass(slots=True)
class Failures:
    """Which calls fail: those after the first *after*, at most *count*, with *error*."""

    error: Exception
    after: int = 0
    count: int | None = None
    calls: int = 0
    """Calls so far."""

    def check(self) -> None:
        """Count a call; raise the error if it is to fail."""
        self.calls += 1
        failed = self.calls - self.after
        if failed > 0 and (self.count is None or failed <= self.count):
            raise self.error


@dataclass(kw_only=True)
class RecordingControl(Generic[Child]):
    """An :class:`~batholith.machinery.pod_control.ObjectControl` that sends nothing."""

    view: type[Child]
    """Type of the created children."""

    creates: list[Json] = field(default_factory=list)
    """Bodies of the creations."""

    patches: list[tuple[ObjectMeta, Json]] = field(default_factory=list)
    """Patches, each with the metadata of its child."""

    deletes: list[ObjectMeta] = field(default_factory=list)
    """Metadata of the deleted children."""

    fail_creates: Failures | None = None
    fail_patches: Failures | None = None
    fail_deletes: Failures | None = None

    _uids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1), repr=False)

    async def create(self, owner: Owner, body: Json) -> Created[Child]:
        """Record a creation; return the child with a new uid."""
        check_child(body)
        self.creates.append(body)
        if self.fail_creates is not None:
            self.fail_creates.check()
        number = next(self._uids)
        metadata = {**body["metadata"], "uid": f"uid-{number}", "resourceVersion": str(number)}
        return Created(msgspec.convert({**body, "metadata": metadata}, self.view))

    async def patch(self, child: ObjectMeta, body: Mapping[str, object]) -> None:
        """Record a patch as it would be sent."""
        self.patches.append((child, with_uid(child, body)))
        if self.fail_patches is not None:
            self.fail_patches.check()

    async def delete(self, owner: Owner, child: ObjectMeta) -> None:
        """Record a deletion."""
        self.deletes.append(child)
        if self.fail_deletes is not None:
            self.fail_deletes.check()


@dataclass(kw_only=True)
class RecordingStatusWriter(Generic[T]):
    """A :class:`~batholith.machinery.status_writer.StatusWriter` that sends nothing."""

    view: type[T]
    """Type of the objects."""

    patches: list[tuple[ObjectMeta, dict[str, Any]]] = field(default_factory=list)
    """Patches of the status, each with the metadata of its object."""

    fail: Failures | None = None

    async def write(self, metadata: ObjectMeta, patch: Mapping[str, object]) -> T:
        """Record a patch; return an object with this metadata and the patched fields."""
        self.patches.append((metadata, dict(patch)))
        if self.fail is not None:
            self.fail.check()
        status = {key: value for key, value in patch.items() if value is not None}
        body = {"metadata": msgspec.to_builtins(metadata), "status": status}
        return msgspec.convert(body, self.view)
