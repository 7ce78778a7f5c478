"""Builders that read like manifests, and an in-memory object reader, for tests of admission."""

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from batholith.admission import AdmissionSettings, webhooks
from batholith.model.admission import AdmissionRequest, DeniedError, Json
from batholith.model.names import (
    CRONJOBS,
    HYPERNODES,
    JOBFLOWS,
    JOBS,
    NAMESPACES,
    PODGROUPS,
    QUEUES,
    Resource,
)

RESOURCES = {
    "CronJob": CRONJOBS, "HyperNode": HYPERNODES, "Job": JOBS, "JobFlow": JOBFLOWS, "Queue": QUEUES,
    "PodGroup": PODGROUPS,
}  # fmt: skip


class ObjectReaderStub:
    """What a server holds; it begins with the two queues that every cluster has."""

    def __init__(self, *objects: Json) -> None:
        self.objects: dict[tuple[Resource, str, str], Json] = {}
        for each in (queue("root"), queue("default", parent="root"), *objects):
            self.put(each)

    def put(self, obj: Json) -> None:
        resource = RESOURCES.get(obj["kind"], NAMESPACES)
        metadata = obj["metadata"]
        self.objects[resource, metadata.get("namespace", ""), metadata["name"]] = obj

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return self.objects.get((resource, namespace, name))

    def list(self, resource: Resource) -> Iterable[Json]:
        return [obj for (stored, _, _), obj in self.objects.items() if stored == resource]


def container(**fields: Any) -> Json:
    return {"name": "main", "image": "busybox:1.36"} | fields


def task(name: str = "t", replicas: int = 1, *, pod: Json | None = None, **fields: Any) -> Json:
    spec = {"containers": [container()]} | (pod or {})
    return {"name": name, "replicas": replicas, "template": {"spec": spec}} | fields


def job(*tasks: Json, name: str = "j", **spec: Any) -> Json:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"queue": "default", "tasks": list(tasks) or [task()]} | spec,
    }


def cronjob(schedule: str = "* * * * *", *, name: str = "c", **spec: Any) -> Json:
    template = {"spec": job()["spec"]}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "CronJob",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"schedule": schedule, "jobTemplate": template} | spec,
    }


def queue(name: str, *, state: str = "Open", annotations: Any = None, **spec: Any) -> Json:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": spec,
        "status": {"state": state},
    }


def hypernode(name: str, *members: Json, tier: int = 1, **spec: Any) -> Json:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {"tier": tier, **({"members": [*members]} if members else {}), **spec},
    }


def member(name: str = "", *, of: str = "Node", **selector: Any) -> Json:
    """A member of a HyperNode: the one called *name*, or those that *selector* selects."""
    return {"type": of, "selector": {"exactMatch": {"name": name}} if name else selector}


def admit(
    obj: Json | None,
    reader: ObjectReaderStub | None = None,
    *,
    old: Json | None = None,
    settings: AdmissionSettings | None = None,
) -> Json:
    """Let admission see a write; gives the object as it would be stored, or raises DeniedError."""
    subject = obj if obj is not None else old
    assert subject is not None
    operation = "DELETE" if obj is None else "CREATE" if old is None else "UPDATE"
    for hook in webhooks(settings or AdmissionSettings()):
        if hook.resource.kind != subject["kind"] or operation not in hook.operations:
            continue
        review = AdmissionRequest(
            operation=operation,
            namespace=subject["metadata"].get("namespace", ""),
            name=subject["metadata"]["name"],
            object=obj,
            old_object=old,
        )
        untouched = copy.deepcopy(obj)
        if hook.mutate:
            changed = hook.mutate(review, reader or ObjectReaderStub())
            assert obj == untouched, "a rule has changed what it was given"
            obj = changed
        if hook.validate:
            hook.validate(review, reader or ObjectReaderStub())
    return obj or {}


def denial(
    obj: Json | None,
    reader: ObjectReaderStub | None = None,
    *,
    old: Json | None = None,
    settings: AdmissionSettings | None = None,
) -> str:
    """The text with which admission refuses a write."""
    with pytest.raises(DeniedError) as denied:
        admit(obj, reader, old=old, settings=settings)
    return str(denied.value)


def check(expected: str, obj: Json, reader: ObjectReaderStub | None = None) -> None:
    """A write is refused with a text that contains *expected*, or admitted if that is empty."""
    if expected:
        assert expected in denial(obj, reader)
    else:
        admit(obj, reader)


def warnings(new: Json | None, *others: Json, old: Json | None = None) -> list[str]:
    """The warnings about a write; *others* are stored, too."""
    subject = new or old or {}
    hooks = webhooks(AdmissionSettings())
    (hook,) = (each for each in hooks if each.resource.kind == subject["kind"] and each.validate)
    assert hook.warn is not None
    review = AdmissionRequest(
        operation="DELETE" if new is None else "UPDATE" if old else "CREATE",
        namespace="ns",
        name=subject["metadata"]["name"],
        object=new,
        old_object=old,
    )
    return hook.warn(review, ObjectReaderStub(*others))


def stored_spec(stored: Json) -> Json:
    spec: Json = stored["spec"]
    return spec


def write_request(obj: Json, old: Json | None = None) -> AdmissionRequest:
    """The request that creates *obj*, or that updates *old* to it."""
    return AdmissionRequest(
        operation="CREATE" if old is None else "UPDATE",
        namespace="default",
        name=obj["metadata"]["name"],
        object=obj,
        old_object=old,
    )
