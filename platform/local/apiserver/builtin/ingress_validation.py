"""Validation of Ingresses and IngressClasses."""

import ipaddress
import re
from typing import Any

from ....model import validation
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)
from .container_validation import port_name_errors

Json = dict[str, Any]

_MAX_CONTROLLER, _MAX_PORT = 250, 65_535
_CLUSTER, _NAMESPACE = "Cluster", "Namespace"
_EXACT, _SPECIFIC, _PREFIX = "Exact", "ImplementationSpecific", "Prefix"
_FORBIDDEN_IN_PATHS = ("//", "/./", "/../", "%2f", "%2F")
_FORBIDDEN_SUFFIXES = ("/..", "/.")
_CLASS_ANNOTATION = "kubernetes.io/ingress.class"
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")


def ingress_warnings(obj: Json, old: Json | None) -> list[str]:
    """Warn of the annotation of a new Ingress that names its class."""
    named = "ingressClassName" in (obj.get("spec") or {})
    annotations = obj["metadata"].get("annotations") or {}
    if old is not None or named or _CLASS_ANNOTATION not in annotations:
        return []
    text = "is deprecated, please use 'spec.ingressClassName' instead"
    return [f'annotation "{_CLASS_ANNOTATION}" {text}']


def validate_ingress_class(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate an IngressClass, whose controller is immutable."""
    spec = obj.get("spec") or {}
    controller, path = spec.get("controller", ""), "spec.controller"
    errors: list[FieldError] = []
    if old is not None and controller != (old.get("spec") or {}).get("controller", ""):
        errors.append(invalid(path, controller, IMMUTABLE))
    if len(controller) > _MAX_CONTROLLER:
        errors.append(too_long(path, _MAX_CONTROLLER))
    errors += _domain_path_errors(controller, path)
    if (parameters := spec.get("parameters")) is not None:
        path = "spec.parameters"
        errors += _reference_errors(parameters, path)
        errors += _scope_errors(parameters, path)
    return errors


def _domain_path_errors(text: str, path: str) -> list[FieldError]:
    """Validate a domain and a path: ``ex.io/name``."""
    if not text:
        return [required(path)]
    domain, slash, rest = text.partition("/")
    if not slash or not domain or not rest:
        return [invalid(path, text, 'must be a domain-prefixed path (such as "acme.io/foo")')]
    errors = []
    if problem := validation.dns1123_subdomain_error(domain):
        errors.append(invalid(path, domain, problem))
    if not _PATH.fullmatch(rest):
        errors.append(invalid(path, rest, "Invalid path"))
    return errors


def _reference_errors(reference: Json, path: str) -> list[FieldError]:
    """Validate the group, kind and name of another object."""
    errors: list[FieldError] = []
    group = reference.get("apiGroup")
    if group is not None and (problem := validation.dns1123_subdomain_error(group)):
        errors.append(invalid(f"{path}.apiGroup", group, problem))
    for key in ("kind", "name"):
        value = reference.get(key, "")
        if not value:
            errors.append(required(f"{path}.{key}"))
        elif problem := validation.path_segment_error(value):
            errors.append(invalid(f"{path}.{key}", value, problem))
    return errors


def _scope_errors(parameters: Json, path: str) -> list[FieldError]:
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    where = f"{path}.namespace"
    if scope is None:
        return [required(f"{path}.scope")]
    if scope not in (_CLUSTER, _NAMESPACE):
        return [not_supported(f"{path}.scope", scope, (_CLUSTER, _NAMESPACE))]
    if scope == _CLUSTER:
        text = "`parameters.scope` is set to 'Cluster'"
        return [] if namespace is None else [forbidden(where, text)]
    if namespace is None:
        return [required(where, "`parameters.scope` is set to 'Namespace'")]
    problem = validation.dns1123_label_error(namespace)
    return [invalid(where, namespace, problem)] if problem else []


def validate_ingress(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate an Ingress.

    An update may keep invalid names of Secrets, and the rules of hosts with a wildcard: earlier
    versions of Kubernetes accepted both.
    """
    spec, before = obj.get("spec") or {}, (old or {}).get("spec") or {}
    errors: list[FieldError] = []
    rules, default = spec.get("rules") or [], spec.get("defaultBackend")
    if not rules and default is None:
        text = "either `defaultBackend` or `rules` must be specified"
        errors.append(invalid("spec", rules, text))
    if default is not None:
        _validate_backend(default, "spec.defaultBackend", errors)
    for index, rule in enumerate(rules):
        _validate_rule(
            rule, f"spec.rules[{index}]", errors, kept=rule in (before.get("rules") or ())
        )
    for index, tls in enumerate(spec.get("tls") or ()):
        kept = tls in (before.get("tls") or ())
        _validate_tls(tls, f"spec.tls[{index}]", errors, kept=kept)
    name = spec.get("ingressClassName")
    if name is not None and (problem := validation.dns1123_subdomain_error(name)):
        errors.append(invalid("spec.ingressClassName", name, problem))
    annotation = (obj["metadata"].get("annotations") or {}).get(_CLASS_ANNOTATION)
    if old is None and None not in (annotation, name) and annotation != name:
        text = "must match `ingressClassName` when both are specified"
        errors.append(invalid(f"annotations.{_CLASS_ANNOTATION}", annotation, text))
    return errors


def _validate_rule(rule: Json, path: str, errors: list[FieldError], *, kept: bool) -> None:
    host = rule.get("host", "")
    if host:
        if _is_ip(host):
            text = "must be a DNS name, not an IP address"
            errors.append(invalid(f"{path}.host", host, text))
        errors += _host_errors(host, f"{path}.host")
    http = rule.get("http")
    if http is None or (kept and "*" in host):
        return
    paths = http.get("paths") or ()
    if not paths:
        errors.append(required(f"{path}.http.paths"))
    for index, each in enumerate(paths):
        _validate_path(each, f"{path}.http.paths[{index}]", errors)


def _host_errors(host: str, path: str) -> list[FieldError]:
    if "*" not in host:
        problem = validation.dns1123_subdomain_error(host)
        return [invalid(path, host, problem)] if problem else []
    if host.startswith("*.") and not validation.dns1123_subdomain_error(host[2:]):
        return []
    text = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain"
    return [invalid(path, host, text)]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _validate_path(entry: Json, path: str, errors: list[FieldError]) -> None:
    kind, text = entry.get("pathType"), entry.get("path", "")
    if kind is None:
        errors.append(required(f"{path}.pathType", "pathType must be specified"))
        return
    where = f"{path}.path"
    if kind in (_EXACT, _PREFIX):
        if not text.startswith("/"):
            errors.append(invalid(where, text, "must be an absolute path"))
        errors += [
            invalid(where, text, f"must not contain '{each}'")
            for each in _FORBIDDEN_IN_PATHS
            if each in text
        ]
        errors += [
            invalid(where, text, f"cannot end with '{each}'")
            for each in _FORBIDDEN_SUFFIXES
            if text.endswith(each)
        ]
    elif kind != _SPECIFIC:
        supported = (_EXACT, _SPECIFIC, _PREFIX)
        errors.append(not_supported(f"{path}.pathType", kind, supported))
    elif text and not text.startswith("/"):
        errors.append(invalid(where, text, "must be an absolute path"))
    _validate_backend(entry.get("backend") or {}, f"{path}.backend", errors)


def _validate_backend(backend: Json, path: str, errors: list[FieldError]) -> None:
    resource, service = backend.get("resource"), backend.get("service")
    if resource is not None and service is not None:
        errors.append(invalid(path, "", "cannot set both resource and service backends"))
    elif resource is not None:
        errors += _reference_errors(resource, f"{path}.resource")
    elif service is not None:
        _validate_service(service, path, errors)
    else:
        errors.append(invalid(path, "", "resource or service backend is required"))


def _validate_service(service: Json, path: str, errors: list[FieldError]) -> None:
    name, port = service.get("name", ""), service.get("port") or {}
    if not name:
        errors.append(required(f"{path}.service.name"))
    elif problem := validation.dns1035_label_error(name):
        errors.append(invalid(f"{path}.service.name", name, problem))
    port_name, number = port.get("name", ""), port.get("number", 0)
    where = f"{path}.service.port"
    if port_name and number:
        errors.append(invalid(path, "", "cannot set both port name & port number"))
    elif port_name:
        problems = port_name_errors(port_name)
        errors += [invalid(f"{where}.name", port_name, problem) for problem in problems]
    elif not number:
        errors.append(required(path, "port name or number is required"))
    elif not 1 <= number <= _MAX_PORT:
        text = f"must be between 1 and {_MAX_PORT}, inclusive"
        errors.append(invalid(f"{where}.number", number, text))


def _validate_tls(tls: Json, path: str, errors: list[FieldError], *, kept: bool) -> None:
    for index, host in enumerate(tls.get("hosts") or ()):
        errors += _host_errors(host, f"{path}.hosts[{index}]")
    name = tls.get("secretName", "")
    if name and not kept and (problem := validation.dns1123_subdomain_error(name)):
        errors.append(invalid(f"{path}.secretName", name, problem))
