"""Validation of PersistentVolumes, also of those that VolumeAttachments describe."""

from typing import Any

from ....model import quantity, validation
from ..errors.fields import IMMUTABLE, FieldError, forbidden, invalid, not_supported, required
from .enums import ACCESS_MODES, VOLUME_MODES
from .scheduling_validation import validate_node_selector
from .volume_validation import validate_host_path, validate_nfs

Json = dict[str, Any]

_ALONE = "ReadWriteOncePod"
_SOURCES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume",
    "flocker", "gcePersistentDisk", "glusterfs", "hostPath", "iscsi", "local", "nfs",
    "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos",
    "vsphereVolume",
)  # fmt: skip
_RECLAIM_POLICIES = ("Delete", "Recycle", "Retain")
_NOT_INLINE = "may not be specified in the context of inline volumes"
_ONLY_RETAIN = "may only be Retain in the context of inline volumes"
_ONLY_FILE_SYSTEM = (
    "may not specify volumeMode other than Filesystem in the context of inline volumes"
)


MOUNT_OPTIONS_ANNOTATION = "volume.beta.kubernetes.io/mount-options"
"""Annotation that contained a volume's mount options before there was a field."""

_WITH_MOUNT_OPTIONS = frozenset(
    (
        "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "gcePersistentDisk",
        "glusterfs", "iscsi", "nfs", "photonPersistentDisk", "quobyte", "rbd", "vsphereVolume",
    )
)  # fmt: skip
"""Sources of volumes that may have the annotation."""


def validate_volume(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a PersistentVolume, whose source is immutable."""
    spec = obj.get("spec") or {}
    errors = _capacity_errors(spec.get("capacity") or {})
    errors += _access_mode_errors(spec, "spec") + _source_errors(spec, "spec")
    for key, allowed in (
        ("persistentVolumeReclaimPolicy", _RECLAIM_POLICIES),
        ("volumeMode", VOLUME_MODES),
    ):
        if (value := spec.get(key)) is not None and value not in allowed:
            errors.append(not_supported(f"spec.{key}", value, allowed))
    name = spec.get("storageClassName")
    if name and (problem := validation.dns1123_subdomain_error(name)):
        errors.append(invalid("spec.storageClassName", name, problem))
    if (
        spec.get("persistentVolumeReclaimPolicy") == "Recycle"
        and (spec.get("hostPath") or {}).get("path") == "/"
    ):
        text = "may not be 'recycle' for a hostPath mount of '/'"
        errors.append(forbidden("spec.persistentVolumeReclaimPolicy", text))
    errors += _affinity_errors(spec) + _mount_option_errors(obj)
    return errors + (_update_errors(spec, old.get("spec") or {}) if old is not None else [])


def _mount_option_errors(obj: Json) -> list[FieldError]:
    annotations, spec = obj["metadata"].get("annotations") or {}, obj.get("spec") or {}
    if MOUNT_OPTIONS_ANNOTATION not in annotations or spec.keys() & _WITH_MOUNT_OPTIONS:
        return []
    path = f"metadata.annotations.{MOUNT_OPTIONS_ANNOTATION}"
    return [forbidden(path, "may not specify mount options for this volume type")]


def _capacity_errors(capacity: Json) -> list[FieldError]:
    errors = [] if capacity else [required("spec.capacity")]
    if list(capacity) != ["storage"]:
        errors.append(not_supported("spec.capacity", capacity, ("storage",)))
    for name, text in capacity.items():
        path, amount = f"spec.capacity[{name}]", quantity.parse(text)
        if amount < quantity.ZERO:
            errors.append(invalid(path, text, "must be a valid resource quantity"))
        if amount <= quantity.ZERO:
            errors.append(invalid(path, text, "must be greater than zero"))
    return errors


def _affinity_errors(spec: Json) -> list[FieldError]:
    path, affinity, errors = "spec.nodeAffinity", spec.get("nodeAffinity"), list[FieldError]()
    if affinity is None:
        text = "Local volume requires node affinity"
        return [required(path, text)] if "local" in spec else []
    if affinity.get("required") is None:
        return [required(f"{path}.required", "must specify required node constraints")]
    validate_node_selector(affinity["required"], f"{path}.required", errors)
    return errors


def _update_errors(spec: Json, before: Json) -> list[FieldError]:
    errors = []
    if any(spec.get(key) != before.get(key) for key in _SOURCES):
        field = "spec.persistentvolumesource"
        errors.append(forbidden(field, f"{field} is immutable after creation"))
    if spec.get("volumeMode") != before.get("volumeMode"):
        errors.append(invalid("volumeMode", spec.get("volumeMode"), IMMUTABLE))
    return errors


def inline_volume_errors(spec: Json, path: str) -> list[FieldError]:
    """Validate the volume that a VolumeAttachment describes: one of a CSI driver."""
    errors = [
        forbidden(f"{path}.{key}", _NOT_INLINE)
        for key in ("claimRef", "capacity", "storageClassName")
        if spec.get(key)
    ]
    if "nodeAffinity" in spec:
        errors.append(forbidden(f"{path}.nodeAffinity", _NOT_INLINE))
    if "csi" not in spec:
        text = "has to be specified in the context of inline volumes"
        errors.append(required(f"{path}.csi", text))
    if spec.get("persistentVolumeReclaimPolicy", "Retain") != "Retain":
        errors.append(forbidden(f"{path}.persistentVolumeReclaimPolicy", _ONLY_RETAIN))
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        errors.append(forbidden(f"{path}.volumeMode", _ONLY_FILE_SYSTEM))
    return errors + _access_mode_errors(spec, path) + _source_errors(spec, path)


def _access_mode_errors(spec: Json, path: str) -> list[FieldError]:
    modes, field = spec.get("accessModes") or [], f"{path}.accessModes"
    if not modes:
        return [required(field)]
    errors = [
        not_supported(field, mode, ACCESS_MODES) for mode in modes if mode not in ACCESS_MODES
    ]
    if _ALONE in modes and len(modes) > 1:
        errors.append(forbidden(field, f"may not use {_ALONE} with other access modes"))
    return errors


def _source_errors(spec: Json, path: str) -> list[FieldError]:
    sources = sorted((key for key in _SOURCES if key in spec), key=lambda key: key == "csi")
    if not sources:
        return [required(path, "must specify a volume type")]
    text = "may not specify more than 1 volume type"
    errors = [forbidden(f"{path}.{key}", text) for key in sources[1:]]
    kind, source = sources[0], spec[sources[0]]
    if kind == "csi":
        errors += _csi_errors(source, f"{path}.csi")
    elif kind == "hostPath":
        validate_host_path(source, f"{path}.hostPath", errors)
    elif kind == "nfs":
        validate_nfs(source, f"{path}.nfs", errors)
    elif kind == "local":
        errors += [] if source.get("path") else [required(f"{path}.local.path")]
    return errors


def _csi_errors(source: Json, path: str) -> list[FieldError]:
    driver = source.get("driver", "")
    errors = [] if driver else [required(f"{path}.driver")]
    problem = validation.dns1123_subdomain_error(driver.lower())
    if driver and problem:
        errors.append(invalid(f"{path}.driver", driver, problem))
    if not source.get("volumeHandle"):
        errors.append(required(f"{path}.volumeHandle"))
    return errors
