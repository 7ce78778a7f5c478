"""Validation of value sources: downward API, keys of ConfigMaps and Secrets."""

from typing import Any

from ....model import quantity, validation
from ..errors.fields import FieldError, invalid, not_supported, required

Json = dict[str, Any]

_ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_FILE_FIELDS = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
_OTHER_FIELDS = ("spec.restartPolicy", "spec.schedulerName", "status.phase")
"""Known fields without a value."""

_MAPS = ("metadata.annotations", "metadata.labels")
_RESOURCES = tuple(
    f"{kind}.{name}"
    for kind in ("limits", "requests")
    for name in ("cpu", "ephemeral-storage", "memory")
)
_HUGE_PAGES = ("limits.hugepages-", "requests.hugepages-")
_BYTES = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")


def validate_env_source(source: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the source of an environment variable."""
    if "fieldRef" in source:
        _validate_field(source["fieldRef"], f"{path}.fieldRef", _ENV_FIELDS, errors)
    if "resourceFieldRef" in source:
        _validate_resource(source["resourceFieldRef"], f"{path}.resourceFieldRef", errors)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind in source:
            _validate_key(source[kind], f"{path}.{kind}", errors)
    if "fileKeyRef" in source:
        _validate_file_key(source["fileKeyRef"], f"{path}.fileKeyRef", errors)


def _validate_file_key(source: Json, path: str, errors: list[FieldError]) -> None:
    for name, rule in (
        ("key", validation.env_name_error),
        ("volumeName", validation.dns1123_label_error),
    ):
        if not (value := source.get(name)):
            errors.append(required(f"{path}.{name}"))
        elif problem := rule(value):
            errors.append(invalid(f"{path}.{name}", value, problem))
    if not (file := source.get("path")):
        errors.append(required(f"{path}.path"))
    elif ".." in file.split("/"):
        errors.append(invalid(f"{path}.path", file, "must not contain '..'"))


def validate_file_source(item: Json, path: str, errors: list[FieldError]) -> None:
    """Validate a downward API file of a volume."""
    if "fieldRef" in item:
        _validate_field(item["fieldRef"], f"{path}.fieldRef", _FILE_FIELDS, errors)
        if "resourceFieldRef" in item:
            text = "fieldRef and resourceFieldRef can not be specified simultaneously"
            errors.append(invalid(path, "resource", text))
    elif "resourceFieldRef" in item:
        field_path = f"{path}.resourceFieldRef"
        if not item["resourceFieldRef"].get("containerName"):
            errors.append(required(f"{field_path}.containerName"))
        else:
            _validate_resource(item["resourceFieldRef"], field_path, errors)
    else:
        errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))


def validate_env_from(sources: list[Json], path: str, errors: list[FieldError]) -> None:
    """Validate the sources of ``envFrom``."""
    for index, source in enumerate(sources):
        prefix = source.get("prefix")
        if prefix and (problem := validation.env_name_error(prefix)):
            errors.append(invalid(f"{path}[{index}].prefix", prefix, problem))
        kinds = [kind for kind in ("configMapRef", "secretRef") if kind in source]
        for kind in kinds:
            field_path, name = f"{path}[{index}].{kind}.name", source[kind].get("name")
            if not name:
                errors.append(required(field_path))
            elif problem := validation.dns1123_subdomain_error(name):
                errors.append(invalid(field_path, name, problem))
        if not kinds:
            text = "must specify one of: `configMapRef` or `secretRef`"
            errors.append(invalid(path, "", text))
        elif len(kinds) > 1:
            text = "may not have more than one field specified at a time"
            errors.append(invalid(path, "", text))


def _validate_key(source: Json, path: str, errors: list[FieldError]) -> None:
    name, key = source.get("name", ""), source.get("key")
    if problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid(f"{path}.name", name, problem))
    if not key:
        errors.append(required(f"{path}.key"))
    elif problem := validation.config_key_error(key):
        errors.append(invalid(f"{path}.key", key, problem))


def _validate_field(
    source: Json, path: str, allowed: tuple[str, ...], errors: list[FieldError]
) -> None:
    field_path, field = f"{path}.fieldPath", source.get("fieldPath")
    if not field:
        errors.append(required(field_path))
        return
    name, key = _split(field)
    known = name in _MAPS if key is not None else _has_name(field)
    flaw = "not supported" if key is None else "does not support subscript"
    if (version := source.get("apiVersion", "v1")) != "v1":
        text = f"error converting fieldPath: unsupported pod version: {version}"
        errors.append(invalid(field_path, field, text))
    elif not known:
        text = f"error converting fieldPath: field label {flaw}: {field}"
        errors.append(invalid(field_path, field, text))
    elif key is not None:
        lowered = key.lower() if name == "metadata.annotations" else key
        if problem := validation.qualified_name_error(lowered):
            errors.append(invalid(path, key, problem))
    elif field not in allowed and field != "spec.host":
        errors.append(not_supported(field_path, field, allowed))


def _split(field: str) -> tuple[str, str | None]:
    """Split ``metadata.labels['key']`` into field and key; ``None`` without a key."""
    name, bracket, rest = field.partition("['")
    return (name, rest[:-2]) if name and bracket and rest.endswith("']") else (field, None)


def _has_name(field: str) -> bool:
    return field in (*_ENV_FIELDS, *_FILE_FIELDS, *_OTHER_FIELDS, "spec.host")


def _validate_resource(source: Json, path: str, errors: list[FieldError]) -> None:
    name = source.get("resource")
    if not name:
        errors.append(required(f"{path}.resource"))
        return
    if name not in _RESOURCES and not name.startswith(_HUGE_PAGES):
        errors.append(not_supported(f"{path}.resource", name, _RESOURCES))
        return
    divisor = quantity.canonical(source.get("divisor", "0"))
    kind = name.partition(".")[2]
    allowed = ("1m", "1") if kind == "cpu" else _BYTES
    if divisor != "0" and divisor not in allowed:
        shown = {"ephemeral-storage": "local ephemeral storage", "cpu": "cpu", "memory": "memory"}
        values = " and ".join(allowed) if kind == "cpu" else ", ".join(allowed)
        text = (
            f"only divisor's values {values} are supported with the "
            f"{shown.get(kind, 'hugepages')} resource"
        )
        errors.append(invalid(f"{path}.divisor", name, text))
