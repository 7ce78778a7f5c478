"""Validation of containers: image, ports, environment, probes, hooks, security context."""

from typing import Any

from ....model import validation
from ....model.pod_resources import SCALABLE
from ..errors.fields import (
    NOT_NEGATIVE,
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
    too_many,
)
from .enums import PROBES, PROTOCOLS, PULL_POLICIES
from .resource_validation import validate_resources
from .value_sources import validate_env_from, validate_env_source
from .volume_validation import validate_mounts

Json = dict[str, Any]

_RESTART = ("Always", "Never", "OnFailure")
_RESIZE_POLICIES = ("NotRequired", "RestartContainer")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_PROC_MOUNTS = ("Default", "Unmasked")
_SCHEMES = ("HTTP", "HTTPS")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBE_NUMBERS = (
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
)
_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_STOP_SIGNALS = (
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL",
    "SIGINT", "SIGIO", "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT",
    "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGTSTP", "SIGTTIN",
    "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH", "SIGXCPU", "SIGXFSZ",
    "SIGRTMIN", "SIGRTMAX",
    *(f"SIGRTMIN+{number}" for number in range(1, 16)),
    *(f"SIGRTMAX-{number}" for number in range(1, 15)),
)  # fmt: skip
_MAX_RULES, _MAX_EXIT_CODES = 20, 255
_RULE_ACTIONS = ("Restart", "RestartAllContainers")
_CODE_OPERATORS = ("In", "NotIn")
_LAST_PORT = 65535
_LAST_ID = 2**31 - 1
_MAX_PORT_NAME_LENGTH = 15


def validate_container(
    container: Json, path: str, volumes: dict[str, Json], errors: list[FieldError]
) -> None:
    """Validate the fields of all kinds of containers; *volumes* are the pod's."""
    image = container.get("image")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image.strip() != image:
        text = "must not have leading or trailing whitespace"
        errors.append(invalid(f"{path}.image", image, text))
    _validate_enums(container, path, errors)
    if ports := container.get("ports"):
        _validate_ports(ports, f"{path}.ports", errors)
    if env := container.get("env"):
        _validate_env(env, f"{path}.env", errors)
        _validate_env_volumes(env, f"{path}.env", volumes, errors)
    if sources := container.get("envFrom"):
        validate_env_from(sources, f"{path}.envFrom", errors)
    validate_mounts(container, path, volumes, errors)
    if resources := container.get("resources"):
        validate_resources(resources, f"{path}.resources", errors)
    if rights := container.get("securityContext"):
        validate_run_as(rights, f"{path}.securityContext", errors)
        if (mount := rights.get("procMount", "Default")) not in _PROC_MOUNTS:
            field_path = f"{path}.securityContext.procMount"
            errors.append(not_supported(field_path, mount, _PROC_MOUNTS))


def _validate_enums(container: Json, path: str, errors: list[FieldError]) -> None:
    if rules := container.get("restartPolicyRules"):
        _validate_restart_rules(container, rules, path, errors)
    for key, allowed in (
        ("imagePullPolicy", PULL_POLICIES),
        ("terminationMessagePolicy", _MESSAGE_POLICIES),
        ("restartPolicy", _RESTART),
    ):
        value = container.get(key)
        if value is not None and value not in allowed:
            errors.append(not_supported(f"{path}.{key}", value, allowed))


def _validate_restart_rules(
    container: Json, rules: list[Json], path: str, errors: list[FieldError]
) -> None:
    if not container.get("restartPolicy"):
        text = "must specify restartPolicy when restart rules are used"
        errors.append(required(f"{path}.restartPolicy", text))
    field_path = f"{path}.restartPolicyRules"
    if len(rules) > _MAX_RULES:
        errors.append(too_many(field_path, len(rules), _MAX_RULES))
    for index, rule in enumerate(rules):
        where = f"{field_path}[{index}]"
        if (action := rule.get("action")) not in _RULE_ACTIONS:
            errors.append(not_supported(f"{where}.action", action or "", _RULE_ACTIONS))
        codes = rule.get("exitCodes")
        if codes is None:
            errors.append(required(f"{where}.exitCodes", "must be specified"))
            continue
        if (operator := codes.get("operator")) not in _CODE_OPERATORS:
            path_of = f"{where}.exitCodes.operator"
            errors.append(not_supported(path_of, operator or "", _CODE_OPERATORS))
        if len(codes.get("values") or ()) > _MAX_EXIT_CODES:
            count = len(codes["values"])
            errors.append(too_many(f"{where}.exitCodes.values", count, _MAX_EXIT_CODES))


def validate_probes_and_hooks(
    container: Json, path: str, grace: int, errors: list[FieldError]
) -> None:
    """Validate probes and hooks; *grace* is the termination grace period in seconds."""
    for name, hook in container.get("lifecycle", {}).items():
        if name == "stopSignal" and hook not in _STOP_SIGNALS:
            errors.append(not_supported(f"{path}.lifecycle.{name}", hook, _STOP_SIGNALS))
        if isinstance(hook, dict):
            _validate_handler(hook, f"{path}.lifecycle.{name}", errors)
            seconds = hook.get("sleep", {}).get("seconds", 0)
            if not 0 <= seconds <= grace:
                text = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
                errors.append(invalid(f"{path}.lifecycle.{name}.sleep", seconds, text))
    for name in PROBES:
        if name in container:
            _validate_probe(container[name], f"{path}.{name}", errors)


def validate_resize_policy(
    container: Json, path: str, pod_policy: str, errors: list[FieldError]
) -> None:
    """Validate what a resize does to a container; *pod_policy* is the pod's restart policy."""
    seen: set[str] = set()
    for index, each in enumerate(container.get("resizePolicy") or ()):
        name, policy = each.get("resourceName", ""), each.get("restartPolicy", "")
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
        for value, allowed in ((name, SCALABLE), (policy, _RESIZE_POLICIES)):
            if not value:
                errors.append(required(path))
            elif value not in allowed:
                errors.append(not_supported(path, value, allowed))
        if pod_policy == "Never" and policy != "NotRequired":
            text = "must be 'NotRequired' when pod `restartPolicy` is 'Never'"
            errors.append(invalid(path, policy, text))


def validate_no_probes(container: Json, path: str, errors: list[FieldError]) -> None:
    """Check that a container that ends before the next one starts has neither probes nor hooks."""
    text = "may not be set for init containers without restartPolicy=Always"
    errors += [
        forbidden(f"{path}.{name}", text) for name in ("lifecycle", *PROBES) if name in container
    ]


def validate_host_ports(
    container: Json, path: str, taken: set[str], errors: list[FieldError]
) -> None:
    """Check for host port conflicts; *taken* are the ports in use, and is updated."""
    for index, port in enumerate(container.get("ports", ())):
        if number := port.get("hostPort"):
            name = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{number}"
            if name in taken:
                errors.append(duplicate(f"{path}.ports[{index}].hostPort", name))
            taken.add(name)


def validate_run_as(security_context: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the fields that security contexts of pods and containers have in common."""
    for key in ("runAsUser", "runAsGroup"):
        validate_id(security_context.get(key, 0), f"{path}.{key}", errors)
    for kind, spoken in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")):
        if kind in security_context:
            _validate_profile(security_context[kind], f"{path}.{kind}", spoken, errors)


def validate_id(number: int, path: str, errors: list[FieldError]) -> None:
    """Validate the id of a user or group."""
    if not 0 <= number <= _LAST_ID:
        text = f"must be between 0 and {_LAST_ID}, inclusive"
        errors.append(invalid(path, number, text))


def _validate_profile(profile: Json, path: str, kind: str, errors: list[FieldError]) -> None:
    profile_type = profile.get("type")
    if not profile_type:
        text = f"type is required when {path.rpartition('.')[2]} is set"
        errors.append(required(f"{path}.type", text))
    elif profile_type not in _PROFILES:
        errors.append(not_supported(f"{path}.type", profile_type, _PROFILES))
    elif profile_type == "Localhost" and not profile.get("localhostProfile"):
        text = f"must be set when {kind} type is Localhost"
        errors.append(required(f"{path}.localhostProfile", text))


def port_name_errors(name: str) -> list[str]:
    """Return the errors of a port name."""
    problems = []
    if len(name) > _MAX_PORT_NAME_LENGTH:
        problems.append(f"must be no more than {_MAX_PORT_NAME_LENGTH} characters")
    letters = [each for each in name if each.isascii() and each.islower()]
    digits = [each for each in name if each.isascii() and each.isdigit()]
    if not name or len(letters) + len(digits) + name.count("-") != len(name):
        text = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
        problems.append(text)
    if not letters:
        problems.append("must contain at least one letter (a-z)")
    if "--" in name:
        problems.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        problems.append("must not begin or end with a hyphen")
    return problems


def _validate_ports(ports: list[Json], path: str, errors: list[FieldError]) -> None:
    names = set()
    for index, port in enumerate(ports):
        field_path = f"{path}[{index}]"
        if name := port.get("name"):
            problems = port_name_errors(name)
            errors += [invalid(f"{field_path}.name", name, problem) for problem in problems]
            if name in names and not problems:
                errors.append(duplicate(f"{field_path}.name", name))
            names.add(name)
        if not port.get("containerPort"):
            errors.append(required(f"{field_path}.containerPort"))
        for key in ("containerPort", "hostPort"):
            if number := port.get(key):
                _validate_number(number, f"{field_path}.{key}", errors)
        protocol = port.get("protocol")
        if protocol not in PROTOCOLS:
            errors.append(not_supported(f"{field_path}.protocol", protocol, PROTOCOLS))


def _validate_number(number: int, path: str, errors: list[FieldError]) -> None:
    if not 1 <= number <= _LAST_PORT:
        errors.append(invalid(path, number, f"must be between 1 and {_LAST_PORT}, inclusive"))


def _validate_env(env: list[Json], path: str, errors: list[FieldError]) -> None:
    for index, variable in enumerate(env):
        field_path = f"{path}[{index}]"
        name = variable.get("name")
        if not name:
            errors.append(required(f"{field_path}.name"))
        elif problem := validation.env_name_error(name):
            errors.append(invalid(f"{field_path}.name", name, problem))
        source = variable.get("valueFrom")
        if source is None:
            continue
        validate_env_source(source, f"{field_path}.valueFrom", errors)
        if not source:
            *most, last = (f"`{kind}`" for kind in _SOURCES)
            text = f"must specify one of: {', '.join(most)} or {last}"
            errors.append(invalid(f"{field_path}.valueFrom", "", text))
        elif variable.get("value"):
            text = "may not be specified when `value` is not empty"
            errors.append(invalid(f"{field_path}.valueFrom", "", text))
        elif len(source) > 1:
            text = "may not have more than one field specified at a time"
            errors.append(invalid(f"{field_path}.valueFrom", "", text))


def _validate_env_volumes(
    env: list[Json], path: str, volumes: dict[str, Json], errors: list[FieldError]
) -> None:
    """Check that variables are read from files of volumes that last as long as the pod."""
    for index, variable in enumerate(env):
        source = (variable.get("valueFrom") or {}).get("fileKeyRef")
        if source is None:
            continue
        name = source.get("volumeName", "")
        field_path = f"{path}[{index}].valueFrom.fileKeyRef.volumeName"
        if name not in volumes:
            errors.append(not_found(field_path, name))
        elif "emptyDir" not in volumes[name]:
            text = "referenced volume must be of type emptyDir"
            errors.append(invalid(field_path, name, text))


def _validate_handler(action: Json, path: str, errors: list[FieldError]) -> None:
    """Check that a probe or a hook has exactly one handler."""
    handlers = [name for name in _HANDLERS if name in action]
    if not handlers:
        errors.append(required(path, "must specify a handler type"))
        return
    kind = handlers[0]
    field_path, what = f"{path}.{kind}", action[kind]
    if kind == "exec" and not what.get("command"):
        errors.append(required(f"{field_path}.command"))
    elif kind in ("httpGet", "tcpSocket", "grpc"):
        _validate_port(what.get("port", 0), f"{field_path}.port", errors)
    if kind == "httpGet":
        _validate_http(what, field_path, errors)
    text = "may not specify more than 1 handler type"
    errors += [forbidden(f"{path}.{extra}", text) for extra in handlers[1:]]


def _validate_port(port: int | str, path: str, errors: list[FieldError]) -> None:
    if isinstance(port, int):
        _validate_number(port, path, errors)
    else:
        errors += [invalid(path, port, problem) for problem in port_name_errors(port)]


def _validate_http(action: Json, path: str, errors: list[FieldError]) -> None:
    if (scheme := action.get("scheme", "HTTP")) not in _SCHEMES:
        errors.append(not_supported(f"{path}.scheme", scheme, _SCHEMES))
    names = [header.get("name", "") for header in action.get("httpHeaders", ())]
    errors += [
        invalid(f"{path}.httpHeaders", name, problem)
        for name in names
        if (problem := validation.http_header_name_error(name))
    ]


def _validate_probe(probe: Json, path: str, errors: list[FieldError]) -> None:
    _validate_handler(probe, path, errors)
    errors += [
        invalid(f"{path}.{key}", probe[key], NOT_NEGATIVE)
        for key in _PROBE_NUMBERS
        if probe.get(key, 0) < 0
    ]
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 1:
        text = "must be greater than 0"
        errors.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, text))
    if path.endswith("readinessProbe"):
        if grace is not None:
            text = "must not be set for readinessProbes"
            errors.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, text))
    elif probe.get("successThreshold", 1) != 1:
        errors.append(invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1"))
