"""Defaults, validation and warnings of batch Jobs, with kube-apiserver's messages."""

import re
from typing import Any

from ....model import meta, selectors, validation
from ..errors.fields import (
    IMMUTABLE,
    NOT_NEGATIVE,
    FieldError,
    invalid,
    not_supported,
    required,
    too_long,
)
from .job_policies import (
    internal_failure_policy,
    internal_success_policy,
    validate_failure_policy,
    validate_replacement_policy,
    validate_success_policy,
)
from .pod_defaults import default_template
from .pod_validation import validate_template
from .scheduling_validation import validate_selector
from .template_warnings import template_warnings

Json = dict[str, Any]

_UID_LABEL = "batch.kubernetes.io/controller-uid"
_NAME_LABEL = "batch.kubernetes.io/job-name"
_LEGACY_UID_LABEL = "controller-uid"
_LEGACY_NAME_LABEL = "job-name"
_MODES = ("NonIndexed", "Indexed")
_RESTART = ("OnFailure", "Never")
_COUNTS = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
)
_MAX_PARALLELISM = 100_000
_MAX_FAILED_INDEXES = 100_000
_MANY_COMPLETIONS = 100_000
_MANY_COMPLETIONS_LIMIT = 10_000
"""Maximum parallelism and failed indexes of a Job with that many completions."""

_MAX_MANAGER_LENGTH = 63
_MAX_LABEL_LENGTH = 63
_URL_PATH = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
_URL_PATH_RE = re.compile(_URL_PATH)


# -- defaults


def default_job(obj: Json) -> None:
    """Default a batch Job."""
    spec = obj.setdefault("spec", {})
    default_job_template(spec)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    has_failure_policy = "podFailurePolicy" in spec
    spec.setdefault(
        "podReplacementPolicy", "Failed" if has_failure_policy else "TerminatingOrFailed"
    )
    spec.setdefault("manualSelector", False)
    _default_labels(obj)


def default_job_template(spec: Json) -> None:
    """Default what is defaulted in the Job template of a CronJob, too."""
    default_template(spec.get("template", {}))
    for rule in spec.get("podFailurePolicy", {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            if not pattern.get("status"):
                pattern["status"] = "True"


def prepare_job_for_create(obj: Json) -> None:
    """Set the generated selector of a Job, by its uid, and the labels that it matches."""
    spec, metadata = obj["spec"], obj["metadata"]
    template = spec.get("template")
    if template is None:
        return
    if not spec.get("manualSelector"):
        uid, name = metadata.get("uid", ""), metadata.get("name", "")
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        for key in (_LEGACY_NAME_LABEL, _NAME_LABEL):
            labels.setdefault(key, name)
        for key in (_LEGACY_UID_LABEL, _UID_LABEL):
            labels.setdefault(key, uid)
        selector = spec.setdefault("selector", {})
        selector.setdefault("matchLabels", {}).setdefault(_UID_LABEL, uid)
    _default_labels(obj)


def prepare_job_for_update(obj: Json, old: Json) -> None:
    """Give the template of *old*, which an older version may have stored, today's defaults.

    Otherwise an update would seem to change fields that its client never sent.
    """
    if obj.get("spec") != old.get("spec"):
        default_job_template(old.get("spec", {}))


def _default_labels(obj: Json) -> None:
    """Give a Job without labels those of its template.

    They share one object, as in kube-apiserver, so that the Job gets the generated labels of the
    template, too, unless a webhook has replaced the object before.
    """
    labels = obj.get("spec", {}).get("template", {}).get("metadata", {}).get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = labels


# -- validation


def validate_job(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a Job, or with *old* an update of it; the status is validated elsewhere."""
    spec = obj.get("spec", {})
    if old is None:
        return [
            *_validate_generated_selector(obj, prefixed=True),
            *_validate_spec_and_selector(spec),
            *_validate_host_names(obj),
        ]
    before = old.get("spec", {})
    if spec == before:
        # Unchanged specs are valid, and all that may be needed is to remove a finalizer.
        return []
    own = _validate_spec_and_selector(spec)
    labels = _template_labels(before)
    prefixed = _NAME_LABEL in labels and _UID_LABEL in labels
    # kube-apiserver validates the spec of an update twice, and reports its causes twice.
    return [
        *_validate_generated_selector(obj, prefixed=prefixed),
        *own,
        *_validate_host_names(obj),
        *own,
        *_validate_changes(obj, old),
    ]


def _template_labels(spec: Json) -> dict[str, str]:
    labels: dict[str, str] = spec.get("template", {}).get("metadata", {}).get("labels") or {}
    return labels


def _validate_generated_selector(obj: Json, *, prefixed: bool) -> list[FieldError]:
    """Check that the labels of the template are those that the server generates.

    *prefixed* is false for a Job that an older server has created without the new labels.
    """
    spec, metadata = obj.get("spec", {}), obj["metadata"]
    selector = spec.get("selector")
    if spec.get("manualSelector") or selector is None:
        return []
    uid, name = metadata.get("uid", ""), metadata.get("name", "")
    errors = [] if uid else [required("metadata.uid")]
    expected = {_LEGACY_UID_LABEL: uid, _LEGACY_NAME_LABEL: name}
    if prefixed:
        expected |= {_UID_LABEL: uid, _NAME_LABEL: name}
    labels = _template_labels(spec)
    for key, value in expected.items():
        path = f"spec.template.metadata.labels[{key}]"
        if key not in labels:
            errors.append(required(path, f"must be '{value}'"))
        elif labels[key] != value:
            errors.append(invalid(path, _sorted(labels), f"must be '{value}'"))
    if _matches(selector, expected) is False:
        text = "`selector` not auto-generated"
        errors.append(invalid("spec.selector", shown_selector(selector), text))
    return errors


def _validate_spec_and_selector(spec: Json) -> list[FieldError]:
    errors = validate_job_spec(spec, "spec")
    selector = spec.get("selector")
    if selector is None:
        errors.append(required("spec.selector"))
    else:
        validate_selector(selector, "spec.selector", errors)
    labels = _template_labels(spec)
    if selector is None or _matches(selector, labels) is False:
        text = "`selector` does not match template `labels`"
        shown = _sorted(labels) or None
        errors.append(invalid("spec.template.metadata.labels", shown, text))
    return errors


def _matches(selector: Json, labels: dict[str, str]) -> bool | None:
    """Return whether *selector* matches; ``None`` if it is malformed, which is another error."""
    expressions = tuple(
        meta.LabelRequirement(
            key=each.get("key", ""),
            operator=each.get("operator", ""),
            values=tuple(each.get("values") or ()),
        )
        for each in selector.get("matchExpressions") or ()
    )
    given = meta.LabelSelector(
        match_labels=selector.get("matchLabels") or {}, match_expressions=expressions
    )
    try:
        return selectors.from_label_selector(given).matches(labels)
    except selectors.SelectorError:
        return None


def _sorted(labels: dict[str, str]) -> dict[str, str]:
    return dict(sorted(labels.items()))


def shown_selector(selector: Json | None) -> Json | None:
    """Return a selector in the order in which messages have its fields."""
    if selector is None:
        return None
    shown: Json = {}
    if labels := selector.get("matchLabels"):
        shown["matchLabels"] = _sorted(labels)
    if expressions := selector.get("matchExpressions"):
        shown["matchExpressions"] = [
            {key: each[key] for key in ("key", "operator", "values") if key in each}
            for each in expressions
        ]
    return shown


def validate_job_spec(spec: Json, path: str) -> list[FieldError]:
    """Validate the spec of a Job, or of the Job template of a CronJob, without its selector."""
    errors = [
        invalid(f"{path}.{key}", spec[key], NOT_NEGATIVE) for key in _COUNTS if spec.get(key, 0) < 0
    ]
    if (most := spec.get("maxFailedIndexes")) is not None:
        if most < 0:
            errors.append(invalid(f"{path}.maxFailedIndexes", most, NOT_NEGATIVE))
        if "backoffLimitPerIndex" not in spec:
            text = "when maxFailedIndexes is specified"
            errors.append(required(f"{path}.backoffLimitPerIndex", text))
    if (manager := spec.get("managedBy")) is not None:
        errors += _validate_manager(manager, f"{path}.managedBy")
    mode = spec.get("completionMode")
    if mode is not None and mode not in _MODES:
        errors.append(not_supported(f"{path}.completionMode", mode, _MODES))
    if mode == "Indexed":
        errors += _validate_indexed(spec, path)
    elif mode in (None, "NonIndexed"):
        errors += [
            invalid(f"{path}.{key}", spec[key], "requires indexed completion mode")
            for key in ("backoffLimitPerIndex", "maxFailedIndexes")
            if key in spec
        ]
    if "podFailurePolicy" in spec:
        errors += validate_failure_policy(spec, f"{path}.podFailurePolicy")
    if "successPolicy" in spec:
        errors += validate_success_policy(spec, f"{path}.successPolicy")
    errors += validate_replacement_policy(spec, f"{path}.podReplacementPolicy")
    template = spec.get("template", {})
    errors += validate_template(template, f"{path}.template")
    errors += _validate_restart_policy(spec, f"{path}.template.spec.restartPolicy")
    return errors


def _validate_restart_policy(spec: Json, path: str) -> list[FieldError]:
    policy = spec.get("template", {}).get("spec", {}).get("restartPolicy", "")
    if policy in ("", "Always"):
        return [required(path, 'valid values: "OnFailure", "Never"')]
    if policy not in _RESTART:
        return [not_supported(path, policy, _RESTART)]
    if policy != "Never" and "podFailurePolicy" in spec:
        text = 'only "Never" is supported when podFailurePolicy is specified'
        return [invalid(path, policy, text)]
    return []


def _validate_indexed(spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    parallelism, completions = spec.get("parallelism", 0), spec.get("completions")
    most, most_path = spec.get("maxFailedIndexes"), f"{path}.maxFailedIndexes"
    if completions is None:
        errors.append(required(f"{path}.completions", "when completion mode is Indexed"))
    if parallelism > _MAX_PARALLELISM:
        text = f"must be less than or equal to {_MAX_PARALLELISM} when completion mode is Indexed"
        errors.append(invalid(f"{path}.parallelism", parallelism, text))
    if most is not None and completions is not None and most > completions:
        errors.append(invalid(most_path, most, "must be less than or equal to completions"))
    if most is not None and most > _MAX_FAILED_INDEXES:
        text = f"must be less than or equal to {_MAX_FAILED_INDEXES}"
        errors.append(invalid(most_path, most, text))
    if (completions or 0) > _MANY_COMPLETIONS and "backoffLimitPerIndex" in spec:
        if most is None:
            text = f"must be specified when completions is above {_MANY_COMPLETIONS}"
            errors.append(required(most_path, text))
        text = (
            f"must be less than or equal to {_MANY_COMPLETIONS_LIMIT} when completions are above "
            f"{_MANY_COMPLETIONS} and used with backoff limit per index"
        )
        if parallelism > _MANY_COMPLETIONS_LIMIT:
            errors.append(invalid(f"{path}.parallelism", parallelism, text))
        if most is not None and most > _MANY_COMPLETIONS_LIMIT:
            errors.append(invalid(most_path, most, text))
    return errors


def _validate_manager(manager: str, path: str) -> list[FieldError]:
    """Validate the name of the controller of a Job: a path below a domain."""
    if not manager:
        return [required(path)]
    errors: list[FieldError] = []
    host, _, below = manager.partition("/")
    if not host or not below:
        text = 'must be a domain-prefixed path (such as "acme.io/foo")'
        errors.append(invalid(path, manager, text))
    else:
        if problem := validation.dns1123_subdomain_error(host):
            errors.append(invalid(path, host, problem))
        if not _URL_PATH_RE.fullmatch(below):
            text = f"Invalid path (regex used for validation is '{_URL_PATH}')"
            errors.append(invalid(path, below, text))
    if len(manager.encode()) > _MAX_MANAGER_LENGTH:
        errors.append(too_long(path, _MAX_MANAGER_LENGTH))
    return errors


def _validate_host_names(obj: Json) -> list[FieldError]:
    """Check that the host names of the pods of an Indexed Job are labels of DNS."""
    spec, name = obj.get("spec", {}), obj["metadata"].get("name", "")
    completions = spec.get("completions", 0)
    if spec.get("completionMode") != "Indexed" or completions <= 0:
        return []
    longest = f"{name}-{completions - 1}"
    if not validation.dns1123_label_error(longest):
        return []
    text = f"will not able to create pod with invalid DNS label: {longest}"
    return [invalid("metadata.name", name, text)]


# -- updates


def _validate_changes(obj: Json, old: Json) -> list[FieldError]:
    spec, before = obj["spec"], old.get("spec", {})
    errors = _validate_completions_change(spec, before)
    if spec.get("selector") != before.get("selector"):
        shown = shown_selector(spec.get("selector"))
        errors.append(invalid("spec.selector", shown, IMMUTABLE))
    errors += _validate_template_change(spec, before, old)
    shown_values = {
        "completionMode": spec.get("completionMode"),
        "podFailurePolicy": internal_failure_policy(spec.get("podFailurePolicy")),
        "backoffLimitPerIndex": spec.get("backoffLimitPerIndex"),
        "managedBy": spec.get("managedBy"),
        "successPolicy": internal_success_policy(spec.get("successPolicy")),
    }
    errors += [
        invalid(f"spec.{key}", shown, IMMUTABLE)
        for key, shown in shown_values.items()
        if spec.get(key) != before.get(key)
    ]
    return errors


def _validate_completions_change(spec: Json, before: Json) -> list[FieldError]:
    """Check that completions change only with Indexed Jobs, and together with the parallelism."""
    completions, path = spec.get("completions"), "spec.completions"
    if completions == before.get("completions"):
        return []
    if spec.get("completionMode") != "Indexed":
        return [invalid(path, completions, IMMUTABLE)]
    if completions is None or completions == spec.get("parallelism"):
        return []
    text = "can only be modified in tandem with spec.parallelism"
    return [invalid(path, completions, text)]


def _validate_template_change(spec: Json, before: Json, old: Json) -> list[FieldError]:
    template, old_template = spec.get("template", {}), before.get("template", {})
    if template == old_template:
        return []
    if not _may_change_template(old):
        return [invalid("spec.template", template, IMMUTABLE)]
    # Of a Job without pods, kube-apiserver compares only the specs of the template.
    pod, old_pod = template.get("spec", {}), old_template.get("spec", {})
    if _fixed_fields(pod, old_pod) == _fixed_fields(old_pod, pod):
        return []
    return [invalid("spec.template.spec", pod, IMMUTABLE)]


def _may_change_template(old: Json) -> bool:
    """Whether a Job is suspended and has no pods: what they ask of nodes may then change."""
    status = old.get("status", {})
    suspended = any(
        each.get("type") == "Suspended" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )
    return bool(
        old.get("spec", {}).get("suspend")
        and ("startTime" not in status or suspended)
        and not status.get("active")
    )


def _fixed_fields(pod: Json, other: Json) -> Json:
    """Return the fields of *pod* that must be equal in *other*, its spec before or after."""
    free = {"affinity", "nodeSelector", "tolerations", "schedulingGates"}
    fixed = {key: value for key, value in pod.items() if key not in free}
    affinity = {
        key: value for key, value in pod.get("affinity", {}).items() if key != "nodeAffinity"
    }
    if affinity:
        fixed["affinity"] = affinity
    for kind in ("containers", "initContainers"):
        mine, others = pod.get(kind) or (), other.get(kind) or ()
        if len(mine) == len(others):
            fixed[kind] = [
                {key: value for key, value in container.items() if key != "resources"}
                if container.get("name") == counterpart.get("name")
                else container
                for container, counterpart in zip(mine, others, strict=True)
            ]
    return fixed


# -- warnings


def job_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return kube-apiserver's warnings for a new Job, or for an update of it."""
    spec = obj.get("spec", {})
    if old is not None:
        return job_spec_warnings(spec, "spec") if spec != old.get("spec") else []
    return [*name_warnings(obj), *job_spec_warnings(spec, "spec")]


def name_warnings(obj: Json) -> list[str]:
    """Return a warning if the names of pods cannot be their host names."""
    name = obj["metadata"].get("name", "")
    problems = []
    if len(name) > _MAX_LABEL_LENGTH:
        problems.append(f"must be no more than {_MAX_LABEL_LENGTH} bytes")
    if "." in name:
        problems.append("must not contain dots")
    if not problems:
        return []
    return [
        "metadata.name: this is used in Pod names and hostnames, which can result in surprising "
        f"behavior; a DNS label is recommended: [{' '.join(problems)}]"
    ]


def job_spec_warnings(spec: Json, path: str) -> list[str]:
    """Return the warnings for the spec of a Job, or of the Job template of a CronJob."""
    warnings = template_warnings(spec.get("template", {}), f"{path}.template")
    if (
        spec.get("completionMode") == "Indexed"
        and spec.get("completions", 0) > _MANY_COMPLETIONS
        and spec.get("parallelism", 0) > _MANY_COMPLETIONS_LIMIT
    ):
        many = (
            f"{path}: In Indexed Jobs with a number of completions higher than 10^5 and a "
            "parallelism higher than 10^4, Kubernetes might not be able to track "
            "completedIndexes when a big number of indexes fail"
        )
        return [many, *warnings]
    return warnings
