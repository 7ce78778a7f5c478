"""Runtime classes of new pods: their overhead and scheduling; all containers run alike."""

from collections.abc import Mapping
from typing import Any

from ....model import quantity
from ....model.names import Resource
from ..http.requests import Json

RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)

_MISMATCH = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
_WITHOUT_CLASS = (
    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
)


def apply_runtime_class(spec: Json, runtime_class: Json | None) -> str:
    """Set what the class defines in the *spec* of a pod; return why the pod is rejected, if it is.

    *runtime_class*: the one that the spec names; ``None`` if there is none, or it names none.
    """
    name = spec.get("runtimeClassName")
    if name is not None and runtime_class is None:
        return f'pod rejected: RuntimeClass "{name}" not found'
    runtime_class = runtime_class or {}
    own = spec.get("overhead") or {}
    if (overhead := runtime_class.get("overhead")) is None:
        if own:
            return _WITHOUT_CLASS
    else:
        defined = overhead.get("podFixed") or {}
        if own and not _equal(own, defined):
            return _MISMATCH
        if defined:
            spec["overhead"] = dict(defined)
    return _apply_scheduling(spec, runtime_class.get("scheduling") or {})


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        quantity.parse(one[name]) == quantity.parse(other[name]) for name in one
    )


def _apply_scheduling(spec: Json, scheduling: Json) -> str:
    selector = dict(spec.get("nodeSelector") or {})
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        if selector.setdefault(key, value) != value:
            return (
                f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                f"pod.spec.nodeSelector[{key}] = {selector[key]}"
            )
    if selector:
        spec["nodeSelector"] = selector
    tolerations = spec.get("tolerations") or []
    more = [each for each in scheduling.get("tolerations") or () if each not in tolerations]
    if more:
        spec["tolerations"] = [*tolerations, *more]
    return ""
