"""LimitRanges: defaults of containers, and limits of pods, containers and claims; pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ....model import names
from ....model.names import Resource
from ....model.pod_resources import PodResources, effective_resources
from ....model.quantity import Quantity, parse
from ..http.requests import Json

LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
_ANNOTATION = "kubernetes.io/limit-ranger"
_CONTAINER, _POD, _CLAIM = "Container", "Pod", "PersistentVolumeClaim"

Amounts = Mapping[str, Quantity]


def set_defaults(pod: Json, limit_ranges: Iterable[Json]) -> None:
    """Set the default requests and limits of a new pod's containers."""
    for limit_range in limit_ranges:
        limits, requests = _defaults(limit_range)
        done: list[str] = []
        for key, kind in (("containers", "container"), ("initContainers", "init container")):
            for container in pod["spec"].get(key) or ():
                done += _fill(container, "requests", requests, f"request for {kind}")
                done += _fill(container, "limits", limits, f"limit for {kind}")
        if done:
            annotations = pod["metadata"].setdefault("annotations", {})
            annotations[_ANNOTATION] = f"LimitRanger plugin set: {'; '.join(done)}"


def _defaults(limit_range: Json) -> tuple[Json, Json]:
    limits: Json = {}
    requests: Json = {}
    for each in _limits(limit_range, _CONTAINER):
        limits |= each.get("default") or {}
        requests |= each.get("defaultRequest") or {}
    return limits, requests


def _fill(container: Json, key: str, defaults: Json, what: str) -> list[str]:
    """Set missing amounts; return what was done, as the annotation contains it."""
    resources = container.setdefault("resources", {})
    present = resources.get(key) or {}
    missing = sorted(defaults.keys() - present.keys())
    if not missing:
        return []
    resources[key] = {**present, **{name: defaults[name] for name in missing}}
    return [f"{', '.join(missing)} {what} {container.get('name', '')}"]


def violation(resource: Resource, obj: Json, limit_ranges: Iterable[Json]) -> str:
    """Return why a pod or claim is not within the first of *limit_ranges* that it violates.

    Empty if it is within all.
    """
    check = _CHECKS[resource]
    for limit_range in limit_ranges:
        errors = list(dict.fromkeys(check(limit_range, obj)))
        if errors:
            return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
    return ""


def _check_pod(limit_range: Json, pod: Json) -> Iterator[str]:
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for limit in limit_range["spec"].get("limits") or ():
        if limit.get("type") == _CONTAINER:
            for container in containers:
                resources = container.get("resources") or {}
                requests, used = (_parsed(resources.get(key)) for key in ("requests", "limits"))
                yield from _check(limit, requests, used)
        elif limit.get("type") == _POD:
            whole = msgspec.convert(spec, PodResources)
            yield from _check(
                limit, effective_resources(whole, "requests"), effective_resources(whole, "limits")
            )


def _check(limit: Json, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for key, check in (
        ("min", _check_minimum), ("max", _check_maximum), ("maxLimitRequestRatio", _check_ratio),
    ):  # fmt: skip
        for name, text in sorted((limit.get(key) or {}).items()):
            what = f"{name} usage per {limit['type']}"
            yield from check(what, parse(text), requests.get(name), limits.get(name))


def _check_minimum(
    what: str, least: Quantity, request: Quantity | None, limit: Quantity | None
) -> Iterator[str]:
    start = f"minimum {what} is {least}"
    if request is None:
        yield f"{start}.  No request is specified"
    elif request < least:
        yield f"{start}, but request is {request}"
    elif limit is not None and limit < least:
        yield f"{start}, but limit is {limit}"


def _check_maximum(
    what: str, most: Quantity, request: Quantity | None, limit: Quantity | None
) -> Iterator[str]:
    start = f"maximum {what} is {most}"
    if limit is None:
        yield f"{start}.  No limit is specified"
    elif limit > most:
        yield f"{start}, but limit is {limit}"
    elif request is not None and request > most:
        yield f"{start}, but request is {request}"


def _check_ratio(
    what: str, most: Quantity, request: Quantity | None, limit: Quantity | None
) -> Iterator[str]:
    name, _, kind = what.partition(" usage per ")
    start = f"{name} max limit to request ratio per {kind} is {most}"
    if not request:
        yield f"{start}, but no request is specified or request is 0"
    elif not limit:
        yield f"{start}, but no limit is specified or limit is 0"
    elif limit.nanos * 1_000_000_000 > request.nanos * most.nanos:
        yield f"{start}, but provided ratio is {limit.nanos / request.nanos:f}"


def _check_claim(limit_range: Json, claim: Json) -> Iterator[str]:
    requests = _parsed((claim["spec"].get("resources") or {}).get("requests"))
    for limit in _limits(limit_range, _CLAIM):
        for name, text in sorted((limit.get("min") or {}).items()):
            what = f"{name} usage per {_CLAIM}"
            yield from _check_minimum(what, parse(text), requests.get(name), None)
        for name, text in sorted((limit.get("max") or {}).items()):
            most, request = parse(text), requests.get(name)
            start = f"maximum {name} usage per {_CLAIM} is {most}"
            if request is None:
                yield f"{start}.  No request is specified"
            elif request > most:
                yield f"{start}, but request is {request}"


_CHECKS: Mapping[Resource, Callable[[Json, Json], Iterator[str]]] = {
    names.PODS: _check_pod,
    names.PERSISTENTVOLUMECLAIMS: _check_claim,
}
LIMITED = frozenset(_CHECKS)
"""Resources that LimitRanges limit."""


def _limits(limit_range: Json, kind: str) -> Sequence[Json]:
    found = limit_range["spec"].get("limits") or ()
    return [each for each in found if each.get("type") == kind]


def _parsed(amounts: Any) -> Amounts:
    return {name: parse(text) for name, text in (amounts or {}).items()}
