"""Build a pod from the template of its Job. Pure."""

from collections.abc import Iterable
from typing import Any

from ..machinery.pod_control import MAX_PREFIX_LENGTH, Owner, from_template
from ..model.names import COMPLETION_INDEX
from .core_types import (
    INDEX_FAILURES,
    INDEX_IGNORED_FAILURES,
    INDEX_VARIABLE,
    TRACKING_FINALIZER,
)
from .decide import Creation

Json = dict[str, Any]


def name_prefix(job: str, index: int | None) -> str:
    """Return the prefix of a pod's name; that with an index is cut so that the random suffix fits.

    kube-controller-manager leaves the other one to the API server, which cuts it for the name only.
    """
    if index is None:
        return f"{job}-"
    tail = f"-{index}-"
    return job[: MAX_PREFIX_LENGTH - len(tail)] + tail


def build(template: Json, owner: Owner, creation: Creation, *, name: str) -> Json:
    """Return the pod of *creation*, with the name of a generated suffix."""
    job = owner.metadata.name
    index = creation.index
    pod = from_template(template, owner, name=name, generate_name=name_prefix(job, index))
    metadata, spec = pod["metadata"], pod["spec"]
    if TRACKING_FINALIZER not in metadata["finalizers"]:
        metadata["finalizers"].append(TRACKING_FINALIZER)
    if index is None:
        return pod
    metadata["annotations"][COMPLETION_INDEX] = str(index)
    metadata["labels"][COMPLETION_INDEX] = str(index)
    spec["hostname"] = f"{job}-{index}"
    if creation.failures is not None:
        metadata["annotations"][INDEX_FAILURES] = str(creation.failures)
        if creation.ignored_failures:
            metadata["annotations"][INDEX_IGNORED_FAILURES] = str(creation.ignored_failures)
    _add_index_variable(spec.get("initContainers") or ())
    _add_index_variable(spec.get("containers") or ())
    return pod


def _add_index_variable(containers: Iterable[Json]) -> None:
    """Add the variable with the completion index, unless the user has set it."""
    field_path = f"metadata.labels['{COMPLETION_INDEX}']"
    source = {"fieldRef": {"fieldPath": field_path}}
    for container in containers:
        variables = container.get("env") or []
        if all(one.get("name") != INDEX_VARIABLE for one in variables):
            container["env"] = [*variables, {"name": INDEX_VARIABLE, "valueFrom": source}]
