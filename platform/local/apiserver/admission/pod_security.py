"""Pod Security admission: the levels that the labels of a namespace set for its pods; pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ....model.names import PODS, Resource
from ..errors.fields import FieldError, invalid
from ..http.requests import Json
from .pod_security_checks import BASELINE, RESTRICTED, Violation, violations

PREFIX = "pod-security.kubernetes.io/"
"""Prefix of the labels."""

MAX_PODS = 3000
"""Existing pods that are checked when the level of a namespace changes."""

_PRIVILEGED = "privileged"
_LEVELS = (_PRIVILEGED, BASELINE, RESTRICTED)
_VERSION = re.compile(r"v1\.(0|[1-9][0-9]*)", re.ASCII)
_LATEST = "latest"

_TEMPLATES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "podtemplates"): ("template",),
    ("", "replicationcontrollers"): ("spec", "template"),
    ("apps", "daemonsets"): ("spec", "template"),
    ("apps", "deployments"): ("spec", "template"),
    ("apps", "replicasets"): ("spec", "template"),
    ("apps", "statefulsets"): ("spec", "template"),
    ("batch", "cronjobs"): ("spec", "jobTemplate", "spec", "template"),
    ("batch", "jobs"): ("spec", "template"),
}
"""Where objects have the template of their pods, by group and plural."""


class Standard(NamedTuple):
    """A level in a version."""

    level: str = _PRIVILEGED
    version: str = _LATEST

    def __str__(self) -> str:
        return f"{self.level}:{self.version}"

    def violations(self, pod: Json) -> list[Violation]:
        """Return what a pod, or the template of one, violates."""
        minor = None if self.version == _LATEST else int(self.version.removeprefix("v1."))
        return violations(self.level, minor, pod.get("metadata"), pod.get("spec") or {})


class Policy(NamedTuple):
    """What a namespace enforces, and what it warns of."""

    enforce: Standard = Standard()
    warn: Standard = Standard()
    errors: Sequence[FieldError] = ()
    """Of its labels."""


NO_POLICY = Policy()
"""Of a namespace without labels: all is allowed."""


def policy_of(namespace: Json) -> Policy:
    """Return the policy in the labels of a namespace.

    An unknown level is enforced as the strictest one, and causes no warnings.
    """
    labels = namespace["metadata"].get("labels") or {}
    if not any(key.startswith(PREFIX) for key in labels):
        return NO_POLICY
    errors: list[FieldError] = []

    def standard(mode: str, unknown: str) -> Standard:
        level = labels.get(f"{PREFIX}{mode}", _PRIVILEGED)
        version = labels.get(f"{PREFIX}{mode}-version", _LATEST)
        if level not in _LEVELS:
            text = f"must be one of {', '.join(_LEVELS)}"
            errors.append(invalid(f"metadata.labels[{PREFIX}{mode}]", level, text))
            level = unknown
        if version != _LATEST and not _VERSION.fullmatch(version):
            text = 'must be "latest" or "v1.x"'
            errors.append(invalid(f"metadata.labels[{PREFIX}{mode}-version]", version, text))
            version = _LATEST
        return Standard(level, version)

    enforce = standard("enforce", RESTRICTED)
    standard("audit", _PRIVILEGED)
    warn = standard("warn", _PRIVILEGED)
    known = labels.get(f"{PREFIX}enforce") in _LEVELS
    if f"{PREFIX}warn" not in labels and known and enforce.level != _PRIVILEGED:
        chosen = f"{PREFIX}warn-version" in labels
        warn = Standard(enforce.level, warn.version if chosen else enforce.version)
    return Policy(enforce, warn, tuple(errors))


def template_of(resource: Resource, obj: Json) -> Json | None:
    """Return the template of the pods that an object asks for, if it has one."""
    found: Json | None = obj
    for key in _TEMPLATES[resource.group, resource.plural]:
        found = (found or {}).get(key)
    return found


def is_checked(resource: Resource) -> bool:
    """Return whether the objects of a resource are pods, or have a template of some."""
    return resource == PODS or (resource.group, resource.plural) in _TEMPLATES


def is_significant(pod: Json, old: Json) -> bool:
    """Return whether an update of a pod is checked: it changes images or adds containers."""
    spec, before = pod.get("spec") or {}, old.get("spec") or {}
    for kind in ("containers", "initContainers"):
        images = [
            [each.get("image") for each in holder.get(kind) or ()] for holder in (spec, before)
        ]
        if images[0] != images[1]:
            return True
    return False


def denial(policy: Policy, pod: Json) -> str:
    """Return why a pod may not be created; empty if it may."""
    found = policy.enforce.violations(pod)
    return _text("violates", policy.enforce, found) if found else ""


def warnings(policy: Policy, pod: Json) -> list[str]:
    """Return the warning for a pod or a template, if there is one."""
    found = policy.warn.violations(pod)
    return [_text("would violate", policy.warn, found)] if found else []


def _text(verb: str, standard: Standard, found: Iterable[Violation]) -> str:
    return f'{verb} PodSecurity "{standard}": {", ".join(map(str, found))}'


def is_stricter(new: Policy, old: Policy) -> bool:
    """Return whether existing pods may violate what a namespace enforces now."""
    if new.enforce == old.enforce or new.enforce.level == _PRIVILEGED:
        return False
    levels = [_LEVELS.index(each.enforce.level) for each in (new, old)]
    return new.enforce.version != old.enforce.version or levels[0] > levels[1]


def existing_violations(
    policy: Policy, name: str, pods: Sequence[Json], *, total: int
) -> list[str]:
    """Return warnings of the existing *pods* of the namespace *name* that violate its level.

    *total* is how many it has: of many, only the first :data:`MAX_PODS` are checked.
    """
    reasons: Counter[str] = Counter()
    first: dict[str, str] = {}
    for pod in pods:
        found = policy.enforce.violations(pod)
        if found:
            reason = ", ".join(violation.reason for violation in found)
            reasons[reason] += 1
            pod_name = pod["metadata"]["name"]
            first[reason] = min(pod_name, first.get(reason, pod_name))
    texts = []
    if len(pods) < total:
        texts.append(
            f"new PodSecurity enforce level only checked against the first {len(pods)} of "
            f"{total} existing pods"
        )
    if reasons:
        texts.append(
            f'existing pods in namespace "{name}" violate the new PodSecurity enforce level '
            f'"{policy.enforce}"'
        )
    return texts + sorted(
        f"{first[reason]}{_others(count)}: {reason}" for reason, count in reasons.items()
    )


def _others(count: int) -> str:
    if count == 1:
        return ""
    return f" (and {count - 1} other pod{'s' if count > 2 else ''})"
