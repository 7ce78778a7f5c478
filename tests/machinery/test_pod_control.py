"""Creation and deletion of children, with expectations and recorded writes."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.children import LABELS, OWNER, POD_SPEC, Anything, Json, Pod, pod

from batholith.kube.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
    ServerError,
)
from batholith.machinery.expectations import ControllerExpectations
from batholith.machinery.pod_control import (
    SUFFIX_ALPHABET,
    Created,
    NameGenerator,
    Owner,
    TemplateError,
    create_children,
    delete_children,
    finalizer_removal,
    from_template,
    is_namespace_terminating,
)
from batholith.machinery.recording import Failures, RecordingControl
from batholith.machinery.testing import FakeClock
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS

REJECTED = ForbiddenError("exceeded quota", status=403, reason="Forbidden")
TIMEOUT = RequestTimeoutError("timed out")
TERMINATING = ForbiddenError(
    "namespace is being terminated",
    status=403,
    reason="Forbidden",
    details={"causes": [{"reason": "NamespaceTerminating"}]},
)
TEMPLATE: Json = {
    "metadata": {
        "name": "ignored",
        "labels": LABELS,
        "annotations": {"note": "n"},
        "finalizers": ["example.com/tracking"],
    },
    "spec": POD_SPEC,
}


def body(name: str) -> Json:
    return from_template(TEMPLATE, OWNER, name=name)


def test_child_has_content_of_the_template_and_a_controller_reference() -> None:
    built = from_template(TEMPLATE, OWNER, name="web-0")
    assert built == {
        "metadata": {
            "name": "web-0",
            "namespace": "default",
            "labels": LABELS,
            "annotations": {"note": "n"},
            "finalizers": ["example.com/tracking"],
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "web",
                    "uid": "owner-uid",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": POD_SPEC,
    }
    built["spec"]["containers"][0]["image"] = "changed"
    built["metadata"]["labels"]["more"] = "label"
    assert TEMPLATE["spec"]["containers"][0]["image"] == "busybox"
    assert TEMPLATE["metadata"]["labels"] == {"app": "web"}


def test_template_without_metadata_has_no_labels() -> None:
    built = from_template({}, OWNER, name="web-0")
    assert (built["metadata"]["labels"], built["spec"]) == ({}, {})


def test_owner_that_cannot_be_identified_controls_nothing() -> None:
    owner = Owner(resource=CONFIGMAPS, metadata=ObjectMeta(name="web"))
    with pytest.raises(TemplateError, match="controller reference is incomplete"):
        from_template(TEMPLATE, owner, name="web-0")


@pytest.mark.parametrize("prefix", ["web-", "w" * 57 + "-", "w" * 100])
def test_generated_name_is_a_prefix_and_five_characters(prefix: str) -> None:
    name = NameGenerator().generate(prefix)
    assert re.fullmatch(f"{prefix[:58]}[{SUFFIX_ALPHABET}]{{5}}", name)
    built = from_template(TEMPLATE, OWNER, name=name, generate_name=prefix)
    assert built["metadata"]["name"] == name
    assert built["metadata"]["generateName"] == prefix


def test_generated_name_is_not_taken() -> None:
    characters = iter("bbbbbccccc")
    generator = NameGenerator(lambda _: next(characters))
    assert generator.generate("web-", taken={"web-bbbbb"}) == "web-ccccc"


def test_names_may_all_be_taken() -> None:
    generator = NameGenerator(lambda characters: characters[0])
    with pytest.raises(TemplateError, match="cannot generate a name"):
        generator.generate("web-", taken={"web-bbbbb"})


@pytest.mark.parametrize(
    ("metadata", "message"), [({"name": "a"}, "no labels"), ({"labels": LABELS}, "no name")]
)
async def test_child_without_name_or_labels_is_not_created(metadata: Json, message: str) -> None:
    control = RecordingControl(view=Pod)
    with pytest.raises(TemplateError, match=message):
        await control.create(OWNER, {"metadata": metadata})
    assert control.creates == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TERMINATING, True),
        (REJECTED, False),
        (ForbiddenError("no", details={"causes": ["text"]}), False),
        (InvalidError("no", details=TERMINATING.details), False),
    ],
)
def test_terminating_namespace_is_recognized(error: Exception, expected: bool) -> None:
    assert is_namespace_terminating(error) is expected


async def test_recorded_children_have_uids_and_patches_the_precondition() -> None:
    control = RecordingControl(view=Pod)
    first = (await control.create(OWNER, body("a"))).child
    second = (await control.create(OWNER, body("b"))).child
    assert first.metadata.uid != second.metadata.uid
    assert OWNER.controls(first)
    await control.patch(first.metadata, finalizer_removal("example.com/tracking"))
    assert control.patches == [
        (
            first.metadata,
            {
                "metadata": {
                    "$deleteFromPrimitiveList/finalizers": ["example.com/tracking"],
                    "uid": first.metadata.uid,
                }
            },
        )
    ]


async def test_chosen_calls_fail() -> None:
    control = RecordingControl(view=Pod, fail_creates=Failures(REJECTED, after=1, count=1))
    await control.create(OWNER, body("a"))
    with pytest.raises(ForbiddenError):
        await control.create(OWNER, body("b"))
    await control.create(OWNER, body("c"))
    assert [each["metadata"]["name"] for each in control.creates] == ["a", "b", "c"]


class Batches:
    """Batches of one key against a recording control."""

    def __init__(self) -> None:
        self.expectations = ControllerExpectations(FakeClock())
        self.control = RecordingControl(view=Pod)

    async def create(self, *names: str) -> Any:
        return await create_children(
            self.control,
            OWNER,
            [body(name) for name in names],
            expectations=self.expectations,
            key="web",
        )

    async def delete(self, *children: Pod) -> Any:
        return await delete_children(
            self.control, OWNER, children, expectations=self.expectations, key="web"
        )

    @property
    def pending(self) -> set[str]:
        return {
            *self.expectations.pending_creations("web"),
            *self.expectations.pending_deletions("web"),
        }


@given(count=st.integers(0, 20), good=st.integers(0, 20))
async def test_inv_ex_4_rejected_and_skipped_creations_are_not_expected(
    count: int, good: int
) -> None:
    """INV-EX-4, INV-SS-1, INV-SS-2, INV-SS-4."""
    batches = Batches()
    batches.control.fail_creates = Failures(REJECTED, after=good)
    result = await batches.create(*(f"web-{number}" for number in range(count)))
    assert len(batches.pending) == count - result.failed - result.skipped
    assert len(result.created) + result.failed + result.skipped == count
    assert len(batches.control.creates) <= 2 * (good + 1)
    assert batches.pending == {each.child.metadata.name for each in result.created}
    assert result.error is (REJECTED if count > good else None)


@pytest.mark.parametrize("error", [TIMEOUT, ServerError("unavailable", status=503)])
async def test_creation_without_response_remains_expected(error: Exception) -> None:
    batches = Batches()
    batches.control.fail_creates = Failures(error)
    result = await batches.create("a", "b", "c")
    assert (result.created, result.error, result.skipped) == ((), error, 2)
    assert batches.pending == {"a"}


async def test_terminating_namespace_ends_the_batch_without_error() -> None:
    batches = Batches()
    batches.control.fail_creates = Failures(TERMINATING, after=1)
    result = await batches.create("a", "b", "c", "d", "e")
    assert (result.error, result.failed, result.skipped) == (None, 2, 2)
    assert batches.pending == {"a", "b", "c"}


async def test_invalid_child_is_not_expected() -> None:
    batches = Batches()
    invalid = body("a")
    invalid["metadata"]["labels"] = {}
    result = await create_children(
        batches.control, OWNER, [invalid], expectations=batches.expectations, key="web"
    )
    assert isinstance(result.error, TemplateError)
    assert not batches.pending


class HangingControl(RecordingControl[Pod]):
    async def create(self, owner: Owner, body: Json) -> Created[Pod]:
        await super().create(owner, body)
        return await asyncio.Future()


async def test_cancelled_batch_expects_only_what_was_attempted() -> None:
    batches = Batches()
    batches.control = HangingControl(view=Pod)
    task = asyncio.create_task(batches.create("a", "b", "c"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert batches.pending == {"a", "b", "c"}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert batches.pending == {"a"}


class ExistingControl(RecordingControl[Pod]):
    async def create(self, owner: Owner, body: Json) -> Created[Pod]:
        return Created((await super().create(owner, body)).child, existed=True)


async def test_child_that_existed_is_not_expected() -> None:
    batches = Batches()
    batches.control = ExistingControl(view=Pod)
    result = await batches.create("a")
    assert [each.existed for each in result.created] == [True]
    assert not batches.pending


async def test_name_that_is_taken_is_not_expected() -> None:
    batches = Batches()
    batches.control.fail_creates = Failures(AlreadyExistsError("exists", status=409))
    result = await batches.create("a")
    assert isinstance(result.error, AlreadyExistsError)
    assert not batches.pending


async def test_deletions_are_concurrent_and_expected_by_uid() -> None:
    batches = Batches()
    children = [pod(name=name, uid=f"uid-{name}") for name in "abc"]
    result = await batches.delete(*children)
    assert result.deleted == tuple(children)
    assert [meta.uid for meta in batches.control.deletes] == ["uid-a", "uid-b", "uid-c"]
    assert batches.pending == {"uid-a", "uid-b", "uid-c"}


@pytest.mark.parametrize(
    ("error", "pending", "failed"),
    [
        (NotFoundError("no such pod", status=404), set(), 0),
        (REJECTED, set(), 1),
        (TIMEOUT, {"uid-a"}, 1),
    ],
)
async def test_deletion_that_has_no_effect_is_not_expected(
    error: Exception, pending: set[str], failed: int
) -> None:
    batches = Batches()
    batches.control.fail_deletes = Failures(error)
    result = await batches.delete(pod(name="a", uid="uid-a"))
    assert (batches.pending, result.failed, result.deleted) == (pending, failed, ())
    assert result.error is (error if failed else None)
    assert len(result.not_found) == 1 - failed


def test_events_regard_the_owner() -> None:
    reference = OWNER.reference()
    assert (reference.kind, reference.namespace, reference.name) == ("ConfigMap", "default", "web")
    assert reference.uid == OWNER.metadata.uid


def test_owner_controls_by_uid() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": "x", "controller": True}
    assert not OWNER.controls(Anything())
    assert not OWNER.controls(pod(name="a", ownerReferences=[other]))
    assert OWNER.controls(pod(name="a", ownerReferences=[other | {"uid": "owner-uid"}]))
