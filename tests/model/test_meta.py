"""Owners of objects."""

import pytest

from batholith.model.meta import ObjectMeta, OwnerReference

JOB = ObjectMeta(name="train", namespace="team", uid="u1")


def child(namespace: str, name: str, uid: str, *, controller: bool = True) -> ObjectMeta:
    reference = OwnerReference(kind="Job", name=name, uid=uid, controller=controller)
    return ObjectMeta(name="train-0", namespace=namespace, owner_references=(reference,))


def test_an_object_is_owned_by_namespace_name_and_uid() -> None:
    assert JOB.controls(child("team", "train", "u1"))
    assert JOB.owns(child("team", "train", "u1", controller=False))
    assert not JOB.controls(child("team", "train", "u1", controller=False))


@pytest.mark.parametrize(
    ("namespace", "name", "uid"),
    [("other", "train", "u1"), ("team", "other", "u1"), ("team", "train", "u2")],
)
def test_a_reference_that_differs_in_one_of_them_is_forged_or_old(
    namespace: str, name: str, uid: str
) -> None:
    assert not JOB.controls(child(namespace, name, uid))
    assert not JOB.owns(child(namespace, name, uid))
