"""kube-apiserver's warnings for a pod template: fields that are valid, but hardly intended."""

import ipaddress
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ....model import quantity, validation
from ..errors.fields import quote
from .volume_warnings import volume_warnings

Json = dict[str, Any]

_NODE_LABELS = {
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/instance-type": (
        'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead'
    ),
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": (
        'deprecated since v1.17; use "topology.kubernetes.io/region" instead'
    ),
    "failure-domain.beta.kubernetes.io/zone": (
        'deprecated since v1.17; use "topology.kubernetes.io/zone" instead'
    ),
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
    "scheduler.alpha.kubernetes.io/preferAvoidPods": (
        "deprecated since v1.22; use Taints and Tolerations instead"
    ),
}
_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": (
        'non-functional in v1.16+; use the "priorityClassName" field instead'
    ),
    "security.alpha.kubernetes.io/sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
    "security.alpha.kubernetes.io/unsafe-sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
}
_NO_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
_POD_SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
_CONTAINER_SECCOMP = "container.seccomp.security.alpha.kubernetes.io/"
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_NO_SELECTOR = "a null labelSelector results in matching no pod"
_MOST = 50
"""Warnings of one sort; more do not fit into a response."""

_CONTAINER_LISTS = ("initContainers", "containers")
_PLACEMENT = frozenset(("nodeSelector", "affinity", "topologySpreadConstraints"))
_RARE = frozenset(("dnsConfig", "hostAliases", "imagePullSecrets", "overhead"))
_FRACTIONS = ("memory", "ephemeral-storage")
"""Resources of which no fraction of a byte can be requested."""


def template_warnings(template: Json, path: str) -> list[str]:
    """Return the warnings for the pod template at *path*, in kube-apiserver's order."""
    return _warnings(template, f"{path}.")


def pod_warnings(pod: Json) -> list[str]:
    """Return the warnings for a pod: as for a template, but those of AppArmor first."""
    spec, annotations = pod.get("spec", {}), pod["metadata"].get("annotations") or {}
    found = [
        text
        for container, _ in _containers(spec, "spec")
        for text in _apparmor(spec, container, annotations, "metadata.annotations")
    ]
    return [*found, *_warnings(pod, "", of_apparmor=False)]


def _warnings(template: Json, prefix: str, *, of_apparmor: bool = True) -> list[str]:
    spec, spec_path = template.get("spec", {}), f"{prefix}spec"
    annotations = template.get("metadata", {}).get("annotations") or {}
    annotations_path = f"{prefix}metadata.annotations"
    found: list[str] = []
    # Looking for the fields of several checks at once costs less than the checks.
    if not _PLACEMENT.isdisjoint(spec):
        found += [*_node_labels(spec, spec_path), *_spreads(spec, spec_path)]
    found += _annotations(annotations, annotations_path)
    found += volume_warnings(spec, spec_path)
    if not _RARE.isdisjoint(spec):
        found += [
            *_duplicates(spec, spec_path),
            *_fractions(spec.get("overhead"), f"{spec_path}.overhead"),
        ]
    if _POD_SECCOMP in annotations and "seccompProfile" not in spec.get("securityContext", {}):
        found.append(f"{annotations_path}[{_POD_SECCOMP}]: {_NO_SECCOMP}")
    for container, field_path in _containers(spec, spec_path):
        found += _seccomp(container, annotations, annotations_path)
        if of_apparmor:
            found += _apparmor(spec, container, annotations, annotations_path)
        found += _container_fractions(container, f"{field_path}.resources")
        found += _environment(container, field_path)
    if any("ports" in container for container, _ in _containers(spec, spec_path)):
        found += [*islice(_ports(spec, spec_path), _MOST), *_port_names(spec, spec_path)]
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        text = "must be >= 0; negative values are invalid and will be treated as 1"
        found.append(f"{spec_path}.terminationGracePeriodSeconds: {text}")
    if "affinity" in spec:
        found += _pod_affinity(spec, spec_path)
    return found if _RARE.isdisjoint(spec) else [*found, *_addresses(spec, spec_path)]


def storage_class_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return the warnings for the labels of nodes in the topologies of a StorageClass."""
    return [
        f"allowedTopologies[{index}].matchLabelExpressions[{number}].key: {_NODE_LABELS[key]}"
        for index, term in enumerate(obj.get("allowedTopologies") or ())
        for number, each in enumerate(term.get("matchLabelExpressions") or ())
        if (key := each.get("key")) in _NODE_LABELS
    ]


def _containers(spec: Json, path: str) -> Iterator[tuple[Json, str]]:
    for kind in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(kind) or ()):
            yield container, f"{path}.{kind}[{index}]"


def _node_labels(spec: Json, path: str) -> Iterator[str]:
    for key in sorted(spec.get("nodeSelector", {}).keys() & _NODE_LABELS.keys()):
        yield f"{path}.nodeSelector[{key}]: {_NODE_LABELS[key]}"
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    path = f"{path}.affinity.nodeAffinity"
    for index, term in enumerate(affinity.get(_REQUIRED, {}).get("nodeSelectorTerms") or ()):
        yield from _node_term(term, f"{path}.{_REQUIRED}.nodeSelectorTerms[{index}]")
    for index, weighted in enumerate(affinity.get(_PREFERRED) or ()):
        field_path = f"{path}.{_PREFERRED}[{index}].preference"
        yield from _node_term(weighted.get("preference", {}), field_path, values=True)


def _node_term(term: Json, path: str, *, values: bool = False) -> Iterator[str]:
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        field_path, key = f"{path}.matchExpressions[{index}]", expression.get("key", "")
        if key in _NODE_LABELS:
            yield f"{field_path}.key: {key} is {_NODE_LABELS[key]}"
        for number, value in enumerate(expression.get("values") or ()):
            if values and (problem := validation.label_value_error(value)):
                yield f"{field_path}.values[{number}]: {value} is invalid, {problem}"


def _spreads(spec: Json, path: str) -> Iterator[str]:
    for index, spread in enumerate(spec.get("topologySpreadConstraints") or ()):
        field_path, key = f"{path}.topologySpreadConstraints[{index}]", spread.get("topologyKey")
        if key in _NODE_LABELS:
            yield f"{field_path}.topologyKey: {key} is {_NODE_LABELS[key]}"
        if "labelSelector" not in spread:
            yield f"{field_path}.labelSelector: {_NO_SELECTOR}"


def _annotations(annotations: Json, path: str) -> list[str]:
    return [f"{path}[{key}]: {text}" for key, text in _ANNOTATIONS.items() if key in annotations]


def _duplicates(spec: Json, path: str) -> Iterator[str]:
    for kind, key in (("hostAliases", "ip"), ("imagePullSecrets", "name")):
        seen = set()
        for index, item in enumerate(spec.get(kind) or ()):
            value = item.get(key, "")
            if value in seen:
                yield f"{path}.{kind}[{index}].{key}: duplicate {key} {quote(value)}"
            seen.add(value)
    for index, secret in enumerate(spec.get("imagePullSecrets") or ()):
        if not secret.get("name"):
            yield f'{path}.imagePullSecrets[{index}].name: invalid empty name ""'


def _fractions(amounts: Json | None, path: str) -> Iterator[str]:
    for resource in _FRACTIONS:
        text = (amounts or {}).get(resource)
        if text is not None and not quantity.parse(text).is_whole:
            shown, where = quote(quantity.canonical(text)), f"{path}[{resource}]"
            yield f"{where}: fractional byte value {shown} is invalid, must be an integer"


def _container_fractions(container: Json, path: str) -> Iterator[str]:
    resources = container.get("resources", {})
    for resource in _FRACTIONS:
        for kind in ("limits", "requests"):
            if (text := resources.get(kind, {}).get(resource)) is not None:
                yield from _fractions({resource: text}, f"{path}.{kind}")


def _seccomp(container: Json, annotations: Json, path: str) -> Iterator[str]:
    """Warn of an annotation that a field has replaced."""
    key = f"{_CONTAINER_SECCOMP}{container.get('name', '')}"
    if key in annotations and "seccompProfile" not in container.get("securityContext", {}):
        yield f"{path}[{key}]: {_NO_SECCOMP}"


def _apparmor(pod: Json, container: Json, annotations: Json, path: str) -> Iterator[str]:
    """Warn of an annotation that a field has replaced."""
    key = f"{_APPARMOR}{container.get('name', '')}"
    if key in annotations and "appArmorProfile" not in container.get("securityContext", {}):
        profile = pod.get("securityContext", {}).get("appArmorProfile")
        if profile is None or profile != _apparmor_profile(annotations[key]):
            yield f'{path}[{key}]: deprecated since v1.30; use the "appArmorProfile" field instead'


def _apparmor_profile(annotation: str) -> Json | None:
    types = {"unconfined": "Unconfined", "runtime/default": "RuntimeDefault"}
    if annotation in types:
        return {"type": types[annotation]}
    name = annotation.removeprefix("localhost/")
    return {"type": "Localhost", "localhostProfile": name} if name not in ("", annotation) else None


def _environment(container: Json, path: str) -> Iterator[str]:
    """Warn of variables that hide an earlier one without using it."""
    seen = set()
    for index, variable in enumerate(container.get("env") or ()):
        name = variable.get("name", "")
        if name not in seen:
            seen.add(name)
            continue
        value, reference = variable.get("value", ""), f"$({name})"
        if "valueFrom" in variable or value == reference or reference not in value:
            yield (
                f"{path}.env[{index}]: hides previous definition of {quote(name)}, which may be "
                "dropped when using apply"
            )


def _ports(spec: Json, path: str) -> Iterator[str]:
    """Warn of ports that may be the same as another."""
    known: dict[tuple[int, str], _KnownPorts] = {}
    for container, field_path in _containers(spec, path):
        for index, port in enumerate(container.get("ports") or ()):
            where = f"{field_path}.ports[{index}]"
            if port.get("hostIP") and not port.get("hostPort"):
                yield f"{where}: hostIP set without hostPort: {_internal_port(port)}"
            key = port.get("containerPort", 0), port.get("protocol", "")
            others = known.setdefault(key, _KnownPorts())
            host = port.get("hostPort", 0), port.get("hostIP", "")
            for relation, other_path in others.conflicts(*host):
                yield f"{where}: {relation} port definition with {other_path}"
            others.add(*host, where)


class _KnownPorts:
    """Ports of one number and protocol, by host port and address.

    All that is looked up is in conflict, so that the work is limited by the number of warnings.
    """

    def __init__(self) -> None:
        self._count = 0
        self._by_host: dict[int, dict[str, list[tuple[int, str]]]] = {}

    def add(self, host: int, address: str, path: str) -> None:
        """Add a port at *path*."""
        self._by_host.setdefault(host, {}).setdefault(address, []).append((self._count, path))
        self._count += 1

    def conflicts(self, host: int, address: str) -> Iterator[tuple[str, str]]:
        """Yield the relation to each port in conflict, and its path, in the order of addition."""
        found: list[tuple[int, str, str]] = []

        def collect(relation: str, ports: list[tuple[int, str]]) -> None:
            found.extend((number, relation, path) for number, path in ports)

        for other_host in (0, host) if host else tuple(self._by_host):
            for other_address, ports in self._at(other_host, host, address):
                if (host, address) == (other_host, other_address):
                    collect("duplicate", ports)
                elif not host or not other_host:
                    collect("overlapping", ports)
                else:
                    collect("dangerously ambiguous", ports)
        for _, relation, path in sorted(found):
            yield relation, path

    def _at(
        self, other_host: int, host: int, address: str
    ) -> list[tuple[str, list[tuple[int, str]]]]:
        """Return the ports with *other_host* that are in conflict."""
        by_address = self._by_host.get(other_host, {})
        if not host or not other_host or not address:
            return list(by_address.items())
        return [(each, by_address[each]) for each in ("", address) if each in by_address]


def _internal_port(port: Json) -> str:
    """Return a port in the form that kube-apiserver's messages have."""
    return (
        f"{{Name:{port.get('name', '')} HostPort:{port.get('hostPort', 0)} "
        f"ContainerPort:{port.get('containerPort', 0)} Protocol:{port.get('protocol', '')} "
        f"HostIP:{port.get('hostIP', '')}}}"
    )


def _port_names(spec: Json, path: str) -> Iterator[str]:
    known: dict[str, str] = {}
    for container, field_path in _containers(spec, path):
        for index, port in enumerate(container.get("ports") or ()):
            where, name = f"{field_path}.ports[{index}]", port.get("name")
            if name in known:
                first = known[name]
                yield (
                    f"{where}: duplicate port name {quote(name)} with {first}, services and probes "
                    f"that select ports by name will use {first}"
                )
            elif name:
                known[name] = where


def _pod_affinity(spec: Json, path: str) -> Iterator[str]:
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity, field_path = spec.get("affinity", {}).get(kind, {}), f"{path}.affinity.{kind}"
        for index, term in enumerate(affinity.get(_REQUIRED) or ()):
            if "labelSelector" not in term:
                yield f"{field_path}.{_REQUIRED}[{index}].labelSelector: {_NO_SELECTOR}"
        for index, weighted in enumerate(affinity.get(_PREFERRED) or ()):
            if "labelSelector" not in weighted.get("podAffinityTerm", {}):
                where = f"{field_path}.{_PREFERRED}[{index}].podAffinityTerm.labelSelector"
                yield f"{where}: {_NO_SELECTOR}"


def _addresses(spec: Json, path: str) -> Iterator[str]:
    servers = spec.get("dnsConfig", {}).get("nameservers") or ()
    given = [(f"{path}.dnsConfig.nameservers[{i}]", each) for i, each in enumerate(servers)]
    aliases = spec.get("hostAliases") or ()
    given += [(f"{path}.hostAliases[{i}].ip", each.get("ip", "")) for i, each in enumerate(aliases)]
    for where, text in given:
        canonical = str(ipaddress.ip_address(text))
        if canonical != text:
            yield (
                f"{where}: IPv6 address {quote(text)} should be in RFC 5952 canonical format "
                f"({quote(canonical)})"
            )
