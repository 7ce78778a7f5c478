"""Keys of objects, of controllers, and by uid."""

from typing import Any

import msgspec
import pytest
from support.children import Anything

from batholith.kube.informer.indexes import Index
from batholith.machinery.controller import TerminalError
from batholith.machinery.keys import (
    UID_INDEX,
    InvalidKeyError,
    UidKeys,
    controller_key,
    index_by_uid,
    resolve_controller,
    split_key,
)
from batholith.model.meta import ObjectMeta
from batholith.model.names import JOBS, QUEUES, Resource

BATCH_JOBS = Resource("batch", "v1", "jobs", "Job")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("default/web", ("default", "web")),
        ("web", ("", "web")),
        ("", ("", "")),
        ("/web", ("", "web")),
        ("default/", ("default", "")),
    ],
)
def test_key_is_namespace_and_name(key: str, expected: tuple[str, str]) -> None:
    assert split_key(key) == expected


@pytest.mark.parametrize("key", ["a/b/c", "//", "a//b"])
def test_key_with_more_slashes_is_dropped(key: str) -> None:
    with pytest.raises(InvalidKeyError, match="unexpected key format") as raised:
        split_key(key)
    assert isinstance(raised.value, TerminalError)


def child(**reference: Any) -> ObjectMeta:
    owners = [{"name": "web", "uid": "uid-web", "controller": True, **reference}]
    fields = {"name": "web-0", "namespace": "default", "ownerReferences": owners}
    return msgspec.convert(fields, ObjectMeta)


@pytest.mark.parametrize(
    ("reference", "owner", "key"),
    [
        ({"apiVersion": "batch/v1", "kind": "Job"}, BATCH_JOBS, "default/web"),
        ({"apiVersion": "batch/v1beta1", "kind": "Job"}, BATCH_JOBS, "default/web"),
        ({"apiVersion": "batch/v1", "kind": "Job"}, JOBS, None),
        ({"apiVersion": "batch/v1", "kind": "CronJob"}, BATCH_JOBS, None),
        ({"apiVersion": "batch/v1", "kind": "Job", "controller": False}, BATCH_JOBS, None),
        ({"apiVersion": QUEUES.api_version, "kind": "Queue"}, QUEUES, "web"),
    ],
)
def test_controller_is_matched_by_group_and_kind(
    reference: dict[str, Any], owner: Resource, key: str | None
) -> None:
    assert controller_key(child(**reference), owner) == key


def test_controller_is_resolved_by_uid() -> None:
    web = Anything(metadata=ObjectMeta(name="web", namespace="default", uid="uid-web"))
    store = {"default/web": web}
    meta = child(apiVersion="batch/v1", kind="Job")
    assert resolve_controller(meta, BATCH_JOBS, store.get) is web
    recreated = child(apiVersion="batch/v1", kind="Job", uid="uid-old")
    assert resolve_controller(recreated, BATCH_JOBS, store.get) is None
    assert resolve_controller(meta, JOBS, store.get) is None
    store.clear()
    assert resolve_controller(meta, BATCH_JOBS, store.get) is None


class Store:
    """An informer's index by uid, with its event handler."""

    def __init__(self) -> None:
        self.index = Index[Anything](UID_INDEX, index_by_uid)
        self.objects: dict[str, Anything] = {}
        self.added: list[str] = []
        self.keys = UidKeys(self, self.added.append)

    def by_index(self, index: str, value: str) -> Any:
        assert index == UID_INDEX
        return self.index.get(value)

    def put(self, name: str, uid: str | None) -> None:
        old = self.objects.pop(name, None)
        new = Anything(metadata=ObjectMeta(name=name, uid=uid)) if uid else None
        if new is not None:
            self.objects[name] = new
        self.index.update(name, old, new)
        self.keys.on_event(old, new)


def test_recreated_object_is_another_key() -> None:
    store = Store()
    store.put("claim", "uid-1")
    store.put("claim", None)
    store.put("claim", "uid-2")
    assert store.added == ["uid-1", "uid-2"]
    assert store.keys.get("uid-1") is None
    found = store.keys.get("uid-2")
    assert found is not None and found.metadata.name == "claim"


def test_object_in_processing_is_found_after_its_deletion() -> None:
    store = Store()
    store.put("claim", "uid-1")
    found = store.keys.get("uid-1")
    assert found is not None
    with pytest.raises(RuntimeError), store.keys.processing(found):
        store.put("claim", None)
        raise RuntimeError("retried later")
    assert store.keys.get("uid-1") is found
    with store.keys.processing(found):
        pass
    assert store.keys.get("uid-1") is None
    assert len(store.keys) == 0
