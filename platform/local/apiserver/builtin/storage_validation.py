"""Validation of the kinds of storage other than volumes and claims."""

from collections.abc import Mapping
from typing import Any

from ....model import quantity, validation
from ..errors.fields import (
    IMMUTABLE,
    NOT_NEGATIVE,
    FieldError,
    duplicate,
    first_positions,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)
from .persistent_volumes import inline_volume_errors
from .scheduling_validation import validate_selector

Json = dict[str, Any]

_MAX_DRIVER_NAME = 63
_MAX_NODE_ID = 256
_MAX_PARAMETERS = 512
_MAX_MESSAGE_BYTES = 1024
_MAX_MAP_BYTES = 256 * 1024
_MIN_TOKEN_SECONDS = 600
_MAX_TOKEN_SECONDS = 1 << 32
_MIN_UPDATE_PERIOD = 10
_RECLAIM_POLICIES = ("Delete", "Retain")
_BINDING_MODES = ("Immediate", "WaitForFirstConsumer")
_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
_LIFECYCLE_MODES = ("Persistent", "Ephemeral")
_ONE_SOURCE = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"


def validate_volume_attachment(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a VolumeAttachment, whose spec is immutable."""
    spec = obj.get("spec") or {}
    errors = _driver_errors(spec.get("attacher", ""), "spec.attacher")
    source = spec.get("source") or {}
    volume = source.get("persistentVolumeName")
    has_inline = source.get("inlineVolumeSpec") is not None
    if volume is None and not has_inline:
        errors.append(required("spec.source", _ONE_SOURCE))
    elif volume is not None and has_inline:
        errors.append(forbidden("spec.source", _ONE_SOURCE))
    elif volume == "":
        text = "must specify non empty persistentVolumeName"
        where = "spec.source.persistentVolumeName"
        # As kube-apiserver, which checks it twice.
        errors += [required(where, text), invalid(where, volume, text)]
    node = spec.get("nodeName", "")
    if problem := validation.dns1123_subdomain_error(node):
        errors.append(invalid("spec.nodeName", node, problem))
    if old is not None and spec != old.get("spec"):
        errors.append(invalid("spec", spec, IMMUTABLE))
    elif volume is None and has_inline:
        errors += inline_volume_errors(source["inlineVolumeSpec"], "spec.source.inlineVolumeSpec")
    return errors


def validate_attachment_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate the status of a VolumeAttachment."""
    status = obj.get("status") or {}
    errors = list[FieldError]()
    for key in ("attachError", "detachError"):
        error = status.get(key) or {}
        if len(error.get("message", "").encode()) > _MAX_MESSAGE_BYTES:
            # As kube-apiserver, which names another limit.
            errors.append(too_long(f"status.{key}.message", _MAX_MAP_BYTES))
        code = error.get("errorCode")
        if code is not None and code < 0:
            text = f"must be between 0 and {2**31 - 1}, inclusive"
            errors.append(invalid(f"status.{key}.errorCode", code, text))
    if _map_size(status.get("attachmentMetadata") or {}) > _MAX_MAP_BYTES:
        errors.append(too_long("status.attachmentMetadata", _MAX_MAP_BYTES))
    return errors


def _map_size(entries: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in entries.items())


def _driver_errors(name: str, path: str) -> list[FieldError]:
    errors = [] if name else [required(path)]
    if len(name) > _MAX_DRIVER_NAME:
        errors.append(too_long(path, _MAX_DRIVER_NAME))
    problem = validation.dns1123_subdomain_error(name.lower())
    if name and problem:
        errors.append(invalid(path, name, problem))
    return errors


def validate_storage_capacity(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a CSIStorageCapacity, whose class and topology are immutable."""
    if old is not None:
        return [
            invalid(key, obj.get(key), IMMUTABLE)
            for key in ("nodeTopology", "storageClassName")
            if obj.get(key) != old.get(key)
        ]
    errors: list[FieldError] = []
    if topology := obj.get("nodeTopology"):
        validate_selector(topology, "nodeTopology", errors)
    name = obj.get("storageClassName", "")
    if problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid("storageClassName", name, problem))
    amount = obj.get("capacity")
    if amount is not None and quantity.parse(amount) < quantity.ZERO:
        errors.append(invalid("capacity", amount, NOT_NEGATIVE))
    return errors


def validate_storage_class(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a StorageClass, whose provisioning is immutable."""
    if old is not None:
        return [
            invalid(key, obj.get(key), IMMUTABLE)
            for key in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
            if obj.get(key) != old.get(key)
        ]
    errors = _provisioner_errors(obj.get("provisioner", ""), "provisioner")
    errors += _parameter_errors(obj.get("parameters") or {})
    for key, allowed in (
        ("reclaimPolicy", _RECLAIM_POLICIES),
        ("volumeBindingMode", _BINDING_MODES),
    ):
        if obj.get(key) not in allowed:
            errors.append(not_supported(key, obj.get(key), allowed))
    return errors + _topology_errors(obj.get("allowedTopologies") or [])


def _provisioner_errors(name: str, path: str) -> list[FieldError]:
    if not name:
        return [required(path)]
    problem = validation.qualified_name_error(name.lower())
    return [invalid(path, name.lower(), problem)] if problem else []


def _parameter_errors(parameters: Mapping[str, str]) -> list[FieldError]:
    errors = []
    if len(parameters) > _MAX_PARAMETERS:
        errors.append(too_long("parameters", _MAX_PARAMETERS))
    if "" in parameters:
        errors.append(invalid("parameters", "", "field can not be empty."))
    if _map_size(parameters) > _MAX_MAP_BYTES:
        errors.append(too_long("parameters", _MAX_MAP_BYTES))
    return errors


def _topology_errors(terms: list[Json]) -> list[FieldError]:
    errors, seen = list[FieldError](), list[dict[str, set[str]]]()
    for index, term in enumerate(terms):
        path = f"allowedTopologies[{index}].matchLabelExpressions"
        keys = dict[str, set[str]]()
        for number, expression in enumerate(term.get("matchLabelExpressions") or []):
            key = expression.get("key", "")
            errors += _expression_errors(expression, f"{path}[{number}]")
            if key in keys:
                errors.append(duplicate(f"{path}[{number}].key", key))
            keys[key] = set(expression.get("values") or ())
        if not keys or keys in seen:
            errors.append(duplicate(path, ""))
        seen.append(keys)
    return errors


def _expression_errors(expression: Json, path: str) -> list[FieldError]:
    key, values = expression.get("key", ""), expression.get("values") or []
    errors = [] if values else [required(f"{path}.values")]
    first = first_positions(values)
    errors += [
        duplicate(f"{path}.values[{index}]", value)
        for index, value in enumerate(values)
        if first[value] < index
    ]
    if problem := validation.qualified_name_error(key):
        errors.append(invalid(f"{path}.key", key, problem))
    return errors


def validate_attributes_class(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a VolumeAttributesClass, which is immutable."""
    if old is not None:
        return [
            forbidden(key, f"updates to {key} are forbidden.")
            for key in ("driverName", "parameters")
            if obj.get(key) != old.get(key)
        ]
    parameters = obj.get("parameters") or {}
    errors = _provisioner_errors(obj.get("driverName", ""), "driverName")
    if not parameters:
        errors.append(required("parameters", "must contain at least one key/value pair"))
    return errors + _parameter_errors(parameters)


def validate_csi_driver(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a CSIDriver; how volumes are attached is immutable."""
    spec, errors = obj.get("spec") or {}, list[FieldError]()
    before = (old or obj).get("spec") or {}
    # As kube-apiserver, which names the first field differently.
    for key, path in (("attachRequired", "attachedRequired"), ("volumeLifecycleModes",) * 2):
        if spec.get(key) != before.get(key):
            errors.append(invalid(f"spec.{path}", spec.get(key), IMMUTABLE))
    policy = spec.get("fsGroupPolicy")
    if policy is not None and policy not in _GROUP_POLICIES:
        errors.append(not_supported("spec.fsGroupPolicy", policy, _GROUP_POLICIES))
    errors += [
        not_supported("spec.volumeLifecycleModes", mode, _LIFECYCLE_MODES)
        for mode in spec.get("volumeLifecycleModes") or ()
        if mode not in _LIFECYCLE_MODES
    ]
    errors += _token_request_errors(spec.get("tokenRequests") or [])
    period = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if period is not None and period < _MIN_UPDATE_PERIOD:
        text = f"must be greater than or equal to {_MIN_UPDATE_PERIOD} seconds"
        errors.append(invalid("spec.nodeAllocatableUpdatePeriodSeconds", period, text))
    return errors


def _token_request_errors(requests: list[Json]) -> list[FieldError]:
    errors, audiences = list[FieldError](), set[str]()
    for index, request in enumerate(requests):
        path, audience = f"spec.tokenRequests[{index}]", request.get("audience", "")
        if audience in audiences:
            errors.append(duplicate(f"{path}.audience", audience))
        audiences.add(audience)
        seconds = request.get("expirationSeconds")
        if seconds is None:
            continue
        if seconds < _MIN_TOKEN_SECONDS:
            text = "may not specify a duration less than 10 minutes"
            errors.append(invalid(f"{path}.expirationSeconds", seconds, text))
        elif seconds > _MAX_TOKEN_SECONDS:
            text = "may not specify a duration larger than 2^32 seconds"
            errors.append(invalid(f"{path}.expirationSeconds", seconds, text))
    return errors


def validate_csi_node(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a CSINode."""
    errors, names = list[FieldError](), set[str]()
    for index, driver in enumerate((obj.get("spec") or {}).get("drivers") or []):
        path, name = f"spec.drivers[{index}]", driver.get("name", "")
        errors += _driver_errors(name, f"{path}.name")
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
        errors += _node_driver_errors(driver, path)
    return errors


def _node_driver_errors(driver: Json, path: str) -> list[FieldError]:
    errors, node = list[FieldError](), driver.get("nodeID", "")
    if not node:
        errors.append(required(f"{path}.nodeID"))
    elif len(node) > _MAX_NODE_ID:
        text = f"must be {_MAX_NODE_ID} characters or less"
        errors.append(invalid(f"{path}.nodeID", node, text))
    count = (driver.get("allocatable") or {}).get("count")
    if count is not None and count < 0:
        errors.append(invalid(f"{path}.allocatable.count", count, NOT_NEGATIVE))
    keys = driver.get("topologyKeys") or []
    first = first_positions(keys)
    for index, key in enumerate(keys):
        if not key:
            errors.append(required(path))
        elif first[key] < index:
            errors.append(duplicate(path, key))
        if problem := validation.qualified_name_error(key):
            errors.append(invalid(path, key, problem))
    return errors
