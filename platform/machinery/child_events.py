"""Event handler of the children of a controller, such as the pods of a Job.

It lowers the expectations, removes pods from the expected removals of finalizers, adds keys of
owners, and passes orphans with a tracking finalizer to their queue. Only the informer's events are
observations; a child without controller never lowers an expectation.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic

from ..model.meta import HasMeta, ObjectMeta
from ..model.names import Resource
from .expectations import ControllerExpectations, FinalizerExpectations
from .keys import resolve_controller
from .pod_control import Child

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizerTracking:
    """How children with a tracking finalizer are handled."""

    finalizer: str
    """The tracking finalizer."""

    expectations: FinalizerExpectations
    """Children whose finalizer is being removed, by the owner's key."""

    add_orphan: Callable[[ObjectMeta], object]
    """Gets each child without a controller that will process it: :meth:`OrphanQueue.add`."""

    is_finished: Callable[[str], bool]
    """Whether the owner with a key is finished, so that it processes no more children."""


@dataclass(frozen=True, kw_only=True)
class ChildEventHandler(Generic[Child]):
    """Event handler of an informer of children; call it with the old and the new object.

    A terminating child counts as deleted, since its replacement does not wait for the kubelet. If
    it is reported for the first time, its creation is observed, too: children are expected by name,
    so that this cannot lower the expectation of another child.
    """

    owner: Resource
    """The resource that controls the children."""

    get_owner: Callable[[str], HasMeta | None]
    """Returns an owner by its key, from the informer."""

    add: Callable[[str], object]
    """Adds the key of an owner to the queue, at once or after a delay."""

    expectations: ControllerExpectations

    matching_owners: Callable[[Child], Iterable[str]] = lambda child: ()
    """Returns the keys of the owners whose selector matches a child without controller."""

    tracking: FinalizerTracking | None = None

    def __call__(self, old: Child | None, new: Child | None) -> None:
        """Handle an add, an update or a delete."""
        if new is None:
            if old is not None:
                self._on_delete(old, final=True)
        elif new.metadata.deletion_timestamp is not None:
            if old is None and (key := self._owner_key(new)) is not None:
                self.expectations.creation_observed(key, new.metadata.name)
            self._on_delete(new, final=False)
        elif old is None:
            self._on_add(new)
        elif old.metadata.resource_version != new.metadata.resource_version:
            self._on_update(old, new)

    def _on_add(self, child: Child) -> None:
        if child.metadata.controller is None:
            self._on_orphan(child, adoptable=True)
            return
        key = self._owner_key(child)
        if key is not None:
            self.expectations.creation_observed(key, child.metadata.name)
            self.add(key)

    def _on_update(self, old: Child, new: Child) -> None:
        before, after = old.metadata, new.metadata
        reference_changed = before.controller != after.controller
        if reference_changed:
            key = self._owner_key(old)
            if key is not None:
                self.add(key)
        if after.controller is None:
            self._on_orphan(new, adoptable=reference_changed or before.labels != after.labels)
            return
        key = self._owner_key(new)
        if key is not None:
            if not self._is_tracked(after):
                self._removal_observed(key, after)
            self.add(key)

    def _on_delete(self, child: Child, *, final: bool) -> None:
        meta = child.metadata
        key = self._owner_key(child)
        if key is not None:
            self.expectations.deletion_observed(key, meta.uid)
            if final or not self._is_tracked(meta):
                self._removal_observed(key, meta)
        if key is None or (self.tracking is not None and self.tracking.is_finished(key)):
            if not final:
                self._add_orphan(meta)
            return
        self.add(key)

    def _on_orphan(self, child: Child, *, adoptable: bool) -> None:
        self._add_orphan(child.metadata)
        keys = [*self.matching_owners(child)] if adoptable else []
        if len(keys) > 1:
            fields = {"child": child.metadata.key, "kind": self.owner.kind, "owners": keys}
            log.warning("child matches the selectors of several owners", extra=fields)
        for key in keys:
            self.add(key)

    def _owner_key(self, child: Child) -> str | None:
        owner = resolve_controller(child.metadata, self.owner, self.get_owner)
        return owner.metadata.key if owner is not None else None

    def _is_tracked(self, child: ObjectMeta) -> bool:
        return self.tracking is not None and self.tracking.finalizer in child.finalizers

    def _removal_observed(self, key: str, child: ObjectMeta) -> None:
        if self.tracking is not None:
            self.tracking.expectations.removal_observed(key, child.uid)

    def _add_orphan(self, child: ObjectMeta) -> None:
        if self.tracking is not None and self._is_tracked(child):
            self.tracking.add_orphan(child)
