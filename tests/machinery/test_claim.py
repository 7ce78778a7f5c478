"""Adoption and release of children."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.children import LABELS, OWNER, Anything, Pod, pod

from batholith.kube.errors import (
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
)
from batholith.machinery.claim import (
    Claim,
    ClaimAction,
    Claimer,
    ClaimError,
    OwnerReplacedError,
    claim_action,
)
from batholith.machinery.controller import RequeueError
from batholith.machinery.pod_control import Created, Json, Owner, with_uid
from batholith.model.meta import HasMeta, ObjectMeta
from batholith.model.selectors import parse_label_selector

US = msgspec.to_builtins(OWNER.controller_reference())
OTHER = {**US, "uid": "other-uid"}
DELETED_AT = "2026-01-01T00:00:00Z"
DELETED_OWNER = replace(
    OWNER, metadata=msgspec.structs.replace(OWNER.metadata, deletion_timestamp=DELETED_AT)
)
FINALIZER = "example.com/tracking"


@dataclass
class RecordingControl:
    """Records patches, of which the first *failures* fail with *error*."""

    patches: list[tuple[ObjectMeta, Json]] = field(default_factory=list)
    error: Exception | None = None
    failures: float = math.inf

    async def patch(self, child: ObjectMeta, body: Mapping[str, object]) -> None:
        self.patches.append((child, with_uid(child, body)))
        if self.error is not None and len(self.patches) <= self.failures:
            raise self.error

    async def create(self, owner: Owner, body: Json) -> Created[Pod]:
        raise AssertionError("claiming creates nothing")

    async def delete(self, owner: Owner, child: ObjectMeta) -> None:
        raise AssertionError("claiming deletes nothing")


class Pass:
    """Claims against a recording control; counts the reads of the owner."""

    def __init__(self, owner: Owner = OWNER, *, finalizer: str = "") -> None:
        self.control = RecordingControl()
        self.current = owner.metadata
        self.read_error: Exception | None = None
        self.reads = 0
        self.claimer = Claimer(
            control=self.control,
            owner=owner,
            selector=parse_label_selector("app=web"),
            read_owner=self.read_owner,
            finalizer=finalizer,
        )

    async def read_owner(self) -> HasMeta:
        self.reads += 1
        if self.read_error is not None:
            raise self.read_error
        return Anything(metadata=self.current)

    async def claim(self, *candidates: Pod) -> Claim[Pod]:
        return await self.claimer.claim(candidates)

    @property
    def patched(self) -> list[str]:
        return [meta.name for meta, _ in self.control.patches]


def candidate(
    name: str, *, controller: dict[str, Any] | None, matches: bool = True, deleted: bool = False
) -> Pod:
    return pod(
        name=name,
        uid=f"uid-{name}",
        labels=LABELS if matches else {"app": "db"},
        ownerReferences=[controller] if controller else [],
        deletionTimestamp=DELETED_AT if deleted else None,
    )


KEEP, ADOPT, RELEASE, IGNORE = (
    ClaimAction.KEEP,
    ClaimAction.ADOPT,
    ClaimAction.RELEASE,
    ClaimAction.IGNORE,
)
# Controller, selector matches, owner deleted, child deleted; None is any value.
TABLE = [
    (OTHER, None, None, None, IGNORE),
    (US, True, None, None, KEEP),
    (US, False, False, None, RELEASE),
    (US, False, True, None, IGNORE),
    (None, False, None, None, IGNORE),
    (None, True, True, None, IGNORE),
    (None, True, False, True, IGNORE),
    (None, True, False, False, ADOPT),
]


@pytest.mark.parametrize("row", TABLE)
def test_table_of_actions(row: tuple[Any, ...]) -> None:
    """INV-OW-4: an owner that is being deleted adopts nothing."""
    controller, *conditions, expected = row
    values = [(True, False) if value is None else (value,) for value in conditions]
    for matches, owner_deleted, child_deleted in product(*values):
        owner = DELETED_OWNER if owner_deleted else OWNER
        child = candidate("a", controller=controller, matches=matches, deleted=child_deleted)
        assert claim_action(owner, child, matches=matches) is expected


def test_table_covers_each_case_once() -> None:
    for values in product((OTHER, US, None), (True, False), (True, False), (True, False)):
        rows = [
            row
            for row in TABLE
            if row[0] == values[0]
            and all(
                given in (None, value) for given, value in zip(row[1:4], values[1:], strict=True)
            )
        ]
        assert len(rows) == 1, values


async def test_adoption_adds_reference_and_finalizer_to_this_uid() -> None:
    """INV-OW-2."""
    one = Pass(finalizer=FINALIZER)
    claim = await one.claim(candidate("orphan", controller=None), candidate("own", controller=US))
    assert [child.metadata.name for child in claim.children] == ["orphan", "own"]
    assert claim.adopted == {"uid-orphan"}
    assert one.reads == 1
    ((_, patch),) = one.control.patches
    assert patch == {
        "metadata": {"uid": "uid-orphan", "ownerReferences": [US], "finalizers": [FINALIZER]}
    }


async def test_release_removes_reference_and_finalizer_of_this_uid() -> None:
    """INV-OW-2."""
    one = Pass(finalizer=FINALIZER)
    claim = await one.claim(candidate("former", controller=US, matches=False))
    assert claim.children == ()
    assert one.reads == 0
    ((_, patch),) = one.control.patches
    assert patch == {
        "metadata": {
            "uid": "uid-former",
            "ownerReferences": [{"$patch": "delete", "uid": "owner-uid"}],
            "$deleteFromPrimitiveList/finalizers": [FINALIZER],
        }
    }


async def test_owner_is_read_once_before_all_adoptions() -> None:
    one = Pass()
    await one.claim(*(candidate(f"orphan-{number}", controller=None) for number in range(5)))
    assert one.reads == 1
    assert len(one.control.patches) == 5


async def test_owner_is_not_read_without_adoption() -> None:
    one = Pass()
    await one.claim(candidate("own", controller=US), candidate("other", controller=OTHER))
    assert (one.reads, one.patched) == (0, [])


@pytest.mark.parametrize("change", [{"uid": "new-uid"}, {"deletion_timestamp": DELETED_AT}])
async def test_owner_that_was_replaced_or_deleted_adopts_nothing(change: dict[str, str]) -> None:
    """INV-OW-4. Releases are not affected."""
    one = Pass()
    one.current = msgspec.structs.replace(OWNER.metadata, **change)
    claim = await one.claim(
        candidate("orphan", controller=None),
        candidate("own", controller=US),
        candidate("former", controller=US, matches=False),
    )
    assert [child.metadata.name for child in claim.children] == ["own"]
    assert one.patched == ["former"]
    assert [type(error) for error in claim.errors] == [OwnerReplacedError]
    assert isinstance(claim.errors[0], RequeueError)


async def test_owner_that_does_not_exist_adopts_nothing() -> None:
    one = Pass()
    one.read_error = NotFoundError("no such object", status=404, reason="NotFound")
    claim = await one.claim(candidate("orphan", controller=None))
    assert (claim.children, one.patched) == ((), [])
    with pytest.raises(ClaimError, match="cannot claim all children") as raised:
        claim.raise_for_errors()
    assert isinstance(raised.value.exceptions[0], OwnerReplacedError)


async def test_owner_that_cannot_be_read_adopts_nothing() -> None:
    one = Pass()
    one.read_error = RequestTimeoutError("timed out")
    claim = await one.claim(candidate("orphan", controller=None))
    assert (claim.children, one.patched) == ((), [])
    assert claim.errors == (one.read_error,)


async def test_child_that_is_deleted_during_its_adoption_is_no_child() -> None:
    one = Pass()
    one.control.error = NotFoundError("no such pod", status=404)
    one.control.failures = 1
    claim = await one.claim(candidate("a", controller=None), candidate("b", controller=None))
    assert claim.adopted == {"uid-b"}
    assert [child.metadata.name for child in claim.children] == ["b"]
    claim.raise_for_errors()


@pytest.mark.parametrize("error", [NotFoundError("no such pod"), InvalidError("no such reference")])
async def test_child_that_has_no_such_reference_is_released(error: Exception) -> None:
    one = Pass()
    one.control.error = error
    claim = await one.claim(candidate("former", controller=US, matches=False))
    assert (claim.children, claim.errors) == ((), ())


async def test_errors_do_not_end_the_pass() -> None:
    one = Pass()
    error = ForbiddenError("not allowed", status=403)
    one.control.error = error
    claim = await one.claim(
        candidate("a", controller=None),
        candidate("b", controller=US, matches=False),
        candidate("own", controller=US),
        candidate("c", controller=None),
    )
    assert [child.metadata.name for child in claim.children] == ["own"]
    assert sorted(one.patched) == ["a", "b", "c"]
    assert claim.errors == (error,) * 3
    with pytest.raises(ClaimError) as raised:
        claim.raise_for_errors()
    assert raised.value.exceptions == (error,) * 3


def _patched(child: Pod, body: dict[str, Any]) -> Pod:
    """Return *child* with a patch of :class:`Claimer`, as the server applies it."""
    assert body["metadata"]["uid"] == child.metadata.uid, "INV-OW-2"
    fields: dict[str, Any] = msgspec.to_builtins(child.metadata)
    references = {each["uid"]: each for each in fields.get("ownerReferences", [])}
    for reference in body["metadata"]["ownerReferences"]:
        references[reference["uid"]] = reference
        if reference.get("$patch") == "delete":
            del references[reference["uid"]]
    finalizers = {*fields.get("finalizers", []), *body["metadata"].get("finalizers", [])}
    finalizers -= {*body["metadata"].get("$deleteFromPrimitiveList/finalizers", [])}
    return pod(**fields | {"ownerReferences": [*references.values()], "finalizers": [*finalizers]})


CANDIDATES = st.lists(
    st.tuples(st.sampled_from([None, "us", "other"]), st.booleans(), st.booleans()), max_size=8
)


@given(candidates=CANDIDATES, owner_deleted=st.booleans())
async def test_second_pass_makes_no_call(
    candidates: list[tuple[str | None, bool, bool]], owner_deleted: bool
) -> None:
    """INV-OW-1, INV-OW-3."""
    references = {None: None, "us": US, "other": OTHER}
    pods = {
        f"uid-{number}": candidate(
            str(number), controller=references[controller], matches=matches, deleted=deleted
        )
        for number, (controller, matches, deleted) in enumerate(candidates)
    }
    first = Pass(DELETED_OWNER if owner_deleted else OWNER, finalizer=FINALIZER)
    claim = await first.claim(*pods.values())
    for meta, body in first.control.patches:
        pods[meta.uid] = _patched(pods[meta.uid], body)
    for child in pods.values():
        assert sum(bool(each.controller) for each in child.metadata.owner_references) <= 1
    second = Pass(DELETED_OWNER if owner_deleted else OWNER, finalizer=FINALIZER)
    again = await second.claim(*pods.values())
    assert (second.control.patches, second.reads) == ([], 0)
    assert [child.metadata.uid for child in again.children] == [
        child.metadata.uid for child in claim.children
    ]
    assert not (owner_deleted and claim.adopted), "INV-OW-4"
