"""Validation of pod templates.

Common errors are denied when the job is submitted, not when its controller creates pods. Rarer ones
are left to the API server's own validation of pods.
"""

import msgspec

from ..model import tolerations, validation
from ..model.admission import Json
from ..model.field_errors import ErrorList
from ..model.pod import DNS_POLICIES, PREEMPTION_POLICIES, RESTART_POLICIES, TAINT_EFFECTS
from .container_validation import validate_container, validate_quantity
from .decoding import describe_error, without_nulls
from .pod_types import PodSpec, PodTemplate

_REQUIRED_VOLUME_FIELDS = {  # By volume source.
    "configMap": ("name",),
    "secret": ("secretName",),
    "persistentVolumeClaim": ("claimName",),
    "hostPath": ("path",),
    "nfs": ("server", "path"),
    "csi": ("driver",),
}


def decode_template(template: Json, path: str, errors: ErrorList) -> PodTemplate | None:
    """Return the decoded template; record an error and return ``None`` on a wrong type."""
    try:
        text = msgspec.json.encode(without_nulls(template))
        return msgspec.json.decode(text, type=PodTemplate)
    except msgspec.ValidationError as error:
        errors.errors.append(describe_error(error, under=path))
        return None


def validate_template(template: PodTemplate, path: str, errors: ErrorList) -> None:
    """Validate the template at *path*, e.g. ``spec.task[0].template``."""
    for key, value in template.metadata.labels.items():
        errors.invalid(f"{path}.labels", key, validation.qualified_name_error(key))
        errors.invalid(f"{path}.labels", value, validation.label_value_error(value))
    for key in template.metadata.annotations:
        lowered = key.lower()  # Annotation keys are case-insensitive.
        errors.invalid(f"{path}.annotations", key, validation.qualified_name_error(lowered))
    _validate_pod(template.spec, f"{path}.spec", errors)


def _validate_pod(pod: PodSpec, path: str, errors: ErrorList) -> None:
    volumes = _validate_volumes(pod, f"{path}.volumes", errors)
    if not pod.containers:
        errors.required(f"{path}.containers")
    named = []
    for kind, containers in (
        ("initContainers", pod.init_containers),
        ("containers", pod.containers),
    ):
        for index, container in enumerate(containers):
            where = f".{kind}[{index}]"
            named.append((f"{where}.name", container.name))
            validate_container(container, f"{path}{where}", errors, volumes=volumes)
    errors.duplicates(path, named)
    if pod.host_network:
        _validate_host_ports(pod, path, errors)
    _validate_enums_and_ranges(pod, path, errors)
    _validate_names(pod, path, errors)
    _validate_tolerations(pod, path, errors)


def _validate_enums_and_ranges(pod: PodSpec, path: str, errors: ErrorList) -> None:
    errors.not_supported(f"{path}.restartPolicy", pod.restart_policy, RESTART_POLICIES)
    errors.not_supported(f"{path}.dnsPolicy", pod.dns_policy, DNS_POLICIES)
    errors.not_supported(f"{path}.preemptionPolicy", pod.preemption_policy, PREEMPTION_POLICIES)
    grace = pod.termination_grace_period_seconds
    errors.out_of_range(f"{path}.terminationGracePeriodSeconds", grace, minimum=0)
    deadline = pod.active_deadline_seconds
    errors.out_of_range(f"{path}.activeDeadlineSeconds", deadline, minimum=1, maximum=2**31 - 1)


def _validate_names(pod: PodSpec, path: str, errors: ErrorList) -> None:
    for field, label in (("hostname", pod.hostname), ("subdomain", pod.subdomain)):
        if label:
            errors.invalid(f"{path}.{field}", label, validation.dns1123_label_error(label))
    for field, name in (
        ("nodeName", pod.node_name),
        ("serviceAccountName", pod.service_account_name),
        ("priorityClassName", pod.priority_class_name),
    ):
        if name:
            errors.invalid(f"{path}.{field}", name, validation.dns1123_subdomain_error(name))
    for key, value in pod.node_selector.items():
        errors.invalid(f"{path}.nodeSelector", key, validation.qualified_name_error(key))
        errors.invalid(f"{path}.nodeSelector", value, validation.label_value_error(value))
    for index, gate in enumerate(pod.scheduling_gates):
        name = gate.get("name", "")
        error = validation.qualified_name_error(name)
        errors.invalid(f"{path}.schedulingGates[{index}]", name, error)


def _validate_tolerations(pod: PodSpec, path: str, errors: ErrorList) -> None:
    for index, toleration in enumerate(pod.tolerations):
        where = f"{path}.tolerations[{index}]"
        operators = (*tolerations.OPERATORS, *tolerations.NUMBER_OPERATORS)
        errors.not_supported(f"{where}.operator", toleration.operator, operators)
        if toleration.operator in tolerations.NUMBER_OPERATORS:
            for problem in tolerations.number_problems(toleration.value):
                errors.invalid(f"{where}.value", toleration.value, problem)
        errors.not_supported(f"{where}.effect", toleration.effect, TAINT_EFFECTS)
        if toleration.key:
            error = validation.qualified_name_error(toleration.key)
            errors.invalid(f"{where}.key", toleration.key, error)
        elif toleration.operator != "Exists":
            detail = "operator must be Exists when `key` is empty"
            errors.invalid(f"{where}.operator", toleration.operator, detail)
        if toleration.operator == "Exists" and toleration.value:
            detail = "value must be empty when `operator` is 'Exists'"
            errors.invalid(f"{where}.operator", toleration.operator, detail)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.invalid(f"{where}.effect", toleration.effect, detail)


def _validate_volumes(pod: PodSpec, path: str, errors: ErrorList) -> frozenset[str]:
    """Validate the volumes; return their names."""
    names = []
    for index, volume in enumerate(pod.volumes):
        where = f"{path}[{index}]"
        name = volume.get("name")
        if not isinstance(name, str) or not name:
            errors.required(f"{where}.name")
            continue
        errors.invalid(f"{where}.name", name, validation.dns1123_label_error(name))
        names.append((f"[{index}].name", name))
        _validate_volume_source(volume, where, errors)
    errors.duplicates(path, names)
    return frozenset(name for _, name in names)


def _validate_volume_source(volume: Json, where: str, errors: ErrorList) -> None:
    """Validate a volume's source; without a source it is an ``emptyDir``."""
    sources = [field for field in volume if field != "name"]
    if len(sources) > 1:
        errors.one_of(where, sources, what="volume type")
    for field in sources:
        source = volume[field]
        if not isinstance(source, dict):
            errors.add(f"{where}.{field}", f"expected object, got {type(source).__name__}")
            continue
        for required in _REQUIRED_VOLUME_FIELDS.get(field, ()):
            if not source.get(required):
                errors.required(f"{where}.{field}.{required}")
        if "sizeLimit" in source:
            validate_quantity(source["sizeLimit"], f"{where}.{field}.sizeLimit", errors)


def _validate_host_ports(pod: PodSpec, path: str, errors: ErrorList) -> None:
    """Check that host ports equal container ports, as ``hostNetwork`` requires."""
    for index, container in enumerate(pod.containers):
        for number, port in enumerate(container.ports):
            if port.host_port not in (0, port.container_port):
                where = f"{path}.containers[{index}].ports[{number}].containerPort"
                detail = "must match `hostPort` when `hostNetwork` is true"
                errors.invalid(where, port.container_port, detail)
