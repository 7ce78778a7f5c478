"""Validation of one container of a pod template."""

import re
from collections.abc import Mapping

from ..model import quantity, validation
from ..model.field_errors import ErrorList
from ..model.pod import (
    IMAGE_PULL_POLICIES,
    PROTOCOLS,
    TERMINATION_MESSAGE_POLICIES,
    VolumeMount,
)
from ..model.pod_resources import Resources
from ..model.quantity import Quantity, QuantityError
from ..model.quantity_advice import quantity_advice
from ..model.resource_names import COMPUTE, may_overcommit
from .pod_types import Amounts, Container, EnvVar, Probe

_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)

_REQUIRED_ENV_SOURCE_FIELDS = {  # By source of an environment variable.
    "fieldRef": ("fieldPath",),
    "resourceFieldRef": ("resource",),
    "configMapKeyRef": ("key",),
    "secretKeyRef": ("key",),
    "fileKeyRef": ("path", "volumeName", "key"),
}


def validate_container(
    container: Container, path: str, errors: ErrorList, *, volumes: frozenset[str]
) -> None:
    """Validate the container at *path*; *volumes* are the names of the pod's volumes."""
    if not container.name:
        errors.required(f"{path}.name")
    else:
        error = validation.dns1123_label_error(container.name)
        errors.invalid(f"{path}.name", container.name, error)
    if not container.image:
        errors.required(f"{path}.image")
    elif container.image != container.image.strip():
        detail = "must not have leading or trailing whitespace"
        errors.invalid(f"{path}.image", container.image, detail)
    errors.not_supported(
        f"{path}.imagePullPolicy", container.image_pull_policy, IMAGE_PULL_POLICIES
    )
    errors.not_supported(
        f"{path}.terminationMessagePolicy",
        container.termination_message_policy,
        TERMINATION_MESSAGE_POLICIES,
    )
    errors.not_supported(
        f"{path}.restartPolicy", container.restart_policy, ("Always", "Never", "OnFailure")
    )
    _validate_ports(container, f"{path}.ports", errors)
    for index, variable in enumerate(container.env):
        _validate_env(variable, f"{path}.env[{index}]", errors)
    for index, source in enumerate(container.env_from):
        references = {"configMapRef": source.config_map_ref, "secretRef": source.secret_ref}
        given = [field for field, value in references.items() if value is not None]
        errors.one_of(f"{path}.envFrom[{index}]", given, what="of configMapRef and secretRef")
    _validate_mounts(container.volume_mounts, f"{path}.volumeMounts", errors, volumes=volumes)
    validate_resources(container.resources, f"{path}.resources", errors)
    _validate_probes(container, path, errors)


def validate_resources(resources: Resources, path: str, errors: ErrorList) -> None:
    """Validate requests and limits; a request must not exceed its limit."""
    requests = _validate_resource_list(resources.requests, f"{path}.requests", errors)
    limits = _validate_resource_list(resources.limits, f"{path}.limits", errors)
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is None:
            if not may_overcommit(name) and name not in resources.limits:
                detail = "Limit must be set for non overcommitable resources"
                errors.required(f"{path}.limits", detail)
        elif request > limit:
            detail = f"must be less than or equal to {name} limit of {limit}"
            errors.invalid(f"{path}.requests", str(request), detail)
        elif request != limit and not may_overcommit(name):
            detail = f"must be equal to {name} limit of {limit}"
            errors.invalid(f"{path}.requests", str(request), detail)


def validate_quantity(value: object, path: str, errors: ErrorList) -> Quantity | None:
    """Return the quantity at *path*; record an error and return ``None`` if invalid or negative."""
    try:
        amount = quantity.parse(value)  # type: ignore[arg-type]  # It rejects other types.
    except QuantityError as error:
        errors.invalid(path, value, f"{error}: {quantity_advice(value)}")
        return None
    if amount < quantity.ZERO:
        errors.invalid(path, str(amount), "must be greater than or equal to 0")
        return None
    return amount


def _validate_resource_list(
    amounts: Amounts, path: str, errors: ErrorList
) -> Mapping[str, Quantity]:
    """Validate names and quantities; return the valid ones."""
    valid = {}
    for name, value in amounts.items():
        where = f"{path}[{name}]"
        error = validation.qualified_name_error(name)
        if not error and "/" not in name and not _is_standard(name):
            error = "must be a standard resource for containers"
        errors.invalid(where, name, error)
        amount = validate_quantity(value, where, errors)
        if amount is None:
            continue
        if not _is_fractional(name) and not amount.is_whole:
            errors.invalid(where, str(amount), "must be an integer")
        else:
            valid[name] = amount
    return valid


def _is_standard(name: str) -> bool:
    return name in COMPUTE or name.startswith("hugepages-")


def _is_fractional(name: str) -> bool:
    """Return whether fractional amounts are allowed: not for extended resources."""
    return may_overcommit(name) or name.startswith("hugepages-")


def _validate_ports(container: Container, path: str, errors: ErrorList) -> None:
    for index, port in enumerate(container.ports):
        where = f"{path}[{index}]"
        if not port.container_port:
            errors.required(f"{where}.containerPort")
        else:
            errors.out_of_range(
                f"{where}.containerPort", port.container_port, minimum=1, maximum=65535
            )
        if port.host_port:
            errors.out_of_range(f"{where}.hostPort", port.host_port, minimum=1, maximum=65535)
        errors.not_supported(f"{where}.protocol", port.protocol, PROTOCOLS)
        if port.name and (len(port.name) > 15 or not _PORT_NAME.fullmatch(port.name)):
            detail = "a port name has at most 15 of a-z, 0-9 and '-', one of them a letter"
            errors.invalid(f"{where}.name", port.name, detail)
    names = ((f"[{index}].name", port.name) for index, port in enumerate(container.ports))
    errors.duplicates(path, names)


def _validate_env(variable: EnvVar, path: str, errors: ErrorList) -> None:
    if not variable.name:
        errors.required(f"{path}.name")
    else:
        error = validation.env_name_error(variable.name)
        errors.invalid(f"{path}.name", variable.name, error)
    if variable.value_from is None:
        return
    if variable.value:
        detail = "may not be specified when `value` is not empty"
        errors.invalid(f"{path}.valueFrom", "", detail)
    errors.one_of(f"{path}.valueFrom", list(variable.value_from), what="source")
    for field, source in variable.value_from.items():
        for required in _REQUIRED_ENV_SOURCE_FIELDS.get(field, ()):
            if not source.get(required):
                errors.required(f"{path}.valueFrom.{field}.{required}")


def _validate_mounts(
    mounts: list[VolumeMount], path: str, errors: ErrorList, *, volumes: frozenset[str]
) -> None:
    seen = set()
    for index, mount in enumerate(mounts):
        where = f"{path}[{index}]"
        if not mount.name:
            errors.required(f"{where}.name")
        elif mount.name not in volumes:
            errors.add(f"{where}.name", f'Not found: "{mount.name}"')
        if not mount.mount_path:
            errors.required(f"{where}.mountPath")
        elif mount.mount_path in seen:
            errors.invalid(f"{where}.mountPath", mount.mount_path, "must be unique")
        seen.add(mount.mount_path)
        _validate_sub_path(mount, where, errors)


def _validate_sub_path(mount: VolumeMount, where: str, errors: ErrorList) -> None:
    for field, path in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
        if path.startswith("/"):
            errors.invalid(f"{where}.{field}", path, "must be a relative path")
        if ".." in path.split("/"):
            errors.invalid(f"{where}.{field}", path, "must not contain '..'")
    if mount.sub_path and mount.sub_path_expr:
        detail = "subPathExpr and subPath are mutually exclusive"
        errors.invalid(f"{where}.subPathExpr", mount.sub_path_expr, detail)


def _validate_probes(container: Container, path: str, errors: ErrorList) -> None:
    for field, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is None:
            continue
        _validate_probe(probe, f"{path}.{field}", errors)
        if field != "readinessProbe" and probe.success_threshold not in (0, 1):
            where = f"{path}.{field}.successThreshold"
            errors.invalid(where, probe.success_threshold, "must be 1")


def _validate_probe(probe: Probe, path: str, errors: ErrorList) -> None:
    handlers = {
        "exec": probe.exec,
        "httpGet": probe.http_get,
        "tcpSocket": probe.tcp_socket,
        "grpc": probe.grpc,
    }
    given = [field for field, value in handlers.items() if value is not None]
    errors.one_of(path, given, what="handler type")
    for field, value in (
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ):
        errors.out_of_range(f"{path}.{field}", value, minimum=0)
