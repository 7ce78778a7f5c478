"""Checks of one container of a pod template."""

import re
from collections.abc import Mapping

from ..model import quantity, validation
from ..model.pod import VolumeMount
from ..model.pod_resources import Resources
from ..model.quantity import Quantity, QuantityError
from ..model.resource_names import COMPUTE, may_overcommit
from .field_errors import ErrorList
from .pod_types import Amounts, Container, EnvVar, Probe

_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)

_REQUIRED_ENV_SOURCE_FIELDS = {  # what a source of an environment variable cannot do without
    "fieldRef": ("fieldPath",),
    "resourceFieldRef": ("resource",),
    "configMapKeyRef": ("key",),
    "secretKeyRef": ("key",),
    "fileKeyRef": ("path", "volumeName", "key"),
}


def validate_container(
    container: Container, path: str, errors: ErrorList, *, volumes: frozenset[str]
) -> None:
    """Check the container at *path*; *volumes* are the names that it may mount."""
    if not container.name:
        errors.required(f"{path}.name")
    else:
        problem = validation.dns1123_label_error(container.name)
        errors.invalid(f"{path}.name", container.name, problem)
    if not container.image:
        errors.required(f"{path}.image")
    elif container.image != container.image.strip():
        why = "must not have leading or trailing whitespace"
        errors.invalid(f"{path}.image", container.image, why)
    errors.not_supported(f"{path}.imagePullPolicy", container.image_pull_policy, _PULL_POLICIES)
    errors.not_supported(
        f"{path}.terminationMessagePolicy",
        container.termination_message_policy,
        ("File", "FallbackToLogsOnError"),
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
    """Check requests, limits, and that no request is above its limit."""
    requests = _validate_resource_list(resources.requests, f"{path}.requests", errors)
    limits = _validate_resource_list(resources.limits, f"{path}.limits", errors)
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is None:
            if not may_overcommit(name) and name not in resources.limits:
                why = "Limit must be set for non overcommitable resources"
                errors.required(f"{path}.limits", why)
        elif request > limit:
            why = f"must be less than or equal to {name} limit of {limit}"
            errors.invalid(f"{path}.requests", str(request), why)
        elif request != limit and not may_overcommit(name):
            why = f"must be equal to {name} limit of {limit}"
            errors.invalid(f"{path}.requests", str(request), why)


def validate_quantity(given: object, path: str, errors: ErrorList) -> Quantity | None:
    """The quantity at *path*; ``None`` and a complaint where it is none or below zero."""
    try:
        read = quantity.parse(given)  # type: ignore[arg-type]  # what it is not, it says itself
    except QuantityError as wrong:
        errors.invalid(path, given, str(wrong))
        return None
    if read < quantity.ZERO:
        errors.invalid(path, str(read), "must be greater than or equal to 0")
        return None
    return read


def _validate_resource_list(
    amounts: Amounts, path: str, errors: ErrorList
) -> Mapping[str, Quantity]:
    """Check names and quantities, and give the good ones."""
    good = {}
    for name, given in amounts.items():
        where = f"{path}[{name}]"
        problem = validation.qualified_name_error(name)
        if not problem and "/" not in name and not _is_standard(name):
            problem = "must be a standard resource for containers"
        errors.invalid(where, name, problem)
        read = validate_quantity(given, where, errors)
        if read is None:
            continue
        if not _is_fractional(name) and not read.is_whole:
            errors.invalid(where, str(read), "must be an integer")
        else:
            good[name] = read
    return good


def _is_standard(name: str) -> bool:
    return name in COMPUTE or name.startswith("hugepages-")


def _is_fractional(name: str) -> bool:
    """Whether less than one whole of it can be asked for: not so for devices."""
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
        errors.not_supported(f"{where}.protocol", port.protocol, _PROTOCOLS)
        if port.name and (len(port.name) > 15 or not _PORT_NAME.fullmatch(port.name)):
            why = "a port name has at most 15 of a-z, 0-9 and '-', one of them a letter"
            errors.invalid(f"{where}.name", port.name, why)
    names = ((f"[{index}].name", port.name) for index, port in enumerate(container.ports))
    errors.duplicates(path, names)


def _validate_env(variable: EnvVar, path: str, errors: ErrorList) -> None:
    if not variable.name:
        errors.required(f"{path}.name")
    else:
        problem = validation.env_name_error(variable.name)
        errors.invalid(f"{path}.name", variable.name, problem)
    if variable.value_from is None:
        return
    if variable.value:
        why = "may not be specified when `value` is not empty"
        errors.invalid(f"{path}.valueFrom", "", why)
    errors.one_of(f"{path}.valueFrom", list(variable.value_from), what="source")
    for field, source in variable.value_from.items():
        for needed in _REQUIRED_ENV_SOURCE_FIELDS.get(field, ()):
            if not source.get(needed):
                errors.required(f"{path}.valueFrom.{field}.{needed}")


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
    for field, inside in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
        if inside.startswith("/"):
            errors.invalid(f"{where}.{field}", inside, "must be a relative path")
        if ".." in inside.split("/"):
            errors.invalid(f"{where}.{field}", inside, "must not contain '..'")
    if mount.sub_path and mount.sub_path_expr:
        why = "subPathExpr and subPath are mutually exclusive"
        errors.invalid(f"{where}.subPathExpr", mount.sub_path_expr, why)


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
