"""The subresource ``resize`` of pods: it changes CPU and memory of containers, nothing else."""

from collections.abc import Iterator
from typing import Any

from ....model.pod_resources import SCALABLE
from ..errors.fields import FieldError, forbidden, invalid
from ..kinds.info import SubresourceStrategy
from .pod_defaults import qos_class
from .pod_validation import validate_pod_spec

Json = dict[str, Any]

_CONTAINER_LISTS = ("containers", "initContainers")
_CHANGED = ("resources", "resizePolicy")
_SIDES = ("requests", "limits")
_RESTART = "RestartContainer"
_POD_LEVEL = (
    "resize of pods with pod-level resources is forbidden when "
    "InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled"
)


def _keep_all_but_resources(pod: Json, old: Json) -> None:
    """Restore all but the resources, unless containers differ, which the validation rejects."""
    spec, before = pod.get("spec") or {}, old["spec"]
    if not any(_reordered(spec, before)):
        lists = [name for name in _CONTAINER_LISTS if before.get(name)]
        pod["spec"] = before | {name: _merged(spec[name], before[name]) for name in lists}


def _merged(containers: list[Json], before: list[Json]) -> list[Json]:
    """Return *before* with the resources of *containers*."""
    return [
        {**{key: value for key, value in one.items() if key not in _CHANGED}, **_changed(each)}
        for one, each in zip(before, containers, strict=True)
    ]


def _changed(container: Json) -> Json:
    return {key: container[key] for key in _CHANGED if key in container}


def _validate(pod: Json, old: Json) -> list[FieldError]:
    spec, before = pod.get("spec") or {}, old["spec"]
    errors = validate_pod_spec(spec, "spec")
    if qos_class(spec) != qos_class(before):
        quality = pod.get("status", {}).get("qosClass", "")
        text = "Pod QOS Class may not change as a result of resizing"
        errors.append(invalid("spec", quality, text))
    if not _is_supported_by_node(old):
        errors.append(forbidden("spec", "Pod running on node without support for resize"))
    if any(before.get("resources", {}).get(side) for side in _SIDES):
        errors.append(forbidden("", _POD_LEVEL))
        return errors
    if order := list(_reordered(spec, before)):
        return [*errors, *order]
    for name in reversed(_CONTAINER_LISTS):
        pairs = zip(spec.get(name) or (), before.get(name) or (), strict=True)
        for index, (container, one) in enumerate(pairs):
            errors += _removed(container, one, f"spec.{name}[{index}].resources")
    for name in _CONTAINER_LISTS:
        pairs = zip(spec.get(name) or (), before.get(name) or (), strict=True)
        for index, (container, one) in enumerate(pairs):
            errors += _other_changes(container, one, name, index)
    return errors


def _is_supported_by_node(pod: Json) -> bool:
    """Return whether the node of a running pod reports resources, as one that resizes does."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    running = (each for each in statuses if "running" in (each.get("state") or {}))
    first = next(running, None)
    return first is None or "resources" in first


def _reordered(spec: Json, before: Json) -> Iterator[FieldError]:
    for name in _CONTAINER_LISTS:
        found, expected = spec.get(name) or (), before.get(name) or ()
        if len(found) != len(expected):
            yield forbidden(f"spec.{name}", f"{name} may not be added or removed on resize")
            continue
        for index, (container, one) in enumerate(zip(found, expected, strict=True)):
            if container.get("name") != one.get("name"):
                text = f"{name} may not be renamed or reordered on resize"
                yield forbidden(f"spec.{name}[{index}].name", text)


def _removed(container: Json, before: Json, path: str) -> Iterator[FieldError]:
    now, then = container.get("resources", {}), before.get("resources", {})
    for side in _SIDES:
        if then.get(side, {}).keys() - now.get(side, {}).keys():
            yield forbidden(f"{path}.{side}", f"resource {side} cannot be removed")


def _other_changes(container: Json, before: Json, kind: str, index: int) -> Iterator[FieldError]:
    """Yield an error if anything but CPU and memory differs."""
    if _fixed(container) != _fixed(before):
        if kind == "containers":
            yield forbidden("spec", "only cpu and memory resources are mutable")
        else:
            text = "only cpu and memory resources for init or sidecar containers are mutable"
            yield forbidden(f"spec.initContainers[{index}]", text)
    if kind == "containers" or container == before or container.get("restartPolicy") == "Always":
        return
    if any(each.get("restartPolicy") == _RESTART for each in container.get("resizePolicy", ())):
        text = (
            "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
        )
        yield forbidden(f"spec.initContainers[{index}]", text)


def _fixed(container: Json) -> Json:
    """Return what of a container may not change."""
    resources = container.get("resources", {})
    sides = {
        side: {name: text for name, text in resources.get(side, {}).items() if name not in SCALABLE}
        for side in _SIDES
    }
    return {**container, "resources": {**resources, **sides}}


RESIZE = SubresourceStrategy(_keep_all_but_resources, _validate)
