"""Checks of a pod template: what would keep an API server from making pods of it.

The faults that people make are found here, when the job is submitted, and not by its controller
later. Rarer ones are left to the API server that stores the pods.
"""

import msgspec

from ..model import validation
from ..model.admission import Json
from .container_validation import check_container, check_quantity
from .decoding import describe, without_nulls
from .field_errors import Problems
from .pod_types import PodSpec, PodTemplate

_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_NEEDED_OF_VOLUME = {  # what a source of a volume cannot do without
    "configMap": ("name",),
    "secret": ("secretName",),
    "persistentVolumeClaim": ("claimName",),
    "hostPath": ("path",),
    "nfs": ("server", "path"),
    "csi": ("driver",),
}


def read_template(template: Json, path: str, problems: Problems) -> PodTemplate | None:
    """The template as a typed object; ``None`` and a complaint where a field has a wrong type."""
    try:
        text = msgspec.json.encode(without_nulls(template))
        return msgspec.json.decode(text, type=PodTemplate)
    except msgspec.ValidationError as wrong:
        problems.found.append(describe(wrong, under=path))
        return None


def check_template(template: PodTemplate, path: str, problems: Problems) -> None:
    """Check the template at *path*, e.g. ``spec.task[0].template``."""
    for key, value in template.metadata.labels.items():
        problems.invalid(f"{path}.labels", key, validation.qualified_name_problem(key))
        problems.invalid(f"{path}.labels", value, validation.label_value_problem(value))
    for key in template.metadata.annotations:
        lowered = key.lower()  # only the letters' case is free in annotations
        problems.invalid(f"{path}.annotations", key, validation.qualified_name_problem(lowered))
    _check_pod(template.spec, f"{path}.spec", problems)


def _check_pod(pod: PodSpec, path: str, problems: Problems) -> None:
    volumes = _check_volumes(pod, f"{path}.volumes", problems)
    if not pod.containers:
        problems.required(f"{path}.containers")
    named = []
    for kind, containers in (
        ("initContainers", pod.init_containers),
        ("containers", pod.containers),
    ):
        for index, container in enumerate(containers):
            where = f".{kind}[{index}]"
            named.append((f"{where}.name", container.name))
            check_container(container, f"{path}{where}", problems, volumes=volumes)
    problems.unique(path, named)
    if pod.host_network:
        _check_host_ports(pod, path, problems)
    _check_choices(pod, path, problems)
    _check_names(pod, path, problems)
    _check_tolerations(pod, path, problems)


def _check_choices(pod: PodSpec, path: str, problems: Problems) -> None:
    problems.choice(f"{path}.restartPolicy", pod.restart_policy, _RESTART_POLICIES)
    problems.choice(f"{path}.dnsPolicy", pod.dns_policy, _DNS_POLICIES)
    problems.choice(
        f"{path}.preemptionPolicy", pod.preemption_policy, ("PreemptLowerPriority", "Never")
    )
    grace = pod.termination_grace_period_seconds
    problems.range(f"{path}.terminationGracePeriodSeconds", grace, least=0)
    deadline = pod.active_deadline_seconds
    problems.range(f"{path}.activeDeadlineSeconds", deadline, least=1, most=2**31 - 1)


def _check_names(pod: PodSpec, path: str, problems: Problems) -> None:
    for field, label in (("hostname", pod.hostname), ("subdomain", pod.subdomain)):
        if label:
            problems.invalid(f"{path}.{field}", label, validation.dns_label_problem(label))
    for field, name in (
        ("nodeName", pod.node_name),
        ("serviceAccountName", pod.service_account_name),
        ("priorityClassName", pod.priority_class_name),
    ):
        if name:
            problems.invalid(f"{path}.{field}", name, validation.dns_subdomain_problem(name))
    for key, value in pod.node_selector.items():
        problems.invalid(f"{path}.nodeSelector", key, validation.qualified_name_problem(key))
        problems.invalid(f"{path}.nodeSelector", value, validation.label_value_problem(value))
    for index, gate in enumerate(pod.scheduling_gates):
        name = gate.get("name", "")
        problem = validation.qualified_name_problem(name)
        problems.invalid(f"{path}.schedulingGates[{index}]", name, problem)


def _check_tolerations(pod: PodSpec, path: str, problems: Problems) -> None:
    for index, toleration in enumerate(pod.tolerations):
        where = f"{path}.tolerations[{index}]"
        problems.choice(f"{where}.operator", toleration.operator, ("Equal", "Exists"))
        problems.choice(f"{where}.effect", toleration.effect, _TAINT_EFFECTS)
        if toleration.key:
            problem = validation.qualified_name_problem(toleration.key)
            problems.invalid(f"{where}.key", toleration.key, problem)
        elif toleration.operator != "Exists":
            why = "operator must be Exists when `key` is empty"
            problems.invalid(f"{where}.operator", toleration.operator, why)
        if toleration.operator == "Exists" and toleration.value:
            why = "value must be empty when `operator` is 'Exists'"
            problems.invalid(f"{where}.operator", toleration.operator, why)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            problems.invalid(f"{where}.effect", toleration.effect, why)


def _check_volumes(pod: PodSpec, path: str, problems: Problems) -> frozenset[str]:
    """Check the volumes and give their names."""
    names = []
    for index, volume in enumerate(pod.volumes):
        where = f"{path}[{index}]"
        name = volume.get("name")
        if not isinstance(name, str) or not name:
            problems.required(f"{where}.name")
            continue
        problems.invalid(f"{where}.name", name, validation.dns_label_problem(name))
        names.append((f"[{index}].name", name))
        _check_source(volume, where, problems)
    problems.unique(path, names)
    return frozenset(name for _, name in names)


def _check_source(volume: Json, where: str, problems: Problems) -> None:
    """Check where a volume's content comes from; without a source it is an empty folder."""
    sources = [field for field in volume if field != "name"]
    if len(sources) > 1:
        problems.one_of(where, sources, what="volume type")
    for field in sources:
        source = volume[field]
        if not isinstance(source, dict):
            problems.add(f"{where}.{field}", f"expected object, got {type(source).__name__}")
            continue
        for needed in _NEEDED_OF_VOLUME.get(field, ()):
            if not source.get(needed):
                problems.required(f"{where}.{field}.{needed}")
        if "sizeLimit" in source:
            check_quantity(source["sizeLimit"], f"{where}.{field}.sizeLimit", problems)


def _check_host_ports(pod: PodSpec, path: str, problems: Problems) -> None:
    """On the node's network a port of the container is a port of the node."""
    for index, container in enumerate(pod.containers):
        for number, port in enumerate(container.ports):
            if port.host_port not in (0, port.container_port):
                where = f"{path}.containers[{index}].ports[{number}].containerPort"
                why = "must match `hostPort` when `hostNetwork` is true"
                problems.invalid(where, port.container_port, why)
