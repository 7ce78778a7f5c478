"""Validation of webhook configurations."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ....model import validation
from ..cel.policy_expressions import Expressions
from ..errors.fields import FieldError, duplicate, invalid, not_supported, required
from .expression_validation import validate_conditions
from .scheduling_validation import validate_selector

Json = dict[str, Any]

OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_REVIEW_VERSIONS = ("v1", "v1beta1")
_SCOPES = ("*", "Cluster", "Namespaced")
_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_MAX_TIMEOUT = 30
_MIN_SEGMENTS = 3


def validate_webhooks(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate the webhooks of a configuration."""
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        _validate_webhook(hook, path, errors)
        _validate_versions(hook.get("admissionReviewVersions") or (), path, errors)
        name = hook.get("name", "")
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        elif name:
            names.add(name)
    return errors


def _validate_webhook(hook: Json, path: str, errors: list[FieldError]) -> None:
    _validate_name(hook.get("name", ""), f"{path}.name", errors)
    for index, rule in enumerate(hook.get("rules") or ()):
        validate_rule(rule, f"{path}.rules[{index}]", errors)
    check_choice(hook, "failurePolicy", ("Fail", "Ignore"), path, errors)
    check_choice(hook, "matchPolicy", ("Equivalent", "Exact"), path, errors)
    if hook.get("sideEffects") is None:
        text = f"must specify one of {', '.join(_SIDE_EFFECTS)}"
        errors.append(required(f"{path}.sideEffects", text))
    check_choice(hook, "sideEffects", _SIDE_EFFECTS, path, errors)
    timeout = hook.get("timeoutSeconds")
    if timeout is not None and not 1 <= timeout <= _MAX_TIMEOUT:
        text = f"the timeout value must be between 1 and {_MAX_TIMEOUT} seconds"
        errors.append(invalid(f"{path}.timeoutSeconds", timeout, text))
    for key in ("namespaceSelector", "objectSelector"):
        if hook.get(key) is not None:
            validate_selector(hook[key], f"{path}.{key}", errors)
    check_choice(hook, "reinvocationPolicy", ("IfNeeded", "Never"), path, errors)
    if conditions := hook.get("matchConditions"):
        expressions = Expressions(params=False, namespace=False)
        validate_conditions(conditions, f"{path}.matchConditions", expressions, errors)
    _validate_client_config(hook.get("clientConfig") or {}, f"{path}.clientConfig", errors)


def check_choice(
    obj: Json, key: str, allowed: Sequence[str], path: str, errors: list[FieldError]
) -> None:
    """Check that a field has one of the values of a fixed set, if it is set."""
    if obj.get(key) is not None and obj[key] not in allowed:
        errors.append(not_supported(f"{path}.{key}", obj[key], allowed))


def _validate_name(name: str, path: str, errors: list[FieldError]) -> None:
    if not name:
        errors.append(required(path))
    elif problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid(path, name, problem))
    elif len(name.split(".")) < _MIN_SEGMENTS:
        text = "should be a domain with at least three segments separated by dots"
        errors.append(invalid(path, name, text))


def _validate_versions(versions: Sequence[str], path: str, errors: list[FieldError]) -> None:
    path = f"{path}.admissionReviewVersions"
    accepted = ", ".join(_REVIEW_VERSIONS)
    if not versions:
        errors.append(required(path, f"must specify one of {accepted}"))
        return
    for index, version in enumerate(versions):
        if version in versions[:index]:
            errors.append(invalid(f"{path}[{index}]", version, "duplicate version"))
        elif problem := validation.dns1035_label_error(version):
            errors.append(invalid(f"{path}[{index}]", version, problem))
    if not set(versions) & set(_REVIEW_VERSIONS):
        errors.append(invalid(path, versions, f"must include at least one of {accepted}"))


def validate_rule(
    rule: Json, path: str, errors: list[FieldError], *, operations: Sequence[str] = OPERATIONS
) -> None:
    """Validate one rule of a webhook or policy."""
    wanted = rule.get("operations") or ()
    if not wanted:
        errors.append(required(f"{path}.operations"))
    if len(wanted) > 1 and "*" in wanted:
        text = "if '*' is present, must not specify other operations"
        errors.append(invalid(f"{path}.operations", wanted, text))
    for index, operation in enumerate(wanted):
        if operation not in operations:
            errors.append(not_supported(f"{path}.operations[{index}]", operation, operations))
    _validate_names(rule, "apiGroups", "API groups", path, errors)
    _validate_names(rule, "apiVersions", "API versions", path, errors)
    for index, version in enumerate(rule.get("apiVersions") or ()):
        if not version:
            errors.append(required(f"{path}.apiVersions[{index}]"))
    _validate_resources(rule.get("resources") or (), f"{path}.resources", errors)
    check_choice(rule, "scope", _SCOPES, path, errors)


def _validate_names(rule: Json, key: str, what: str, path: str, errors: list[FieldError]) -> None:
    found = rule.get(key) or ()
    if not found:
        errors.append(required(f"{path}.{key}"))
    if len(found) > 1 and "*" in found:
        text = f"if '*' is present, must not specify other {what}"
        errors.append(invalid(f"{path}.{key}", found, text))


def _validate_resources(resources: Sequence[str], path: str, errors: list[FieldError]) -> None:
    if not resources:
        errors.append(required(path))
    all_subresources: set[str] = set()
    all_resources: set[str] = set()
    for index, each in enumerate(resources):
        if not each:
            errors.append(required(f"{path}[{index}]"))
            continue
        name, slash, subresource = each.partition("/")
        if not slash:
            continue
        for known, pattern in (
            (name in all_subresources, f"{name}/*"),
            (subresource in all_resources, f"*/{subresource}"),
        ):
            if known:
                text = f"if '{pattern}' is present, must not specify {each}"
                errors.append(invalid(f"{path}[{index}]", each, text))
        if subresource == "*":
            all_subresources.add(name)
        if name == "*":
            all_resources.add(subresource)
    _validate_wildcards(resources, path, errors)


def _validate_wildcards(resources: Sequence[str], path: str, errors: list[FieldError]) -> None:
    if len(resources) > 1 and "*/*" in resources:
        text = "if '*/*' is present, must not specify other resources"
        errors.append(invalid(path, resources, text))
    plain = [each for each in resources if each and "/" not in each]
    if "*" in plain and plain[-1] != "*":
        text = "if '*' is present, must not specify other resources without subresources"
        errors.append(invalid(path, resources, text))


def _validate_client_config(config: Json, path: str, errors: list[FieldError]) -> None:
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        errors.append(required(path, "exactly one of url or service is required"))
    elif url is not None:
        _validate_url(url, f"{path}.url", errors)
    else:
        _validate_service(service or {}, f"{path}.service", errors)


def _validate_url(url: str, path: str, errors: list[FieldError]) -> None:
    form = "; desired format: https://host[/path]"
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError as error:
        errors.append(required(path, f"url must be a valid URL: {error}{form}"))
        return
    if split.scheme != "https":
        text = f"'https' is the only allowed URL scheme{form}"
        errors.append(invalid(path, split.scheme, text))
    if not split.netloc:
        errors.append(invalid(path, split.netloc, f"host must be specified{form}"))
    if "@" in split.netloc:
        user = split.netloc.rpartition("@")[0]
        errors.append(invalid(path, user, "user information is not permitted in the URL"))
    if split.fragment:
        errors.append(invalid(path, split.fragment, "fragments are not permitted in the URL"))
    if split.query:
        errors.append(invalid(path, split.query, "query parameters are not permitted in the URL"))


def _validate_service(service: Json, path: str, errors: list[FieldError]) -> None:
    # As kube-apiserver, which names the one field where the other is missing.
    for key, named in (("name", "namespace"), ("namespace", "name")):
        errors += [] if service.get(key) else [required(f"{path}.{named}")]
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        text = "port is not valid: must be between 1 and 65535, inclusive"
        errors.append(invalid(f"{path}.port", port, text))
    url_path = service.get("path")
    if url_path in (None, "", "/"):
        return
    path = f"{path}.path"
    if url_path == "//":
        errors.append(invalid(path, url_path, "segment[0] may not be empty"))
        return
    if not url_path.startswith("/"):
        errors.append(invalid(path, url_path, "must start with a '/'"))
    for index, step in enumerate(url_path[1:].removesuffix("/").split("/")):
        if not step:
            errors.append(invalid(path, url_path, f"segment[{index}] may not be empty"))
        elif problem := validation.dns1123_subdomain_error(step):
            errors.append(invalid(path, url_path, f"segment[{index}]: {problem}"))
