"""kube-apiserver's warnings for pods, and for the kinds that have a template of pods."""

from collections.abc import Iterator
from typing import Any

from . import template_warnings as templates
from .template_warnings import template_warnings
from .volume_warnings import size_warnings

Json = dict[str, Any]

_MAX_LABEL_LENGTH = 63


def pod_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return the warnings for a new pod."""
    if old is not None:
        return []
    return [*_name_warnings(obj, "the Pod's hostname"), *templates.pod_warnings(obj)]


def pod_template_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return the warnings for a PodTemplate."""
    if not _is_changed(obj, old):
        return []
    return template_warnings(obj.get("template") or {}, "template")


def replicas_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return the warnings for a Deployment, ReplicaSet or ReplicationController."""
    found = [] if old is not None else _name_warnings(obj, "Pod names and hostnames")
    return [*found, *_of_changed_spec(obj, old)]


def stateful_set_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return the warnings for a StatefulSet, those for the sizes of its claims at each update."""
    spec = obj.get("spec") or {}
    found = _of_changed_spec(obj, old)
    for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
        path = f"spec.volumeClaimTemplates[{index}]"
        # kube-apiserver's paths differ in updates.
        found += size_warnings(claim.get("spec") or {}, path if old is None else f"{path}.Spec")
    return found


def daemon_set_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return the warnings for a DaemonSet whose template is new or changed."""
    template = _template(obj)
    if old is not None and template == _template(old):
        return []
    return template_warnings(template, "spec.template")


def _of_changed_spec(obj: Json, old: Json | None) -> list[str]:
    return template_warnings(_template(obj), "spec.template") if _is_changed(obj, old) else []


def _template(obj: Json) -> Json:
    template: Json = (obj.get("spec") or {}).get("template") or {}
    return template


def _is_changed(obj: Json, old: Json | None) -> bool:
    if old is None:
        return True
    return bool(obj["metadata"].get("generation") != old["metadata"].get("generation"))


def _name_warnings(obj: Json, use: str) -> list[str]:
    """Return a warning if the name is no DNS label."""
    problems = list(_label_problems(obj["metadata"].get("name", "")))
    if not problems:
        return []
    return [
        f"metadata.name: this is used in {use}, which can result in surprising behavior; a DNS "
        f"label is recommended: [{' '.join(problems)}]"
    ]


def _label_problems(name: str) -> Iterator[str]:
    if len(name) > _MAX_LABEL_LENGTH:
        yield f"must be no more than {_MAX_LABEL_LENGTH} characters"
    if "." in name:
        yield "must not contain dots"
