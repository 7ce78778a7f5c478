"""Children from a template, and their names."""

import re

import pytest
from support.children import LABELS, OWNER, POD_SPEC, Anything, Json, pod

from batholith.kube.errors import (
    ForbiddenError,
    InvalidError,
)
from batholith.machinery.pod_control import (
    SUFFIX_ALPHABET,
    NameGenerator,
    Owner,
    TemplateError,
    check_child,
    from_template,
    is_namespace_terminating,
)
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS

REJECTED = ForbiddenError("exceeded quota", status=403, reason="Forbidden")
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
def test_child_without_name_or_labels_is_rejected(metadata: Json, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        check_child({"metadata": metadata})


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


def test_events_regard_the_owner() -> None:
    reference = OWNER.reference()
    assert (reference.kind, reference.namespace, reference.name) == ("ConfigMap", "default", "web")
    assert reference.uid == OWNER.metadata.uid


def test_owner_controls_by_uid() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": "x", "controller": True}
    assert not OWNER.controls(Anything())
    assert not OWNER.controls(pod(name="a", ownerReferences=[other]))
    assert OWNER.controls(pod(name="a", ownerReferences=[other | {"uid": "owner-uid"}]))
