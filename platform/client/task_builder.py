"""A task of a job manifest, built of keyword arguments. Used by :mod:`.builder`."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from ..model import quantity, validation
from ..model.field_errors import ErrorList
from ..model.quantity_advice import quantity_advice
from .errors import ManifestError

Quantity: TypeAlias = str | int | float
Json: TypeAlias = dict[str, Any]

GPU = "nvidia.com/gpu"
RESTART_POLICIES = ("Never", "OnFailure", "Always")


class TaskOptions(TypedDict, total=False):
    """Optional arguments of :meth:`~.builder.Job.task`, which describes them."""

    command: Sequence[str]
    args: Sequence[str]
    env: Mapping[str, str | int | float]
    cpu: Quantity
    memory: Quantity
    gpus: int
    requests: Mapping[str, Quantity]
    limits: Mapping[str, Quantity]
    ports: Mapping[str, int]
    min_available: int
    max_retry: int
    depends_on: Sequence[str]
    restart_policy: str
    node_selector: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    pod: Mapping[str, Any]
    container: Mapping[str, Any]


def build_task(at: str, name: str, *, image: str, replicas: int, options: TaskOptions) -> Json:
    """Return a task; *at* is its path in error messages.

    Raises:
        ManifestError: a value is invalid.
    """
    errors = ErrorList()
    errors.add(f"{at}.name", validation.dns1123_label_error(name))
    minimum = options.get("min_available")
    restart_policy = options.get("restart_policy", "Never")
    check_number(f"{at}.replicas", replicas, errors)
    check_number(f"{at}.minAvailable", minimum, errors)
    check_number(f"{at}.maxRetry", options.get("max_retry"), errors)
    if minimum is not None and not errors.errors and minimum > replicas:
        errors.invalid(f"{at}.minAvailable", minimum, "must not exceed replicas")
    errors.member(f"{at}.template.spec.restartPolicy", restart_policy, RESTART_POLICIES)
    check_labels(f"{at}.template.metadata", options.get("labels"), errors)
    path = f"{at}.template.spec.containers[0]"
    container = _container(path, name, image=image, options=options, errors=errors)
    raise_errors(errors)
    spec = set_fields(
        restartPolicy=restart_policy,
        nodeSelector=dict(options.get("node_selector", {})) or None,
        containers=[{**container, **copy.deepcopy(dict(options.get("container", {})))}],
    )
    meta = set_fields(
        labels=dict(options.get("labels", {})) or None,
        annotations=dict(options.get("annotations", {})) or None,
    )
    pod = {**spec, **copy.deepcopy(dict(options.get("pod", {})))}
    depends_on = list(options.get("depends_on", ()))
    return set_fields(
        name=name,
        replicas=replicas,
        minAvailable=minimum,
        maxRetry=options.get("max_retry"),
        dependsOn={"name": depends_on} if depends_on else None,
        template=set_fields(metadata=meta or None, spec=pod),
    )


def _container(at: str, name: str, *, image: str, options: TaskOptions, errors: ErrorList) -> Json:
    command, args = options.get("command"), options.get("args")
    env, ports = options.get("env"), options.get("ports")
    resources = _resources(f"{at}.resources", options, errors)
    if not image:
        errors.required(f"{at}.image")
    for field, texts in (("command", command), ("args", args)):
        # A text is a sequence, too: of its characters.
        if isinstance(texts, str) or not all(isinstance(each, str) for each in texts or ()):
            errors.invalid(f"{at}.{field}", texts, "must be a list of texts")
    for variable in env or {}:
        errors.add(f"{at}.env[{variable}]", validation.env_name_error(variable))
    for port_name, port in (ports or {}).items():
        errors.out_of_range(f"{at}.ports[{port_name}]", port, minimum=1, maximum=65535)
    return set_fields(
        name=name,
        image=image,
        command=None if command is None else list(command),
        args=None if args is None else list(args),
        env=[{"name": key, "value": str(value)} for key, value in env.items()] if env else None,
        ports=[{"name": key, "containerPort": port} for key, port in ports.items()]
        if ports
        else None,
        resources=resources or None,
    )


def _resources(at: str, options: TaskOptions, errors: ErrorList) -> Json:
    """Return the resources of a container; as in the short form of the REST API."""
    memory, gpus = options.get("memory"), options.get("gpus")
    check_number(f"{at}[{GPU}]", gpus, errors)
    requests = set_fields(cpu=options.get("cpu"), memory=memory)
    limits = set_fields(memory=memory)
    if gpus:
        requests[GPU] = limits[GPU] = gpus
    requests |= options.get("requests") or {}
    limits |= options.get("limits") or {}
    pairs = (*requests.items(), *limits.items())
    problems = [(name, quantity_error(value)) for name, value in pairs]
    for name, text in dict.fromkeys(problems):  # memory is a request and a limit
        errors.add(f"{at}[{name}]", text)
    found = {"requests": requests, "limits": limits}
    return {
        field: {name: amount(value) for name, value in given.items()}
        for field, given in found.items()
        if given
    }


def set_fields(**fields: Any) -> Json:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def amount(value: Quantity) -> str:
    """Return a quantity as text, as manifests are written."""
    return str(value)


def quantity_error(value: Quantity) -> str:
    """Return why *value* is no amount of a resource, or ``""``."""
    text = str(value)
    if advice := quantity_advice(text):
        return advice
    return "must not be negative" if quantity.parse(text).nanos < 0 else ""


def check_number(path: str, value: int | None, errors: ErrorList) -> None:
    """Add an error unless *value* is a whole number that is not negative."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        errors.invalid(path, value, "must be a whole number")
    else:
        errors.out_of_range(path, value, minimum=0)


def check_labels(path: str, labels: Mapping[str, str] | None, errors: ErrorList) -> None:
    """Add an error for each invalid label."""
    for key, value in (labels or {}).items():
        errors.add(f"{path}.labels[{key}]", validation.qualified_name_error(key))
        errors.add(f"{path}.labels[{key}]", validation.label_value_error(value))


def raise_errors(errors: ErrorList) -> None:
    """Raise ManifestError if there are errors."""
    if errors.errors:
        raise ManifestError(errors.errors)
