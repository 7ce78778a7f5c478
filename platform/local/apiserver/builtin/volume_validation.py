"""Validation of volumes and volume mounts."""

from collections.abc import Callable, Iterator
from typing import Any

from ....model import quantity, validation
from ..errors.fields import (
    FieldError,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
    too_long,
)
from .enums import ACCESS_MODES, PULL_POLICIES, VOLUME_MODES
from .value_sources import validate_file_source

Json = dict[str, Any]
Check = Callable[[Json, str, list[FieldError]], None]

_HOST_PATHS = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
_PROPAGATION = ("Bidirectional", "HostToContainer", "None")
_RECURSIVE = ("Disabled", "Enabled", "IfPossible")
_MODE_LIMIT = 0o777
_MIN_TOKEN_SECONDS = 600
_MAX_DRIVER_LENGTH = 63


def validate_source(volume: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the source of a volume: at most one may be set."""
    kinds = [kind for kind in _CHECKS if kind in volume]
    kinds += sorted(volume.keys() - {"name", *kinds})
    if kinds and (check := _CHECKS.get(kinds[0])):
        check(volume[kinds[0]], f"{path}.{kinds[0]}", errors)
    text = "may not specify more than 1 volume type"
    errors += [forbidden(f"{path}.{extra}", text) for extra in kinds[1:]]


def path_errors(text: str) -> list[str]:
    """Return the errors of a path that must stay below its root."""
    problems = ["must be a relative path"] if text.startswith("/") else []
    if ".." in text.split("/"):
        problems.append("must not contain '..'")
    return problems


def _validate_empty_dir(source: Json, path: str, errors: list[FieldError]) -> None:
    if quantity.parse(source.get("sizeLimit", "0")) < quantity.ZERO:
        text = "SizeLimit field must be a valid resource quantity"
        errors.append(forbidden(f"{path}.sizeLimit", text))


def validate_host_path(source: Json, path: str, errors: list[FieldError]) -> None:
    """Validate a directory or file of the node."""
    host_path = source.get("path")
    if not host_path:
        errors.append(required(f"{path}.path"))
        return
    if ".." in host_path.split("/"):
        errors.append(invalid(f"{path}.path", host_path, "must not contain '..'"))
    if (kind := source.get("type", "")) not in _HOST_PATHS:
        errors.append(not_supported(f"{path}.type", kind, _HOST_PATHS))


def _validate_secret(source: Json, path: str, errors: list[FieldError]) -> None:
    if not source.get("secretName"):
        errors.append(required(f"{path}.secretName"))
    _validate_mode(source, "defaultMode", path, errors)
    _validate_items(source, path, errors)


def _validate_config_map(source: Json, path: str, errors: list[FieldError]) -> None:
    if not source.get("name"):
        errors.append(required(f"{path}.name"))
    _validate_mode(source, "defaultMode", path, errors)
    _validate_items(source, path, errors)


def _validate_items(source: Json, path: str, errors: list[FieldError]) -> None:
    for index, item in enumerate(source.get("items", ())):
        field_path = f"{path}.items[{index}]"
        if not item.get("key"):
            errors.append(required(f"{field_path}.key"))
        _validate_file(item, field_path, errors)
        _validate_mode(item, "mode", field_path, errors)


def _validate_file(item: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the path of a projected file."""
    target = item.get("path")
    if not target:
        errors.append(required(f"{path}.path"))
        return
    problems = path_errors(target)
    if target.startswith("..") and not target.startswith("../"):
        problems.append("must not start with '..'")
    errors += [invalid(f"{path}.path", target, problem) for problem in problems]


def _validate_mode(source: Json, key: str, path: str, errors: list[FieldError]) -> None:
    if not 0 <= source.get(key, 0) <= _MODE_LIMIT:
        text = "must be a number between 0 and 0777 (octal), both inclusive"
        errors.append(invalid(f"{path}.{key}", source[key], text))


def validate_nfs(source: Json, path: str, errors: list[FieldError]) -> None:
    """Validate a directory of an NFS server."""
    host_path = source.get("path", "")
    if not source.get("server"):
        errors.append(required(f"{path}.server"))
    if not host_path:
        errors.append(required(f"{path}.path"))
    if not host_path.startswith("/"):
        errors.append(invalid(f"{path}.path", host_path, "must be an absolute path"))


def _validate_pvc(source: Json, path: str, errors: list[FieldError]) -> None:
    if not source.get("claimName"):
        errors.append(required(f"{path}.claimName"))


def _validate_downward(source: Json, path: str, errors: list[FieldError]) -> None:
    _validate_mode(source, "defaultMode", path, errors)
    _validate_downward_items(source, path, errors)


def _validate_downward_items(source: Json, path: str, errors: list[FieldError]) -> None:
    for item in source.get("items", ()):
        _validate_file(item, path, errors)
        validate_file_source(item, path, errors)
        _validate_mode(item, "mode", path, errors)


def _validate_projected(volume: Json, path: str, errors: list[FieldError]) -> None:
    _validate_mode(volume, "defaultMode", path, errors)
    known: set[str] = set()
    for index, source in enumerate(volume.get("sources") or ()):
        field_path = f"{path}.sources[{index}]"
        for kind in ("secret", "configMap"):
            if kind in source:
                if not source[kind].get("name"):
                    errors.append(required(f"{field_path}.{kind}.name"))
                _validate_items(source[kind], f"{field_path}.{kind}", errors)
                _check_paths_unique(source[kind], path, known, errors)
        if "downwardAPI" in source:
            _validate_downward_items(source["downwardAPI"], f"{field_path}.downwardAPI", errors)
            _check_paths_unique(source["downwardAPI"], path, known, errors)
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            if not token.get("path"):
                errors.append(required(f"{path}.path"))
            if token.get("expirationSeconds", _MIN_TOKEN_SECONDS) < _MIN_TOKEN_SECONDS:
                text = "may not specify a duration less than 10 minutes"
                field = f"{field_path}.serviceAccountToken.expirationSeconds"
                errors.append(invalid(field, token["expirationSeconds"], text))
        if len(source) > 1:
            text = "may not specify more than 1 volume type per source"
            errors.append(forbidden(field_path, text))


def _check_paths_unique(source: Json, path: str, known: set[str], errors: list[FieldError]) -> None:
    """Check that no two sources of a volume have files of one path."""
    for item in source.get("items") or ():
        file = item.get("path", "")
        if file and file in known:
            # A source of the downward API has no name.
            shown = source.get("name", file)
            errors.append(invalid(path, shown, "conflicting duplicate paths"))
        known.add(file)


def _validate_csi(source: Json, path: str, errors: list[FieldError]) -> None:
    driver = source.get("driver", "")
    if not driver:
        errors.append(required(f"{path}.driver"))
        return
    if len(driver) > _MAX_DRIVER_LENGTH:
        errors.append(too_long(f"{path}.driver", _MAX_DRIVER_LENGTH))
    if problem := validation.dns1123_subdomain_error(driver.lower()):
        errors.append(invalid(f"{path}.driver", driver, problem))


def _validate_ephemeral(source: Json, path: str, errors: list[FieldError]) -> None:
    field_path = f"{path}.volumeClaimTemplate"
    if "volumeClaimTemplate" not in source:
        errors.append(required(field_path))
        return
    errors += claim_spec_errors(source["volumeClaimTemplate"].get("spec", {}), f"{field_path}.spec")


def claim_spec_errors(spec: Json, path: str) -> list[FieldError]:
    """Return the errors of the spec of a claim, or of a template for claims, at *path*."""
    modes = spec.get("accessModes", ())
    errors = []
    if not modes:
        errors.append(required(f"{path}.accessModes", "at least 1 access mode is required"))
    errors += [
        not_supported(f"{path}.accessModes", mode, ACCESS_MODES)
        for mode in modes
        if mode not in ACCESS_MODES
    ]
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        text = "may not use ReadWriteOncePod with other access modes"
        errors.append(forbidden(f"{path}.accessModes", text))
    if "storage" not in spec.get("resources", {}).get("requests", {}):
        errors.append(required(f"{path}.resources[storage]"))
    name = spec.get("storageClassName")
    if name and (problem := validation.dns1123_subdomain_error(name)):
        errors.append(invalid(f"{path}.storageClassName", name, problem))
    if (mode := spec.get("volumeMode", "Filesystem")) not in VOLUME_MODES:
        errors.append(not_supported(f"{path}.volumeMode", mode, VOLUME_MODES))
    return errors


def _validate_image(source: Json, path: str, errors: list[FieldError]) -> None:
    if not source.get("reference"):
        errors.append(required(f"{path}.reference"))
    if (policy := source.get("pullPolicy", "Always")) not in PULL_POLICIES:
        errors.append(not_supported(f"{path}.pullPolicy", policy, PULL_POLICIES))


_CHECKS: dict[str, Check] = {
    "emptyDir": _validate_empty_dir,
    "hostPath": validate_host_path,
    "secret": _validate_secret,
    "nfs": validate_nfs,
    "persistentVolumeClaim": _validate_pvc,
    "downwardAPI": _validate_downward,
    "configMap": _validate_config_map,
    "projected": _validate_projected,
    "csi": _validate_csi,
    "ephemeral": _validate_ephemeral,
    "image": _validate_image,
}
"""By source, in the order of validation."""


_MOUNTS, _DEVICES = ("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")
"""The two lists by which containers use volumes, and the key of the path in their items."""
_BLOCK_SOURCES = {"persistentVolumeClaim", "ephemeral"}
_ONLY_CLAIMS = (
    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
)


def validate_mounts(
    container: Json, path: str, volumes: dict[str, Json], errors: list[FieldError]
) -> None:
    """Validate the volume mounts and block devices of the container at *path*."""
    mounts = container.get("volumeMounts") or ()
    for index, common in enumerate(_errors_of_uses(container, path, _MOUNTS, volumes)):
        mount, field_path = mounts[index], f"{path}.volumeMounts"
        errors += common
        for key in ("subPath", "subPathExpr"):
            below = mount.get(key, "")
            errors += [invalid(f"{field_path}.{key}", below, text) for text in path_errors(below)]
        if mount.get("subPath") and mount.get("subPathExpr"):
            text = "subPathExpr and subPath are mutually exclusive"
            field = f"{field_path}[{index}].subPathExpr"
            errors.append(invalid(field, mount["subPathExpr"], text))
        _validate_propagation(mount, field_path, container, errors)
    names: set[str] = set()
    for index, common in enumerate(_errors_of_uses(container, path, _DEVICES, volumes)):
        device, field_path = container["volumeDevices"][index], f"{path}.volumeDevices[{index}]"
        errors += common
        name, target = device.get("name", ""), device.get("devicePath", "")
        if name in names:
            errors.append(invalid(f"{field_path}.name", name, "must be unique"))
        names.add(name)
        if name in volumes and not volumes[name].keys() & _BLOCK_SOURCES:
            errors.append(invalid(f"{field_path}.name", name, _ONLY_CLAIMS))
        if ".." in target.split("/"):
            text = "can not contain backsteps ('..')"
            errors.append(invalid(f"{field_path}.devicePath", target, text))


def _errors_of_uses(
    container: Json, path: str, use: tuple[str, str], volumes: dict[str, Json]
) -> Iterator[list[FieldError]]:
    """Yield for each mount or device the errors that both can have: of its volume and its path."""
    kind, key = use
    other_kind, other_key = _DEVICES if use == _MOUNTS else _MOUNTS
    others = container.get(other_kind) or ()
    other_names = {each["name"] for each in others if each.get("name")}
    other_paths = {each[other_key] for each in others if each.get(other_key)}
    seen: set[str] = set()
    for index, item in enumerate(container.get(kind) or ()):
        field_path = f"{path}.{kind}[{index}]"
        name, target = item.get("name", ""), item.get(key, "")
        errors = []
        if not name:
            errors.append(required(f"{field_path}.name"))
        if name not in volumes:
            errors.append(not_found(f"{field_path}.name", name))
        if not target:
            errors.append(required(f"{field_path}.{key}"))
        elif target in seen:
            errors.append(invalid(f"{field_path}.{key}", target, "must be unique"))
        seen.add(target)
        if name in other_names:
            text = f"must not already exist in {other_kind}"
            errors.append(invalid(f"{field_path}.name", name, text))
        if target in other_paths:
            text = f"must not already exist as a path in {other_kind}"
            errors.append(invalid(f"{field_path}.{key}", target, text))
        yield errors


def _validate_propagation(
    mount: Json, path: str, container: Json, errors: list[FieldError]
) -> None:
    way = mount.get("mountPropagation", "None")
    if way not in _PROPAGATION:
        errors.append(not_supported(f"{path}.mountPropagation", way, _PROPAGATION))
    if way == "Bidirectional" and not container.get("securityContext", {}).get("privileged"):
        text = "Bidirectional mount propagation is available only to privileged containers"
        errors.append(forbidden(f"{path}.mountPropagation", text))
    recursive = mount.get("recursiveReadOnly", "Disabled")
    if recursive not in _RECURSIVE:
        errors.append(not_supported(f"{path}.recursiveReadOnly", recursive, _RECURSIVE))
    elif recursive != "Disabled" and not mount.get("readOnly"):
        text = "may only be specified when readOnly is true"
        errors.append(forbidden(f"{path}.recursiveReadOnly", text))
    elif recursive != "Disabled" and way != "None":
        text = "may only be specified when mountPropagation is None or not specified"
        errors.append(forbidden(f"{path}.recursiveReadOnly", text))
