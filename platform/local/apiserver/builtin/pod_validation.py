"""Validation of pods and pod templates, with kube-apiserver's messages."""

import re
from collections.abc import Iterable
from typing import Any

from ....model import validation
from ..errors.fields import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
)
from ..kinds.metadata import validate_annotations, validate_labels
from .addresses import address_error
from .container_validation import (
    validate_container,
    validate_host_ports,
    validate_id,
    validate_no_probes,
    validate_probes_and_hooks,
    validate_resize_policy,
    validate_run_as,
)
from .pod_claims import pod_claim_errors
from .pod_level_resources import validate_pod_resources
from .scheduling_validation import validate_scheduling
from .volume_validation import validate_source

Json = dict[str, Any]

_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PREEMPTION = ("PreemptLowerPriority", "Never")
_GROUP_CHANGES = ("Always", "OnRootMismatch")
_GROUP_POLICIES = ("Merge", "Strict")
_SYSTEMS = ("linux", "windows")
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_NOT_EPHEMERAL = (
    "lifecycle", "livenessProbe", "ports", "readinessProbe", "resizePolicy", "resources",
    "restartPolicy", "restartPolicyRules", "startupProbe",
)  # fmt: skip
"""Fields of containers that ephemeral containers may not have."""

_NAMES = {
    "hostname": validation.dns1123_label_error,
    "subdomain": validation.dns1123_label_error,
    "nodeName": validation.dns1123_subdomain_error,
    "serviceAccountName": validation.dns1123_subdomain_error,
    "priorityClassName": validation.dns1123_subdomain_error,
    "runtimeClassName": validation.dns1123_subdomain_error,
}
_SYSCTL_SEGMENT = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = rf"({_SYSCTL_SEGMENT}[\./])*{_SYSCTL_SEGMENT}"
_MAX_SYSCTL = 253
_SWAPPED_SEPARATORS = str.maketrans("./", "/.")
_IPC_SYSCTLS = (
    "kernel.sem", "kernel.shm", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
    "kernel.shm_rmid_forced", "kernel.msg", "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni",
)  # fmt: skip
"""Sysctls of the IPC namespace."""
_GRACE = 30
_MAX_NAMESERVERS = 3
_MAX_SEARCH_PATHS = 32


def validate_pod_spec(spec: Json, path: str) -> list[FieldError]:
    """Validate the spec of a pod or of a template at *path*."""
    errors: list[FieldError] = []
    volumes = _validate_volumes(spec.get("volumes", ()), f"{path}.volumes", errors)
    if not spec.get("containers"):
        errors.append(required(f"{path}.containers"))
    seen: set[str] = set()
    for kind in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(kind) or ()):
            field_path = f"{path}.{kind}[{index}]"
            _validate_name(container.get("name"), f"{field_path}.name", seen, errors)
            validate_container(container, field_path, volumes, errors)
            if "resizePolicy" in container:
                policy = spec.get("restartPolicy", "")
                validate_resize_policy(container, f"{field_path}.resizePolicy", policy, errors)
    if "ephemeralContainers" in spec:
        _validate_ephemeral(spec, f"{path}.ephemeralContainers", errors)
    validate_pod_resources(spec, path, errors)
    _validate_probes_and_hooks(spec, path, errors)
    _validate_host_network(spec, path, errors)
    _validate_enums(spec, path, errors)
    _validate_security(spec, path, errors)
    _validate_dns(spec, path, errors)
    validate_scheduling(spec, path, errors)
    errors += pod_claim_errors(spec, path)
    return errors


def _validate_ephemeral(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate what ephemeral containers may have, and their targets."""
    lists = ("containers", "initContainers")
    others = {container.get("name") for name in lists for container in spec.get(name) or ()}
    for index, container in enumerate(spec["ephemeralContainers"] or ()):
        field_path = f"{path}[{index}]"
        target = container.get("targetContainerName")
        if target and target not in others:
            errors.append(not_found(f"{field_path}.targetContainerName", target))
        mounts = enumerate(container.get("volumeMounts", ()))
        set_fields = [
            *(f"{field_path}.{key}" for key in _NOT_EPHEMERAL if container.get(key)),
            *(
                f"{field_path}.volumeMounts[{number}].{key}"
                for number, mount in mounts
                for key in ("subPath", "subPathExpr")
                if mount.get(key)
            ),
        ]
        text = "cannot be set for an Ephemeral Container"
        errors += [forbidden(each, text) for each in set_fields]


def validate_template(template: Json, path: str) -> list[FieldError]:
    """Validate a pod template: labels, annotations, spec."""
    metadata = template.get("metadata", {})
    errors = validate_labels(metadata.get("labels"), f"{path}.labels")
    errors += validate_annotations(metadata.get("annotations"), f"{path}.annotations")
    spec = template.get("spec", {})
    errors += validate_pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        text = "ephemeral containers not allowed in pod template"
        errors.append(forbidden(f"{path}.spec.ephemeralContainers", text))
    return errors


def _validate_probes_and_hooks(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate probes and hooks: containers that run before the others have none."""
    grace = spec.get("terminationGracePeriodSeconds", _GRACE)
    for index, container in enumerate(spec.get("containers") or ()):
        validate_probes_and_hooks(container, f"{path}.containers[{index}]", grace, errors)
    for index, container in enumerate(spec.get("initContainers") or ()):
        field_path = f"{path}.initContainers[{index}]"
        if container.get("restartPolicy") == "Always":
            validate_probes_and_hooks(container, field_path, grace, errors)
        else:
            validate_no_probes(container, field_path, errors)
            errors += [
                invalid(
                    f"{path}.initContainers[{number}].resizePolicy[{index}].restartPolicy",
                    each["restartPolicy"],
                    "must not be set to 'RestartContainer' for non-sidecar initContainers",
                )
                for number, each in enumerate(container.get("resizePolicy") or ())
                if each.get("restartPolicy") == "RestartContainer"
            ]


def _validate_host_network(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the host ports of a pod; with host network, all of its ports are."""
    taken: set[str] = set()
    for index, container in enumerate(spec.get("containers") or ()):
        field_path = f"{path}.containers[{index}]"
        validate_host_ports(container, field_path, taken, errors)
        if not spec.get("hostNetwork"):
            continue
        for number, port in enumerate(container.get("ports", ())):
            if (given := port.get("hostPort")) and given != port.get("containerPort"):
                text = "must match `containerPort` when `hostNetwork` is true"
                errors.append(invalid(f"{field_path}.ports[{number}].hostPort", given, text))
    for index, container in enumerate(spec.get("initContainers") or ()):
        # They run one after the other.
        validate_host_ports(container, f"{path}.initContainers[{index}]", set(), errors)
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        errors.append(forbidden(f"{path}.hostNetwork", "when `hostUsers` is false"))


def _validate_security(spec: Json, path: str, errors: list[FieldError]) -> None:
    rights, field_path = spec.get("securityContext", {}), f"{path}.securityContext"
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        text = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(invalid(f"{field_path}.shareProcessNamespace", True, text))
    if not rights:
        return
    validate_run_as(rights, field_path, errors)
    validate_id(rights.get("fsGroup", 0), f"{field_path}.fsGroup", errors)
    for index, group in enumerate(rights.get("supplementalGroups", ())):
        validate_id(group, f"{field_path}.supplementalGroups[{index}]", errors)
    for key, allowed in (
        ("fsGroupChangePolicy", _GROUP_CHANGES),
        ("supplementalGroupsPolicy", _GROUP_POLICIES),
    ):
        if key in rights:
            _one_of(rights[key], f"{field_path}.{key}", allowed, errors)
    _validate_sysctls(spec, f"{field_path}.sysctls", errors)


def _validate_sysctls(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the names of sysctls; those of a namespace need one of the pod's own."""
    seen: set[str] = set()
    for index, sysctl in enumerate(spec["securityContext"].get("sysctls", ())):
        name, field_path = sysctl.get("name", ""), f"{path}[{index}].name"
        if not name:
            errors.append(required(field_path))
        elif len(name) > _MAX_SYSCTL or not re.fullmatch(_SYSCTL, name, re.ASCII):
            text = f"must have at most {_MAX_SYSCTL} characters and match regex ^{_SYSCTL}$"
            errors.append(invalid(field_path, name, text))
        elif name in seen:
            errors.append(duplicate(field_path, name))
        seen.add(name)
        separator = re.search("[./]", name)
        if separator and separator[0] == "/":
            name = name.translate(_SWAPPED_SEPARATORS)
        if spec.get("hostNetwork") and name.startswith("net."):
            text = "may not be specified when 'hostNetwork' is true"
            errors.append(invalid(field_path, sysctl["name"], text))
        if spec.get("hostIPC") and (name in _IPC_SYSCTLS or name.startswith("fs.mqueue.")):
            text = "may not be specified when 'hostIPC' is true"
            errors.append(invalid(field_path, sysctl["name"], text))


def _validate_dns(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate host aliases and the DNS configuration of a pod."""
    for index, alias in enumerate(spec.get("hostAliases", ())):
        field_path = f"{path}.hostAliases[{index}]"
        _validate_address(alias.get("ip", ""), f"{field_path}.ip", errors)
        errors += [
            invalid(f"{field_path}.hostnames[{number}]", name, problem)
            for number, name in enumerate(alias.get("hostnames", ()))
            if (problem := validation.dns1123_subdomain_error(name))
        ]
    config, field_path = spec.get("dnsConfig"), f"{path}.dnsConfig"
    if spec.get("dnsPolicy") == "None":
        if config is None:
            text = "must provide `dnsConfig` when `dnsPolicy` is None"
            errors.append(required(field_path, text))
        elif not config.get("nameservers"):
            text = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            errors.append(required(f"{field_path}.nameservers", text))
    if config:
        _validate_dns_config(config, field_path, errors)


def _validate_dns_config(config: Json, path: str, errors: list[FieldError]) -> None:
    servers, searches = config.get("nameservers", ()), config.get("searches", ())
    if len(servers) > _MAX_NAMESERVERS:
        text = f"must not have more than {_MAX_NAMESERVERS} nameservers"
        errors.append(invalid(f"{path}.nameservers", servers, text))
    for index, address in enumerate(servers):
        _validate_address(address, f"{path}.nameservers[{index}]", errors)
    if len(searches) > _MAX_SEARCH_PATHS:
        text = f"must not have more than {_MAX_SEARCH_PATHS} search paths"
        errors.append(invalid(f"{path}.searches", searches, text))
    for index, search in enumerate(searches):
        name = search.removesuffix(".")
        if search != "." and (problem := validation.search_path_error(name)):
            errors.append(invalid(f"{path}.searches[{index}]", name, problem))
    errors += [
        required(f"{path}.options[{index}]", "must not be empty")
        for index, option in enumerate(config.get("options", ()))
        if not option.get("name")
    ]


def _validate_address(text: str, path: str, errors: list[FieldError]) -> None:
    if problem := address_error(text):
        errors.append(invalid(path, text, problem))


def has_valid_names(spec: Json, keys: Iterable[str]) -> bool:
    """Whether the names under *keys*, as far as a spec has them, are valid."""
    return not any((text := spec.get(key)) and _NAMES[key](text) for key in keys)


def _validate_enums(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate enumerated and numeric fields."""
    _one_of(spec.get("restartPolicy"), f"{path}.restartPolicy", _RESTART, errors)
    _one_of(spec.get("dnsPolicy"), f"{path}.dnsPolicy", _DNS, errors)
    if "preemptionPolicy" in spec:
        _one_of(spec["preemptionPolicy"], f"{path}.preemptionPolicy", _PREEMPTION, errors)
    errors += [
        invalid(f"{path}.{key}", text, problem)
        for key, rule in _NAMES.items()
        if (text := spec.get(key)) and (problem := rule(text))
    ]
    if (system := spec.get("os")) is not None:
        if not system.get("name"):
            errors.append(required(f"{path}.os.name"))
        elif system["name"] not in _SYSTEMS:
            errors.append(not_supported(f"{path}.os", system["name"], _SYSTEMS))
    for index, gate in enumerate(spec.get("readinessGates", ())):
        name = gate.get("conditionType", "")
        if problem := validation.qualified_name_error(name):
            errors.append(invalid(f"{path}.readinessGates[{index}].conditionType", name, problem))
    if not spec.get("schedulerName"):
        errors.append(required(f"{path}.schedulerName"))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        text = f"must be between 1 and {2**31 - 1}, inclusive"
        errors.append(invalid(f"{path}.activeDeadlineSeconds", deadline, text))


def _one_of(
    value: str | None, path: str, allowed: tuple[str, ...], errors: list[FieldError]
) -> None:
    if value in allowed:
        return
    errors.append(not_supported(path, value, allowed) if value else required(path))


def _validate_name(name: str | None, path: str, seen: set[str], errors: list[FieldError]) -> None:
    if not name:
        errors.append(required(path))
    elif problem := validation.dns1123_label_error(name):
        errors.append(invalid(path, name, problem))
    elif name in seen:
        errors.append(duplicate(path, name))
    else:
        seen.add(name)


def _validate_volumes(
    volumes: Iterable[Json], path: str, errors: list[FieldError]
) -> dict[str, Json]:
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        field_path = f"{path}[{index}]"
        _validate_name(volume.get("name"), f"{field_path}.name", names, errors)
        validate_source(volume, field_path, errors)
    return {volume["name"]: volume for volume in volumes if "name" in volume}
