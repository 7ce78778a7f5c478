"""The checks of pods and pod templates, in the words of kube-apiserver."""

from collections.abc import Iterable
from typing import Any

from ....model import quantity, syntax
from ....model.resource_names import COMPUTE, may_overcommit
from ..errors.fields import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
)
from ..kinds.metadata import check_annotations, check_labels

Json = dict[str, Any]

_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PULL = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_TOLERATION_OPERATORS = ("Equal", "Exists")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_SPREAD_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
_PREEMPTION = ("PreemptLowerPriority", "Never")
_NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_NAMES = (
    ("hostname", syntax.dns_label_problem),
    ("subdomain", syntax.dns_label_problem),
    ("nodeName", syntax.dns_subdomain_problem),
    ("serviceAccountName", syntax.dns_subdomain_problem),
    ("priorityClassName", syntax.dns_subdomain_problem),
    ("runtimeClassName", syntax.dns_subdomain_problem),
)
_POSITIVE = "must be greater than or equal to 1"


def check_pod_spec(spec: Json, path: str) -> list[FieldError]:
    """Check the spec of a pod or of a template at *path*."""
    errors: list[FieldError] = []
    volumes = _check_volumes(spec.get("volumes", ()), f"{path}.volumes", errors)
    if not spec.get("containers"):
        errors.append(required(f"{path}.containers"))
    seen: set[str] = set()
    for kind in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(kind, ())):
            place = f"{path}.{kind}[{index}]"
            _check_name(container.get("name"), f"{place}.name", seen, errors)
            _check_container(container, place, volumes, errors)
    _check_words(spec, path, errors)
    _check_placement(spec, path, errors)
    return errors


def check_template(template: Json, path: str) -> list[FieldError]:
    """Check a pod template: labels, annotations, spec."""
    metadata = template.get("metadata", {})
    errors = check_labels(metadata.get("labels"), f"{path}.labels")
    errors += check_annotations(metadata.get("annotations"), f"{path}.annotations")
    return errors + check_pod_spec(template.get("spec", {}), f"{path}.spec")


def _check_words(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Check the fields that hold one word or one number."""
    _one_of(spec.get("restartPolicy"), f"{path}.restartPolicy", _RESTART, errors)
    _one_of(spec.get("dnsPolicy"), f"{path}.dnsPolicy", _DNS, errors)
    if "preemptionPolicy" in spec:
        _one_of(spec["preemptionPolicy"], f"{path}.preemptionPolicy", _PREEMPTION, errors)
    errors += [
        invalid(f"{path}.{key}", text, problem)
        for key, rule in _NAMES
        if (text := spec.get(key)) and (problem := rule(text))
    ]
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


def _check_name(name: str | None, path: str, seen: set[str], errors: list[FieldError]) -> None:
    if not name:
        errors.append(required(path))
    elif problem := syntax.dns_label_problem(name):
        errors.append(invalid(path, name, problem))
    elif name in seen:
        errors.append(duplicate(path, name))
    else:
        seen.add(name)


def _check_volumes(volumes: Iterable[Json], path: str, errors: list[FieldError]) -> dict[str, Json]:
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        place = f"{path}[{index}]"
        _check_name(volume.get("name"), f"{place}.name", names, errors)
        if len(volume) > 2:
            extra = sorted(volume.keys() - {"name"})[1]
            text = "may not specify more than 1 volume type"
            errors.append(forbidden(f"{place}.{extra}", text))
        _check_volume_source(volume, place, errors)
    return {volume["name"]: volume for volume in volumes if "name" in volume}


def _check_volume_source(volume: Json, path: str, errors: list[FieldError]) -> None:
    for kind, key in (
        ("hostPath", "path"),
        ("secret", "secretName"),
        ("configMap", "name"),
        ("persistentVolumeClaim", "claimName"),
        ("nfs", "server"),
        ("csi", "driver"),
    ):
        if kind in volume and not volume[kind].get(key):
            errors.append(required(f"{path}.{kind}.{key}"))


def _check_container(
    container: Json, path: str, volumes: dict[str, Json], errors: list[FieldError]
) -> None:
    image = container.get("image")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image.strip() != image:
        text = "must not have leading or trailing whitespace"
        errors.append(invalid(f"{path}.image", image, text))
    if "imagePullPolicy" in container:
        _one_of(container["imagePullPolicy"], f"{path}.imagePullPolicy", _PULL, errors)
    _one_of(
        container.get("terminationMessagePolicy"),
        f"{path}.terminationMessagePolicy",
        _MESSAGE_POLICIES,
        errors,
    )
    if ports := container.get("ports"):
        _check_ports(ports, f"{path}.ports", errors)
    if env := container.get("env"):
        _check_env(env, f"{path}.env", errors)
    if mounts := container.get("volumeMounts"):
        _check_mounts(mounts, f"{path}.volumeMounts", volumes, errors)
    if resources := container.get("resources"):
        check_resources(resources, f"{path}.resources", errors)
    for name in _PROBES:
        if name in container:
            _check_probe(container[name], f"{path}.{name}", errors)


def _check_ports(ports: list[Json], path: str, errors: list[FieldError]) -> None:
    names = set()
    for index, port in enumerate(ports):
        place = f"{path}[{index}]"
        if name := port.get("name"):
            if name in names:
                errors.append(duplicate(f"{place}.name", name))
            names.add(name)
            if len(name) > 15 or syntax.dns_label_problem(name):
                text = "must be a lowercase RFC 1123 label of at most 15 characters"
                errors.append(invalid(f"{place}.name", name, text))
        if not port.get("containerPort"):
            errors.append(required(f"{place}.containerPort"))
        for key in ("containerPort", "hostPort"):
            if (number := port.get(key)) and not 1 <= number <= 65535:
                text = "must be between 1 and 65535, inclusive"
                errors.append(invalid(f"{place}.{key}", number, text))
        _one_of(port.get("protocol"), f"{place}.protocol", _PROTOCOLS, errors)


def _check_env(env: list[Json], path: str, errors: list[FieldError]) -> None:
    for index, variable in enumerate(env):
        name = variable.get("name")
        if not name:
            errors.append(required(f"{path}[{index}].name"))
        elif problem := syntax.env_name_problem(name):
            errors.append(invalid(f"{path}[{index}].name", name, problem))
        source = variable.get("valueFrom")
        if source is None:
            continue
        if variable.get("value"):
            text = "may not be specified when `value` is not empty"
            errors.append(invalid(f"{path}[{index}].valueFrom", "", text))
        if len(source) != 1:
            text = "may not have more than one field specified at a time"
            told = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or "
            problem = text if source else f"{told}`secretKeyRef`"
            errors.append(invalid(f"{path}[{index}].valueFrom", "", problem))


def _check_mounts(
    mounts: list[Json], path: str, volumes: dict[str, Json], errors: list[FieldError]
) -> None:
    places = set()
    for index, mount in enumerate(mounts):
        name, target = mount.get("name"), mount.get("mountPath")
        if not name:
            errors.append(required(f"{path}[{index}].name"))
        elif name not in volumes:
            errors.append(not_found(f"{path}[{index}].name", name))
        if not target:
            errors.append(required(f"{path}[{index}].mountPath"))
        elif target in places:
            errors.append(invalid(f"{path}[{index}].mountPath", target, "must be unique"))
        places.add(target)
        if ".." in (sub := mount.get("subPath", "")).split("/") or sub.startswith("/"):
            text = "must be a relative path without '..'"
            errors.append(invalid(f"{path}[{index}].subPath", sub, text))


def check_resources(resources: Json, path: str, errors: list[FieldError]) -> None:
    """Check requests and limits: their names, no negative ones, no request above its limit."""
    limits = resources.get("limits", {})
    for kind in ("limits", "requests"):
        for name, text in resources.get(kind, {}).items():
            place = f"{path}.{kind}[{name}]"
            if name not in COMPUTE and (problem := _resource_problem(name)):
                errors.append(invalid(place, name, problem))
            if text[0] == "-":
                told = "must be greater than or equal to 0"
                errors.append(invalid(place, text, told))
    for name, text in resources.get("requests", {}).items():
        _check_request(name, text, limits.get(name), path, errors)


def _check_request(
    name: str, text: str, limit: str | None, path: str, errors: list[FieldError]
) -> None:
    elastic = may_overcommit(name)
    if limit is None:
        if not elastic:
            told = "Limit must be set for non overcommitable resources"
            errors.append(required(f"{path}.limits", told))
        return
    wanted, most = quantity.parse(text), quantity.parse(limit)
    if wanted > most or (wanted != most and not elastic):
        relation = "less than or equal" if elastic else "equal"
        told = f"must be {relation} to {name} limit of {limit}"
        errors.append(invalid(f"{path}.requests", text, told))


def _resource_problem(name: str) -> str:
    if problem := syntax.qualified_name_problem(name):
        return problem
    if "/" in name or name.startswith("hugepages-"):
        return ""
    return "must be a standard resource type or fully qualified"


def _check_probe(probe: Json, path: str, errors: list[FieldError]) -> None:
    handlers = [name for name in ("exec", "httpGet", "tcpSocket", "grpc") if name in probe]
    if not handlers:
        errors.append(required(path, "must specify a handler type"))
    if "exec" in probe and not probe["exec"].get("command"):
        errors.append(required(f"{path}.exec.command"))
    for extra in handlers[1:]:
        text = "may not specify more than 1 handler type"
        errors.append(forbidden(f"{path}.{extra}", text))
    errors += [
        invalid(f"{path}.{key}", probe[key], _POSITIVE)
        for key in ("timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
        if probe.get(key, 1) < 1
    ]
    if probe.get("successThreshold", 1) != 1 and not path.endswith("readinessProbe"):
        errors.append(invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1"))


def _check_placement(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Check what says where a pod may run."""
    if selector := spec.get("nodeSelector"):
        errors += check_labels(selector, f"{path}.nodeSelector")
    for index, toleration in enumerate(spec.get("tolerations", ())):
        _check_toleration(toleration, f"{path}.tolerations[{index}]", errors)
    if affinity := spec.get("affinity"):
        _check_affinity(affinity, f"{path}.affinity", errors)
    for index, spread in enumerate(spec.get("topologySpreadConstraints", ())):
        place = f"{path}.topologySpreadConstraints[{index}]"
        if not spread.get("topologyKey"):
            errors.append(required(f"{place}.topologyKey", "can not be empty"))
        if spread.get("maxSkew", 0) < 1:
            text = "must be greater than zero"
            errors.append(invalid(f"{place}.maxSkew", spread.get("maxSkew", 0), text))
        _one_of(
            spread.get("whenUnsatisfiable"), f"{place}.whenUnsatisfiable", _SPREAD_ACTIONS, errors
        )
    gates: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates", ())):
        place = f"{path}.schedulingGates[{index}].name"
        name = gate.get("name", "")
        if problem := syntax.qualified_name_problem(name):
            errors.append(invalid(place, name, problem))
        if name in gates:
            errors.append(duplicate(f"{path}.schedulingGates[{index}]", name))
        gates.add(name)


def _check_toleration(toleration: Json, path: str, errors: list[FieldError]) -> None:
    key, operator = toleration.get("key"), toleration.get("operator", "Equal")
    if key and (problem := syntax.qualified_name_problem(key)):
        errors.append(invalid(f"{path}.key", key, problem))
    _one_of(operator, f"{path}.operator", _TOLERATION_OPERATORS, errors)
    if not key and operator != "Exists":
        text = (
            'operator must be Exists when `key` is empty, which means "match all values and all '
            'keys"'
        )
        errors.append(invalid(f"{path}.operator", toleration.get("operator", ""), text))
    if operator == "Exists" and toleration.get("value"):
        text = "value must be empty when `operator` is 'Exists'"
        errors.append(invalid(f"{path}.operator", toleration["value"], text))
    if effect := toleration.get("effect"):
        _one_of(effect, f"{path}.effect", _EFFECTS, errors)
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid(f"{path}.effect", effect or "", text))


def _check_affinity(affinity: Json, path: str, errors: list[FieldError]) -> None:
    node = affinity.get("nodeAffinity", {})
    needed = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    place = f"{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if needed is not None:
        terms = needed.get("nodeSelectorTerms", ())
        if not terms:
            errors.append(required(place, "must have at least one node selector term"))
        for index, term in enumerate(terms):
            _check_node_term(term, f"{place}[{index}]", errors)
    place = f"{path}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    for index, wish in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution", ())):
        _check_weight(wish, f"{place}[{index}].weight", errors)
        _check_node_term(wish.get("preference", {}), f"{place}[{index}].preference", errors)
    for kind in ("podAffinity", "podAntiAffinity"):
        _check_pod_affinity(affinity.get(kind, {}), f"{path}.{kind}", errors)


def _check_weight(wish: Json, path: str, errors: list[FieldError]) -> None:
    if not 1 <= wish.get("weight", 0) <= 100:
        errors.append(invalid(path, wish.get("weight", 0), "must be in the range 1-100"))


def _check_node_term(term: Json, path: str, errors: list[FieldError]) -> None:
    for kind in ("matchExpressions", "matchFields"):
        for index, expression in enumerate(term.get(kind, ())):
            place = f"{path}.{kind}[{index}]"
            check_expression(expression, place, _NODE_OPERATORS, errors)


def check_expression(
    expression: Json, path: str, operators: tuple[str, ...], errors: list[FieldError]
) -> None:
    """Check one expression of a selector of labels or nodes."""
    operator, values = expression.get("operator", ""), expression.get("values", ())
    if operator not in operators:
        errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif operator in ("In", "NotIn") and not values:
        text = "must be specified when `operator` is 'In' or 'NotIn'"
        errors.append(required(f"{path}.values", text))
    elif operator in ("Exists", "DoesNotExist") and values:
        text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        errors.append(forbidden(f"{path}.values", text))
    elif operator in ("Gt", "Lt") and len(values) != 1:
        text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        errors.append(required(f"{path}.values", text))
    if problem := syntax.qualified_name_problem(expression.get("key", "")):
        errors.append(invalid(f"{path}.key", expression.get("key", ""), problem))


def check_selector(selector: Json, path: str, errors: list[FieldError]) -> None:
    """Check a selector of labels."""
    errors += check_labels(selector.get("matchLabels"), f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions", ())):
        place = f"{path}.matchExpressions[{index}]"
        check_expression(expression, place, _SELECTOR_OPERATORS, errors)


def _check_pod_affinity(affinity: Json, path: str, errors: list[FieldError]) -> None:
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [(term, f"{path}.{kind}[{i}]") for i, term in enumerate(affinity.get(kind, ()))]
    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    for index, wish in enumerate(affinity.get(kind, ())):
        _check_weight(wish, f"{path}.{kind}[{index}].weight", errors)
        terms.append((wish.get("podAffinityTerm", {}), f"{path}.{kind}[{index}].podAffinityTerm"))
    for term, place in terms:
        if not term.get("topologyKey"):
            errors.append(required(f"{place}.topologyKey", "can not be empty"))
        if selector := term.get("labelSelector"):
            check_selector(selector, f"{place}.labelSelector", errors)
