"""FlowSchemas and PriorityLevelConfigurations of every cluster.

They are those of Kubernetes, which `make api-types` reads from a real API server. Clients list
them; this server handles all requests at once.
"""

import functools
import importlib.resources
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import msgspec

from ....model.names import Resource
from ..kinds.groups import FLOW_CONTROL

Json = dict[str, Any]

FILE = "flow-control.json"
FLOW_SCHEMAS = Resource(FLOW_CONTROL, "v1", "flowschemas", "FlowSchema", namespaced=False)
PRIORITY_LEVELS = Resource(
    FLOW_CONTROL,
    "v1",
    "prioritylevelconfigurations",
    "PriorityLevelConfiguration",
    namespaced=False,
)
RESOURCES = (FLOW_SCHEMAS, PRIORITY_LEVELS)

AUTO_UPDATE = "apf.kubernetes.io/autoupdate-spec"
"""Annotation: whether the server restores the spec of one of these objects."""

EXEMPT = "exempt"
MANDATORY = ("catch-all", EXEMPT)
"""Names of the objects of both kinds whose specs cannot be changed."""

_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def initial_objects(resource: Resource) -> Mapping[str, Json]:
    """Return the objects of *resource* that exist from the start, by name."""
    return {
        each["metadata"]["name"]: {
            "metadata": {**each["metadata"], "annotations": {AUTO_UPDATE: "true"}},
            "spec": deepcopy(each["spec"]),
        }
        for each in _packaged()[resource.plural]
    }


def fixed_spec(resource: Resource, name: str, spec: Json) -> Json | None:
    """Return the spec that an object with *name* must have, if it cannot be chosen.

    Of the exempt priority level, *spec* determines the shares.
    """
    if name not in MANDATORY:
        return None
    wanted: Json = initial_objects(resource)[name]["spec"]
    if "exempt" in wanted and spec.get("exempt") is not None:
        return {**wanted, "exempt": spec["exempt"]}
    return wanted


def restored(resource: Resource, current: Json, wanted: Json) -> Json:
    """Return *current* as the server maintains it: with the spec of *wanted*, unless it may not."""
    metadata = current["metadata"]
    annotations = metadata.get("annotations") or {}
    fixed = fixed_spec(resource, metadata["name"], current["spec"])
    updates = fixed is not None or _is_updated(annotations, metadata.get("generation", 0))
    annotations = {**annotations, AUTO_UPDATE: "true" if updates else "false"}
    spec = (fixed or wanted["spec"]) if updates else current["spec"]
    return {**current, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _is_updated(annotations: Mapping[str, str], generation: int) -> bool:
    """Whether the spec is restored: by the annotation, or without one if it was never changed."""
    value = annotations.get(AUTO_UPDATE, "")
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    return generation == 1


@functools.cache
def _packaged() -> Mapping[str, list[Json]]:
    content = importlib.resources.files(__package__).joinpath("data", FILE).read_bytes()
    return msgspec.json.decode(content, type=dict[str, list[Json]])
