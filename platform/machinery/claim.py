"""Claim the children of an object: adopt by selector, release by controller reference.

A controller passes *all* objects of the namespace, so that children which no longer match the
selector are released. Before the first adoption of a pass the owner is read from the API server:
the informer's copy may be of an object that is deleted by now.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Generic

import msgspec

from ..kube.errors import InvalidError, NotFoundError
from ..model.meta import HasMeta
from ..model.selectors import Selector
from .batches import run_concurrently
from .controller import RequeueError
from .pod_control import Child, ObjectControl, Owner, finalizer_removal


class OwnerReplacedError(RequeueError):
    """The owner does not exist any more or is being deleted, so it adopts no children."""


class ClaimError(ExceptionGroup[Exception]):
    """Some children could not be adopted or released; the others are claimed."""


class ClaimAction(Enum):
    """What to do with a candidate."""

    IGNORE = "ignore"
    KEEP = "keep"
    """It is a child of the owner."""
    ADOPT = "adopt"
    RELEASE = "release"


def claim_action(owner: Owner, child: HasMeta, *, matches: bool) -> ClaimAction:
    """Return what to do with *child*, given whether the owner's selector *matches* it."""
    controller = child.metadata.controller
    owner_deleted = owner.metadata.deletion_timestamp is not None
    if controller is not None:
        if not owner.metadata.controls(child.metadata):
            return ClaimAction.IGNORE
        if matches:
            return ClaimAction.KEEP
        return ClaimAction.IGNORE if owner_deleted else ClaimAction.RELEASE
    if not matches or owner_deleted or child.metadata.deletion_timestamp is not None:
        return ClaimAction.IGNORE
    return ClaimAction.ADOPT


@dataclass(frozen=True)
class Claim(Generic[Child]):
    """Result of a pass."""

    children: tuple[Child, ...]
    """The owner's children, as passed: an adopted one without its new reference and finalizer."""

    adopted: frozenset[str]
    """Uids of the children that were adopted in this pass."""

    errors: tuple[Exception, ...]
    """Of the other adoptions and releases."""

    def raise_for_errors(self) -> None:
        """Raise the errors, once the children are processed as far as possible.

        Raises:
            ClaimError: there are any.
        """
        if self.errors:
            raise ClaimError("cannot claim all children", self.errors)


@dataclass(frozen=True, kw_only=True)
class Claimer(Generic[Child]):
    """Claims the children of one owner; see :meth:`claim`."""

    control: ObjectControl[Child]
    """Writes the children."""

    owner: Owner
    """The object, as in the informer."""

    selector: Selector
    """Selects the children by their labels."""

    read_owner: Callable[[], Awaitable[HasMeta]]
    """Reads the owner from the API server; NotFoundError if it does not exist."""

    finalizer: str = ""
    """Added to an adopted child and removed from a released one."""

    async def claim(self, candidates: Iterable[Child]) -> Claim[Child]:
        """Adopt and release candidates in one pass; an error does not end it."""
        actions = {child.metadata.uid: (child, self._action(child)) for child in tuple(candidates)}
        adopting = [child for child, action in actions.values() if action is ClaimAction.ADOPT]
        releasing = [child for child, action in actions.values() if action is ClaimAction.RELEASE]
        not_found: set[str] = set()

        async def adopt(child: Child) -> None:
            try:
                await self.control.patch(child.metadata, self._adoption())
            except NotFoundError:
                not_found.add(child.metadata.uid)

        errors = list[Exception]()
        if adopting:
            try:
                await self._check_owner()
            except Exception as error:
                errors, adopting = [error], []
        adoption = await run_concurrently(adopting, adopt)
        release = await run_concurrently(releasing, self._release)
        adopted = {child.metadata.uid for child in adoption.succeeded} - not_found
        children = (
            child
            for uid, (child, action) in actions.items()
            if action is ClaimAction.KEEP or uid in adopted
        )
        errors += [error for _, error in (*adoption.failed, *release.failed)]
        return Claim(tuple(children), frozenset(adopted), tuple(errors))

    def _action(self, child: Child) -> ClaimAction:
        matches = self.selector.matches(child.metadata.labels)
        return claim_action(self.owner, child, matches=matches)

    async def _check_owner(self) -> None:
        """Read the owner.

        Raises:
            OwnerReplacedError: it must not adopt.
            ApiError, ConnectionLostError: it cannot be read.
        """
        owner = self.owner
        what = f"{owner.resource.kind} {owner.metadata.key}"
        try:
            current = (await self.read_owner()).metadata
        except NotFoundError as error:
            raise OwnerReplacedError(f"cannot adopt: {what} does not exist") from error
        if current.uid != owner.metadata.uid:
            text = f"has uid {current.uid} instead of {owner.metadata.uid}"
            raise OwnerReplacedError(f"cannot adopt: {what} {text}")
        if current.deletion_timestamp is not None:
            raise OwnerReplacedError(f"cannot adopt: {what} is being deleted")

    def _adoption(self) -> Mapping[str, object]:
        metadata: dict[str, object] = {
            "ownerReferences": [msgspec.to_builtins(self.owner.controller_reference())]
        }
        if self.finalizer:
            metadata["finalizers"] = [self.finalizer]
        return {"metadata": metadata}

    async def _release(self, child: Child) -> None:
        removed = {"$patch": "delete", "uid": self.owner.metadata.uid}
        metadata: dict[str, object] = {"ownerReferences": [removed]}
        if self.finalizer:
            metadata |= finalizer_removal(self.finalizer)["metadata"]
        # Ignored: the child is deleted or replaced, or has no such reference.
        with suppress(NotFoundError, InvalidError):
            await self.control.patch(child.metadata, {"metadata": metadata})
